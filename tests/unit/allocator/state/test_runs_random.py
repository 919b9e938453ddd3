"""Runs of clients that submit in any order to two nodes, whose ranks finish in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch_nb.allocator.state.runs import Effect
from monarch_nb.branches.layout import earlier_run
from unit.allocator.state.test_runs import finish, mesh, node, started, submit


class RunMachine(RuleBasedStateMachine):
    """Two nodes of a mesh, clients that submit in any order, ranks that finish in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [node(), node(first_rank=4, ready=[4, 5, 6, 7])]
        self.late: list[tuple[str, list[int], int, int]] = []
        self.numbers: dict[str, int] = {}
        self.history: dict[int, list[int]] = {rank: [] for rank in range(8)}
        self.running: dict[int, str] = {}

    def note(self, effects: list[Effect]) -> None:
        for rank, run_id in started(effects).items():
            assert rank not in self.running, "one run at a time"
            self.running[rank] = run_id
            self.history[rank].append(self.numbers[run_id])

    @rule(ranks=st.sets(st.integers(0, 7), min_size=1))
    def submit_to_the_first_node(self, ranks: set[int]) -> None:
        run_id = f"run{len(self.numbers)}"
        self.numbers[run_id] = len(self.numbers) + 1
        here, there = sorted(ranks & set(range(4))), sorted(ranks - set(range(4)))
        queued, effects = submit(self.nodes[0], run_id, here, all_ranks=sorted(ranks))
        assert queued.number == self.numbers[run_id]
        self.note(effects)
        if there:
            self.late.append((run_id, there, queued.number, earlier_run(queued.earlier, 1)))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def it_arrives_at_the_second_node(self, data: st.DataObject) -> None:
        run_id, ranks, number, after = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        self.note(submit(self.nodes[1], run_id, ranks, number=number, after=after)[1])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_rank_finishes(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.running)))
        self.note(finish(self.nodes[rank // 4], self.running.pop(rank), rank, untouched=data.draw(st.booleans())))

    @invariant()
    def every_rank_runs_in_the_order_of_numbers(self) -> None:
        for numbers in self.history.values():
            assert numbers == sorted(numbers)

    def teardown(self) -> None:
        """Everything that was submitted runs in the end, on every rank of it."""
        for run_id, ranks, number, after in self.late:
            self.note(submit(self.nodes[1], run_id, ranks, number=number, after=after)[1])
        while self.running:
            rank, run_id = self.running.popitem()
            self.note(finish(self.nodes[rank // 4], run_id, rank))
        for state in self.nodes:
            assert mesh(state).queue == []


TestRunMachine = RunMachine.TestCase
TestRunMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

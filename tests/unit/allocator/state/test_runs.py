"""The order of runs on a node: every rank gets them by number, one at a time, whatever dies or arrives late."""

from collections.abc import Iterable, Sequence

import pytest

from monarch_nb.allocator.state.runs import MAX_FINISHED_RUNS, Effect, Mesh, RankFinished, Run, RunDropped, StartRun
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.errors import MeshNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

ALL = (0, 1, 2, 3)


def node(ready: Iterable[int] = ALL, first_rank: int = 0, ranks: int = 4) -> NodeState:
    """A node with one mesh "m" of 4 ranks."""
    state = NodeState(ranks)
    state.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="me", procs=ranks))
    state.add_mesh(pb.SpawnRequest(mesh_id="m", reservation_id="r", ranks=ranks, first_rank=first_rank, world_size=8))
    for rank in ready:
        assert state.rank_ready("m", rank) == []
    return state


def submit(
    state: NodeState,
    run_id: str,
    ranks: Iterable[int] = ALL,
    *,
    all_ranks: Iterable[int] | None = None,
    number: int = 0,
    after: int = 0,
    output: int = 0,
) -> tuple[pb.Queued, list[Effect]]:
    """Submit; with a number as to a node that does not give it."""
    ranks = list(ranks)
    return state.submit(
        pb.Submit(
            mesh_id="m",
            run=run_pb2.RunSpec(run_id=run_id, number=number, output=output),
            ranks=ranks,
            all_ranks=ranks if all_ranks is None else all_ranks,
            give_number=not number,
            after=after,
            title=f"title of {run_id}",
        ),
        now=1.0,
    )


def finish(state: NodeState, run_id: str, rank: int, *, untouched: bool = False) -> list[Effect]:
    return state.result("m", run_pb2.RankResult(run_id=run_id, rank=rank, outcome=1, untouched=untouched))


def finish_all(state: NodeState, run_id: str, *, untouched: bool = False) -> list[Effect]:
    ranks = state.meshes["m"].runs[run_id].ranks
    return [effect for rank in ranks for effect in finish(state, run_id, rank, untouched=untouched)]


def started(effects: list[Effect]) -> dict[int, str]:
    return {effect.rank: effect.run.run_id for effect in effects if isinstance(effect, StartRun)}


def ended(effects: list[Effect]) -> dict[tuple[str, int], int]:
    return {(e.run_id, e.result.rank): e.result.outcome for e in effects if isinstance(e, RankFinished)}


def mesh(state: NodeState) -> Mesh:
    return state.meshes["m"]


class TestOrder:
    def test_runs_wait_their_turn_rank_by_rank(self) -> None:
        state = node()
        queued, effects = submit(state, "a")
        assert (queued.number, queued.earlier, queued.ahead) == (1, pb.EarlierRuns(), [])
        assert started(effects) == dict.fromkeys(ALL, "a")
        queued, effects = submit(state, "b")
        assert (started(effects), queued.ahead) == ({}, ["run 1 (title of a)"])
        assert started(finish(state, "a", 2)) == {2: "b"}
        assert started(finish(state, "a", 0)) == {0: "b"}

    def test_unknown_meshes_and_ranks_are_refused(self) -> None:
        state = node()
        with pytest.raises(UsageError, match="rank 9 not on this node"):
            submit(state, "a", [0, 9])
        assert (mesh(state).runs, mesh(state).last_number) == ({}, 0)
        state.release("r")
        with pytest.raises(MeshNotFound):
            submit(state, "a")


class TestGaps:
    """Nodes other than the first get the runs of each client on a way of their own, so runs may overtake."""

    def test_proceed_ends_the_wait_for_a_run_that_never_comes(self) -> None:
        state = node(first_rank=4, ready=[4])
        submit(state, "second", [4], number=7, after=6)
        assert started(mesh(state).proceed("second")) == {4: "second"}

    def test_proceed_also_frees_an_older_run_whose_own_client_is_gone(self) -> None:
        state = node(first_rank=4, ready=[4])
        submit(state, "orphan", [4], number=7, after=6)
        submit(state, "mine", [4], number=8, after=7)
        assert started(mesh(state).proceed("mine")) == {4: "orphan"}
        assert started(finish(state, "orphan", 4)) == {4: "mine"}

    def test_a_forgotten_run_has_been_here(self) -> None:
        state = node(first_rank=4, ready=[4])
        for number in range(1, MAX_FINISHED_RUNS + 3):
            submit(state, f"run{number}", [4], number=number)
            state.collected(f"run{number}")
            finish(state, f"run{number}", 4)
        assert 1 not in mesh(state).numbers
        _, effects = submit(state, "next", [4], number=1000, after=1)
        assert started(effects) == {4: "next"}

    def test_the_first_node_tells_what_must_come_before_on_each_node(self) -> None:
        state = node()
        submit(state, "a", [0, 1], all_ranks=[0, 1])
        submit(state, "b", [], all_ranks=[4, 5])
        queued, _ = submit(state, "c", ALL, all_ranks=range(8))
        assert (queued.number, queued.earlier) == (3, pb.EarlierRuns(by_node={0: 1, 1: 2}))
        queued, _ = submit(state, "d", [0], all_ranks=[0])
        assert queued.earlier == pb.EarlierRuns(of_others=3)
        queued, _ = submit(state, "e", [0, 1], all_ranks=[0, 1])
        assert queued.earlier == pb.EarlierRuns(of_others=3, by_node={0: 4})

    def test_a_number_that_the_client_knows_of_is_not_given_again(self) -> None:
        state = node()
        known = pb.Submit(mesh_id="m", run=run_pb2.RunSpec(run_id="a"), ranks=[0], give_number=True, newest=1046)
        queued, _ = state.submit(known, now=1.0)
        assert queued.number == 1047
        queued, _ = submit(state, "b", [0])
        assert queued.number == 1048

    def test_a_run_on_no_rank_of_this_node_is_done_at_once(self) -> None:
        state = node()
        queued, effects = submit(state, "elsewhere", [], all_ranks=[4])
        assert (queued.number, effects) == (1, [])
        assert mesh(state).runs["elsewhere"].finished
        assert mesh(state).queue == []


class TestAgain:
    def test_the_same_run_twice_runs_once_and_the_answer_is_that_of_the_first_time(self) -> None:
        state = node()
        for run_id in "abc":
            submit(state, run_id, all_ranks=range(8))
        again, effects = submit(state, "b", all_ranks=range(8))
        assert (again.number, again.output, again.earlier.of_others, effects) == (2, 2, 1, [])
        finish_all(state, "a")
        assert submit(state, "a")[1] == []
        assert mesh(state).last_number == 3

    def test_one_that_has_a_number_keeps_it(self) -> None:
        """The allocator was killed before it wrote the run down; its client still knows."""
        state = node()
        mesh(state).last_number = 1000
        again, _ = state.submit(
            pb.Submit(mesh_id="m", run={"run_id": "a", "number": 12, "output": 9}, ranks=[0], give_number=True), now=1.0
        )
        assert (again.number, again.output) == (12, 9)
        assert submit(state, "b")[0].number == 1001

    def test_a_result_is_taken_once_and_those_of_strangers_change_nothing(self) -> None:
        state = node()
        submit(state, "a", [0])
        for run_id, rank in (("unknown", 0), ("a", 1), ("a", 9)):
            assert finish(state, run_id, rank) == []
        assert state.result("no mesh", run_pb2.RankResult(run_id="a", rank=0)) == []
        assert not mesh(state).runs["a"].results
        assert [len(finish(state, "a", 0)) for _ in range(2)] == [1, 0]


class TestCancel:
    def test_what_waited_behind_it_goes_on(self) -> None:
        state = node(first_rank=4, ready=[4])
        submit(state, "gap", [4], number=7, after=6)
        submit(state, "next", [4], number=8)
        assert started(state.cancel("gap")) == {4: "next"}

    def test_only_where_it_has_not_begun(self) -> None:
        state = node()
        submit(state, "a", [0, 1])
        submit(state, "b", [1, 2])
        assert ended(state.cancel("b")) == {("b", 1): run_pb2.OUTCOME_CANCELLED}
        assert not mesh(state).runs["b"].finished
        assert started(finish(state, "a", 1)) == {}
        assert [state.cancel(run_id) for run_id in ("b", "unknown")] == [[], []], "again, or unknown"


class TestDrop:
    """An interrupt of a whole mesh: of what is dropped nothing begins, in whatever order things come."""

    def test_none_of_them_begins_when_another_goes(self) -> None:
        state = node(first_rank=4, ready=[4])
        submit(state, "gap", [4], number=7, after=6)  # waits, on a rank that is free
        submit(state, "next", [4], number=8)
        submit(state, "later", [4], number=9)
        begun, effects = state.drop("m", ["gap", "next"])
        assert begun == []
        assert ended(effects) == {("gap", 4): run_pb2.OUTCOME_CANCELLED, ("next", 4): run_pb2.OUTCOME_CANCELLED}
        assert started(effects) == {4: "later"}, "it was not asked to drop that one"

    def test_what_has_begun_is_told_and_goes_on_there(self) -> None:
        state = node()
        submit(state, "a", [0, 1])
        submit(state, "b", [1, 2])
        begun, effects = state.drop("m", ["a", "b"])
        assert begun == ["a", "b"]
        assert ended(effects) == {("b", 1): run_pb2.OUTCOME_CANCELLED}
        assert not mesh(state).runs["a"].finished

    def test_what_is_still_on_its_way_does_not_begin_when_it_comes(self) -> None:
        state = node()
        assert state.drop("m", ["late"]) == ([], [])
        queued, effects = submit(state, "late", [0, 1])
        assert queued.number == 1, "its client submits it to the other nodes with that"
        assert set(ended(effects).values()) == {run_pb2.OUTCOME_CANCELLED}
        assert started(effects) == {}
        assert started(submit(state, "next", [0, 1], after=1)[1]) == {0: "next", 1: "next"}


class TestDeath:
    DEATH = run_pb2.Death(signal=9, likely_cause="killed", pid=7)

    def test_running_and_queued_runs_end_on_the_dead_rank_alone(self) -> None:
        state = node()
        submit(state, "before")
        finish(state, "before", 3)  # what came before the death stands
        submit(state, "a")
        submit(state, "b", [3])
        effects = state.rank_died("m", 3, self.DEATH)
        assert ended(effects) == {("a", 3): run_pb2.OUTCOME_DIED, ("b", 3): run_pb2.OUTCOME_DIED}
        assert all(e.result.death == self.DEATH for e in effects if isinstance(e, RankFinished))
        assert not mesh(state).runs["a"].finished
        for mesh_id, rank in (("m", 9), ("released", 0)):
            assert state.rank_died(mesh_id, rank, self.DEATH) == [], "it is not here"

    def test_a_run_for_a_dead_rank_ends_there_at_once(self) -> None:
        state = node()
        state.rank_died("m", 3, self.DEATH)
        _, effects = submit(state, "a")
        assert ended(effects) == {("a", 3): run_pb2.OUTCOME_DIED}
        assert started(effects) == {0: "a", 1: "a", 2: "a"}

    def test_a_restart_ends_what_was_queued_and_takes_new_runs(self) -> None:
        state = node()
        submit(state, "a")
        submit(state, "b")
        effects = state.rank_restarting("m", 3)
        assert set(ended(effects)) == {("a", 3), ("b", 3)}
        _, effects = submit(state, "c", [3])
        assert started(effects) == {}, "not ready yet"
        assert started(state.rank_ready("m", 3)) == {3: "c"}
        assert mesh(state).ranks[3].death is None


class TestFailure:
    """A rank keeps what its newest finished run has raised."""

    def ended(self, state: NodeState, run_id: str, outcome: run_pb2.Outcome.ValueType, **failure: str) -> None:
        submit(state, run_id, [0])
        result = run_pb2.RankResult(run_id=run_id, rank=0, outcome=outcome, failure=failure)
        state.result("m", result)

    def failed(self, run_id: str = "a") -> NodeState:
        state = node()
        failure = {"name": "ValueError", "message": "bad" * 1000, "where": "train.py:41", "traceback": "…"}
        self.ended(state, run_id, run_pb2.OUTCOME_ERROR, **failure)
        return state

    @pytest.mark.parametrize("outcome", [run_pb2.OUTCOME_OK, run_pb2.OUTCOME_INTERRUPTED, None])
    def test_in_short_until_another_run_has_finished(self, outcome: run_pb2.Outcome.ValueType | None) -> None:
        state = self.failed()
        failure = mesh(state).ranks[0].failure
        assert failure is not None
        assert (failure.name, failure.where, failure.traceback) == ("ValueError", "train.py:41", "")
        assert len(failure.message) == 300
        assert mesh(state).ranks[1].failure is None
        if outcome is None:  # or the rank was replaced
            state.rank_restarting("m", 0)
            state.rank_ready("m", 0)
        else:
            submit(state, "b", [0])
            assert mesh(state).ranks[0].failure is not None, "it goes on"
            self.ended(state, "b", outcome)
        assert mesh(state).ranks[0].failure is None


def test_a_run_began_when_its_first_rank_did() -> None:
    state = node()
    submit(state, "a")
    state.begun("m", "a", 5.0)
    state.begun("m", "a", 6.0)
    assert Run.from_record(mesh(state).runs["a"].record()).started_at == 5.0


class TestAdoption:
    """A restarted allocator learns from each living rank what it runs and has done."""

    def adopted(self, running: str = "", done: Sequence[str] = ()) -> tuple[NodeState, list[Effect]]:
        state = node(ready=[])
        record = Run(pb.Submit(mesh_id="m", run={"run_id": "a", "number": 1}, ranks=[0]), 1.0).record()
        record.started.append(0)
        mesh(state).add_run(Run.from_record(record))
        return state, state.rank_adopted("m", 0, running, done)

    def test_a_run_that_the_rank_never_got_is_sent_again_and_one_that_is_done_is_not(self) -> None:
        assert [started(self.adopted(done=done)[1]) for done in ([], ["a"])] == [{0: "a"}, {}]

    @pytest.mark.parametrize("again", [False, True])
    def test_a_run_that_was_not_written_down_keeps_its_rank(self, again: bool) -> None:
        state, _ = self.adopted(running="lost", done=["a"])
        finish(state, "a", 0)
        if again:
            assert started(submit(state, "lost", [0])[1]) == {}, "it runs already"
            assert state.cancel("lost") == [], "it has begun"
        assert started(submit(state, "b", [0])[1]) == {}, "the rank is busy"
        effects = finish(state, "lost", 0)
        assert started(effects) == {0: "b"}
        assert ended(effects) == ({("lost", 0): run_pb2.OUTCOME_OK} if again else {})


class TestOutput:
    """A run gets the output that the last one on its ranks left untouched: files cost more than an empty cell."""

    def output(self, state: NodeState, run_id: str) -> int:
        return mesh(state).runs[run_id].output

    def test_untouched_everywhere(self) -> None:
        state = node()
        for run_id in "abc":
            submit(state, run_id)
            for rank in ALL:
                finish(state, run_id, rank, untouched=(run_id, rank) != ("b", 2))
        submit(state, "d", [0, 1])
        assert [self.output(state, run_id) for run_id in "abcd"] == [1, 1, 3, 3]
        runs = mesh(state).runs
        assert [mesh(state).ranks_writing(runs[run_id]) for run_id in "cd"] == [[2, 3], [0, 1]], "the newest has it"

    def test_not_of_different_runs_nor_while_another_waits_nor_after_a_death(self) -> None:
        state = node()
        for run_id, ranks in (("a", [0]), ("b", [1])):
            submit(state, run_id, ranks)
            finish_all(state, run_id, untouched=True)
        submit(state, "c", [0, 1])
        submit(state, "waits", [0])
        finish_all(state, "c", untouched=True)
        submit(state, "d", [0])
        finish_all(state, "waits", untouched=True)
        finish_all(state, "d", untouched=True)
        state.rank_restarting("m", 0)
        state.rank_ready("m", 0)
        submit(state, "e", [0])
        assert [self.output(state, run_id) for run_id in "abcde"] == [1, 2, 3, 5, 6]


class TestForgetting:
    def run_many(self, state: NodeState, count: int, *, collect: bool) -> list[Effect]:
        dropped: list[Effect] = []
        for index in range(count):
            run_id = f"run{index}"
            dropped += [e for e in submit(state, run_id, [0])[1] if isinstance(e, RunDropped)]
            finish_all(state, run_id)
            if collect:
                assert state.collected(run_id) == "m"
        return dropped

    def test_collected_runs_are_forgotten_oldest_first(self) -> None:
        state = node()
        dropped = self.run_many(state, MAX_FINISHED_RUNS + 5, collect=True)
        assert dropped == [RunDropped("m", f"run{index}") for index in range(4)]
        assert len(mesh(state).runs) == MAX_FINISHED_RUNS + 1

    def test_uncollected_ones_are_kept_twice_as_long_and_an_unfinished_one_for_ever(self) -> None:
        state = node()
        submit(state, "long", [1])
        assert self.run_many(state, 2 * MAX_FINISHED_RUNS, collect=False) == []
        assert len(mesh(state).runs) == 2 * MAX_FINISHED_RUNS + 1
        self.run_many(state, 3 * MAX_FINISHED_RUNS, collect=True)
        assert "long" in mesh(state).runs
        assert state.collected("unknown") == ""

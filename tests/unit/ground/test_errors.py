"""Errors cross processes with their facts, group by equality and show themselves."""

import inspect
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from monarch_nb import errors
from monarch_nb.errors import MonarchNbError, NoProcessGroup, RankFailure, RunFailed
from monarch_nb.ground.escapes import strip
from monarch_nb.mismatches import Called

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, MonarchNbError)]
FACTS = {
    "node": "node1",
    "pool": "lab",
    "nodes": ["node1", "node3"],
    "client": "0.1",
    "module": "torch",
    "traceback": "Traceback…",
    "name": "model",
    "owner": "alice",
    "ranks": [1, 2],
    "collective": "all_reduce",
    "reason": "interrupted",
    "why": "its time of 8 h was up",
    "by": "in the panel",
    "ended_at": 1e9,
    "waiting_helps": True,
    "transfer": "read of 64 MB from rank 3 on node0",
    "who": "vision",
    "limit": "gpus",
    "most": 8.0,
    "held": 4.0,
    "problems": {"model.weight": "[2] in the save, [3] here"},
    "of_others": True,
    "is_unfinished": True,
    "failures": [
        RankFailure(2, "node0", "error", "KeyError", "'x'", "trace", "train.py:41"),
        RankFailure(3, "node1", "died", "RankDied", "killed", signal=9, stderr_tail=("last", "words")),
    ],
}


def make(kind: type[MonarchNbError]) -> MonarchNbError:
    if issubclass(kind, errors.ActorError):
        return kind("what happened", "trainers.step", values={2: 0.5})
    names = [name for name in inspect.signature(kind).parameters if name not in ("message", "run")]
    return kind("what happened", **{name: FACTS[name] for name in names})


def test_errors_cross_processes_with_their_facts() -> None:
    for kind in CLASSES:
        error = make(kind)
        again = [pickle.loads(pickle.dumps(error))]
        if not issubclass(kind, errors.ActorError):
            again.append(MonarchNbError.from_facts(json.loads(json.dumps(error.to_facts()))))
        for each in again:
            assert (type(each), str(each), vars(each)) == (kind, str(error), vars(error))


def test_an_error_of_a_newer_version_is_still_an_error() -> None:
    unknown = MonarchNbError.from_facts({"error": "QuotaError", "message": "over quota", "limit": 3})
    assert (type(unknown), str(unknown)) == (MonarchNbError, "over quota")
    known = MonarchNbError.from_facts({"error": "NodeUnreachable", "message": "gone", "node": "n", "since": 3})
    assert isinstance(known, errors.NodeUnreachable)
    assert known.node == "n"


def test_every_class_has_a_base_that_people_catch() -> None:
    assert issubclass(errors.TargetError, ValueError)
    assert issubclass(errors.ProcessGroupAborted, RuntimeError)
    assert not issubclass(RunFailed, TimeoutError)


class TestRunFailed:
    def failed(self) -> RunFailed:
        same = [RankFailure(r, f"node{r // 4}", "error", "KeyError", "'x'", "the traceback") for r in (6, 0, 1, 2)]
        other = RankFailure(4, "node1", "died", "RankDied", "killed by signal 9", stderr_tail=("a", "b"), signal=9)
        return RunFailed(failures=[*same, other])

    def test_equal_failures_are_one_group_and_shown_once(self) -> None:
        class Run:
            number, ranks, mesh = 3, range(8), SimpleNamespace(flag=" --mesh judges")

        assert [ranks for ranks, _ in self.failed().groups()] == [[0, 1, 2, 6], [4]]
        first = str(self.failed()).splitlines()[0]
        assert first == "ranks 0-2,6: KeyError: 'x'; rank 4: RankDied: killed by signal 9"
        failed = RunFailed(failures=self.failed().failures.values(), run=Run())  # type: ignore[arg-type]
        *shown, restart, kept = failed._render_traceback_()
        text = "\n".join(shown)
        assert text.count("the traceback") == 1
        assert text.index("ranks 0-2,6") < text.index("the traceback") < text.index("rank 4") < text.index("    b")
        assert restart.startswith("%mesh restart --mesh judges -t ")
        assert kept == "5 of 8 ranks failed; results of the others are kept (-o NAME, or run.values)"

    @pytest.mark.parametrize(
        ("field", "value"),
        [("kind", "interrupted"), ("name", "E"), ("message", "m"), ("rendered", "t"), ("stderr_tail", ("t",))],
    )
    def test_different_failures_are_told_apart(self, field: str, value: object) -> None:
        facts = {"kind": "error", "name": "KeyError", "message": "'x'", "rendered": "the traceback"}
        first, second = RankFailure(0, "h", **facts), RankFailure(1, "h", **(facts | {field: value}))  # type: ignore[arg-type]
        assert len(RunFailed(failures=[first, second]).groups()) == 2

    def test_tracebacks_that_differ_in_a_number_are_one_on_few_ranks_too(self) -> None:
        def failed(rank: int, index: int, line: int = 7) -> RankFailure:
            message = f"index {index} is out of bounds"
            rendered = f'File "train.py", line {line}, in step\nIndexError: {message}'
            return RankFailure(rank, "h", "error", "IndexError", message, rendered, f"train.py:{line}")

        failures = [failed(0, 4), failed(1, 5), failed(2, 6), failed(5, 5, line=9)]
        error = RunFailed(failures=failures)
        assert [(ranks, failure.message) for ranks, failure in error.groups()] == [
            ([0, 1, 2], "index 4–6 is out of bounds"),
            ([5], "index 5 is out of bounds"),
        ]
        assert str(error).count("line 7, in step\nIndexError: index 4–6 is out of bounds") == 1
        assert error.failures[1].message == "index 5 is out of bounds", "each rank's own is there"
        assert len(error.groups(fold=False)) == 4

    def test_a_script_reads_the_tracebacks_as_plain_text_equal_ones_once(self) -> None:
        same = [
            RankFailure(r, "node0", "error", "E", "e", "\x1b[31mTraceback\x1b[0m\nE: e", "train.py:3")
            for r in (0, 1, 3)
        ]
        died = RankFailure(2, "node1", "died", "RankDied", "killed", stderr_tail=("last words",))
        restarted = RankFailure(4, "node1", "died", "RankRestarted", "restarted")
        failed = RunFailed(failures=[*same, died, restarted])
        assert str(failed).split("\n\n") == [
            "ranks 0-1,3: E: e; rank 2: RankDied: killed; rank 4 (node1): RankRestarted: restarted",
            "ranks 0-1,3 (node0)\nTraceback\nE: e",
            "rank 2 (node1)\nRankDied: killed\n    last words",
        ]
        assert failed.failures[0].traceback == "Traceback\nE: e"
        assert "\x1b[31mTraceback\x1b[0m" in failed._render_traceback_(), "a notebook shows the colours"

    def test_a_cell_shows_the_users_frames_and_one_line_for_those_of_packages(self) -> None:
        module = "\x1b[36mFile /env/lib/python3.11/site-packages/torch/nn/modules/module.py:1778\x1b[39m, in call(x)"
        frames = [f"{module}\n-> 1778 call()\n", "File /usr/lib/python3.11/contextlib.py:81, in inner()\n---> 81 f()\n"]
        users = "E  Traceback\nCell In[7], line 2\n----> 2 model(x)\n"
        rendered = "\n".join([users, *frames, *frames, "File train.py:41, in loss\n---> 41 f()\n", module, "\nE: e"])
        failed = RunFailed(failures=[RankFailure(0, "node0", "error", "E", "e", rendered, "train.py:41")])
        folded = "… 4 frames in contextlib, torch (`%mesh logs` has them)"
        kept = [users.rstrip(), folded, "File train.py:41, in loss\n---> 41 f()", module, "E: e"]
        assert "\n".join(failed._render_traceback_()[1:]) == "\n\n".join(kept)
        assert str(failed).count("contextlib.py") == 2, "a script's log has all"

    def test_where_ranks_were_is_told_once_and_of_many_nodes_some(self) -> None:
        died = [RankFailure(rank, f"node{rank}", "died", "RankDied", "killed") for rank in range(10)]
        nodes = ", ".join(f"node{rank}" for rank in range(8))
        assert str(RunFailed(failures=died)) == f"ranks 0-9 ({nodes} and 2 more): RankDied: killed"
        of_node = RankFailure(0, "node0", "died", "RankDied", "killed", of_node=True)
        assert str(RunFailed(failures=[of_node])) == "node node0: RankDied: killed"

    def test_beside_a_cause_those_that_it_took_along_are_a_line_each(self) -> None:
        cause = RankFailure(2, "node0", "error", "KeyError", "'x'", "the cause", "train.py:3")
        torn = [
            RankFailure(r, "node0", "error", "ProcessGroupAborted", "a peer died", "torn", f"train.py:{7 + r // 3}")
            for r in (0, 1, 3)
        ]
        assert str(RunFailed(failures=[*torn, cause])).split("\n\n")[1:] == ["rank 2 (node0)\nthe cause"]
        assert RunFailed(failures=[*torn, cause])._render_traceback_()[3:] == [
            "\x1b[1mranks 0-1\x1b[0m (node0)",
            "ProcessGroupAborted: a peer died (train.py:7)",
            "",
            "\x1b[1mrank 3\x1b[0m (node0)",
            "ProcessGroupAborted: a peer died (train.py:8)",
        ]
        assert "torn" in str(RunFailed(failures=torn))

    def test_it_says_how_dead_ranks_are_started_again(self) -> None:
        dead = [RankFailure(rank, "node0", "died", "RankDied", "killed") for rank in (2, 0, 1)]
        restarted = RankFailure(5, "node1", "died", "RankRestarted", "restarted")
        assert (
            RunFailed(failures=[*dead, restarted])._render_traceback_()[-1] == "%mesh restart -t 0-2 starts them again"
        )
        assert "starts" not in "".join(RunFailed(failures=[restarted])._render_traceback_())


class TestCollectivesThatDoNotMatch:
    DIED = "killed by signal 6 (SIGABRT): collectives do not match: Gloo got 4,096 bytes of a peer where this …"

    def failed(self, numbers: list[int], size: int = 4, message: str = DIED, *stack: str) -> RunFailed:
        called = [Called("the default group", size, 17, f"all_reduce of float32[{number}]") for number in numbers]
        lost = [
            RankFailure(rank, "host0", "error", "ProcessGroupAborted", "interrupted in all_reduce", called=each)
            for rank, each in enumerate(called)
        ]
        died = RankFailure(3, "host0", "died", "RankDied", message, stderr_tail=stack)
        return RunFailed(failures=[*lost, died])

    def test_the_rank_that_died_of_them_says_who_has_called_what(self) -> None:
        failed = self.failed([8, 1024, 8])
        said = "call 17 in the default group is all_reduce of float32[8] on ranks 0,2, "
        said += "all_reduce of float32[1024] on rank 1, an unknown call on rank 3: shapes differ"
        assert failed.failures[3].message == f"killed by signal 6 (SIGABRT): collectives do not match: {said}"
        rebuilt = MonarchNbError.from_facts(json.loads(json.dumps(failed.to_facts())))
        for again in (RunFailed(failures=failed.failures.values()), rebuilt):
            assert isinstance(again, RunFailed)
            assert again.failures == failed.failures, "said once, also where the failures are shown elsewhere"

    def test_it_is_the_odd_one_where_all_others_have_called_the_same(self) -> None:
        assert self.failed([8, 8, 8]).failures[3].message.endswith("on ranks 0-2, something else on rank 3")
        stack = '  File "torch/distributed/distributed_c10d.py", line 9 in all_reduce'
        told = self.failed([8, 8, 8], 4, self.DIED, stack).failures[3].message
        assert told.endswith("of float32[8] on ranks 0-2, all_reduce on rank 3: shapes or dtypes differ")
        assert self.failed([8, 8, 8], size=5).failures[3].message.endswith("on ranks 0-2"), "or a fifth"
        assert self.failed([8, 1024, 8], message="out of memory").failures[3].message == "out of memory"
        assert self.failed([]).failures[3].message == self.DIED, "nobody knows more"


def test_a_command_of_nodes_fails_on_nodes_not_on_ranks() -> None:
    def failed(*ranks: int) -> RunFailed:
        died = [
            RankFailure(rank, f"host{rank}", "died", "ProcessEnded", "exited with code 1", of_node=True)
            for rank in ranks
        ]
        return RunFailed(failures=died, run=SimpleNamespace(ranks=range(0, 40, 4)))

    assert str(failed(0, 4)) == "nodes host0, host4: ProcessEnded: exited with code 1"
    assert failed(4)._render_traceback_() == [
        "\x1b[1mnode host4\x1b[0m",
        "ProcessEnded: exited with code 1",
        "1 of 10 nodes failed; results of the others are kept (-o NAME, or run.values)",
    ]
    many = str(failed(*range(0, 40, 4)))
    assert many.startswith("nodes host0, host4, ")
    assert "host28 and 2 more: ProcessEnded" in many
    again = MonarchNbError.from_facts(failed(4).to_facts())
    assert isinstance(again, RunFailed)
    assert again.failures[4].of_node


def test_who_raised_and_lives_on_can_be_looked_into() -> None:
    """Not what was never compiled, nor what no code of theirs raised, nor who failed because of peers, nor what has
    ended."""
    raised = RankFailure(1, "node0", "error", "ValueError", "bad", rendered="Traceback …", where="cell 1:3")
    pushed = RankFailure(0, "node0", "error", "NameError", "what is pushed needs file", rendered="Traceback …")
    odd = RankFailure(2, "node0", "error", "SyntaxError", "incomplete input", rendered="  x = (", where="cell 1:1")
    after = RankFailure(3, "node0", "error", "ProcessGroupAborted", "rank 1 failed", rendered="Traceback …")
    failed = RunFailed(
        failures=[pushed, raised, odd, after], run=SimpleNamespace(number=3, ranks=(0, 1, 2, 3), mesh=Mock(flag=""))
    )
    assert "debug" not in "\n".join(failed._render_traceback_())
    failed.is_held = True
    said = "%mesh debug --post-mortem -t 1 shows where it was, with all variables"
    assert failed._render_traceback_()[-1] == said
    shallow = replace(raised, rendered="ZeroDivisionError  Traceback\nCell In[3], line 1\n----> 1 1 / 0")
    deep = replace(raised, rendered=f"{shallow.rendered}\nFile a.py:3, in f()\n----> 3 1 / 0")
    for failure, is_looked_into in ((shallow, False), (deep, True)):
        failed = RunFailed(failures=[failure], run=SimpleNamespace(number=3, ranks=(1,), mesh=Mock(flag="")))
        failed.is_held = True
        assert ("debug" in "\n".join(failed._render_traceback_())) == is_looked_into
    for name in ("SystemExit", "StdinNotImplementedError", "MeshMismatch", "ModuleNotFoundError"):
        failed = RunFailed(
            failures=[replace(raised, name=name)], run=SimpleNamespace(number=3, ranks=(1,), mesh=Mock(flag=""))
        )
        failed.is_held = True
        assert "debug" not in "\n".join(failed._render_traceback_()), "the message says everything"


def test_who_has_no_group_reads_what_to_call_first_and_last() -> None:
    rendered = "NoProcessGroup      Traceback (most recent call last)\n----> 1 dist.all_reduce(x)\n\n"
    said = str(NoProcessGroup())
    rendered += f"NoProcessGroup: {said}"
    without = [RankFailure(rank, "node0", "error", "NoProcessGroup", said, rendered=rendered) for rank in (0, 1)]
    failed = RunFailed(failures=without, run=SimpleNamespace(number=3, ranks=(0, 1), mesh=Mock(flag="")))
    failed.is_held = True
    lines = [strip(line) for line in failed._render_traceback_()]
    assert lines[0] == f"ranks 0-1 (node0): {said}"
    assert lines[-1] == f"NoProcessGroup: {said}"
    assert "dist.init_process_group()" in said


def test_a_remedy_is_the_last_line() -> None:
    unknown = RankFailure(0, "node0", "error", "NameError", "name 'lr' is not defined", rendered="Traceback …")
    failed = RunFailed(failures=[unknown], run=SimpleNamespace(number=3, ranks=(0,), mesh=Mock(flag="")))
    failed.is_held, failed.remedy = True, "%mesh push lr"
    assert failed._render_traceback_()[-1] == "%mesh push lr"
    assert "debug" not in "\n".join(failed._render_traceback_())

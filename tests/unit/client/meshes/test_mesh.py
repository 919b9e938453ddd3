"""What a mesh makes of its nodes' answers; parts of a mesh."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes import looking
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.mesh import Mesh, _title
from monarch_nb.client.pools.infos import (
    RankInfo,
    ReservationInfo,
    RunInfo,
    StackReport,
    infos_of_node,
    run_infos,
)
from monarch_nb.errors import AccessDenied, RankDead, RunFailed, TargetError
from monarch_nb.ground.code_names import run_names
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.shape import Extent


def part(
    run_id: str, ranks: list[int], finished: list[int], *, number: int = 1, collected: bool = False
) -> pb.RunStatus:
    facts: dict[str, Any] = {"run_id": run_id, "ranks": ranks, "finished": finished, "number": number}
    return pb.RunStatus(**facts, all_ranks=range(8), collected=collected, title="x = 1", submitted_at=5.0)


FIRST, SECOND = [0, 1, 2, 3], [4, 5, 6, 7]


def merged(
    first: list[pb.RunStatus], second: list[pb.RunStatus], last_number: int = 10
) -> list[tuple[str, bool, tuple[int, ...]]]:
    """Return what is told of runs; `last_number` is the second node's."""
    nodes = [
        (name, pb.MeshStatus(runs=runs, ranks=[pb.Rank(rank=rank) for rank in ranks], last_number=number))
        for name, runs, ranks, number in (("node0", first, FIRST, 10), ("node1", second, SECOND, last_number))
    ]
    open_runs = [info for info in run_infos(nodes) if not (info.done and info.collected)]
    return [(info.run_id, info.done, info.finished) for info in open_runs]


class TestRunInfos:
    def test_parts_are_put_together_oldest_first(self) -> None:
        node0 = [part("b", FIRST, [1], number=2), part("a", FIRST, FIRST)]
        node1 = [part("a", SECOND, SECOND), part("b", SECOND, [6], number=2)]
        assert merged(node0, node1) == [("a", True, tuple(range(8))), ("b", False, (1, 6))]

    def test_one_that_is_not_on_every_node_goes_on(self) -> None:
        assert merged([part("a", FIRST, FIRST, number=7)], [], last_number=6) == [("a", False, tuple(FIRST))]
        elsewhere = part("a", SECOND, [4])
        elsewhere.all_ranks[:] = SECOND
        assert merged([part("a", [], [])], [elsewhere]) == [("a", False, (4,))], "it only got its number there"
        too_early = part("a", FIRST, [0], collected=True)
        assert merged([too_early], []) == [("a", False, (0, 4, 5, 6, 7))]

    def test_one_that_was_collected_is_not_told_whichever_node_learns_it_first(self) -> None:
        first, second = part("a", FIRST, FIRST), part("a", SECOND, SECOND)
        collected = part("a", FIRST, FIRST, collected=True)
        both = part("a", SECOND, SECOND, collected=True)
        for nodes in (([collected], [both]), ([collected], [second]), ([], [second]), ([first], [])):
            assert merged(*nodes) == []


def test_of_a_run_what_each_node_knows_of_its_ranks() -> None:
    parts = [part("a", FIRST, [0, 1]), part("a", SECOND, [4])]
    parts[0].failed[:], parts[0].running[:], parts[0].running_s = [1], [2], 3.5
    parts[1].failed[:], parts[1].running[:], parts[1].running_s = [4], [5, 6, 7], 3.0
    [info] = run_infos([("node", pb.MeshStatus(runs=[each])) for each in parts])
    assert (info.failed, info.running, info.running_s) == ((1, 4), (2, 5, 6, 7), 3.5)


def test_of_a_rank_where_it_waits_and_what_it_raised() -> None:
    where = {"state": run_pb2.Where.STATE_COLLECTIVE, "collective": "all_reduce", "line": "train.py:41"}
    failure = {"name": "ValueError", "message": "bad batch\nof 8", "where": "Cell In[7]:3"}
    mesh = pb.MeshStatus(ranks=[pb.Rank(rank=0, where=where, cpu=0.0), pb.Rank(rank=1, failure=failure)])
    waits, failed = infos_of_node("node0", mesh)
    assert (waits.waits_in, waits.failure, waits.cpu) == ("all_reduce (train.py:41)", "", 0.0)
    assert (failed.waits_in, failed.failure, failed.cpu) == ("", "ValueError: bad batch … (Cell In[7]:3)", None)
    mesh.ranks[1].failure.message = "invalid syntax (Cell In[7], line 3)"
    _, failed = infos_of_node("node0", mesh)
    assert failed.failure == "ValueError: invalid syntax (Cell In[7], line 3)"


def test_the_title_is_the_first_line_that_says_something() -> None:
    for code, title in (
        ("\n\n  x = 1\ny", "x = 1"),
        ("# comment\n  # another\ntrain()", "train()"),
        ("'save a/0001'\nrun()", "save a/0001"),
        ('"""Train it.\nAll night."""', "Train it."),
        ("'a' + 'b'", "'a' + 'b'"),
        ("# only this", ""),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
    ):
        assert _title(code) == title


def test_ranks_are_named_by_their_numbers_and_those_that_are_not_there_refused() -> None:
    mesh = object.__new__(Mesh)
    mesh.id, mesh.name, mesh._part = "one rank", "main", None
    mesh.reservation = cast(Any, SimpleNamespace(name="dev", id="dev"))
    mesh.core = MeshCore("one rank", {}, Extent({"hosts": 1, "procs": 4}))
    assert (mesh.select(3).ranks, mesh.select([3, 1]).ranks) == ((3,), (1, 3))
    with pytest.raises(TargetError, match="rank 4 not in"):
        mesh.select(4)


@pytest.mark.parametrize(("hosts", "where"), [(1, ""), (2, " (host1)")])
def test_who_is_dead_is_named_with_its_node_where_there_are_several(
    hosts: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = object.__new__(Mesh)
    mesh.id, mesh.name, mesh._part = f"a dead rank of {hosts}", "main", None
    mesh.core = MeshCore(mesh.id, {}, Extent({"hosts": hosts, "procs": 2}))
    mesh.core.connections = {node: cast(Connection, SimpleNamespace(name=f"host{node}")) for node in range(hosts)}
    mesh.core.dead = {2 * hosts - 1: "killed by signal 9"}

    async def nothing_new() -> None:
        pass

    monkeypatch.setattr(mesh.core, "status", nothing_new)
    monkeypatch.setattr(mesh.core, "is_up", lambda _: True)
    which = re.escape(f"rank {2 * hosts - 1}{where}")
    with pytest.raises(RankDead, match=rf"{which} is dead \(killed by signal 9\): %mesh"):
        mesh.push({"x": 1})


def test_stacks_read_well() -> None:
    report = StackReport([((0, 1, 2), "File train.py:41\n"), ((3,), "")])
    assert str(report).splitlines()[1::2] == ["File train.py:41", "no answer"]
    assert str(report).splitlines()[0].startswith("── ranks 0-2 ─")


class Going:
    """A run that goes on, as this process knows it."""

    done, number, submitted_at, cell_number = False, 0, 0.0, 0
    title = notebook = owner = ""
    is_script = is_calls = False

    def __init__(self, run_id: str, ranks: tuple[int, ...]) -> None:
        self.id, self.ranks = run_id, ranks
        self.refusal: AccessDenied | None = None

    def left(self) -> tuple[int, ...]:
        return self.ranks


def test_runs_that_go_on_here_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = object.__new__(Mesh)
    mesh._part = (0, 1)
    known, new, elsewhere = (
        Going(run_id, ranks) for run_id, ranks in (("known", (0,)), ("under way", (1,)), ("under way elsewhere", (2,)))
    )
    runs_here = {run.id: run for run in (known, new, elsewhere)}
    mesh.core = cast(MeshCore, SimpleNamespace(runs=runs_here, under_way=lambda: [known, new, elsewhere]))
    facts: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        ("over", (0,), (0,)),
        ("known", (0,), ()),
        ("goes on", (1, 2), ()),
        ("not here", (3,), ()),
    ]
    infos = [RunInfo(run_id, 1, "", ranks, finished, False, 0.0, 0) for run_id, ranks, finished in facts]
    asked = 0

    def runs(_: Mesh) -> list[RunInfo]:
        nonlocal asked
        asked += 1  # a second each while a node does not answer
        return infos

    monkeypatch.setattr(Mesh, "runs", runs)
    followed: list[str] = []

    def follow(_: Mesh, info: RunInfo) -> Any:
        followed.append(info.run_id)
        return Going(info.run_id, info.ranks)

    monkeypatch.setattr(looking, "follow", follow)
    assert [info.run_id for info in mesh.unfinished()] == ["known", "goes on", "under way"]
    assert (asked, followed) == (1, []), "a question follows nothing"
    assert [run.id for run in mesh.running()] == ["known", "goes on", "under way"]
    assert (asked, followed) == (2, ["goes on"])
    assert next(mesh.running()) is known
    known.refusal = AccessDenied("alice no longer shares dev with you")  # and does again
    assert next(mesh.running()) is not known


def test_ranks_of_a_node_that_does_not_answer_are_not_left_out_of_the_count() -> None:
    ranks = tuple(RankInfo(rank, "node0", 1, "idle", (), 0, "", 0.0, None) for rank in range(4))
    whole = ReservationInfo("dev", "id", "me", 2, 4, 0, "", 0.0, ranks, nodes_answering=1, size=8)
    assert whole.alive_of_all == "4 of 8, 1 node does not answer"
    dead = RankInfo(3, "node0", 1, "dead", (), 0, "", 0.0, "killed")
    assert ReservationInfo("dev", "id", "me", 1, 4, 0, "", 0.0, (*ranks[:3], dead), 1, 4).alive_of_all == "3 of 4"


def test_notebooks_are_named_where_runs_come_from_several() -> None:
    def info(run_id: str, notebook: str) -> RunInfo:
        return RunInfo(run_id, 1, "", (0,), (), False, 0.0, 3, notebook=notebook)

    assert (
        run_names([info("a", "/x/train.ipynb"), info("b", ""), info("c", "/x/train.ipynb")])["a"] == "run 1, cell [3]"
    )
    named = run_names([info("a", "/x/train.ipynb"), info("b", ""), info("c", "/x/eval.ipynb")])
    assert list(named.values()) == [
        "run 1, cell [3] of train.ipynb",
        "run 1, cell [3]",
        "run 1, cell [3] of eval.ipynb",
    ]
    named = run_names([info("a", "/x/train.ipynb"), info("b", "/y/train.ipynb")])
    assert list(named.values()) == ["run 1, cell [3] of /x/train.ipynb", "run 1, cell [3] of /y/train.ipynb"]


def test_an_expression_that_fails_is_no_code_to_look_into() -> None:
    failed = RunFailed("rank 0: NameError: name 'nothere' is not defined")
    failed.is_held = True

    def result() -> None:
        raise failed

    mesh: Any = SimpleNamespace(_start=lambda *_: SimpleNamespace(join=lambda: None, result=result))
    with pytest.raises(RunFailed):
        Mesh._finish_quietly(mesh, run_pb2.RunSpec(), "pull nothere")
    assert not failed.is_held

"""What is said of ranks whose node does not answer: also what an engine says of the job that it came from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_nb.client.advice import read_in_terminal
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.meshes import looking, printed
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.infos import RankInfo
from monarch_nb.errors import MonarchNbError, NodeUnreachable, PoolError
from monarch_nb.notebook.output import logs
from monarch_nb.proto import allocator_pb2 as pb

CANCELLED = "engine job 1 was cancelled: %mesh reserve dev --on engine asks for another", True
ONE_CANCELLED = "engine job 2 was cancelled: %mesh replace dev asks for another", False
NO_JOB = "", False


class Core:
    """Two nodes with a rank each."""

    def __init__(self, *away: int) -> None:
        self.ranks_per_node, self.reservation_id = 1, "r"
        self.connections = {node: SimpleNamespace(name=f"n{node}", absence=f"n{node} unreachable") for node in (0, 1)}
        self._away = away

    def by_node(self, ranks: Sequence[int]) -> dict[int, list[int]]:
        return {rank: [rank] for rank in ranks}

    def with_line(self, absence: str) -> str:
        return absence

    def connection_of(self, rank: int) -> Any:
        return self.connections[rank]

    def going_on(self) -> list[Any]:
        return []

    def is_node_up(self, node: int) -> bool:
        return node not in self._away

    async def status(self, *, memory: bool = False, past_runs: object = None) -> list[tuple[Any, pb.MeshStatus]]:
        there = [rank for rank in self.connections if self.is_node_up(rank)]
        if not there:
            raise NodeUnreachable("n0 does not answer", "n0")
        alive = pb.Rank.STATE_IDLE
        return [(self.connections[rank], pb.MeshStatus(ranks=[pb.Rank(rank=rank, state=alive)])) for rank in there]

    async def control(self, ranks: Sequence[int], *, stack: bool) -> Mapping[int, Any]:
        return {rank: SimpleNamespace(stack="File x.py, line 1") for rank in ranks if self.is_node_up(rank)}

    def stream(self, connections: Sequence[tuple[Any, pb.ReadLogsRequest]]) -> Iterator[LogRecord]:
        """Stands for `read_logs`."""
        for connection, request in connections:
            [rank] = request.ranks
            if not self.is_node_up(rank):
                raise NodeUnreachable(f"{connection.name} does not answer", connection.name)
            yield LogRecord(rank, "stdout", 1, "hello\n")


class MeshOf(Mesh):
    """A mesh of a core that is made up."""

    ranks: Any = ()

    def __init__(self, core: Core, ranks: Sequence[int] = (0, 1)) -> None:
        self.core, self.ranks, self.id, self.name = core, tuple(ranks), "mesh", "main"  # type: ignore[assignment]
        self.reservation = SimpleNamespace(name="dev", pool="engine-dev")  # type: ignore[assignment]

    def select(self, ranks: Any) -> Any:
        return MeshOf(self.core, ranks)  # type: ignore[arg-type]

    def past_runs(self, tracebacks_of: int = 0) -> list[Any]:
        return []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What it says, at its end."""
    says = [NO_JOB]
    monkeypatch.setattr(looking, "what_became", lambda _: says[-1])
    monkeypatch.setattr(looking, "trouble", lambda _: says[-1][0])
    monkeypatch.setattr(logs, "trouble", lambda _: says[-1][0])
    return says


def mesh_without(monkeypatch: pytest.MonkeyPatch, *away: int) -> MeshOf:
    core = Core(*away)
    monkeypatch.setattr(printed, "read_logs", core.stream)
    monkeypatch.setattr(printed, "follow_logs", lambda asked: ([record] for record in core.stream(asked)))
    return MeshOf(core)


def raised(work: Any) -> MonarchNbError:
    with pytest.raises(MonarchNbError) as caught:
        work()
    return caught.value


@pytest.mark.parametrize("follow", [False, True])
def test_when_all_nodes_are_lost_it_is_said_what_became_of_their_job(
    engine: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    mesh = mesh_without(monkeypatch, 0, 1)
    asked = (
        mesh.status,
        lambda: list(mesh.logs(follow=follow)),
        lambda: list(logs.shown_logs(mesh, None, None, follow=follow)),
    )
    for ask in asked:
        assert isinstance(raised(ask), NodeUnreachable)
        assert str(raised(ask)) == "n0 does not answer", "it is of no job"
    engine.append(("engine job 1 is being resized", False))
    for ask in asked:
        assert isinstance(raised(ask), NodeUnreachable)
        assert str(raised(ask)) == "n0 does not answer; engine job 1 is being resized"
    engine.append(CANCELLED)
    for ask in asked:
        assert type(raised(ask)) is PoolError
        assert str(raised(ask)) == CANCELLED[0]
    assert mesh.stacks().groups == [((0, 1), CANCELLED[0])]


def test_where_some_answer_what_became_of_the_others_is_said_besides(
    engine: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, said = mesh_without(monkeypatch, 1), ONE_CANCELLED[0]
    stack, hello = ((0,), "File x.py, line 1"), ["── run 1 ──", "[0] hello"]
    missing = "what rank 1 wrote is not here: n1 unreachable"
    assert mesh.stacks().groups == [stack, ((1,), "n1 unreachable")]
    assert list(logs.shown_logs(mesh, None, None)) == [*hello, missing]
    engine.append(ONE_CANCELLED)
    assert mesh.stacks().groups == [stack, ((1,), f"n1 unreachable; {said}")]
    assert list(logs.shown_logs(mesh, None, None)) == [*hello, missing, said]
    with read_in_terminal([]):
        assert "monarch-nb replace dev asks" in list(logs.shown_logs(mesh, None, None))[-1]
    assert mesh.status()[1] == RankInfo(1, "n1", 0, "unreachable", absence=f"n1 unreachable; {said}")


def test_a_silent_rank_is_none_of_its_node_s(engine: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = mesh_without(monkeypatch)
    engine.append(CANCELLED)

    async def nobody(_: Sequence[int], *, stack: bool) -> Mapping[int, Any]:
        return {}

    monkeypatch.setattr(mesh.core, "control", nobody)
    assert mesh.stacks().groups == [((0, 1), "")]


@pytest.mark.parametrize("starts", [[], ["node0 started"]])
def test_an_allocator_that_is_still_dying_is_started_again_when_it_is_dead(
    monkeypatch: pytest.MonkeyPatch, starts: list[str]
) -> None:
    """The first look finds a process that lives, but answers nobody any more."""
    looks = [[], starts]
    core: Any = SimpleNamespace(healed=[], reservation_id="r")

    def heal(say: Callable[[str], None]) -> None:
        for line in looks.pop(0):
            say(line)

    async def check_nodes(_: Sequence[int]) -> None:
        if not core.healed:
            raise NodeUnreachable("node0 does not answer", "node0")

    core.check_nodes = check_nodes
    pool = SimpleNamespace(heal=heal, end_of=lambda _: None)
    monkeypatch.setattr(looking, "pool_object", lambda _: pool)
    monkeypatch.setattr(looking, "what_became", lambda _: ("", False))
    with contextlib.nullcontext() if starts else pytest.raises(NodeUnreachable):
        looking.check_nodes(cast(Any, SimpleNamespace(core=core, ranks=[0], reservation=SimpleNamespace(pool="local"))))
    assert core.healed == starts

"""What clients read of what two nodes know: `Description` answers, and `infos` puts the answers together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.api.describe import Description, describe_environment
from monarch_nb.allocator.processes.processes import seconds_since_boot
from monarch_nb.allocator.readings.load import NodeReading, RankReading
from monarch_nb.allocator.state.state import Identity, NodeState
from monarch_nb.client.pools.held import HeldReservation, current_owner
from monarch_nb.client.pools.infos import TELLING_S, MeshInfo, RankInfo, RunInfo, reservation_info, run_infos
from monarch_nb.errors import MonarchNbError, RankFailure
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2
from monarch_nb.proto.files_pb2 import DescribeEnvironmentRequest

NAMES = ("host1", "host2")
ME = current_owner()
MINUTE_S = 60.0
CRASH = run_pb2.Death(signal=11, likely_cause="crashed", stderr_tail=["Segmentation fault"])
RAISED = run_pb2.Failure(name="ValueError", message="bad batch\nof 3", where="train.py:41", traceback="Traceback …")
WAITS = run_pb2.Where(state=run_pb2.Where.STATE_COLLECTIVE, run_id="b", collective="all_reduce", line="train.py:9")


def node(number: int) -> NodeState:
    """A node that has the ranks 0 and 1, or 2 and 3, of `main`: they are idle."""
    state = NodeState(4)
    asked = pb.ReserveRequest(reservation_id="r", name="dev", owner=ME, procs=2, nodes=2, node_rank=number)
    asked.notebook, asked.created_at, asked.time_s = "/home/me/a.ipynb", 5.0, 60 * MINUTE_S
    state.reserve(asked)
    state.confirm("r", [files_pb2.Peer(address=f"{name}:1") for name in NAMES], seconds_since_boot())
    state.share(pb.ShareRequest(reservation_id="r", to="bob", right=pb.RIGHT_RUN))
    spec = pb.SpawnRequest(reservation_id="r", mesh_id="m", name="main", ranks=2, world_size=4, node_rank=number)
    spec.first_rank = 2 * number
    for rank in state.add_mesh(spec).ranks:
        state.rank_ready("m", rank)
    return state


def begin(state: NodeState, run_id: str, number: int) -> None:
    """A cell of the notebook begins on all ranks of a node. The first node gives it its number."""
    spec = run_pb2.RunSpec(run_id=run_id, cell=run_pb2.Cell(cell_number=7))
    ranks = state.meshes["m"].ranks
    submit = pb.Submit(mesh_id="m", run=spec, ranks=ranks, title=f"{run_id}()", owner=ME, notebook="/home/me/a.ipynb")
    if 0 in ranks:
        submit.give_number = True
    else:
        submit.run.number = number
    state.submit(submit, now=10.0 + number)
    state.begun("m", run_id, time.time() - MINUTE_S)


def end(
    state: NodeState,
    run_id: str,
    rank: int,
    outcome: run_pb2.Outcome.ValueType = run_pb2.OUTCOME_OK,
    failure: run_pb2.Failure | None = None,
) -> None:
    result = run_pb2.RankResult(run_id=run_id, rank=rank, outcome=outcome, duration_s=2.0 + rank, failure=failure)
    state.result("m", result)


def told(name: str, state: NodeState) -> pb.StatusReply:
    """What a node answers to who asks for everything, as it comes over the wire."""

    async def nothing(*_: object) -> None: ...

    async def read(pids: list[int]) -> NodeReading:
        return NodeReading(ranks={pid: RankReading(0.5, 1000 + pid) for pid in pids})

    living = [rank for rank, slot in state.meshes["m"].ranks.items() if slot.death is None]
    processes = {("m", rank): SimpleNamespace(record=SimpleNamespace(process=_pid(100 + rank))) for rank in living}
    where = {100: WAITS}
    templates = SimpleNamespace(error="", ready=asyncio.Event())
    parts: dict[str, Any] = {
        "identity": Identity(name, f"{name}:1", [], "python", name, "eth0", isolated=False, token=name),
        "state": state,
        "supervisor": SimpleNamespace(ranks=processes, templates=templates),
        "readings": SimpleNamespace(read=read, look_at_gpus=nothing),
        "whereabouts": SimpleNamespace(refresh=nothing, of=lambda pid, _: where.get(pid)),
        "actors": SimpleNamespace(refresh=nothing, of=lambda _: ((), 0), memory_bytes=lambda _: 0),
        "leases": SimpleNamespace(expiry=SimpleNamespace(is_busy=lambda _: False)),
        "scripts": SimpleNamespace(at_work=lambda *_: None),
        "grace": SimpleNamespace(armed=lambda _: None),
    }
    past = pb.PastRuns(mesh_id="m", tracebacks_of=1)
    of_node: Any = SimpleNamespace(**parts)
    reply = asyncio.run(Description(of_node).status(memory=True, readings=True, past_runs=past))
    return pb.StatusReply.FromString(reply.SerializeToString())


def _pid(pid: int) -> SimpleNamespace:
    return SimpleNamespace(pid=pid)


def test_what_nodes_know_is_what_clients_read() -> None:
    states = [node(0), node(1)]
    for state in states:
        begin(state, "a", 1)
    end(states[0], "a", 0)
    end(states[0], "a", 1, run_pb2.OUTCOME_ERROR, RAISED)
    end(states[1], "a", 2, run_pb2.OUTCOME_INTERRUPTED, run_pb2.Failure(name="KeyboardInterrupt"))
    states[1].rank_died("m", 3, CRASH)
    for state in states:
        begin(state, "b", 2)
    end(states[1], "b", 2)

    replies = dict(zip(NAMES, map(told, NAMES, states), strict=True))
    assert [(reply.node.node_id, reply.node.procs, reply.node.procs_free) for reply in replies.values()] == [
        ("host1", 4, 2),
        ("host2", 4, 2),
    ]
    of_nodes: dict[int, Any] = {
        number: (SimpleNamespace(name=name, identity=None, absence=""), reply.reservations[0])
        for number, (name, reply) in enumerate(replies.items())
    }
    info = reservation_info(HeldReservation("r", of_nodes), "lab")

    busy = RankInfo(0, "host1", 100, "running", memory_bytes=1100, run_id="b", cpu=0.5)
    idle = RankInfo(2, "host2", 102, "idle", memory_bytes=1102, cpu=0.5)
    died = "killed by signal 11 (SIGSEGV): crashed"
    assert [replace(rank, running_s=0.0) for rank in info.ranks] == [
        replace(busy, waits_in="all_reduce (train.py:9)"),
        replace(busy, rank=1, pid=101, memory_bytes=1101, failure="ValueError: bad batch … (train.py:41)"),
        idle,
        RankInfo(3, "host2", 0, "dead", death=died, stderr_tail=("Segmentation fault",)),
    ]
    assert [rank.running_s for rank in info.ranks] == [pytest.approx(MINUTE_S, abs=30.0)] * 2 + [0.0] * 2
    assert (info.name, info.owner, info.right, info.pool, info.nodes, info.procs) == ("dev", ME, "own", "lab", 2, 2)
    assert (info.notebook, info.created_at, info.shares) == ("/home/me/a.ipynb", 5.0, {"bob": "run"})
    assert (info.alive_of_all, info.shape, info.nodes_answering) == ("3 of 4", "2 nodes × 2 procs", 2)
    assert info.meshes == (MeshInfo("main", 4, NAMES),)
    assert info.time_left_s == pytest.approx(60 * MINUTE_S, abs=30.0)
    assert info.idle_left_s is None

    first, second = run_infos((name, reply.reservations[0].meshes[0]) for name, reply in replies.items())
    raised = RankFailure(1, "host1", "error", "ValueError", "bad batch\nof 3", "Traceback …", "train.py:41")
    freed = RankFailure(2, "host2", "interrupted", "KeyboardInterrupt", "")
    killed = RankFailure(3, "host2", "died", "RankDied", died, signal=11, stderr_tail=("Segmentation fault",))
    cell = RunInfo("a", 1, "a()", (0, 1, 2, 3), (0, 1, 2, 3), False, 11.0, 7, notebook="/home/me/a.ipynb")
    assert first == replace(cell, failed=(1, 3), stopped=(2,), running_s=4.0, failures=(raised, freed, killed))
    lasts = RunInfo("b", 2, "b()", (0, 1, 2, 3), (2, 3), False, 12.0, 7, (3,), (0, 1), notebook="/home/me/a.ipynb")
    assert replace(second, running_s=0.0, failures=()) == lasts
    assert second.running_s == pytest.approx(MINUTE_S, abs=30.0)
    assert (first.done, second.done, second.queued) == (True, False, False)


def test_a_run_that_a_node_never_heard_of_does_not_go_on_for_ever() -> None:
    """Its client was killed while it told the nodes."""
    states = [node(0), node(1)]
    begin(states[0], "a", 1)
    for rank in states[0].meshes["m"].ranks:
        end(states[0], "a", rank)
    parts = [(name, told(name, state).reservations[0].meshes[0]) for name, state in zip(NAMES, states, strict=True)]
    submitted_at = states[0].meshes["m"].runs["a"].submitted_at
    (soon,), (later,) = (run_infos(parts, now_s=submitted_at + age_s) for age_s in (1.0, TELLING_S + 1))
    assert (soon.finished, soon.done) == ((0, 1), False)
    assert (later.finished, later.done, later.collected) == ((0, 1, 2, 3), True, False)


def test_a_run_that_a_node_tells_no_more_of_has_finished_there() -> None:
    """Both have forgotten run 1, which was collected; only host1 has learnt that run 2 was."""
    states = [node(0), node(1)]
    for number, run_id in enumerate("ab", start=1):
        for state in states:
            begin(state, run_id, number)
            for rank in state.meshes["m"].ranks:
                end(state, run_id, rank)
    meshes = [state.meshes["m"] for state in states]
    for mesh, known in zip(meshes, ("ab", "a"), strict=True):
        for run_id in known:
            mesh.runs[run_id].collected = True
            del mesh.runs[run_id]
    (info,) = run_infos(
        (name, told(name, state).reservations[0].meshes[0]) for name, state in zip(NAMES, states, strict=True)
    )
    assert (info.number, info.finished, info.collected, info.done) == (2, (0, 1, 2, 3), True, True)


async def test_a_python_that_can_not_describe_itself_is_named(tmp_path: Path) -> None:
    (broken := tmp_path / "python").write_text("#!/bin/sh\ncat > /dev/null\necho 'no such interpreter' >&2\nexit 3\n")
    broken.chmod(0o700)
    with pytest.raises(MonarchNbError, match=f"^{broken} can not describe itself: no such interpreter$"):
        await describe_environment(str(tmp_path), "", DescribeEnvironmentRequest(python=str(broken)))

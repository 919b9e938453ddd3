"""Asking and telling ranks: requests passed to their control threads, which answer while the main thread is stuck."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence

from monarch_nb.allocator.api.rules import CONTROL_RULES
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.supervisor import RankProcess
from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.config import STACKS_SIGNAL, STACKS_THREAD, cadence, patience
from monarch_nb.errors import UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire

_CONTROL_FILE = "/monarch_nb/worker/control/thread.py"
"""What the stack of a rank's control thread goes through, which tells nobody anything."""


def interrupt(node: Node, run_id: str, by: str = "", whence: str = "", *, by_sigterm: bool = False) -> None:
    """Drop a run where it has not begun, and interrupt it where it runs: one of calls on any rank, because actors may
    have called others in its name. `by` is who wants that, `whence` and `by_sigterm` as Cancel has them."""
    runs = [mesh.runs[run_id] for mesh in node.state.meshes.values() if run_id in mesh.runs]
    is_calls = any(run.is_calls for run in runs)
    other = next((run.unless_submitter(by) for run in runs), "")
    node.runs.apply(node.state.cancel(run_id, by))
    request = wire.ControlRequest(interrupt=wire.InterruptRun(run_id=run_id, by=other, whence=whence))
    for process in node.supervisor.ranks.values():
        mesh = node.state.meshes.get(process.mesh_id)
        if mesh is not None and (is_calls or mesh.ranks[process.rank].running == run_id):
            process.link.tell(request)
    if by_sigterm:
        node.scripts.give_up(run_id)
        node.grace.end_soon(run_id)
    else:
        node.scripts.interrupt(run_id)
    node.audience.hurry(run_id)


def drop(node: Node, request: pb.DropRequest, by: str) -> pb.DropReply:
    """Drop runs where they have not begun; `by` is who wants that."""
    begun, effects = node.state.drop(request.mesh_id, request.run_ids, by)
    node.runs.apply(effects)
    return pb.DropReply(begun=begun)


async def control_ranks(node: Node, request: pb.ControlRanksRequest) -> list[pb.RankReply]:
    """Pass a request to the control threads of ranks; those that do not answer in time are told apart."""
    mesh, question = node.state.mesh(request.mesh_id), request.question
    if request.kill:
        known = node.supervisor.ranks
        doomed = [
            process for rank in request.ranks if (process := known.get((request.run_id or request.mesh_id, rank)))
        ]
        node.supervisor.kill(doomed)
        return [pb.RankReply(rank=process.rank, answered=True) for process in doomed]
    if question.WhichOneof("message") not in CONTROL_RULES:
        raise UsageError("this is no question that ranks can be asked from outside")
    ranks = [rank for rank in request.ranks if rank in mesh.ranks]
    if question.HasField("arm_saves"):
        node.grace.arm(request.mesh_id, question.arm_saves)
        node.leases.expiry.watch(mesh.spec.reservation_id)
    return list(await asyncio.gather(*(_control_rank(node, request, mesh, rank) for rank in ranks)))


async def look(node: Node, request: pb.Look, ranks: Sequence[int]) -> pb.Seen:
    """Return where ranks of this node are."""
    asked = pb.ControlRanksRequest(mesh_id=request.mesh_id, ranks=ranks, timeout_s=patience(1.0), run_id=request.of_run)
    asked.question.where.run_id = request.of_run
    seen = pb.Seen(look_id=request.look_id)
    for reply in await control_ranks(node, asked):
        reply.reply.where.ClearField("running_s")  # so that those at the same place are alike
        seen.places.add(ranks=[reply.rank], where=reply.reply.where if reply.answered else None)
    return seen


def _who(node: Node, request: pb.ControlRanksRequest, mesh: Mesh, rank: int) -> RankProcess | None:
    """Return the process that a question is about: where a live rank does nothing, it is about the script there."""
    known, kind = node.supervisor.ranks, request.question.WhichOneof("message")
    if kind in ("where", "stack", "looks"):
        if process := known.get((request.run_id, rank)):
            return process
        if not mesh.ranks[rank].running and (process := node.scripts.at_work(mesh, rank)):
            return process
    if kind == "debug" and (process := known.get((request.run_id, rank))):
        return process
    return known.get((request.mesh_id, rank))


async def _control_rank(node: Node, request: pb.ControlRanksRequest, mesh: Mesh, rank: int) -> pb.RankReply:
    process = _who(node, request, mesh, rank)
    if process is None:
        return pb.RankReply(rank=rank)
    question, kind = request.question, request.question.WhichOneof("message")
    timeout_s = (request.timeout_s or 5.0) + question.debug.wait_s + question.save_now.within_s
    if kind == "stack":
        timeout_s = min(timeout_s, cadence(1.0))  # then it is looked at from outside
    reply = await _ask(process, question, timeout_s)
    if reply is None and kind == "stack" and (stack := await _stack_from_outside(node, process)):
        reply = wire.ControlReply(stack=stack)
    elif reply is None and kind == "where" and (where := _where_from_outside(process)) is not None:
        reply = wire.ControlReply(where=where)
    if reply is None:
        return pb.RankReply(rank=rank)
    if reply.saves.HasField("armed"):
        reply.saves.armed.ClearField("secret")  # known to the ranks only
    script = node.scripts.at_work(mesh, rank) if kind == "stops" else None
    if script is not None and (beside := await _ask(script, question, timeout_s)) is not None:
        reply.stops.extend(beside.stops)
    return pb.RankReply(rank=rank, answered=True, reply=reply)


async def _ask(process: RankProcess, question: wire.ControlRequest, timeout_s: float) -> wire.ControlReply | None:
    own = wire.ControlRequest()  # it gets a number of its own
    own.CopyFrom(question)
    return await process.link.control(own, timeout_s)


def _where_from_outside(process: RankProcess) -> run_pb2.Where | None:
    """Return what is known of another program (os.execv, a shell) that was interrupted: one that catches SIGINT handles
    it, and has its time."""
    interrupted_at, pid = process.interrupted_at, process.record.process.pid
    if interrupted_at is None or process.link.is_open or not processes.is_caught(pid, signal.SIGINT):
        return None
    return run_pb2.Where(state=run_pb2.Where.STATE_RUNNING, handles_s=int(time.monotonic() - interrupted_at))


async def _stack_from_outside(node: Node, process: RankProcess) -> str:
    """C code holds the GIL: faulthandler's signal handler writes the stack without it. What has no such handler would
    die of the signal: a process that is just beginning, or another program by now (os.execv)."""
    path, pid = node.supervisor.stacks(process), process.record.process.pid
    if not (process.link.is_open and processes.is_caught(pid, STACKS_SIGNAL)):
        return ""
    if (thread := processes.thread_named(pid, STACKS_THREAD)) is None:
        return ""
    path.write_bytes(b"")
    written = asyncio.Event()
    node.watch.arm(path.parent, written.set)
    os.kill(thread, STACKS_SIGNAL)  # Linux gives it to the very thread whose id is named, if that takes it
    try:
        await asyncio.wait_for(written.wait(), patience(1.0))
    except TimeoutError:
        return ""
    size_bytes = -1
    try:
        while size_bytes != (size_bytes := path.stat().st_size):  # it writes line by line, within microseconds
            await asyncio.sleep(0.01)
        threads = path.read_text(errors="replace").split("\n\n")
        return "\n\n".join(each for each in threads if _CONTROL_FILE not in each)
    except FileNotFoundError:  # the process has ended
        return ""

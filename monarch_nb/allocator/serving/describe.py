"""What a node says about itself, its reservations, ranks and runs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from monarch_nb import config
from monarch_nb.allocator.readings.load import RankReading, measure
from monarch_nb.allocator.state.runs import Mesh, Run
from monarch_nb.allocator.supervision.processes import seconds_since_boot
from monarch_nb.allocator.supervision.supervisor import python_environment
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_FAILED = (run_pb2.OUTCOME_ERROR, run_pb2.OUTCOME_DIED)
_STOPPED = (run_pb2.OUTCOME_INTERRUPTED, run_pb2.OUTCOME_CANCELLED)
FAILURE_CHARACTERS = 500
"""Of a failure's message, where its traceback is not asked for."""
ENVIRONMENT_REPORT_S = 20.0
"""How long a python may take to say what is installed; on a cold network file system it reads for seconds."""


def describe_node(node: Node) -> pb.DescribeReply:
    """Return the facts of the node."""
    return pb.DescribeReply(
        protocol=config.PROTOCOL,
        version=config.VERSION,
        node_id=node.node_id,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        procs=node.state.procs,
        gpus=[_gpu(gpu, node.state.gpu_troubles.get(gpu.index, "")) for gpu in node.gpus],
        procs_free=node.state.procs_free,
        gpus_free=len(node.state.gpus_free),
        python=node.python,
        holders=[
            pb.Holder(
                reservation=lease.request.name,
                owner=lease.request.owner,
                procs=lease.request.procs,
                gpus=lease.request.gpus,
            )
            for lease in node.state.leases.values()
        ],
        store_host=node.store_host,
        token=node.token,
        template_error=node.template_error,
        template_ready=node.template_ready.is_set(),
    )


def _gpu(gpu: pb.Gpu, trouble: str) -> pb.Gpu:
    told = pb.Gpu(trouble=trouble)
    told.MergeFrom(gpu)
    return told


async def describe_status(node: Node, *, memory: bool, readings: bool, past_runs: pb.PastRuns) -> pb.StatusReply:
    """Return everything about the node.

    Args:
        memory: also each rank's.
        readings: also how busy all are, and each mesh's newest run although it is over.
        past_runs: also of one mesh.
    """
    taken: Mapping[int, RankReading] = {}
    reply = pb.StatusReply()
    pids = [process.record.process.pid for process in node.supervisor.ranks.values()]
    if readings:
        reading, _ = await asyncio.gather(node.readings.read(pids), node.whereabouts.refresh())
        reply.readings.CopyFrom(reading.node)
        taken = reading.ranks
    elif memory:
        taken = await asyncio.to_thread(measure, pids)
    await node.look_at_gpus()
    reply.node.CopyFrom(describe_node(node))
    reply.ended.extend(node.state.ended.values())
    now_s = seconds_since_boot()
    for reservation_id, lease in node.state.leases.items():
        request, limits = lease.request, lease.limits
        busy = node.expiry.is_busy(reservation_id)
        reservation = reply.reservations.add(
            reservation_id=reservation_id,
            name=request.name,
            owner=request.owner,
            procs=request.procs,
            gpus=request.gpus,
            node_rank=request.node_rank,
            nodes=request.nodes,
            notebook=request.notebook,
            created_at=request.created_at,
            confirmed=lease.confirmed,
            time_s=limits.time_s,
            idle_s=limits.idle_s,
            time_left_s=limits.time_left_s(now_s) or 0.0,
            idle_left_s=limits.idle_left_s(now_s, busy=busy) or 0.0,
            files=lease.files,
        )
        for mesh_id, mesh in node.state.meshes.items():
            if mesh.spec.reservation_id == reservation_id:
                reservation.meshes.add(
                    mesh_id=mesh_id,
                    name=mesh.spec.name,
                    spec=mesh.spec,
                    ranks=describe_ranks(node, mesh, mesh.ranks, taken),
                    runs=_run_statuses(mesh, past_runs, with_newest=readings),
                    last_number=mesh.last_number,
                )
    return reply


def describe_ranks(
    node: Node, mesh: Mesh, ranks: Iterable[int], taken: Mapping[int, RankReading] | None = None
) -> list[pb.Rank]:
    """Return what the node knows of some ranks of a mesh.

    Args:
        taken: what they take, by pid.
    """
    described = []
    for rank in sorted(ranks):
        slot = mesh.ranks[rank]
        process = node.supervisor.ranks.get((mesh.spec.mesh_id, rank))
        pid = process.record.process.pid if process else 0
        script = None if slot.running else node.scripts.at_work(mesh, rank)
        running = script.mesh_id if script else slot.running
        message = pb.Rank(rank=rank, pid=pid, gpu_indices=slot.gpu_indices, run_id=running)
        message.trouble = "; ".join(filter(None, map(node.state.gpu_troubles.get, slot.gpu_indices)))
        if slot.death is not None:
            message.state = pb.Rank.STATE_DEAD
            message.death.CopyFrom(slot.death)
        elif not slot.ready:
            message.state = pb.Rank.STATE_STARTING
        elif running:
            message.state = pb.Rank.STATE_RUNNING
            if run := mesh.runs.get(running):
                message.running_s = time.time() - (run.started_at or run.submitted_at)
        else:
            message.state = pb.Rank.STATE_IDLE
        if slot.failure is not None:
            message.failure.CopyFrom(slot.failure)
        script_pid = script.record.process.pid if script else 0
        if where := node.whereabouts.of(script_pid or pid, running):
            message.where.CopyFrom(where)
        readings = [reading for each in (pid, script_pid) if (reading := (taken or {}).get(each))]
        message.memory_bytes = sum(reading.memory_bytes for reading in readings)
        if cpus := [reading.cpu for reading in readings if reading.cpu is not None]:
            message.cpu = sum(cpus)
        described.append(message)
    return described


async def describe_environment(
    node: Node, request: files_pb2.DescribeEnvironmentRequest
) -> files_pb2.DescribeEnvironmentReply:
    """Return what the ranks' python finds installed on the node.

    Raises:
        MonarchNbError: that python does not start, or takes too long.
    """
    asked_s = time.time()
    directory = str(node.paths.directory)
    question = {"packages": [*request.packages], "directories": [directory, *request.directories]}
    report = await _report(request.python or node.python, json.dumps(question).encode())
    return files_pb2.DescribeEnvironmentReply(
        json=report.decode(), asked_s=asked_s, now_s=time.time(), directory=directory, version=config.VERSION
    )


async def _report(python: str, question: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(
        python,
        *("-m", "monarch_nb.worker.environment_report"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=python_environment(),
    )
    try:
        async with asyncio.timeout(ENVIRONMENT_REPORT_S):
            answer, errors = await process.communicate(question)
    except TimeoutError as error:
        raise MonarchNbError(f"{python} did not describe itself within {ENVIRONMENT_REPORT_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise MonarchNbError(
            f"{python} can not describe itself: {''.join(last) or f'exit status {process.returncode}'}"
        )
    return answer


def _run_statuses(mesh: Mesh, past: pb.PastRuns, *, with_newest: bool) -> list[pb.RunStatus]:
    if past.mesh_id != mesh.spec.mesh_id:
        newest = mesh.last_number if with_newest else 0
        return [
            _run_status(run)
            for run in mesh.runs.values()
            if not (run.finished and run.collected) or run.number == newest
        ]
    return [
        _run_status(run, failed_results(run, with_tracebacks=past.tracebacks_of == run.number))
        for run in mesh.runs.values()
    ]


def failed_results(run: Run, *, with_tracebacks: bool = False) -> Iterator[run_pb2.RankResult]:
    """Yield what the ranks of a run told that did not come to its end."""
    for result in run.results.values():
        if result.outcome != run_pb2.OUTCOME_OK:
            failure = run_pb2.Failure()
            failure.CopyFrom(result.failure)
            if not with_tracebacks:
                failure.traceback = ""
                failure.message = failure.message[:FAILURE_CHARACTERS]
            yield run_pb2.RankResult(rank=result.rank, outcome=result.outcome, failure=failure, death=result.death)


def _run_status(run: Run, failures: Iterable[run_pb2.RankResult] = ()) -> pb.RunStatus:
    failed = {rank for rank, result in run.results.items() if result.outcome in _FAILED}
    stopped = {rank for rank, result in run.results.items() if result.outcome in _STOPPED}
    if run.finished:
        running_s = max((result.duration_s for result in run.results.values()), default=0.0)
    else:
        running_s = time.time() - run.started_at if run.started_at else 0.0
    return pb.RunStatus(
        failures=failures,
        run_id=run.run_id,
        number=run.number,
        title=run.submit.title,
        ranks=run.submit.ranks,
        all_ranks=run.submit.all_ranks,
        finished=sorted(run.results),
        failed=sorted(failed),
        stopped=sorted(stopped),
        running=sorted(run.started - run.results.keys()),
        running_s=running_s,
        collected=run.collected,
        submitted_at=run.submitted_at,
        cell_number=run.cell_number,
        notebook=run.submit.notebook,
        script=run.is_script,
    )

"""What a node says about itself, its reservations, ranks and runs, and what its ranks' python finds installed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping

from monarch_nb import config
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes.processes import seconds_since_boot
from monarch_nb.allocator.readings.load import RankReading, measure
from monarch_nb.allocator.state.runs import Mesh, failed_results, run_status
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2


class Description:
    """Describes a node, as its parts know it."""

    def __init__(self, node: Node) -> None:
        self._identity, self._state = node.identity, node.state
        self._node, self._readings = node, node.readings

    def node(self) -> pb.DescribeReply:
        """Return the facts of the node."""
        now_s = seconds_since_boot()
        return pb.DescribeReply(
            protocol=config.PROTOCOL,
            version=config.VERSION,
            node_id=self._identity.node_id,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            procs=self._state.procs,
            gpus=map(self._state.describe_gpu, self._identity.gpus),
            procs_free=self._state.procs_free,
            gpus_free=len(self._state.gpus_free),
            python=self._identity.python,
            holders=[
                pb.Holder(
                    reservation=lease.request.name,
                    owner=lease.request.owner,
                    procs=lease.request.procs,
                    gpus=lease.request.gpus,
                    until=_until(lease.limits.time_left_s(now_s)),
                    gpu_indices=lease.gpu_indices,
                )
                for lease in self._state.leases.values()
            ],
            store_host=self._identity.store_host,
            address=self._identity.address,
            token=self._identity.token,
            template_error=self._node.supervisor.templates.error,
            template_ready=self._node.supervisor.templates.ready.is_set(),
        )

    async def status(self, *, memory: bool, readings: bool, past_runs: pb.PastRuns) -> pb.StatusReply:
        """Return everything about the node.

        Args:
            memory: also each rank's.
            readings: also how busy all are, the actors of ranks, and each mesh's newest run although it is over.
            past_runs: also of one mesh.
        """
        taken: Mapping[int, RankReading] = {}
        reply = pb.StatusReply()
        pids = [process.record.process.pid for process in self._node.supervisor.ranks.values()]
        if readings:
            reading, *_ = await asyncio.gather(
                self._readings.read(pids), self._node.whereabouts.refresh(), self._node.actors.refresh()
            )
            reply.readings.CopyFrom(reading.node)
            taken = reading.ranks
        elif memory:
            taken = await asyncio.to_thread(measure, pids)
        await self._readings.look_at_gpus(self._state)
        reply.node.CopyFrom(self.node())
        reply.ended.extend(self._state.ended.values())
        now_s = seconds_since_boot()
        for reservation_id, lease in self._state.leases.items():
            request, limits = lease.request, lease.limits
            busy = self._node.leases.expiry.is_busy(reservation_id)
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
                shares={name: right for name, right in lease.shares.items() if right},
                members=lease.nodes,
                revision=lease.revision,
                where=request.where,
            )
            for mesh_id, mesh in self._state.meshes_of(reservation_id).items():
                reservation.meshes.add(
                    mesh_id=mesh_id,
                    name=mesh.spec.name,
                    spec=mesh.spec,
                    ranks=self.ranks(mesh, mesh.ranks, taken, with_actors=readings),
                    runs=_run_statuses(mesh, past_runs, with_newest=readings),
                    last_number=mesh.last_number,
                    saves=self._saves(mesh_id),
                )
        return reply

    def _saves(self, mesh_id: str) -> run_pb2.ArmSaves | None:
        """Return what is armed, without its secret."""
        if (armed := self._node.grace.armed(mesh_id)) is None:
            return None
        told = run_pb2.ArmSaves()
        told.CopyFrom(armed)
        told.ClearField("secret")
        return told

    def ranks(
        self,
        mesh: Mesh,
        ranks: Iterable[int],
        taken: Mapping[int, RankReading] | None = None,
        *,
        with_actors: bool = False,
    ) -> list[pb.Rank]:
        """Return what the node knows of some ranks of a mesh.

        Args:
            taken: what they take, by pid.
            with_actors: also what is known of their actors.
        """
        described = []
        for rank in sorted(ranks):
            slot = mesh.ranks[rank]
            process = self._node.supervisor.ranks.get((mesh.spec.mesh_id, rank))
            pid = process.record.process.pid if process else 0
            script = None if slot.running else self._node.scripts.at_work(mesh, rank)
            running = script.mesh_id if script else slot.running
            message = pb.Rank(rank=rank, pid=pid, gpu_indices=slot.gpu_indices, run_id=running)
            message.trouble = "; ".join(filter(None, map(self._state.gpu_troubles.get, slot.gpu_indices)))
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
            if where := self._node.whereabouts.of(script_pid or pid, running):
                message.where.CopyFrom(where)
            readings = [reading for each in (pid, script_pid) if (reading := (taken or {}).get(each))]
            message.memory_bytes = sum(reading.memory_bytes for reading in readings)
            if cpus := [reading.cpu for reading in readings if reading.cpu is not None]:
                message.cpu = sum(cpus)
            if with_actors:
                actors, message.more_actors = self._node.actors.of(pid)
                message.actors.extend(actors)
                message.memory_bytes += self._node.actors.memory_bytes(pid)
            described.append(message)
        return described


def _until(left_s: float | None) -> float:
    return 0.0 if left_s is None else time.time() + left_s


def _run_statuses(mesh: Mesh, past: pb.PastRuns, *, with_newest: bool) -> list[pb.RunStatus]:
    now_s = time.time()
    if past.mesh_id != mesh.spec.mesh_id:
        newest = mesh.last_number if with_newest else 0
        return [
            run_status(mesh, run, now_s)
            for run in mesh.runs.values()
            if not (run.finished and run.collected) or run.number == newest
        ]
    return [
        run_status(mesh, run, now_s, failed_results(run, with_tracebacks=past.tracebacks_of == run.number))
        for run in mesh.runs.values()
    ]


ENVIRONMENT_REPORT_S = patience(20.0)
"""How long a python may take to say what is installed; on a cold network file system it reads for seconds."""


async def describe_environment(
    directory: str, default_python: str, request: files_pb2.DescribeEnvironmentRequest
) -> files_pb2.DescribeEnvironmentReply:
    """Return what the ranks' python finds installed on the node.

    Args:
        directory: the node's.
        default_python: of ranks for which no other is asked for.

    Raises:
        MonarchNbError: that python does not start, or takes too long.
    """
    asked_s = time.time()
    question = {"packages": [*request.packages], "directories": [directory, *request.directories]}
    report = await _report(request.python or default_python, json.dumps(question).encode())
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
        env=config.python_environment(),
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

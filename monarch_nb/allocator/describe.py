"""What a node says about itself, its reservations, ranks and runs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb import config
from monarch_nb.allocator import facts
from monarch_nb.allocator.state import Mesh, Run
from monarch_nb.proto import allocator_pb2 as pb

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node


def describe_node(node: Node) -> pb.DescribeReply:
    """Return the facts of the node."""
    return pb.DescribeReply(
        protocol=config.PROTOCOL,
        version=config.VERSION,
        node_id=node.node_id,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        procs=node.state.procs,
        gpus=node.gpus,
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


def describe_status(node: Node, *, memory: bool) -> pb.StatusReply:
    """Return everything about the node; with `memory` also each rank's."""
    reply = pb.StatusReply(node=describe_node(node))
    for reservation_id, lease in node.state.leases.items():
        request = lease.request
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
        )
        for mesh_id, mesh in node.state.meshes.items():
            if mesh.spec.reservation_id == reservation_id:
                reservation.meshes.add(
                    mesh_id=mesh_id,
                    name=mesh.spec.name,
                    spec=mesh.spec,
                    ranks=describe_ranks(node, mesh, mesh.ranks, memory=memory),
                    runs=[_run_status(run) for run in mesh.runs.values() if not (run.finished and run.collected)],
                    last_number=mesh.last_number,
                )
    return reply


def describe_ranks(node: Node, mesh: Mesh, ranks: Iterable[int], *, memory: bool = False) -> list[pb.Rank]:
    """Return what the node knows of some ranks of a mesh."""
    described = []
    for rank in sorted(ranks):
        slot = mesh.ranks[rank]
        process = node.supervisor.ranks.get((mesh.spec.mesh_id, rank))
        pid = process.record.process.pid if process else 0
        message = pb.Rank(rank=rank, pid=pid, gpu_indices=slot.gpu_indices, run_id=slot.running)
        if slot.death is not None:
            message.state = pb.Rank.STATE_DEAD
            message.death.CopyFrom(slot.death)
        elif not slot.ready:
            message.state = pb.Rank.STATE_STARTING
        elif slot.running:
            message.state = pb.Rank.STATE_RUNNING
            if run := mesh.runs.get(slot.running):
                message.running_s = time.time() - run.submitted_at
        else:
            message.state = pb.Rank.STATE_IDLE
        if memory and pid:
            message.memory_bytes = facts.proportional_memory_bytes(pid)
        described.append(message)
    return described


def _run_status(run: Run) -> pb.RunStatus:
    return pb.RunStatus(
        run_id=run.run_id,
        number=run.number,
        title=run.submit.title,
        ranks=run.submit.ranks,
        all_ranks=run.submit.all_ranks,
        finished=sorted(run.results),
        collected=run.collected,
        submitted_at=run.submitted_at,
        cell_number=run.submit.run.cell.cell_number,
    )

"""What allocators say, made up."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.client.pools.held import current_owner
from monarch_nb.client.reservations.memory import Memory
from monarch_nb.panel.shown.view import Before, Json, NodeAnswer, Notebooks, build_view
from monarch_nb.proto import allocator_pb2 as pb

NOW = 1_800_000_000.0


def node(name: str = "node0", *, procs: int = 4, gpus: int = 0, ready: bool = True) -> pb.StatusReply:
    """A node that holds nothing."""
    return pb.StatusReply(
        node=pb.DescribeReply(
            protocol=1,
            node_id=name,
            hostname="host",
            procs=procs,
            procs_free=procs,
            gpus=[pb.Gpu(index=index, name="NVIDIA H200", memory_bytes=141 << 30) for index in range(gpus)],
            gpus_free=gpus,
            template_ready=ready,
        )
    )


def hold(
    replies: Sequence[pb.StatusReply], name: str = "dev", *, procs: int = 0, gpus: int = 0, **facts: object
) -> list[pb.MeshStatus]:
    """Let nodes hold a reservation; return its main mesh as each of them tells it."""
    meshes, per_node = [], procs or gpus
    for node_rank, reply in enumerate(replies):
        status = reply.reservations.add(
            reservation_id=f"id-{name}",
            name=name,
            owner=current_owner(),
            procs=procs,
            gpus=gpus,
            node_rank=node_rank,
            nodes=len(replies),
            created_at=NOW - 100,
            confirmed=True,
        )
        status.MergeFrom(pb.ReservationStatus(**facts))
        mesh = status.meshes.add(mesh_id=f"mesh-{name}", name="main")
        mesh.spec.name, mesh.spec.mesh_id, mesh.spec.node_rank = mesh.name, mesh.mesh_id, node_rank
        mesh.spec.ranks, mesh.spec.world_size = per_node, len(replies) * per_node
        mesh.spec.extent.add(name="hosts", size=len(replies))
        mesh.spec.extent.add(name="gpus" if gpus else "procs", size=per_node)
        taken = len(reply.node.gpus) - reply.node.gpus_free
        for index in range(per_node):
            mesh.ranks.add(
                rank=node_rank * per_node + index,
                pid=1000 + node_rank * per_node + index,
                state=pb.Rank.STATE_IDLE,
                gpu_indices=[taken + index] if gpus else [],
            )
        reply.node.procs_free -= procs
        reply.node.gpus_free -= gpus
        reply.node.holders.add(reservation=name, owner=status.owner, procs=procs, gpus=gpus)
        meshes.append(mesh)
    return meshes


def run(meshes: Sequence[pb.MeshStatus], run_id: str = "run1", number: int = 1, **facts: object) -> list[pb.RunStatus]:
    """Let all ranks of a mesh run something."""
    everyone = [rank.rank for mesh in meshes for rank in mesh.ranks]
    runs = []
    for mesh in meshes:
        here = [rank.rank for rank in mesh.ranks]
        told = mesh.runs.add(
            run_id=run_id, number=number, title="train()", ranks=here, all_ranks=everyone, running=here
        )
        told.MergeFrom(pb.RunStatus(**facts))
        runs.append(told)
        for rank in mesh.ranks:
            rank.state, rank.run_id, rank.running_s = pb.Rank.STATE_RUNNING, run_id, told.running_s
    return runs


def view_of(
    *replies: pb.StatusReply,
    now: float = NOW,
    before: Before | None = None,
    root: str = "",
    memories: Sequence[Memory] = (),
) -> Json:
    """The view of nodes that all answer."""
    answers = [NodeAnswer(reply.node.node_id, reply=reply) for reply in replies]
    return build_view("local", answers, current_owner(), now, before or Before(), Notebooks(root, memories))

# A pool of nodes × 8 GPUs and ranks that only says so: figures move at every question. Run with MONARCH_NB_HOME set:
#   busy_nodes.py NODES [DEAD]
# The ranks in the file DEAD, {"803": "likely out of memory", …}, are dead, and others have other troubles.
import asyncio
import getpass
import json
import os
import random
import sys
import time
from pathlib import Path

import grpc

from monarch_nb.allocator.processes.processes import identify
from monarch_nb.config import PROTOCOL, NodePaths, pool_directory, private_directory
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as service
from monarch_nb.proto import run_pb2

NODES, PER_NODE = int(sys.argv[1]), 8
DEAD = Path(sys.argv[2]) if len(sys.argv) > 2 else None
SILENT, GONE, LOST_GPU = (9, 77, 200) if DEAD else (None, None, None)
FAILED, WAITING = (range(1024, 1032), range(1200, 1212)) if DEAD else (range(0), range(0))


class BusyNode(service.AllocatorServicer):
    def __init__(self, number: int) -> None:
        node = pb.DescribeReply(protocol=PROTOCOL, node_id=f"node{number}", hostname="host", procs=8, procs_free=8)
        node.gpus.extend(pb.Gpu(index=i, name="NVIDIA H200", memory_bytes=141 << 30) for i in range(PER_NODE))
        node.template_ready = True
        self.number, self.reply = number, pb.StatusReply(node=node)
        held = self.reply.reservations.add(
            reservation_id="r", name="dev", owner=getpass.getuser(), gpus=PER_NODE, node_rank=number, nodes=NODES
        )
        held.created_at, held.confirmed = time.time(), True
        held.time_s = held.time_left_s = 8 * 3600.0
        mesh = held.meshes.add(mesh_id="m", name="main")
        mesh.spec.world_size = NODES * PER_NODE
        mesh.spec.extent.extend([pb.Axis(name="hosts", size=NODES), pb.Axis(name="gpus", size=PER_NODE)])
        here = range(number * PER_NODE, (number + 1) * PER_NODE)
        for index, rank in enumerate(here):
            mesh.ranks.add(rank=rank, pid=1000 + rank, state=pb.Rank.STATE_RUNNING, run_id="a", gpu_indices=[index])
        mesh.runs.add(
            run_id="a",
            number=1,
            title="train()",
            ranks=here,
            all_ranks=range(NODES * PER_NODE),
            running=here,
            submitted_at=time.time(),
        )

    async def Status(self, request: pb.StatusRequest, context: object) -> pb.StatusReply:
        if self.number == SILENT:
            await asyncio.Event().wait()
        readings = self.reply.readings
        readings.Clear()
        readings.cpu, readings.memory_total_bytes = random.random(), 1 << 40
        readings.memory_used_bytes = random.randrange(1 << 40)
        for index in range(PER_NODE):
            readings.gpus.add(
                index=index,
                utilisation=random.random(),
                memory_used_bytes=random.randrange(141 << 30),
                memory_total_bytes=141 << 30,
                temperature_c=random.uniform(30, 80),
                power_w=random.uniform(80, 700),
                power_limit_w=700,
            )
        (mesh,) = self.reply.reservations[0].meshes
        for rank in mesh.ranks:
            rank.cpu, rank.memory_bytes = random.random(), random.randrange(8 << 30)
            rank.running_s = mesh.runs[0].running_s = time.time() - mesh.runs[0].submitted_at
        if DEAD:
            self.tell_trouble(mesh, json.loads(DEAD.read_text()))
        return self.reply

    def tell_trouble(self, mesh: pb.MeshStatus, dead: dict[str, str]) -> None:
        """Make of some ranks what they are to be."""
        if self.number == LOST_GPU:
            self.reply.readings.gpus[3].error = mesh.ranks[3].trouble = "GPU 3 has fallen off the bus"
        for rank in mesh.ranks:
            if rank.rank in FAILED:
                rank.state, rank.run_id = pb.Rank.STATE_IDLE, ""
                rank.failure.name, rank.failure.message = "ValueError", f"bad batch {rank.rank}"
                rank.failure.where = "train.py:41"
            if rank.rank in WAITING:
                rank.where.state, rank.where.collective = run_pb2.Where.STATE_COLLECTIVE, "all_reduce"
                rank.where.line = "train.py:57"
            if cause := dead.get(str(rank.rank)):
                rank.state, rank.run_id = pb.Rank.STATE_DEAD, ""
                rank.death.signal, rank.death.likely_cause = 9, cause


async def main() -> None:
    process = identify(os.getpid())
    facts = {"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": process.boot_id}
    servers = []
    for number in range(NODES):
        paths = NodePaths(private_directory(pool_directory() / f"node{number}"))
        private_directory(paths.sockets)
        server = grpc.aio.server()
        service.add_AllocatorServicer_to_server(BusyNode(number), server)
        server.add_insecure_port(f"unix:{paths.allocator_socket}")
        await server.start()
        servers.append(server)
        paths.facts.write_text(json.dumps(facts | ({"start_ticks": 0} if number == GONE else {})))
    print("ready", flush=True)
    await asyncio.gather(*(server.wait_for_termination() for server in servers))


asyncio.run(main())

"""Times of buffers in ms, beside a copy within the process: `PYTHON buffers.py PACKAGE`.

PACKAGE is `monarch_nb`, or `held` for Monarch's engine on the same nodes, where PYTHON has torchmonarch: apart from
where names and processes come from, both run the same.
"""

import os
import statistics
import sys
import time

import torch

import monarch_nb

(package,) = sys.argv[1:]
if package == "held":
    from monarch.actor import Actor, endpoint
    from monarch.rdma import RDMABuffer
else:
    from monarch_nb.actor import Actor, endpoint
    from monarch_nb.rdma import RDMABuffer


class Rank(Actor):
    @endpoint
    async def make(self, size_bytes):
        self.memory = torch.ones(size_bytes, dtype=torch.uint8)
        return RDMABuffer(self.memory)

    @endpoint
    async def transfer(self, buffer, is_read, times):
        """Return the medians of a transfer and of a copy, which take turns."""
        memory, other = (torch.zeros(buffer.size(), dtype=torch.uint8) for _ in range(2))
        transfers, copies = [], []
        for _ in range(times):
            began_s = time.perf_counter()
            await (buffer.read_into(memory) if is_read else buffer.write_from(memory))
            transfers.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            other.copy_(memory)
            copies.append(time.perf_counter() - began_s)
        return [statistics.median(each) * 1000 for each in (transfers, copies)]


reservation = monarch_nb.reserve(f"bench-{package.replace('_', '-')}", nodes=2, procs=2)
try:
    held = package == "held"
    procs = reservation.monarch().spawn_procs(per_host={"procs": 2}) if held else reservation.mesh.procs
    ranks = procs.spawn("ranks", Rank)
    owner = ranks.slice(hosts=0, procs=0)
    for size_bytes, times in ((64 << 20, 15), (4096, 50)):
        buffer = owner.make.call_one(size_bytes).get()
        for where, rank in (
            ("same node", ranks.slice(hosts=0, procs=1)),
            ("other node", ranks.slice(hosts=1, procs=0)),
        ):
            for is_read in (True, False):
                transfer_ms, copy_ms = rank.transfer.call_one(buffer, is_read, times).get()
                what = f"{'read' if is_read else 'write'}, {where}"
                load = os.getloadavg()[0]
                print(f"{size_bytes:10,} B {what:18} {transfer_ms:8.2f} ms, copy {copy_ms:6.2f} ms, load {load:.0f}")
finally:
    reservation.release()

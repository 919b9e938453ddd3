"""Curves of what ranks print: how soon there is a picture of a long log, and what it costs while the run goes on."""

from __future__ import annotations

import asyncio
import time

import psutil

from bench.harness import RANKS, Bench, Outcome, Row
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.curves.pictures import svg
from monarch_nb.client.curves.plot import Drawing
from monarch_nb.client.curves.words import RunPictures
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.config import home_directory

LINES = 12_800_000
"""Of 128 ranks with 100,000 each; here 8 ranks print them."""
_GOAL_S, _GOAL_SHARE, _GOAL_BYTES = 2.0, 0.05, 200_000
_PRINTING = """
import time
for step in range({steps}):
    print(f"step: {{step}}  loss: {{5 / (step + 1) + rank / 8:.4f}}  grad: {{step % 97}}  tps: {{9000 + rank:,}}")
for step in range({steps}, {steps} + {seconds} * 10):
    for _ in range(16):
        print(f"step: {{step}}  loss: {{5 / (step + 1) + rank / 8:.5f}}  tps: {{9000 + rank:,}}")
    time.sleep(0.1)
"""


def measure(bench: Bench) -> Outcome:
    """Print as much as 128 ranks do, and draw it while 8 ranks go on to print 160 lines a second each."""
    seconds = bench.repeats(20, 10)
    with bench.reserved() as held:
        over = held.mesh.run(_PRINTING.format(steps=LINES // RANKS, seconds=0))
        began_s = time.perf_counter()
        drawing = held.mesh.plot("loss", run=over).drawing
        picture = svg(drawing.drawn())
        first_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        picture = svg(call(_read_all(drawing)))
        rest_s = time.perf_counter() - began_s
        share = _share(held.mesh, seconds)
    reached = first_s <= _GOAL_S and share <= _GOAL_SHARE and len(picture) <= _GOAL_BYTES
    measured = (
        f"{first_s:.1f} s, all of it after {rest_s:.0f} s; live {share:.1%} of a core; {len(picture) / 1000:.0f} kB"
    )
    return Outcome(measured, reached)


async def _read_all(drawing: Drawing) -> list[RunPictures]:
    async for _ in drawing.changes():
        pass
    return drawing.drawn()


def _share(mesh: Mesh, seconds: int) -> float:
    """Return how much of a core this process and the nodes' allocators, with what reads for them, spend more than
    without a plot while ranks print."""
    spent = []
    for is_drawn in (False, True):
        run = mesh.submit(_PRINTING.format(steps=1000, seconds=seconds))
        call(_wait_for(mesh, run.id))
        drawing = mesh.plot("loss", run=run).drawing
        before = _spent_s()
        call(_look(drawing if is_drawn else None, seconds / 2))
        spent.append(_spent_s() - before)
        run.result()
    return max(0.0, spent[1] - spent[0]) / (seconds / 2)


async def _wait_for(mesh: Mesh, run_id: str) -> None:
    while not mesh.core.runs[run_id].number:
        await asyncio.sleep(0.01)


async def _look(drawing: Drawing | None, seconds: float) -> None:
    async def draw(drawing: Drawing) -> None:
        async for runs in drawing.changes():
            svg(runs)

    drawn = asyncio.ensure_future(draw(drawing)) if drawing is not None else None
    await asyncio.sleep(seconds)
    if drawn is not None:
        drawn.cancel()


def _spent_s() -> float:
    """Return the processor time so far of this process and of all allocators with their helpers."""
    total = 0.0
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        own = process.pid == psutil.Process().pid
        if own or (any(word.startswith("monarch_nb.allocator") for word in words) and _is_ours(process)):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _is_ours(process: psutil.Process) -> bool:
    try:
        return str(home_directory()) in process.environ().values()
    except psutil.Error:
        return False


ROWS = [
    Row(
        "curves",
        "`%mesh plot` of a run of 12.8 million lines; live while 8 ranks print 160 lines a second each",
        "first picture in 2 s; live at most 5 % of a core; picture under 200 kB",
        "8 ranks print what 128 ranks with 100,000 lines each do. The picture is made in this process. Live is the "
        "processor time of this process, the allocator and its helper, less that without a plot.",
        measure,
    )
]

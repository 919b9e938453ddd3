"""A flood on more ranks than anyone looks at, through a tree: a few are shown, all are counted, the logs have all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from integration.live import Recorder
from integration.pools import PoolOfMany
from monarch_nb.branches.folding import FLOOD_RANKS
from monarch_nb.client.connections import events, session
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve

pytestmark = pytest.mark.slow
NODES, PROCS = 3, 4
RANKS = NODES * PROCS
LINES = 20_000


@pytest.fixture(scope="module")
def small_tree() -> Iterator[Mesh]:
    """A mesh of a pool of its own, whose nodes form a tree."""
    with pytest.MonkeyPatch.context() as patch, PoolOfMany(nodes=NODES, procs=PROCS).closing() as pool, pool.in_use():
        patch.setattr(session, "FEW_NODES", 2)
        yield reserve("dev", nodes=NODES, procs=PROCS, preload=()).mesh


def lines_told(recorder: Recorder) -> Counter[int]:
    """Return of how many lines of each rank it was told, those counted among them."""
    told: Counter[int] = Counter()
    for event in recorder.events:
        match event:
            case events.Text(rank, "stdout", text):
                told[rank] += text.count("\n")
            case events.Elided(rank, "stdout", lines):
                told[rank] += lines
            case events.ElidedOfMany(ranks, "stdout", lines):
                told.update(dict(zip(ranks, lines, strict=True)))
    return told


def test_every_line_is_shown_or_counted_and_is_in_the_log(small_tree: Mesh) -> None:
    recorder = Recorder()
    line = "line {i} of rank {rank}, which is long enough for a flood to be one"
    run = small_tree.submit(f"for i in range({LINES}): print(f{line!r})\nprint('the end of', rank)", listener=recorder)
    run.result()
    assert lines_told(recorder) == dict.fromkeys(range(RANKS), LINES + 1)
    counted = {rank for event in recorder.of(events.ElidedOfMany) for rank in event.ranks}
    assert counted, "those beyond the first few"
    assert counted.isdisjoint(range(min(FLOOD_RANKS, RANKS) // 2)), "the first few are shown"
    logged: dict[int, list[str]] = {rank: [] for rank in range(RANKS)}
    for record in run.logs():
        logged[record.rank].append(record.text)
    for rank in range(RANKS):
        numbered = [line.format(i=i, rank=rank) for i in range(LINES)]
        assert "".join(logged[rank]).splitlines() == [*numbered, f"the end of {rank}"]

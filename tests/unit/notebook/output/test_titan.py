"""What TorchTitan printed on 8 ranks, as if by 128: one rank's rows."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from monarch_nb.branches.alike import pack
from monarch_nb.branches.folding import joined_alike
from monarch_nb.client.connections.decoding import OutputDecoder
from monarch_nb.client.connections.events import Event, Finished, LinesOfMany, Text
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.rows import TextRow, order
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.run_pb2 import Cursor

RANKS, RANKS_PER_NODE = 128, 8
LOOK_S = 0.04
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d),(\d{3})")
RECORDED = json.loads((Path(__file__).parents[3] / "recorded" / "titan.json").read_text())


def lines_of(what: str, rank: int) -> list[str]:
    return str(RECORDED[what][rank % RANKS_PER_NODE]).splitlines(keepends=True)


def told(what: str, chance: random.Random) -> Iterator[tuple[float, Event]]:
    """Yield what comes of 16 nodes, and when: each rank as late as the one that it was recorded of, and up to 50 ms
    more; of each node what its ranks have written in 40 ms."""
    decoder = OutputDecoder(lambda rank, model: None)
    looks: dict[tuple[float, int], dict[int, str]] = {}
    phase_s = [chance.uniform(0, LOOK_S) for _ in range(0, RANKS, RANKS_PER_NODE)]
    for rank in range(RANKS):
        node, late_s, now_s = rank // RANKS_PER_NODE, chance.uniform(0, 0.05), 0.0
        for line in lines_of(what, rank):
            if clock := _CLOCK.search(line):
                hours, minutes, seconds, milliseconds = map(int, clock.groups())
                now_s = (hours * 60 + minutes) * 60 + seconds + milliseconds / 1000
            look = (now_s + late_s - phase_s[node]) // LOOK_S
            at = (look + 1) * LOOK_S + phase_s[node], node
            of_rank = looks.setdefault(at, {})
            of_rank[rank] = of_rank.get(rank, "") + line
    for (now_s, _), texts in sorted(looks.items()):
        wrote = [(rank, [pb.OutputItem(stderr=text.encode())], Cursor()) for rank, text in texts.items()]
        for event in decoder.events_of(pb.Output(ranks=pack(joined_alike(wrote)))):
            yield now_s, event


def folded(events: Iterable[tuple[float, Event]]) -> Fold:
    fold = Fold(range(RANKS))
    for now_s, event in events:
        fold.add(event, now_s)
    fold.add(Finished())
    return fold


@pytest.mark.parametrize("what", ["init", "train"])
def test_128_ranks_have_as_many_rows_as_one_and_open_to_every_line(what: str) -> None:
    events = [*told(what, random.Random(1))]
    assert sum(isinstance(event, LinesOfMany) for _, event in events) > len(events) / 8, (
        "coloured lines are packed, too"
    )
    fold = folded(events)
    rows = [row for row in fold.rows() if isinstance(row, TextRow)]
    of_one = Fold([0])
    of_one.add(Text(0, "stderr", "".join(lines_of(what, 0))))
    bars = 1 if what == "init" else 0  # that of the rank that prepares the dataset
    assert len(rows) == len(of_one.rows()) + bars
    assert not any(row.is_marked for row in rows)
    steps = [row for row in rows if "step:" in row.text]
    assert all(row.ranks == fold.ranks and "\x1b[32mloss:" in row.text for row in steps)
    assert len(steps) == (20 if what == "train" else 0)
    kept = sorted((row for row in fold._rows if isinstance(row, TextRow) and row.ranks), key=order)
    for rank in (0, 1, 77, 127):
        alone = Fold([rank])
        alone.add(Text(rank, "stderr", "".join(lines_of(what, rank))))
        opened = [row.text_of(rank) for row in kept if row.ranks >> rank & 1]
        assert opened == [row.text for row in alone.rows() if isinstance(row, TextRow)]

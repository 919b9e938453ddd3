"""Flame graphs: ranks that look the same are one, a file for speedscope, and a picture of bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from monarch_nb.client.instruments.flames import (
    MOST_BOXES,
    Flame,
    Flames,
    Frame,
    boxes,
    flame_of,
    speedscope,
    svg,
    together,
)
from monarch_nb.worker.instruments.python_profile import Frame as TakenFrame
from monarch_nb.worker.instruments.python_profile import StackCounts

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def many(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def thing(*required: str, **properties: object) -> dict[str, object]:
    return {"type": "object", "required": [*required], "properties": properties}


UNITS = ("bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds")
FRAME = thing("name", name=TEXT, file=TEXT, line=NUMBER, col=NUMBER)
PROFILE = thing(
    *("type", "name", "unit", "startValue", "endValue", "samples", "weights"),
    type={"const": "sampled"},
    name=TEXT,
    unit={"enum": [*UNITS]},
    startValue=NUMBER,
    endValue=NUMBER,
    samples=many(many(NUMBER)),
    weights=many(NUMBER),
)
SCHEMA = thing(  # of what "sampled" profiles need, from https://www.speedscope.app/file-format-schema.json
    *("$schema", "profiles", "shared"),
    **{"$schema": {"const": "https://www.speedscope.app/file-format-schema.json"}},
    activeProfileIndex=NUMBER,
    exporter=TEXT,
    name=TEXT,
    shared=thing("frames", frames=many(FRAME)),
    profiles=many(PROFILE),
)
MAIN, STEP, LOAD = ("<module>", "Cell In[2]", 3), ("step", "train.py", 41), ("load", "train.py", 9)
LINEAR = ("forward", "/env/site-packages/torch/nn/modules/linear.py", 0)


def flame(rank: int, **seconds: float) -> Flame:
    """Of a rank that stepped (in torch) and loaded for so long."""
    counts = StackCounts()
    for _ in range(250):
        counts.add([TakenFrame(*MAIN), TakenFrame(*STEP), TakenFrame(*LINEAR)], seconds.get("step", 0.0) / 250)
        counts.add([TakenFrame(*MAIN), TakenFrame(*LOAD)], seconds.get("load", 0.0) / 250)
    return flame_of(rank, counts.told())


def test_ranks_that_look_the_same_are_one_with_the_mean_of_their_times() -> None:
    found = together([flame(0, step=4, load=1), flame(1, step=1, load=4), flame(2, step=3.9, load=1.1)])
    assert [each.ranks for each in found] == [(0, 2), (1,)]
    assert found[0].lines() == {Frame(*STEP): pytest.approx(3.95), Frame(*LOAD): pytest.approx(1.05)}
    assert found[0].looks == 1000
    assert len(together([flame(0, step=4), flame(1, step=8)])) == 2, "one took longer"


def test_the_file_is_what_speedscope_reads() -> None:
    told = speedscope("run 7", together([flame(0, step=4, load=1), flame(1, step=1, load=4)]))
    jsonschema.validate(told, SCHEMA)
    assert [profile["name"] for profile in told["profiles"]] == ["rank 0", "rank 1"]
    names = [frame["name"] for frame in told["shared"]["frames"]]
    assert names == ["Cell In[2]:3", "train.py:41 step", "forward", "train.py:9 load"]
    first = told["profiles"][0]
    assert first["samples"] == [[0, 1, 2], [0, 3]]
    assert first["weights"] == pytest.approx([4, 1])
    assert first["endValue"] == pytest.approx(5)


def test_the_picture_is_well_formed_and_says_all_in_titles() -> None:
    drawn = svg(together([flame(0, step=4, load=1)]))
    root = ElementTree.fromstring(drawn)
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "<module> (Cell In[2]:3): 100.0%, 5.0 s",
        "step (train.py:41): 80.0%, 4.0 s",
        "forward (/env/site-packages/torch/nn/modules/linear.py): 80.0%, 4.0 s",
        "load (train.py:9): 20.0%, 1.0 s",
    ]
    assert "<script" not in drawn
    assert 'class="t"' in drawn
    assert "prefers-color-scheme:dark" in drawn


def test_the_picture_is_small_whatever_was_seen() -> None:
    counts = StackCounts()
    for place in range(3000):
        counts.add([TakenFrame("f", f"f{place % 97}.py", depth + 1) for depth in range(place % 120 + 1)], 0.01)
    flames = [flame_of(rank, counts.told()) for rank in range(3)]
    assert len(boxes(flames[0], 100)) == 100
    shown = svg([*flames, *flames])
    assert shown.count("<rect") <= MOST_BOXES + 1
    assert len(shown) < 200_000
    starts = {(box.depth, round(box.start, 6)) for box in boxes(flames[0], 100)}
    assert all(depth == 0 or any(other == depth - 1 for other, _ in starts) for depth, _ in starts)


def test_what_is_said_of_it(tmp_path: Path) -> None:
    flames = Flames("run 7", tuple(together([flame(0, step=4, load=1)])), missing=(1, 2, 5), dead=(2,))
    assert str(flames) == (
        "rank 0 · 5.0 s\n   80%  train.py:41 step\n   20%  train.py:9 load\n"
        "rank 2 is dead, so it tells nothing\n"
        "ranks 1,5 tell nothing (busy with another run, or asked before)"
    )
    bundle: dict[str, Any] = flames._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/plain"}
    assert flames.save(tmp_path / "new" / "a.json").exists()
    assert set(Flames("run 7", (), missing=(0,))._repr_mimebundle_()) == {"text/plain"}

"""Curves as browsers take them: plain JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from monarch_nb.client.curves.svg import COLOURS
from monarch_nb.client.curves.words import RunPictures, x_name
from monarch_nb.lines.pictures import Picture


def curves_json(runs: Sequence[RunPictures]) -> dict[str, Any]:
    """Return curves as the browser takes them."""
    names = list(dict.fromkeys(picture.name for run in runs for picture in run.pictures))
    return {
        "runs": [
            {"title": run.title, "colour": COLOURS[index % len(COLOURS)], "notes": list(run.notes)}
            for index, run in enumerate(runs)
        ],
        "charts": [_chart(name, runs) for name in names],
    }


def _chart(name: str, runs: Sequence[RunPictures]) -> dict[str, Any]:
    drawn = [(index, picture) for index, run in enumerate(runs) for picture in run.pictures if picture.name == name]
    first = drawn[0][1]
    return {
        "name": name,
        "unit": first.unit,
        "x": x_name(first.x),
        "lines": [_line(index, picture) for index, picture in drawn],
    }


def _line(run: int, picture: Picture) -> dict[str, Any]:
    band = [(part or (math.nan,) * 3) for part in picture.band]
    xs = [x for x, _, _ in band]
    for place, x in enumerate(xs):  # a gap lies beside what is before it
        if x != x:
            xs[place] = math.nextafter(xs[place - 1], math.inf)
    return {
        "run": run,
        "xs": list(picture.xs),
        "ys": list(picture.ys),
        "band": [xs, [_or_none(low) for _, low, _ in band], [_or_none(high) for _, _, high in band]],
        "marks": [[x, what] for x, what in picture.marks],
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None

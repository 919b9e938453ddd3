"""Curves as a widget (anywidget), drawn with uPlot: zoom, and the values under the mouse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import anywidget
import traitlets

from monarch_nb.lines.pictures import Picture
from monarch_nb.notebook.curves.svg import COLOURS
from monarch_nb.notebook.curves.words import RunPictures, x_name
from monarch_nb.notebook.panels.widget import MARK, script


class CurvesWidget(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]  # untyped
    """Shows curves as they are now.

    Attributes:
        curves: what it shows; the browser hears of every change.
    """

    curves = traitlets.Dict({}).tag(sync=True)

    def __init__(self) -> None:
        """Make one; it shows nothing yet.

        Raises:
            UsageError: its JavaScript is not built.
        """
        self._esm = script()
        super().__init__()

    def draw(self, runs: Sequence[RunPictures]) -> None:
        """Show these from now on."""
        self.curves = curves_json(runs)

    def bundle(self, others: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all forms of it, and what JupyterLab's extension knows it by."""
        own: Any = self._repr_mimebundle_()
        data, metadata = own if isinstance(own, tuple) else (own or {}, {})
        return {**data, **others}, {**metadata, **MARK}


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

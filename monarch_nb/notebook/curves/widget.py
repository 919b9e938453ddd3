"""Curves as a widget (anywidget), drawn with uPlot: zoom, and the values under the mouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anywidget
import traitlets

from monarch_nb.client.curves.told import curves_json
from monarch_nb.client.curves.words import RunPictures
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

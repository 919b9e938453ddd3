"""The panel as a widget in the output of a cell (anywidget): in JupyterLab, Notebook 7, VS Code and Colab."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from monarch_nb.errors import UsageError
from monarch_nb.notebook.panels.messages import Panel, PanelMessages, PoolsMessages, Send
from monarch_nb.panel.shown.view import Json

MARK = {"monarch_nb": {"panel": True}}
"""By this metadata JupyterLab's extension knows what it may show as it was, when the kernel has ended."""
SCRIPT = Path(__file__).parents[1] / "static" / "panel.js"


class PanelWidget(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]  # untyped
    """A panel of the pools that there are, or of one reservation.

    Attributes:
        reservation: id of the only reservation to show; "" shows a pool, at first that of the panel.
    """

    reservation = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        panel: Panel,
        reservation: str = "",
        *,
        others: Callable[[str], Panel | None],
        describe: Callable[[], dict[str, str]],
        defaults: Mapping[str, Json] | None = None,
        own: Mapping[str, Callable[[Json], object]] | None = None,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make a widget; it is shown by being displayed.

        Args:
            others: see PoolsMessages.
            describe: returns what stands in its place where widgets can not be shown, by MIME type.
            defaults, own, is_busy: see PanelMessages.
        """
        self._esm = script()
        self._describe = describe
        self._heard_in = contextvars.Context()

        def make(panel: Panel, send: Send) -> PanelMessages:
            return PanelMessages(panel, send, defaults=defaults, own=own, is_busy=is_busy)

        self._messages = PoolsMessages(panel, others, self._say, make)
        super().__init__(reservation=reservation)
        self.on_msg(self._hear)
        self.comm.on_close(lambda _: self._messages.close())

    @property
    def is_open(self) -> bool:
        """Whether it can be displayed (again)."""
        return self.comm is not None

    def close(self) -> None:
        """Take it away from all cells that show it."""
        self._messages.close()
        super().close()

    def _hear(self, _: object, content: object, __: object) -> None:
        # ipykernel sends the replies of a frontend to the subshell in whose context the kernel spoke last. Spoken
        # outside of one they would wait behind the cell that runs, although the frontend has a subshell for us.
        self._heard_in = contextvars.copy_context()
        self._messages.receive(content)

    def _say(self, content: Json) -> None:
        self._heard_in.run(self.send, content)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**options)
        self._messages.expect_view()
        return bundle and ({**bundle[0], **self._describe()}, {**bundle[1], **MARK})


@cache
def script() -> str:
    """Return the widget's JavaScript.

    Raises:
        UsageError: it has not been built.
    """
    try:
        return SCRIPT.read_text()
    except FileNotFoundError:
        raise UsageError(
            "the panel's JavaScript is not built in this checkout: cd labextension && jlpm install && jlpm build:prod"
        ) from None

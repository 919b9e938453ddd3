"""A cell that waits for a run: Ctrl-C goes to the ranks, a timeout leaves them alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb.notebook.tables import duration

if TYPE_CHECKING:
    from monarch_nb.client.run import Run


class RunInterrupted(KeyboardInterrupt):
    """The cell was interrupted, and every rank has stopped."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[39m: {self}"]


class RunTimeout(TimeoutError):
    """The cell waited as long as `--timeout` said; the run goes on."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        return [f"\x1b[31mTimeoutError\x1b[39m: {self}"]


def wait_for(run: Run, timeout_s: float | None, show: Callable[[str], None]) -> bool:
    """Wait until every rank has finished `run`.

    The first Ctrl-C interrupts the ranks, and the wait goes on; the next one kills and forks anew those that still do
    not stop.

    Args:
        timeout_s: how long to wait; None for as long as it takes.
        show: shows in the cell who stopped and who did not.

    Returns:
        Whether it was interrupted.

    Raises:
        RunTimeout: it goes on.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    asked = handled = 0
    while True:
        try:
            if handled < asked:
                handled = asked  # before the call, so that a Ctrl-C during it counts as the next one
                show(str(run.interrupt(kill_stuck=asked > 1)))
            if run.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return asked > 0
            raise RunTimeout(
                f"not finished after {duration(timeout_s or 0)}; the run goes on and its output keeps arriving here. "
                "%mesh attach follows it, %mesh interrupt stops it"
            )
        except KeyboardInterrupt:
            asked += 1

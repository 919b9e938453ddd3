"""Whether a process is set up, for which its actors wait: an actor calls `spawn_procs(bootstrap=…)` there first."""

from __future__ import annotations

import threading

from monarch_nb.actor.engine.failing import Failed

NAME, ENDPOINT = "bootstrap", "run"
"""What the actor that does it is called, and its only endpoint."""

_NEVER_MADE = "the actor was never made, because the bootstrap of its process did not succeed"


class SettingUp:
    """The setting up of a process, which one actor does. From any thread."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._failed: Failed | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self._over.is_set()

    def end(self, failed: Failed | None = None) -> None:
        """It has ended; only the first call counts.

        Args:
            failed: why the process is not set up; None if it is.
        """
        if not self._over.is_set():
            self._failed = failed
            self._over.set()

    def wait(self) -> Failed | None:
        """Wait until it has ended; return why the other actors of the process are not made, or None."""
        self._over.wait()
        if self._failed is None:
            return None
        what = self._failed.traceback or self._failed.text
        return self._failed._replace(traceback=f"{_NEVER_MADE}:\n{what}")

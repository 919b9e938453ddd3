"""The logs that are open."""

from __future__ import annotations

import time
from collections.abc import Callable

from monarch_nb.client.logs.lines import LogLines
from monarch_nb.config import cadence, gap
from monarch_nb.panel.hints import clickable
from monarch_nb.panel.logs.log import Log, LogRequest
from monarch_nb.panel.shown.view import Json

OPEN_WAIT_S = cadence(0.8)
"""How long opening a log waits for all of it; more comes afterwards."""
MAX_OPEN = 32
FORGOTTEN_S = gap(600.0)
"""A log that nobody has read for so long, while nobody was connected, is closed."""
PAGE_ROWS, LEAST_PAGE_ROWS, PAGE_LINES = 256, 32, 8_192
"""So many rows are to be asked for at a time: fewer where a row has lines of many ranks."""


class Logs:
    """The logs that are open, by id.

    Args:
        publish: called with an event when one of them has grown.
        is_watched: returns whether anybody would hear it.
        is_silent, root: see Log.
    """

    def __init__(
        self,
        publish: Callable[[Json], None],
        is_watched: Callable[[], bool],
        is_silent: Callable[[str], bool] = lambda _: False,
        root: str = "",
    ) -> None:
        self._publish, self._is_watched, self._is_silent, self._root = publish, is_watched, is_silent, root
        self._logs: dict[str, Log] = {}

    async def open(self, lines: LogLines, request: LogRequest) -> Json:
        """Open one; it is followed until it is closed, or forgotten."""
        self._forget()
        log = Log(lines, request, self._tell, self._is_silent, self._root)
        self._logs[log.id] = log
        try:
            await log.opened(OPEN_WAIT_S)
        except BaseException:
            self.close(log.id)
            raise
        page = max(LEAST_PAGE_ROWS, min(PAGE_ROWS, PAGE_LINES // len(request.ranks)))
        return log.describe() | {"log": log.id, "runs": log.describe_runs(), "fold": request.fold, "page": page}

    def get(self, log_id: str) -> Log | None:
        """Return an open one."""
        log = self._logs.get(log_id)
        if log is not None:
            log.used_at = time.monotonic()
        return log

    def close(self, log_id: str) -> None:
        """Close one; closing it twice is fine."""
        if log := self._logs.pop(log_id, None):
            log.close()

    def _forget(self) -> None:
        oldest = sorted(self._logs.values(), key=lambda log: log.used_at)
        for log in oldest:
            unused = not self._is_watched() and time.monotonic() - log.used_at > FORGOTTEN_S
            if unused or len(self._logs) >= MAX_OPEN:
                self.close(log.id)

    def _tell(self, log: Log) -> None:
        event: Json = {"type": "log", "log": log.id} | log.describe()
        if log.error is not None:
            event["error"] = clickable(str(log.error))
        self._publish(event)

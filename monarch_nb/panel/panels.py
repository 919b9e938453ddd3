"""A panel for each pool that somebody looks at, in Jupyter's server as in a kernel."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Mapping

from monarch_nb.config import DEFAULT_POOL
from monarch_nb.panel.pools import pools_to_show
from monarch_nb.panel.refusal import Refused
from monarch_nb.panel.requests import Panel
from monarch_nb.panel.shown.view import Json
from monarch_nb.provision.known import no_such_pool


class Panels:
    """Makes them when they are asked for. Safe to use from any thread.

    Args:
        pool: that is meant when none is named. The others: see Panel.
    """

    def __init__(
        self, pool: str = DEFAULT_POOL, *, root: str = "", refresh_s: float = 1.0, notice_s: float = 10.0
    ) -> None:
        self._own, self._root, self._refresh_s, self._notice_s = pool, root, refresh_s, notice_s
        self._panels: dict[str, Panel] = {}
        self._lock = threading.Lock()

    def find(self, pool: str = "") -> Panel | None:
        """Return the panel of a pool, also of one that has ended if somebody looked at it; None when there is none."""
        name = pool or self._own
        if name in self._panels or name in [each["name"] for each in pools_to_show(self._own)]:
            return self.of(name)
        return None

    def of(self, pool: str) -> Panel:
        """Return the panel of a pool, whether or not there is such a pool now."""
        with self._lock:
            if pool not in self._panels:
                often = {"refresh_s": self._refresh_s, "notice_s": self._notice_s}
                self._panels[pool] = Panel(pool, home=self._own, root=self._root, **often)
            return self._panels[pool]

    def handle(self, name: str, body: object) -> concurrent.futures.Future[Json]:
        """Do what is asked, of the pool that the body names; the answer is as Panel.handle has it."""
        pool = body.get("pool") if isinstance(body, Mapping) else None
        if panel := self.find(str(pool or "")):
            return panel.handle(name, body)
        answer: concurrent.futures.Future[Json] = concurrent.futures.Future()
        message = Refused(404, no_such_pool(str(pool))).message
        answer.set_result({"error": {"status": 404, "message": message, "errors": {}}})
        return answer

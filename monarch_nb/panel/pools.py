"""The pools that a panel can show, and of one that an engine was asked for what it costs and what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError
from monarch_nb.panel.hints import clickable
from monarch_nb.panel.shown.view import Json
from monarch_nb.provision import jobs
from monarch_nb.provision.known import known_pools
from monarch_nb.provision.launchers import Job
from monarch_nb.trust.pools import is_pool

ASK_EVERY_S = cadence(10.0)
"""How often an engine is asked, while somebody looks, what has become of a job of which a node does not answer."""
ANSWER_S = cadence(0.5)
"""How long a refresh waits for an engine while nodes answer; what it says later is in the next one."""


def pools_to_show(*always: str) -> list[Json]:
    """Return the pools that there are from here, each {"name", "what"}. Those of jobs that still wait have nothing to
    show.

    Args:
        always: those that are there also when they are not up; they are the first.
    """
    of_jobs = {job.pool: job for job in reversed(jobs.jobs())}
    try:
        known = known_pools()
    except MonarchNbError:  # there is nowhere to look; what is shown says so
        known = []
    there = [pool for pool in known if pool not in of_jobs or of_jobs[pool].served]
    return [{"name": pool, "what": _what(pool, of_jobs.get(pool))} for pool in dict.fromkeys([*always, *there])]


def _what(pool: str, job: Job | None) -> str:
    if job is None:
        return "hosts" if is_pool(pool) else "this machine"
    return jobs.title_of_pool(pool)


def note_pools(view: Json, home: str) -> None:
    """Complete a view with the pools that there are. To `home` there is always a way back."""
    view["pools"] = pools_to_show(view["pool"]["name"], home)


class Fate:
    """What the jobs of a pool cost, and what has become of those whose nodes do not answer. Used on one loop."""

    def __init__(self) -> None:
        self._said, self._ended = "", frozenset[str]()
        self._asked_s = -float("inf")
        self._asking: asyncio.Task[None] | None = None

    async def note(self, view: Json) -> None:
        """Have a view say it. Where a node is lost its engine is asked; while others answer it is not waited for."""
        pool, held = view["pool"], [each for each in view["reservations"].values() if each["mine"]]
        is_silent = pool["state"] == "silent"
        is_lost = is_silent or any(each["nodes_answering"] < each["nodes"] for each in held)
        if not is_lost or not await asyncio.to_thread(jobs.job_of_pool, pool["name"]):
            self._said, self._ended, self._asked_s = "", frozenset(), -float("inf")
        elif self._asking is None and time.monotonic() - self._asked_s >= ASK_EVERY_S:
            self._asking = asyncio.create_task(asyncio.to_thread(self._ask, pool["name"]))
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=None if is_silent else ANSWER_S)
            if self._asking.done():
                asked, self._asking = self._asking, None
                asked.result()
        if is_lost:
            pool["message"] = clickable(self._said) or pool["message"]
        await asyncio.to_thread(self._price, pool["name"], held)

    def _ask(self, pool: str) -> None:
        self._said, self._ended = jobs.trouble(pool), jobs.ended_in(pool)
        self._asked_s = time.monotonic()

    def _price(self, pool: str, held: Iterable[Json]) -> None:
        for each in held:
            each["price_per_hour"] = jobs.price_per_hour(pool, each["name"], self._ended) or None

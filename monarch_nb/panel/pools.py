"""The pools that a panel can show, and of one that an engine was asked for what it costs and what became of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from monarch_nb.client.pools.others import known_pools
from monarch_nb.errors import MonarchNbError
from monarch_nb.panel.hints import clickable
from monarch_nb.panel.view import Json
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import Job
from monarch_nb.trust.pools import is_pool

ASK_EVERY_S = 10.0
"""How often an engine is asked, while somebody looks, what has become of a job of which no node answers."""


def pools_to_show(own: str) -> list[Json]:
    """Return the pools that there are from here, `own` first, each {"name", "what"}. Those of jobs that still wait have
    nothing to show."""
    of_jobs = {job.pool: job for job in reversed(jobs.jobs())}
    try:
        known = known_pools()
    except MonarchNbError:  # there is nowhere to look; what is shown says so
        known = []
    there = [pool for pool in known if pool not in of_jobs or of_jobs[pool].served]
    return [{"name": pool, "what": _what(pool, of_jobs.get(pool))} for pool in dict.fromkeys([own, *there])]


def _what(pool: str, job: Job | None) -> str:
    if job is None:
        return "hosts" if is_pool(pool) else "this machine"
    return jobs.title_of_pool(pool)


def note_pools(view: Json) -> None:
    """Complete a view: with the pools that there are, and with what a reservation costs where that is known."""
    name = view["pool"]["name"]
    view["pools"] = pools_to_show(name)
    for held in view["reservations"].values():
        if held["mine"]:
            held["price_per_hour"] = jobs.price_per_hour(name, held["name"]) or None


@dataclass
class Fate:
    """What has become of the jobs of a pool of which no node answers."""

    said: str = ""
    asked_s: float = -float("inf")

    def note(self, view: Json) -> None:
        """Have a view say it. Its engine is asked; that may take a while."""
        pool = view["pool"]
        if pool["state"] != "silent" or not jobs.job_of_pool(pool["name"]):
            self.asked_s = -float("inf")
            return
        if time.monotonic() - self.asked_s >= ASK_EVERY_S:
            self.said, self.asked_s = jobs.trouble(pool["name"]), time.monotonic()
        pool["message"] = clickable(self.said) or pool["message"]

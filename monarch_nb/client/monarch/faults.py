"""Failures of Monarch's actors that nobody waits for, as people read them: of many that are alike, one is shown."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from monarch_nb.config import cadence
from monarch_nb.deaths import describe_signal, likely_cause
from monarch_nb.ground.rank_sets import counted

GATHER_S = cadence(0.5)
"""The actors of a mesh fail within a few milliseconds of each other, on a busy machine later."""
_OUR_FRAME = re.compile(r' *File "[^"\n]*monarch_nb/worker/monarch/census\.py", line .*\n(?: +.*\n)?(?: *[~^]+\n)?')
"""In a traceback of a node: of what watches messages there, and the line of code below it."""
_UNDELIVERABLE = re.compile(r"undeliverable message for (?P<endpoint>[^ (]+)\(\)[^\n:]*")
_REASON = re.compile(r"^\s*error: (?P<reason>[^;\n]*)", re.MULTILINE)
_ACTOR = re.compile(r"^The actor (?:<[^<>\n]*>\.)*<\S+ (?P<name>[^\s{>]+)")
_OF_MONARCHS_OWN = re.compile(r"^The actor (?:logger|log_forwarder)-")
"""They live in every process, and fail with the actors that people have there."""
_PROCESS_DIED = re.compile(
    r"^The actor (?:<[^<>\n]*>\.)*<\S+ (?P<actor>[^\s{>]+(?:\{[^}\n]*\})?)> and all its descendants have failed:\s+"
    r"the process this actor was running on failed: (?P<how>.*?)\s*$",
    re.DOTALL,
)
_KILLED = re.compile(r"Killed\(sig=(\d+)\)")
_OF_ONE = re.compile(r"\{'[^}\n]*\}")
"""What differs between actors of one mesh: where in it they are."""


class Faults:
    """Tells people of failures.

    Args:
        tell: shows a text.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._more: dict[str, int] = {}

    def add(self, report: str, note: str = "") -> None:
        """Show a failure, and soon how many have followed that are like it.

        Args:
            report: Monarch's own. note: what else is known, for the first one.
        """
        if _OF_MONARCHS_OWN.match(report):
            return
        like = _OF_ONE.sub("", shown(report))
        with self._lock:
            is_first = like not in self._more
            self._more[like] = 0 if is_first else self._more[like] + 1
        if is_first:
            self._tell("\n".join(filter(None, (f"Monarch: {shown(report)}", note))))
            threading.Timer(GATHER_S, self._tell_more, [like, subject(report)]).start()

    def _tell_more(self, like: str, of: str) -> None:
        with self._lock:
            more = self._more.pop(like)
        if more:
            self._tell(f"Monarch: {counted(more, 'more failure')}{of and f' of {of}'} like this")


def shown(report: str) -> str:
    """Return a report without what is ours, and without the addresses of a message that found nobody; of a process that
    died, in words."""
    if title := _UNDELIVERABLE.search(report):
        found = _REASON.search(report)
        return f"{title[0]}: {found['reason'].rpartition(': ')[2]}" if found else title[0]
    if died := _PROCESS_DIED.match(report):
        killed = _KILLED.fullmatch(died["how"])
        number = int(killed[1]) if killed else 0
        how = f"{describe_signal(number)}: {likely_cause(number)}" if number else died["how"]
        return f"the process of {died['actor']} died: {how}. spawn_procs() of its hosts starts others"
    return _OUR_FRAME.sub("", report)


def subject(report: str) -> str:
    """Return what has failed: the name of a mesh of actors, or the endpoint of a message that found none."""
    if title := _UNDELIVERABLE.search(report):
        return title["endpoint"]
    actor = _ACTOR.match(report)
    return actor["name"] if actor else ""

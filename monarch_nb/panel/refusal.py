"""Why a request is not done, as HTTP and the widget say it, in the words of the panel: what to click instead of
what to type. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from monarch_nb.errors import (
    CapacityError,
    MeshNotFound,
    MonarchNbError,
    NoSuchPool,
    PoolError,
    RankDead,
    RankUnresponsive,
    ReservationConflict,
    ReservationNotFound,
    RunNotFound,
    UsageError,
)

_HINTS = [
    (r"\(%mesh release NAME\)", "(Release… on its card)"),
    (r"monarch-nb up --nodes (\d+) adds nodes to a local pool", r"Add nodes… (at Nodes) makes a local pool \1 nodes"),
    (r"--procs N asks for CPU ranks", "choose CPU ranks as Kind"),
    (r"--wait waits for it", "Wait in line waits for it"),
    (r"--force-busy also takes GPUs", "Use busy GPUs also takes those"),
    (r": monarch-nb up starts one, and so does %mesh reserve", ": Start a local pool… starts one"),
    (r"; monarch-nb up --pool \S+ makes a local pool of that name, monarch-nb pool join FILE joins one of hosts", ""),
    (r"; monarch-nb status (?:--pool \S+ )?says more", ""),
    (r"; is its (?:host up, and its )?allocator running\?(?: \(monarch-nb status\))?", ""),
    (r"\(--pool NAME\)", "(JupyterLab's panel has it at its top)"),
    (r"\(--on ssh:HOST\)", "(Reserve…)"),
    (r": --pool \S+, or \S+=\S+", ": JupyterLab's panel shows it when it is chosen at its top"),
    (r": %mesh attach looks again", "; it is asked again as long as you look"),
    (
        r"[:;] %mesh reserve (?:[^;,]+ )?makes (?:a )?new ones?(?: \(say.*?\))?(?:, %mesh logs .*? printed)?",
        ": Reserve… makes a new one",
    ),
    (r"%mesh reserve \S+ --on \S+ asks", "Reserve… asks"),
    (r"%mesh reserve NAME (?:--\S+ \d+ ?)+", "Reserve… makes one"),
    (r"monarch-nb up starts (?:the node's|its) allocator again", "Start again… (at Nodes) starts its allocator again"),
    (r"%mesh replace (?:\S+ )?(puts|asks)", r"Replace nodes… (on the card) \1"),
    (
        r"%mesh attach \S+ uses it as it is; --replace releases it first (\([^)]*\)), or choose another name",
        r"choose another name, or release it first \1",
    ),
    (r"%mesh attach \S+ uses it as it is; (?:or )?", ""),
    (r" \(%mesh status\)", ""),
    (r": %mesh stacks\)", ": Stacks… shows where)"),
    (r"interrupt\(kill_stuck=True\) within 10 s to kill and restart (it|them)", r"Restart… kills \1 and starts anew"),
    (r"%mesh restart(?: --mesh \S+)? -t (\S+) starts (it|them) again", r"choose \1 and Restart… to start \2 again"),
]


def clickable(text: str) -> str:
    """Return a message of the client's as the panel says it.

    Example:
        >>> clickable("no pool 'local' is up: monarch-nb up starts one, and so does %mesh reserve")
        "no pool 'local' is up: Start a local pool… starts one"
    """
    for pattern, words in _HINTS:
        text = re.sub(pattern, words, text)
    return text


_STATUS: tuple[tuple[int, tuple[type[MonarchNbError], ...]], ...] = (
    (400, (UsageError,)),
    (404, (NoSuchPool, ReservationNotFound, MeshNotFound, RunNotFound)),
    (409, (CapacityError, ReservationConflict, RankDead)),
    (503, (PoolError, RankUnresponsive)),
)


class Refused(Exception):
    """A request that can not be done.

    Attributes:
        status: as in HTTP: 400 makes no sense, 403 not yours, 404 unknown, 409 not as things are, 503 the pool is away.
        message: for people. errors: by field of the form.
    """

    def __init__(self, status: int, message: str, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message = status, clickable(message)
        self.errors = {field: clickable(text) for field, text in (errors or {}).items()}

    @classmethod
    def of(cls, error: MonarchNbError) -> Refused:
        """Return it for an error of the client's."""
        status = next((status for status, kinds in _STATUS if isinstance(error, kinds)), 500)
        return cls(status, str(error))


def in_short(error: CapacityError) -> str:
    """Return what is missing and what helps: a field has little room, and the nodes are in sight."""
    first, *more = str(error).split("\n")
    return first.rstrip(":") + (f"; {re.split('[;:]', more[-1])[0]}" if more else "")

"""Why a request is not done, as HTTP and the widget say it."""

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
from monarch_nb.panel.hints import clickable

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

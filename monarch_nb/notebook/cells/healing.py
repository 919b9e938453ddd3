"""Allocators of a local pool that died, before somebody needs them."""

from __future__ import annotations

from monarch_nb.client.pools.pool import pool_object
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.session import Session


def heal(session: Session) -> None:
    """Have the pool of what is held start them again, and say so."""
    pool = session.reservation.pool if session.reservation is not None else session.pool
    pool_object(pool).heal(lambda line: show(calm_line(line)))

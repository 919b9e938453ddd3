"""The audit log: who reserved what, who was let in, what ended and how, which runs were whose. Its lines are in the
allocator's log, so whoever keeps and rotates that does so with them."""

from __future__ import annotations

import json
import logging

_log = logging.getLogger("monarch_nb.audit")


def note(event: str, **facts: object) -> None:
    """Log a line of JSON, which nobody's names can break; texts and lists that are empty are left out of it."""
    said = {key: fact for key, fact in facts.items() if fact not in ("", [])}
    _log.info(json.dumps({"event": event, **said}))

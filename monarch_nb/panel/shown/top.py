"""Where the ranks of a mesh are, in the value that is shown. Pure."""

from __future__ import annotations

from typing import Any

from monarch_nb.client.top.asking import EVERY_S
from monarch_nb.client.top.ranks import KINDS
from monarch_nb.client.top.table import HEADERS, TopRow, TopTable


def top_shown(table: TopTable) -> dict[str, Any]:
    """Return the table as a browser shows it."""
    return {
        "sentence": table.sentence,
        "is_late": table.straggler is not None,
        "again_s": EVERY_S,
        "rows": [_row(row) for row in table.rows],
    }


def _row(row: TopRow) -> dict[str, Any]:
    texts = dict(zip(HEADERS, row.cells(), strict=True))
    parts = [
        {"kind": kind, "name": name, "share": round(row.share(kind), 3), "text": texts[name]}
        for kind, name in KINDS.items()
        if texts[name]
    ]
    return {
        "ranks": row.ranks_text,
        "is_late": row.is_late,
        "node": texts["node"],
        "steps_per_s": texts["steps/s"],
        "parts": parts,
        "memory": texts["memory"],
        "cpu": texts["CPU"],
        "gpu": texts["GPU"],
        "where": texts["where mostly"],
    }

"""Where the ranks of a mesh are, in the value that is shown. Pure."""

from __future__ import annotations

from typing import Any

from monarch_nb.client.top.asking import EVERY_S
from monarch_nb.client.top.table import TopRow, TopTable


def top_shown(table: TopTable) -> dict[str, Any]:
    """Return the table as a browser shows it."""
    return {
        "sentence": table.sentence,
        "is_late": table.straggler is not None,
        "again_s": EVERY_S,
        "rows": [_row(row) for row in table.rows],
    }


def _row(row: TopRow) -> dict[str, Any]:
    texts = row.texts()
    parts = [{"kind": each.kind, "share": round(each.share, 3), "words": each.words} for each in row.shares()]
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

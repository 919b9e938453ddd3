"""What rows, results and failures are made of: something that is shown both as HTML and as text, and its label."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.notebook.output.rows import members

MAX_LABEL_CHARACTERS = 18
PRE = (
    "margin:0;border:0;background:none;color:inherit;font:inherit;white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;"
    "overflow:visible"
)
PROMPT = "color:var(--jp-cell-outprompt-font-color,#bf5b3d)"
QUIET = "opacity:.6"


@dataclass(frozen=True, slots=True)
class Own:
    """A bundle that the front end is to show by itself; `label` is the markup above it."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    label: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Something rendered both ways; `cost` is what it takes in the notebook's file, rich content not counted.

    Attributes:
        own: what is shown in place of the markup where the front end can show something by itself.
    """

    markup: str
    plain: str
    cost: int
    own: Own | None = None

    @staticmethod
    def of(markup: str, plain: str, rich_bytes: int = 0) -> Piece:
        return Piece(markup, plain, stored_bytes(markup) - rich_bytes + stored_bytes(plain))

    def above(self, markup: str) -> Piece:
        """Return it with something below that has no text."""
        return Piece(self.markup + markup, self.plain, self.cost + stored_bytes(markup))


def stored_bytes(text: str) -> int:
    return len(encode_basestring_ascii(text))


@lru_cache(4096)
def label_of_ranks(ranks: int) -> str:
    return f"[{format_ranks(members(ranks))}]"


@lru_cache(4096)
def short_label(ranks: int) -> str:
    """Return the label, but of scattered ranks only the first and the last, so that the gutter stays narrow."""
    label = label_of_ranks(ranks)
    if len(label) <= MAX_LABEL_CHARACTERS:
        return label
    parts = label[1:-1].split(",")
    first = ",".join(parts[:2])
    return f"[{first},…,{parts[-1]}]"


def labelled(label: str, text: str) -> str:
    return f"{label}\n{text}" if "\n" in text else f"{label} {text}"


def beside(label: str, width: int, content: str, style: str = QUIET) -> str:
    """Return rich content with its label in the gutter."""
    return (
        f'<div style="display:flex;margin:4px 0"><pre style="{PRE};{style};flex:none;width:{width + 1}ch;padding:0">'
        f'{html.escape(label.rjust(width))} </pre><div style="min-width:0;overflow-x:auto">{content}</div></div>'
    )


def newline(lines: list[str]) -> str:
    return "\n".join(lines)

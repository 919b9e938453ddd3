"""The values that ranks return, and what stands for many of them, as HTML and as text of bounded size."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from monarch_nb.ground import escapes
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.notebook.output.html import ansi, mime
from monarch_nb.notebook.output.html.pieces import (
    MAX_LABEL_CHARACTERS,
    PRE,
    PROMPT,
    QUIET,
    Own,
    Piece,
    beside,
    label_of_ranks,
    labelled,
    newline,
    short_label,
    stored_bytes,
)
from monarch_nb.notebook.output.rows import ResultGroup, members
from monarch_nb.notebook.output.values import grid
from monarch_nb.notebook.output.values.folding import FoldedRow, MoreRows, Part

_KEPT = ": `-o NAME` keeps all"
_MAX_RESULT_BYTES = 60_000
_MAX_HIDDEN_BYTES, _MAX_GRID_BYTES = 30_000, 80_000
_MAX_RICH_RESULTS, _MAX_RICH_BYTES = 20, 8_000_000


def result_pieces(parts: list[Part], hosts: grid.Hosts) -> list[Piece]:
    """Return `Out[0-7]: 3` for every part, as far as there is room."""
    if not parts:
        return []
    width = max(len(f"Out{short_label(part.ranks)}:") for part in parts)
    room = _Room(_MAX_RESULT_BYTES, _MAX_GRID_BYTES)
    pieces: list[Piece] = []
    for index, part in enumerate(parts):
        match part:
            case ResultGroup():
                piece = _result(part, width, room)
            case FoldedRow():
                piece = _folded_result(part, width)
            case MoreRows():
                piece = _more_results(part, width, room)
        if not room.take(piece.cost) and index:
            return [*pieces, _not_shown(rank for left in parts[index:] for rank in members(left.ranks))]
        pieces.append(piece if not isinstance(part, FoldedRow) else piece.above(_grids(part, width, room, hosts)))
    return pieces


@dataclass(slots=True)
class _Room:
    """What results may still take: text, grids, and rich content."""

    text_bytes: int
    grid_bytes: int
    rich: int = _MAX_RICH_RESULTS
    rich_bytes: int = _MAX_RICH_BYTES

    def take(self, size_bytes: int) -> bool:
        """Take room for text, if there is so much."""
        fits = size_bytes <= self.text_bytes
        self.text_bytes -= size_bytes
        return fits

    def take_rich(self, size_bytes: int) -> bool:
        """Take room for rich content, if there is so much."""
        fits = self.rich > 0 and size_bytes <= self.rich_bytes
        if fits:
            self.rich, self.rich_bytes = self.rich - 1, self.rich_bytes - size_bytes
        return fits

    def take_grid(self, size_bytes: int) -> bool:
        """Take room for a grid, if there is so much."""
        fits = size_bytes <= self.grid_bytes
        self.grid_bytes -= size_bytes if fits else 0
        return fits


def _not_shown(ranks: Iterable[int]) -> Piece:
    text = f"… results of {name_ranks(ranks)} not shown: `-o NAME` keeps them"
    return Piece.of(f'<pre style="{PRE};{QUIET}">{html.escape(text)}</pre>', text)


def _result(group: ResultGroup, width: int, room: _Room) -> Piece:
    label = f"Out{short_label(group.ranks)}:"
    plain = labelled(f"Out{label_of_ranks(group.ranks)}:", escapes.strip(mime.plain_text(group.bundle, _KEPT)))
    alone = mime.stands_alone(group.bundle)
    rich = alone or mime.is_rich(group.bundle)
    if rich and room.take_rich(sum(len(str(content)) for content in group.bundle.values())):
        own = Own(group.bundle, group.metadata, _out(label, width, "")) if alone else None
        if not mime.is_rich(group.bundle):
            return replace(
                Piece.of(_out(label, width, ansi.to_html(mime.best_text(group.bundle, _KEPT))), plain), own=own
            )
        content = mime.rich_html(group.bundle, group.metadata)
        return replace(Piece.of(beside(label, width, content, PROMPT), plain, stored_bytes(content)), own=own)
    return Piece.of(_out(label, width, ansi.to_html(mime.best_text(group.bundle, _KEPT))), plain)


def _out(label: str, width: int, markup: str) -> str:
    gutter = f'<span style="margin-left:-{width + 1}ch;{PROMPT}">{label:>{width}} </span>'
    return f'<pre style="{PRE};padding:0 0 0 {width + 1}ch">{gutter}{markup}</pre>'


def _folded_result(row: FoldedRow, width: int) -> Piece:
    """Return many ranks' values as a few lines."""
    label = f"Out{label_of_ranks(row.ranks)}:"
    indent = " " * min(len(label), MAX_LABEL_CHARACTERS)
    plain = "\n".join(f"{indent if place else label} {line}" for place, line in enumerate(row.lines))
    return Piece.of(_out(f"Out{short_label(row.ranks)}:", width, html.escape("\n".join(row.lines))), plain)


def _grids(row: FoldedRow, width: int, room: _Room, hosts: grid.Hosts) -> str:
    """Return what is drawn below the lines, as far as there is room."""
    drawn = (grid.markup(picture, hosts) for picture in row.pictures)
    shown = "".join(content for content in drawn if room.take_grid(stored_bytes(content)))
    return f'<div style="margin:2px 0 4px {width + 1}ch">{shown}</div>' if shown else ""


def _more_results(more: MoreRows, width: int, room: _Room) -> Piece:
    """Return a line that opens: what it hides is bounded, too."""
    text = f"… {len(more.groups):,} more different values on {name_ranks(members(more.ranks))}"
    plain = f"{text} not shown: `-o NAME` keeps them"
    line = f'<summary style="cursor:pointer"><span style="{QUIET}">{html.escape(text)}</span></summary>'
    hidden, spent = _hidden(more.groups, width, room)
    style = f"margin-left:{width + 1}ch"
    return Piece(f'<details style="{style}">{line}{hidden}</details>', plain, stored_bytes(line + plain) + spent)


def _hidden(groups: Sequence[ResultGroup], width: int, room: _Room) -> tuple[str, int]:
    """Return values, texts one below the other and rich ones as such, as far as there is room; and what they cost."""
    parts: list[str] = []
    lines: list[str] = []
    spent = 0
    for index, group in enumerate(groups):
        label = f"Out{short_label(group.ranks)}:"
        is_rich = mime.is_rich(group.bundle)
        content = "" if is_rich else f"{label} {ansi.to_html(mime.best_text(group.bundle, _KEPT))}"
        piece = _result(group, width, room) if is_rich else Piece.of(content, "")
        spent += piece.cost
        if spent > _MAX_HIDDEN_BYTES:
            rest = _not_shown(rank for left in groups[index:] for rank in members(left.ranks))
            return "".join([*parts, _hidden_text(lines), rest.markup]), spent - piece.cost + rest.cost
        if is_rich:
            parts += [_hidden_text(lines), piece.markup]
            lines = []
        else:
            lines.append(content)
    return "".join([*parts, _hidden_text(lines)]), spent


def _hidden_text(lines: list[str]) -> str:
    return f'<pre style="{PRE};padding:0">{newline(lines)}</pre>' if lines else ""

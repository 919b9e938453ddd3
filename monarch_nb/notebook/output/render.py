"""Rows become static HTML and plain text of bounded size.

The HTML reads well wherever saved notebooks are shown: every line carries its rank set as text inside one `<pre>`, so
it stays readable where styles are stripped; all styles are inline and take the theme's colours.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Literal, NamedTuple

from monarch_nb.errors import RankFailure, name_failed, where_besides
from monarch_nb.ground import escapes
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.notebook.output import ansi, mime
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.rows import DisplayRow, ElidedRow, NoteRow, ResultGroup, Row, TextRow, bits, members
from monarch_nb.notebook.output.values import grid
from monarch_nb.notebook.output.values.folding import FoldedRow, MoreRows, Part, folded

Group = Literal["rank", "order", "type"]
"""ipyparallel's --group-outputs: by rank set, as it came, or by stream and kind."""

MAX_STORED_BYTES = 190_000
"""Of text, HTML and plain together, as the notebook's file holds them; images and HTML of ranks come on top."""
_MAX_RESULT_BYTES, _MAX_FAILURE_BYTES = 60_000, 40_000
_MAX_HIDDEN_BYTES, _MAX_GRID_BYTES = 30_000, 80_000
_MAX_RICH_RESULTS, _MAX_RICH_BYTES = 20, 8_000_000
_MAX_TRACEBACK_CHARACTERS = 12_000
_ROW_OVERHEAD_BYTES, _STDERR_BYTES = 100, 130
_OPENING_BYTES = 150
_MAX_PLACES = 8
"""A row says of so many groups of ranks that are out of step where their lines are; the others' are looked for."""
_MAX_LABEL_CHARACTERS = 18
_NEWEST_ROWS_OF_EACH = 5
"""Of every rank so many rows are shown however much others print after it."""

_FONT = (
    "font-family:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,Menlo,Consolas,monospace));"
    "font-size:var(--jp-code-font-size,13px);line-height:1.45"
)
_PRE = (
    "margin:0;border:0;background:none;color:inherit;font:inherit;white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;"
    "overflow:visible"
)
_STDERR = "color:var(--jp-warn-color1,#c77700)"
_APART = "color:var(--jp-warn-color0,#b25000);font-weight:bold"
_ERROR = "color:var(--jp-error-color1,#d32f2f)"
_PROMPT = "color:var(--jp-cell-outprompt-font-color,#bf5b3d)"
_NOTE = (
    "margin:4px 0;padding:3px 10px;border-left:3px solid var(--jp-info-color1,#0288d1);"
    "background:rgba(2,136,209,.08);border-radius:2px"
)
_ACCENT = "color:var(--jp-brand-color1,#1976d2)"
_QUIET = "opacity:.6"


class LogOf(NamedTuple):
    """Where lines are in the logs: of which mesh and which run."""

    mesh_id: str
    run: int


def render(
    fold: Fold,
    *,
    group: Group = "order",
    failures: Literal["none", "short", "full"] = "none",
    aside: str = "",
    status: str = "",
    status_alone: bool = False,
    hosts: grid.Hosts | None = None,
    log: LogOf | None = None,
) -> dict[str, str]:
    """Return what `fold` looks like now, as a MIME bundle of text/html and text/plain; empty when that is nothing.

    Args:
        failures: whether failed ranks get no word here, a line, or their tracebacks.
        aside: a line below the output, of what is not shown.
        status: a line below everything, e.g. "● running on 8 ranks".
        status_alone: whether the status is shown also when there is nothing else; then it is the text, too.
        hosts: the ranks of each node, by what it is called, as far as they are known.
        log: where the lines are that folded rows stand for: our extension opens such rows.

    Example:
        >>> fold = Fold([0, 1])
        >>> for rank in (0, 1):
        ...     fold.add(Text(rank, "stdout", "loss 2.31\\n"))
        >>> render(fold)["text/plain"]
        '[0-1] loss 2.31'
    """
    failed = _failures(fold, failures)
    results = _results(folded(fold.results()), hosts or {})
    notices = [_notice(text) for text in fold.notices.values()]
    asides = [_aside(aside)] if aside else []
    spent = sum(piece.cost for piece in (*failed, *results, *notices, *asides))
    output = _output(arranged(fold.rows(), group), fold.ranks, MAX_STORED_BYTES - spent, log)
    pieces = [*output, *asides, *results, *failed, *notices]
    if not pieces and not (status and status_alone):
        return {}
    markup = "".join(piece.markup for piece in pieces)
    if status:
        dot = html.escape(status).replace("●", f'<span style="{_ACCENT}">●</span>')
        markup += f'<div style="font-size:90%;margin-top:2px"><span style="{_QUIET}">{dot}</span></div>'
    return {
        "text/html": f'<div style="{_FONT}"{_where(log)}>{markup}</div>',
        "text/plain": "\n".join(piece.plain for piece in pieces) or status,
    }


def plain_lines(rows: Sequence[Row], ranks: int, colours: bool = False) -> str:
    """Return `rows` as text, for output that only grows; `colours` keeps ANSI colours."""
    width = _width(rows, ranks)
    return "\n".join(_plain_row(row, width, str if colours else escapes.strip) for row in _merged(rows))


def plain_ending(fold: Fold, show_failures: bool) -> str:
    """Return the results (and failures) as text, to come after all rows."""
    pieces = [*_results(folded(fold.results()), {}), *_failures(fold, "full" if show_failures else "none")]
    return "\n".join(piece.plain for piece in pieces)


def arranged(rows: list[Row], group: Group) -> list[Row]:
    """Return `rows`, which are in order of output, in the order that `group` asks for.

    By "rank", all of rank 0 comes before all of rank 1; ranks whose whole output is equal are still shown once.
    """
    if group == "rank":
        return [row.part(ranks) for ranks, of_ranks in _whole_outputs(rows) for row in of_ranks]
    if group == "type":
        return sorted(rows, key=_kind)
    return rows


def _whole_outputs(rows: list[Row]) -> list[tuple[int, list[Row]]]:
    """Return each set of ranks whose rows are all the same, with these rows, in the order of its first rank."""
    rows_of: dict[int, list[Row]] = {}
    for row in rows:
        for rank in members(row.ranks):
            rows_of.setdefault(rank, []).append(row)
    groups: dict[tuple[int, ...], tuple[list[int], list[Row]]] = {}
    for rank, its_rows in sorted(rows_of.items()):
        groups.setdefault(tuple(map(id, its_rows)), ([], its_rows))[0].append(rank)
    return [(bits(ranks), its_rows) for ranks, its_rows in groups.values()]


def _kind(row: Row) -> int:
    if isinstance(row, DisplayRow):
        return 2
    return 1 if isinstance(row, TextRow) and row.stream == "stderr" else 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Something rendered both ways; `cost` is what it takes in the notebook's file, rich content not counted."""

    markup: str
    plain: str
    cost: int

    @staticmethod
    def of(markup: str, plain: str, rich_bytes: int = 0) -> _Piece:
        return _Piece(markup, plain, _stored_bytes(markup) - rich_bytes + _stored_bytes(plain))

    def above(self, markup: str) -> _Piece:
        """Return it with something below that has no text."""
        return _Piece(self.markup + markup, self.plain, self.cost + _stored_bytes(markup))


def _stored_bytes(text: str) -> int:
    return len(encode_basestring_ascii(text))


# ---- rows ----


def _output(rows: list[Row], ranks: int, budget_bytes: int, log: LogOf | None) -> list[_Piece]:
    if not rows:
        return []
    rows = _merged(_fitting(rows, budget_bytes))
    width = _width(rows, ranks)
    markup: list[str] = []
    lines: list[str] = []
    for row, before in zip(rows, (None, *rows), strict=False):
        if isinstance(row, DisplayRow) and mime.is_rich(row.data):
            markup += (_block(lines, width), _beside(_label(row.ranks), width, mime.rich_html(row.data, row.metadata)))
            lines = []
        else:
            lines.append(_line(row, before, width, log))
    markup.append(_block(lines, width))
    width = _width(rows)
    plain = "\n".join(_plain_row(row, width, escapes.strip) for row in rows)
    return [_Piece("".join(markup), plain, 0)]


def _block(lines: list[str], width: int) -> str:
    """Return lines that each begin in the gutter; what wraps stays right of it."""
    if not lines:
        return ""
    return f'<pre style="{_PRE};padding:0 0 0 {width + 1}ch">{_newline(lines)}</pre>'


def _newline(lines: list[str]) -> str:
    return "\n".join(lines)


def _beside(label: str, width: int, content: str, style: str = _QUIET) -> str:
    """Return rich content with its label in the gutter."""
    return (
        f'<div style="display:flex;margin:4px 0"><pre style="{_PRE};{style};flex:none;width:{width + 1}ch;padding:0">'
        f'{html.escape(label.rjust(width))} </pre><div style="min-width:0;overflow-x:auto">{content}</div></div>'
    )


def _line(row: Row, before: Row | None, width: int, log: LogOf | None) -> str:
    match row:
        case TextRow():
            again = isinstance(before, TextRow) and before.ranks == row.ranks and before.stream == row.stream
            return _opening(row, log, _gutter(row, again and not row.is_apart, width) + _text_markup(row.text))
        case DisplayRow():
            return _gutter(row, False, width) + ansi.to_html(mime.best_text(row.data))
        case ElidedRow() | NoteRow():
            blank = f'<span style="margin-left:-{width + 1}ch">{" " * width} </span>'
            return f'{blank}<i style="{_QUIET}">{_with_code(html.escape(_said(row)))}</i>'
        case _:
            raise TypeError(row)


def _opening(row: TextRow, log: LogOf | None, markup: str) -> str:
    """Return a row; if it stands for lines that differ it says where each rank's own is."""
    if log is None or row.number < 0 or not (row.is_folded or row.is_apart):
        return markup
    about = f"%mesh logs --run {log.run} has each rank's line"
    return f'<span data-monarch-row="{_places(row)}" title="{about}">{markup}</span>'


def _places(row: TextRow) -> str:
    """Return which line of each rank it is, e.g. "120:0-6;1120:7"; of a few ranks that are out of step."""
    places = dict(sorted(row.ranks_by_number().items(), key=lambda place: -place[1].bit_count()))
    for number in list(places)[_MAX_PLACES:]:  # they are looked for around the first
        places[next(iter(places))] |= places.pop(number)
    return ";".join(f"{number}:{_label(ranks)[1:-1]}" for number, ranks in places.items())


def _where(log: LogOf | None) -> str:
    return f' data-monarch-log="{html.escape(log.mesh_id)}/{log.run}"' if log else ""


def _gutter(row: Row, again: bool, width: int) -> str:
    """Return the rank set; fainter where it is the same as in the line above."""
    stderr = isinstance(row, TextRow) and row.stream == "stderr"
    full, label = _label(row.ranks), _label_of(row, _short_label(row.ranks))
    about = [full] * (_short_label(row.ranks) != full) + ["stderr"] * (stderr and not again)
    title = f' title="{" ".join(about)}"' if about else ""
    style = f"margin-left:-{width + 1}ch;opacity:{'.35' if again else '.65'}"
    if isinstance(row, TextRow) and row.is_apart:
        style = f"margin-left:-{width + 1}ch;{_APART}"
    mark = f'<span style="{_STDERR};position:relative;left:-.2ch">│</span>' if stderr else " "
    return f'<span style="{style}"{title}>{label:>{width}}</span>{mark}'


def _plain_row(row: Row, width: int, clean: Callable[[str], str]) -> str:
    match row:
        case TextRow():
            label = _label_of(row, _label(row.ranks))
            if row.stream == "stderr":
                return f"[stderr:{label[1:]} {clean(row.text)}"
            return f"{label:>{width}} {clean(row.text)}"
        case DisplayRow():
            return _labelled(f"{_label(row.ranks):>{width}}", escapes.strip(mime.plain_text(row.data)))
        case ElidedRow() | NoteRow():
            return f"{'':>{width}} {_said(row)}"
        case _:
            raise TypeError(row)


def _labelled(label: str, text: str) -> str:
    return f"{label}\n{text}" if "\n" in text else f"{label} {text}"


@lru_cache(4096)
def _text_markup(text: str) -> str:
    return ansi.to_html(text)


@lru_cache(4096)
def _text_cost(text: str) -> int:
    return _stored_bytes(_text_markup(text)) + _stored_bytes(escapes.strip(text)) + _ROW_OVERHEAD_BYTES


def _row_cost(row: Row) -> int:
    if isinstance(row, TextRow):
        overhead_bytes = _STDERR_BYTES if row.stream == "stderr" else 0
        folded_bytes = _OPENING_BYTES + len(_places(row)) if row.is_folded or row.is_apart else 0
        return _text_cost(row.text) + 2 * len(_label(row.ranks)) + overhead_bytes + folded_bytes
    if isinstance(row, DisplayRow):
        return _stored_bytes(mime.plain_text(row.data)) * (1 if mime.is_rich(row.data) else 2) + 2 * _ROW_OVERHEAD_BYTES
    return 3 * _ROW_OVERHEAD_BYTES


def _fitting(rows: list[Row], budget_bytes: int) -> list[Row]:
    """Return `rows`, those in the middle replaced by a count when they are too large together; displays stay, and so do
    the newest rows of every rank and those that must not be overlooked, wherever they stand."""
    costs = [_row_cost(row) for row in rows]
    if sum(costs) <= budget_bytes:
        return rows
    gap = next((index for index, row in enumerate(rows) if row.sequence < 0), None)
    begin, spent = 0, 0
    while begin != gap and begin < len(rows) and spent + costs[begin] <= budget_bytes // 5:
        spent += costs[begin]
        begin += 1
    newest = {index for index in _newest_of_each(rows, costs, budget_bytes // 4) if index >= begin}
    newest |= _first_apart(rows, costs, begin, budget_bytes // 4)
    spent += sum(costs[index] for index in newest)
    end = len(rows)
    while end - 1 != gap and end > begin and (end - 1 in newest or spent + costs[end - 1] <= budget_bytes):
        end -= 1
        spent += 0 if end in newest else costs[end]
    hidden = [rows[index] for index in range(begin, end) if index not in newest]
    displays = [row for row in hidden if isinstance(row, DisplayRow) and mime.is_rich(row.data)]
    kept = [rows[index] for index in sorted(newest) if index < end]
    return [*rows[:begin], _count(row for row in hidden if row not in displays), *displays, *kept, *rows[end:]]


def _first_apart(rows: list[Row], costs: list[int], begin: int, budget_bytes: int) -> set[int]:
    """Return where the first rows are that must not be overlooked, as far as there is room."""
    found: set[int] = set()
    for index in range(begin, len(rows)):
        row = rows[index]
        if isinstance(row, TextRow) and row.is_apart:
            budget_bytes -= costs[index]
            if budget_bytes < 0:
                break
            found.add(index)
    return found


def _newest_of_each(rows: list[Row], costs: list[int], budget_bytes: int) -> list[int]:
    """Return where the last few rows of every rank are, as far as there is room."""
    found: list[int] = []
    seen: Counter[int] = Counter()
    hungry = -1  # all ranks
    for index in range(len(rows) - 1, -1, -1):
        row = rows[index]
        if isinstance(row, ElidedRow | NoteRow) or not row.ranks & hungry or costs[index] > budget_bytes:
            continue
        found.append(index)
        budget_bytes -= costs[index]
        for rank in members(row.ranks & hungry):
            seen[rank] += 1
            if seen[rank] == _NEWEST_ROWS_OF_EACH:
                hungry &= ~(1 << rank)
    return found


def _merged(rows: Sequence[Row]) -> list[Row]:
    """Return `rows` with neighbouring counts of what is not shown as one."""
    merged: list[Row] = []
    for row in rows:
        if isinstance(row, ElidedRow) and merged and isinstance(merged[-1], ElidedRow):
            merged[-1] = _count((merged[-1], row))
        else:
            merged.append(row)
    return merged


def _count(rows: Iterable[Row]) -> ElidedRow:
    count = ElidedRow(0, (0, 0), -1, None)
    sets: Counter[int] = Counter()
    for row in rows:
        count.ranks |= row.ranks
        if isinstance(row, ElidedRow):
            count.lines.update(row.lines)
            count.displays.update(row.displays)
            count.size_bytes += row.size_bytes
        elif isinstance(row, DisplayRow):
            count.displays.update(members(row.ranks))
        else:
            sets[row.ranks] += 1
    for ranks, lines in sets.items():
        count.lines.update(dict.fromkeys(members(ranks), lines))
    return count


def _said(row: ElidedRow | NoteRow) -> str:
    return escapes.strip(row.text) if isinstance(row, NoteRow) else describe(row)


def describe(row: ElidedRow) -> str:
    """Return what is not shown, e.g. "… 1,599,000 lines on ranks 0-7 not shown; `%mesh logs` has them"."""
    if row.text:
        what = f"{escapes.strip(row.text)} on {name_ranks(row.displays)}"
    else:
        parts = [_amounts(counts, noun) for counts, noun in ((row.lines, "line"), (row.displays, "display")) if +counts]
        what = " and ".join(parts) or f"{row.size_bytes:,} bytes on {name_ranks(members(row.ranks))}"
    return f"… {what} not shown; `%mesh logs` has them"


def _amounts(counts: Counter[int], noun: str) -> str:
    groups: dict[int, list[int]] = {}
    for rank, count in (+counts).items():
        groups.setdefault(count, []).append(rank)
    if len(groups) > 3:
        groups = {counts.total(): list(+counts)}
        total = {counts.total(): counts.total()}
    else:
        total = {count: count * len(ranks) for count, ranks in groups.items()}
    parts = [(total[count], ranks) for count, ranks in sorted(groups.items(), key=lambda item: min(item[1]))]
    first = f"{parts[0][0]:,} {noun}{'' if parts[0][0] == 1 else 's'} on {name_ranks(parts[0][1])}"
    return ", ".join([first, *(f"{amount:,} on {name_ranks(ranks)}" for amount, ranks in parts[1:])])


# ---- labels ----


@lru_cache(4096)
def _label(ranks: int) -> str:
    return f"[{format_ranks(members(ranks))}]"


def _label_of(row: Row, label: str) -> str:
    """Return a label; it is marked when the row must not be overlooked."""
    return f"{label}!" if isinstance(row, TextRow) and row.is_apart else label


@lru_cache(4096)
def _short_label(ranks: int) -> str:
    """Return the label, but of scattered ranks only the first and the last, so that the gutter stays narrow."""
    label = _label(ranks)
    if len(label) <= _MAX_LABEL_CHARACTERS:
        return label
    parts = label[1:-1].split(",")
    first = ",".join(parts[:2])
    return f"[{first},…,{parts[-1]}]"


def _width(rows: Sequence[Row], ranks: int = 0) -> int:
    """Return the width of the gutter; with `ranks` at least theirs, so that text does not move while output grows."""
    labelled = {(row.ranks, _label_of(row, "")) for row in rows if not isinstance(row, ElidedRow | NoteRow)}
    labelled |= {(ranks, "")} if ranks else set()
    return max((len(_short_label(each)) + len(mark) for each, mark in labelled), default=0)


# ---- results, failures, notices ----


def _results(parts: list[Part], hosts: grid.Hosts) -> list[_Piece]:
    """Return `Out[0-7]: 3` for every part, as far as there is room."""
    if not parts:
        return []
    width = max(len(f"Out{_short_label(part.ranks)}:") for part in parts)
    room = _Room(_MAX_RESULT_BYTES, _MAX_GRID_BYTES)
    pieces: list[_Piece] = []
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


def _not_shown(ranks: Iterable[int]) -> _Piece:
    text = f"… results of {name_ranks(ranks)} not shown: `-o NAME` keeps them"
    return _Piece.of(f'<pre style="{_PRE};{_QUIET}">{html.escape(text)}</pre>', text)


def _result(group: ResultGroup, width: int, room: _Room) -> _Piece:
    label = f"Out{_short_label(group.ranks)}:"
    plain = _labelled(f"Out{_label(group.ranks)}:", escapes.strip(mime.plain_text(group.bundle)))
    rich = mime.is_rich(group.bundle)
    if rich and room.take_rich(sum(len(str(content)) for content in group.bundle.values())):
        content = mime.rich_html(group.bundle, {})
        return _Piece.of(_beside(label, width, content, _PROMPT), plain, rich_bytes=_stored_bytes(content))
    return _Piece.of(_out(label, width, ansi.to_html(mime.best_text(group.bundle))), plain)


def _out(label: str, width: int, markup: str) -> str:
    gutter = f'<span style="margin-left:-{width + 1}ch;{_PROMPT}">{label:>{width}} </span>'
    return f'<pre style="{_PRE};padding:0 0 0 {width + 1}ch">{gutter}{markup}</pre>'


def _folded_result(row: FoldedRow, width: int) -> _Piece:
    """Return many ranks' values as a few lines."""
    label = f"Out{_label(row.ranks)}:"
    indent = " " * min(len(label), _MAX_LABEL_CHARACTERS)
    plain = "\n".join(f"{indent if place else label} {line}" for place, line in enumerate(row.lines))
    return _Piece.of(_out(f"Out{_short_label(row.ranks)}:", width, html.escape("\n".join(row.lines))), plain)


def _grids(row: FoldedRow, width: int, room: _Room, hosts: grid.Hosts) -> str:
    """Return what is drawn below the lines, as far as there is room."""
    drawn = (grid.markup(picture, hosts) for picture in row.pictures)
    shown = "".join(content for content in drawn if room.take_grid(_stored_bytes(content)))
    return f'<div style="margin:2px 0 4px {width + 1}ch">{shown}</div>' if shown else ""


def _more_results(more: MoreRows, width: int, room: _Room) -> _Piece:
    """Return a line that opens: what it hides is bounded, too."""
    text = f"… {len(more.groups):,} more different values on {name_ranks(members(more.ranks))}"
    plain = f"{text} not shown: `-o NAME` keeps them"
    line = f'<summary style="cursor:pointer"><span style="{_QUIET}">{html.escape(text)}</span></summary>'
    hidden, spent = _hidden(more.groups, width, room)
    style = f"margin-left:{width + 1}ch"
    return _Piece(f'<details style="{style}">{line}{hidden}</details>', plain, _stored_bytes(line + plain) + spent)


def _hidden(groups: Sequence[ResultGroup], width: int, room: _Room) -> tuple[str, int]:
    """Return values, texts one below the other and rich ones as such, as far as there is room; and what they cost."""
    parts: list[str] = []
    lines: list[str] = []
    spent = 0
    for index, group in enumerate(groups):
        label = f"Out{_short_label(group.ranks)}:"
        is_rich = mime.is_rich(group.bundle)
        content = "" if is_rich else f"{label} {ansi.to_html(mime.best_text(group.bundle))}"
        piece = _result(group, width, room) if is_rich else _Piece.of(content, "")
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
    return f'<pre style="{_PRE};padding:0">{_newline(lines)}</pre>' if lines else ""


def _failures(fold: Fold, how: Literal["none", "short", "full"]) -> list[_Piece]:
    if how == "none":
        return []
    pieces: list[_Piece] = []
    spent = 0
    for ranks, failure in fold.failure_groups():
        title = name_failed(fold.failures[rank] for rank in ranks)
        piece = _failure(title, failure, full=how == "full")
        if spent + piece.cost > _MAX_FAILURE_BYTES:
            piece = _failure(title, failure, full=False)
        if spent + piece.cost <= _MAX_FAILURE_BYTES:
            pieces.append(piece)
            spent += piece.cost
    return pieces


def _failure(title: str, failure: RankFailure, full: bool) -> _Piece:
    where = where_besides(failure.message, failure.where)
    place = f" · {where}" if where else ""
    cause = mime.cut_middle(f"{failure.name}: {failure.message}".rstrip(": "), 600)
    rest = ""
    if not full:
        cause = cause.partition("\n")[0]
    elif failure.rendered:
        rest = mime.cut_middle(failure.rendered.rstrip(), _MAX_TRACEBACK_CHARACTERS)
    elif failure.stderr_tail:
        rest = "\n".join(f"    {line[:500]}" for line in failure.stderr_tail[-20:])
    head = (
        f'<pre style="{_PRE};padding:0"><span style="{_ERROR};font-weight:bold">✗ {html.escape(title)}</span> '
        f'{ansi.to_html(cause)}<span style="{_QUIET}">{html.escape(place)}</span></pre>'
    )
    plain = f"{title}: {escapes.strip(cause)}{place}"
    if not rest:
        return _Piece.of(head, plain)
    body = f'<pre style="{_PRE};padding:2px 0 4px 2ch">{ansi.to_html(rest)}</pre>'
    return _Piece.of(head + body, f"{plain}\n{escapes.strip(rest)}")


def _notice(text: str) -> _Piece:
    text = mime.cut_middle(text, 4_000)
    body = _with_code(ansi.to_html(text))
    return _Piece.of(f'<div style="{_NOTE}"><pre style="{_PRE};padding:0">{body}</pre></div>', escapes.strip(text))


def _aside(text: str) -> _Piece:
    markup = _with_code(html.escape(text))
    return _Piece.of(f'<pre style="{_PRE};padding:0"><i style="{_QUIET}">{markup}</i></pre>', text)


def _with_code(markup: str) -> str:
    return re.sub("`([^`]+)`", r'<code style="font-style:normal">\1</code>', markup)

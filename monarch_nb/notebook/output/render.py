"""Rows become static HTML and plain text of bounded size.

The HTML reads well wherever saved notebooks are shown: every line carries its rank set as text inside one `<pre>`, so
it stays readable where styles are stripped; all styles are inline and take the theme's colours.
"""

from __future__ import annotations

import html
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from monarch_nb.client.advice import here
from monarch_nb.errors import RankFailure, name_failed, where_besides
from monarch_nb.ground import escapes
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.ground.tracebacks import without_library
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.html import ansi, mime
from monarch_nb.notebook.output.html.pieces import (
    PRE,
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
from monarch_nb.notebook.output.rows import DisplayRow, ElidedRow, NoteRow, Row, TextRow, bits, members
from monarch_nb.notebook.output.terminal import MAX_LINE_CHARACTERS
from monarch_nb.notebook.output.values import grid
from monarch_nb.notebook.output.values.folding import folded
from monarch_nb.notebook.output.values.results import result_pieces

Group = Literal["rank", "order", "type"]
"""ipyparallel's --group-outputs: by rank set, as it came, or by stream and kind."""

MAX_STORED_BYTES = 190_000
"""Of text, HTML and plain together, as the notebook's file holds them; images and HTML of ranks come on top."""
_MAX_FAILURE_BYTES = 40_000
_MAX_TRACEBACK_CHARACTERS = 12_000
_ROW_OVERHEAD_BYTES, _STDERR_BYTES = 100, 130
_OPENING_BYTES = 150
_MAX_PLACES = 8
"""A row says of so many groups of ranks that are out of step where their lines are; the others' are looked for."""
_NEWEST_ROWS_OF_EACH = 5
"""Of every rank so many rows are shown however much others print after it."""

_FONT = (
    "font-family:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,Menlo,Consolas,monospace));"
    "font-size:var(--jp-code-font-size,13px);line-height:1.45"
)
_STDERR = "color:var(--jp-warn-color1,#c77700)"
_ERROR = "color:var(--jp-error-color1,#d32f2f)"
_NOTE = (
    "margin:4px 0;padding:3px 10px;border-left:3px solid var(--jp-info-color1,#0288d1);"
    "background:rgba(2,136,209,.08);border-radius:2px"
)
_ACCENT = "color:var(--jp-brand-color1,#1976d2)"


_MARKED = "! these ranks' numbers are nan or inf, or far from the others', and not in the range; "


class Bundle(NamedTuple):
    """A display: a MIME bundle and its metadata."""

    data: dict[str, Any]
    metadata: dict[str, Any]


class LogOf(NamedTuple):
    """Where lines are in the logs: of which mesh and which run.

    Attributes:
        flag: what chooses the mesh on a line of `%mesh`, and the reservation in a terminal.
        is_counted: the lines are known by their numbers, so that our extension can open rows.
    """

    mesh_id: str
    run: int
    flag: str = ""
    is_counted: bool = True

    @property
    def command(self) -> str:
        """What is typed to read them."""
        return here(f"%mesh logs{self.flag} --run {self.run}")


def render(
    fold: Fold,
    *,
    group: Group = "order",
    failures: bool = False,
    notices: Iterable[str] = (),
    aside: str = "",
    status: str = "",
    status_alone: bool = False,
    hosts: grid.Hosts | None = None,
    log: LogOf | None = None,
    most: int = sys.maxsize,
) -> list[Bundle]:
    """Return what `fold` looks like now, as displays one below the other; none when that is nothing.

    All that can be is one of text/html and text/plain. What the front end shows by itself comes between two of these:
    every second one is ours.

    Args:
        failures: show the tracebacks of failed ranks.
        notices: what monarch_nb has to say.
        aside: a line below the output, of what is not shown.
        status: a line below everything, e.g. "● running on 8 ranks".
        status_alone: whether the status is shown also when there is nothing else; then it is the text, too.
        hosts: the ranks of each node, by what it is called, as far as they are known.
        log: where the lines are that folded rows stand for: our extension opens such rows.
        most: how many displays there may be; what finds no place of its own is drawn as well as we can.

    Example:
        >>> fold = Fold([0, 1])
        >>> for rank in (0, 1):
        ...     fold.add(Text(rank, "stdout", "loss 2.31\\n"))
        >>> render(fold)[0].data["text/plain"]
        '[0-1] loss 2.31'
    """
    failed = _failures(fold, log) if failures else []
    results = result_pieces(folded(fold.results(), fold.without_value()), hosts or {})
    told = [_notice(text) for text in notices]
    asides = [_aside(text) for text in (_of_cut_lines(log) if fold.has_cut_lines else "", aside) if text]
    spent = sum(piece.cost for piece in (*failed, *results, *told, *asides))
    output = _output(arranged(fold.rows(), group), fold.ranks, MAX_STORED_BYTES - spent, log)
    pieces = [*output, *asides, *results, *failed, *told]
    if not pieces and not (status and status_alone):
        return []
    if status:
        dot = html.escape(status).replace("●", f'<span style="{_ACCENT}">●</span>')
        markup = f'<div style="font-size:90%;margin-top:2px"><span style="{QUIET}">{dot}</span></div>'
        pieces.append(Piece(markup, "" if pieces else status, 0))
    return [_bundle(part, log) for part in _divided(pieces, most)]


def _divided(pieces: Iterable[Piece], most: int) -> list[list[Piece] | Own]:
    """Return lists of pieces that are drawn together, and between them what is shown by itself, as far as there is
    room."""
    parts: list[list[Piece] | Own] = [[]]
    for piece in pieces:
        if isinstance(parts[-1], Own) and len(parts) < most:
            parts.append([])
        ours = next(part for part in reversed(parts) if not isinstance(part, Own))
        if piece.own is not None and ours is parts[-1] and len(parts) < most:
            ours.append(replace(piece, markup=piece.own.label))
            parts.append(piece.own)
        else:
            ours.append(piece)
    return parts


def _bundle(part: list[Piece] | Own, log: LogOf | None) -> Bundle:
    if isinstance(part, Own):
        return Bundle(dict(part.data), dict(part.metadata))
    markup = "".join(piece.markup for piece in part)
    plain = "\n".join(piece.plain for piece in part if piece.plain)
    return Bundle({"text/html": f'<div style="{_FONT}"{_where(log)}>{markup}</div>', "text/plain": plain}, {})


def plain_lines(rows: Sequence[Row], ranks: int, colours: bool = False, log: LogOf | None = None) -> str:
    """Return `rows` as text, for output that only grows; `colours` keeps ANSI colours. What one rank alone prints is as
    it wrote it."""
    width = _width(rows, ranks) if ranks.bit_count() > 1 else 0
    return "\n".join(_plain_row(row, width, str if colours else escapes.strip, log) for row in _merged(rows))


def plain_ending(fold: Fold, show_failures: bool, log: LogOf | None = None, *, whole: bool = False) -> tuple[str, str]:
    """Return the results as text, to come after all rows, and the failures; `whole` leaves no frame out of these."""
    results = result_pieces(folded(fold.results(), fold.without_value()), {})
    failures = _failures(fold, log, whole=whole) if show_failures else []
    return "\n".join(piece.plain for piece in results), "\n".join(piece.plain for piece in failures)


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


# ---- rows ----


def _output(rows: list[Row], ranks: int, budget_bytes: int, log: LogOf | None) -> list[Piece]:
    if not rows:
        return []
    rows = _merged(_fitting(rows, budget_bytes))
    width, plain_width = _width(rows, ranks), _width(rows)
    pieces: list[Piece] = []
    lines: list[str] = []
    plains: list[str] = []
    for row, before in zip(rows, (None, *rows), strict=False):
        plain = _plain_row(row, plain_width, escapes.strip, log)
        if not isinstance(row, DisplayRow) or not _is_drawn(row):
            lines.append(_line(row, before, width, log))
            plains.append(plain)
            continue
        if lines:
            pieces.append(Piece(_block(lines, width), "\n".join(plains), 0))
            lines, plains = [], []
        pieces.append(_rich_row(row, plain, width, log))
    return [*pieces, Piece(_block(lines, width), "\n".join(plains), 0)] if lines else pieces


def _is_drawn(row: DisplayRow) -> bool:
    """Return whether it is more than text."""
    return mime.is_rich(row.data) or mime.stands_alone(row.data)


def _rich_row(row: DisplayRow, plain: str, width: int, log: LogOf | None) -> Piece:
    own = None
    if mime.stands_alone(row.data):
        own = Own(row.data, row.metadata, _block([_gutter(row, False, width)], width))
    if mime.is_rich(row.data):
        markup = beside(label_of_ranks(row.ranks), width, mime.rich_html(row.data, row.metadata))
    else:
        markup = _block([_line(row, None, width, log)], width)
    return Piece(markup, plain, 0, own)


def _block(lines: list[str], width: int) -> str:
    """Return lines that each begin in the gutter; what wraps stays right of it."""
    if not lines:
        return ""
    return f'<pre style="{PRE};padding:0 0 0 {width + 1}ch">{newline(lines)}</pre>'


def _line(row: Row, before: Row | None, width: int, log: LogOf | None) -> str:
    match row:
        case TextRow():
            again = isinstance(before, TextRow) and before.ranks == row.ranks and before.stream == row.stream
            return _opening(row, log, _gutter(row, again, width) + _text_markup(row.text))
        case DisplayRow():
            return _gutter(row, False, width) + ansi.to_html(mime.best_text(row.data))
        case ElidedRow() | NoteRow():
            blank = f'<span style="margin-left:-{width + 1}ch">{" " * width} </span>'
            return f'{blank}<i style="{QUIET}">{_with_code(html.escape(_said(row, log)))}</i>'
        case _:
            raise TypeError(row)


def _opening(row: TextRow, log: LogOf | None, markup: str) -> str:
    """Return a row; if it stands for lines that differ it says where each rank's own is."""
    if log is None or row.number < 0 or not row.is_folded:
        return markup
    about = _MARKED * row.is_marked + f"{log.command} has each rank's line"
    if not log.is_counted:
        return f'<span title="{about}">{markup}</span>'
    return f'<span data-monarch-row="{_places(row)}" title="{about}">{markup}</span>'


def _places(row: TextRow) -> str:
    """Return which line of each rank it is, e.g. "120:0-6;1120:7"; of a few ranks that are out of step."""
    places = dict(sorted(row.ranks_by_number().items(), key=lambda place: -place[1].bit_count()))
    for number in list(places)[_MAX_PLACES:]:  # they are looked for around the first
        places[next(iter(places))] |= places.pop(number)
    return ";".join(f"{number}:{label_of_ranks(ranks)[1:-1]}" for number, ranks in places.items())


def _where(log: LogOf | None) -> str:
    return f' data-monarch-log="{html.escape(log.mesh_id)}/{log.run}"' if log and log.is_counted else ""


def _gutter(row: Row, again: bool, width: int) -> str:
    """Return the rank set; fainter where it is the same as in the line above."""
    stderr = isinstance(row, TextRow) and row.stream == "stderr"
    full, label = label_of_ranks(row.ranks), short_label(row.ranks)
    about = [full] * (short_label(row.ranks) != full) + ["stderr"] * (stderr and not again)
    title = f' title="{" ".join(about)}"' if about else ""
    style = f"margin-left:-{width + 1}ch;opacity:{'.35' if again else '.65'}"
    mark = f'<span style="{_STDERR};position:relative;left:-.2ch">│</span>' if stderr else " "
    return f'<span style="{style}"{title}>{label:>{width}}</span>{mark}'


def _plain_row(row: Row, width: int, clean: Callable[[str], str], log: LogOf | None) -> str:
    match row:
        case TextRow() if not width:
            return clean(row.text)
        case DisplayRow() if not width:
            return escapes.strip(mime.plain_text(row.data))
        case TextRow():
            label = label_of_ranks(row.ranks)
            if row.stream == "stderr":
                return f"[stderr:{label[1:]} {clean(row.text)}"
            return f"{label:>{width}} {clean(row.text)}"
        case DisplayRow():
            return labelled(f"{label_of_ranks(row.ranks):>{width}}", escapes.strip(mime.plain_text(row.data)))
        case ElidedRow() | NoteRow():
            return f"{'':>{width}} {_said(row, log)}"
        case _:
            raise TypeError(row)


@lru_cache(4096)
def _text_markup(text: str) -> str:
    return ansi.to_html(text)


@lru_cache(4096)
def _text_cost(text: str) -> int:
    return stored_bytes(_text_markup(text)) + stored_bytes(escapes.strip(text)) + _ROW_OVERHEAD_BYTES


def _row_cost(row: Row) -> int:
    if isinstance(row, TextRow):
        overhead_bytes = _STDERR_BYTES if row.stream == "stderr" else 0
        folded_bytes = _OPENING_BYTES + len(_places(row)) + row.is_marked * len(_MARKED) if row.is_folded else 0
        return _text_cost(row.text) + 2 * len(label_of_ranks(row.ranks)) + overhead_bytes + folded_bytes
    if isinstance(row, DisplayRow):
        return stored_bytes(mime.plain_text(row.data)) * (1 if _is_drawn(row) else 2) + 2 * _ROW_OVERHEAD_BYTES
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
    newest |= _first_marked(rows, costs, begin, budget_bytes // 4)
    spent += sum(costs[index] for index in newest)
    end = len(rows)
    while end - 1 != gap and end > begin and (end - 1 in newest or spent + costs[end - 1] <= budget_bytes):
        end -= 1
        spent += 0 if end in newest else costs[end]
    hidden = [rows[index] for index in range(begin, end) if index not in newest]
    displays = [row for row in hidden if isinstance(row, DisplayRow) and _is_drawn(row)]
    kept = [rows[index] for index in sorted(newest) if index < end]
    return [*rows[:begin], _count(row for row in hidden if row not in displays), *displays, *kept, *rows[end:]]


def _first_marked(rows: list[Row], costs: list[int], begin: int, budget_bytes: int) -> set[int]:
    """Return where the first rows are that must not be overlooked, as far as there is room."""
    found: set[int] = set()
    for index in range(begin, len(rows)):
        row = rows[index]
        if isinstance(row, TextRow) and row.is_marked:
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


def _said(row: ElidedRow | NoteRow, log: LogOf | None) -> str:
    return escapes.strip(row.text) if isinstance(row, NoteRow) else describe(row, log)


def describe(row: ElidedRow, log: LogOf | None = None) -> str:
    """Return what is not shown, e.g. "… 1,599,000 lines on ranks 0-7 not shown; `%mesh logs --run 3 -n 0` has them"."""
    if row.text:
        what = f"{escapes.strip(row.text)} on {name_ranks(row.displays)}"
    else:
        parts = [_amounts(counts, noun) for counts, noun in ((row.lines, "line"), (row.displays, "display")) if +counts]
        what = " and ".join(parts) or f"{row.size_bytes:,} bytes on {name_ranks(members(row.ranks))}"
    if not (+row.lines or row.size_bytes):  # displays, which are in no log
        return f"… {what} not shown"
    return f"… {what} not shown; `{_command(log)} -n 0` has {'the lines' if +row.displays else 'them'}"


def _command(log: LogOf | None) -> str:
    return log.command if log else here("%mesh logs")


def _of_cut_lines(log: LogOf | None) -> str:
    return f"… lines of more than {MAX_LINE_CHARACTERS:,} characters are cut: `{_command(log)} -n 0` has them whole"


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


def _width(rows: Sequence[Row], ranks: int = 0) -> int:
    """Return the width of the gutter; with `ranks` at least theirs, so that text does not move while output grows."""
    labelled = {row.ranks for row in rows if not isinstance(row, ElidedRow | NoteRow)} | ({ranks} if ranks else set())
    return max((len(short_label(each)) for each in labelled), default=0)


# ---- failures, notices ----


def _failures(fold: Fold, log: LogOf | None = None, *, whole: bool = False) -> list[Piece]:
    pieces: list[Piece] = []
    spent = 0
    for ranks, failure in fold.failure_groups():
        title = name_failed(fold.failures[rank] for rank in ranks)
        if not whole:
            failure = replace(failure, rendered=without_library(failure.rendered, _command(log)))
        piece = _failure(title, failure, log, full=True)
        if spent + piece.cost > _MAX_FAILURE_BYTES:
            piece = _failure(title, failure, log, full=False)
        if spent + piece.cost <= _MAX_FAILURE_BYTES:
            pieces.append(piece)
            spent += piece.cost
    return pieces


def _failure(title: str, failure: RankFailure, log: LogOf | None, full: bool) -> Piece:
    where = where_besides(failure.message, failure.where)
    place = f" · {where}" if where else ""
    whole = f": `{_command(log)}` shows all"
    cause = mime.cut_middle(f"{failure.name}: {failure.message}".rstrip(": "), 600, whole)
    rest = ""
    if not full:
        cause = cause.partition("\n")[0]
    elif failure.rendered:
        rest = mime.cut_middle(failure.rendered.rstrip(), _MAX_TRACEBACK_CHARACTERS, whole)
    elif failure.stderr_tail:
        rest = "\n".join(f"    {line[:500]}" for line in failure.stderr_tail[-20:])
    head = (
        f'<pre style="{PRE};padding:0"><span style="{_ERROR};font-weight:bold">✗ {html.escape(title)}</span> '
        f'{ansi.to_html(cause)}<span style="{QUIET}">{html.escape(place)}</span></pre>'
    )
    plain = f"{title}: {escapes.strip(cause)}{place}"
    if not rest:
        return Piece.of(head, plain)
    body = f'<pre style="{PRE};padding:2px 0 4px 2ch">{ansi.to_html(rest)}</pre>'
    return Piece.of(head + body, f"{plain}\n{escapes.strip(rest)}")


def _notice(text: str) -> Piece:
    text = mime.cut_middle(text, 4_000)
    body = _with_code(ansi.to_html(text))
    return Piece.of(f'<div style="{_NOTE}"><pre style="{PRE};padding:0">{body}</pre></div>', escapes.strip(text))


def _aside(text: str) -> Piece:
    markup = _with_code(html.escape(text))
    return Piece.of(f'<pre style="{PRE};padding:0"><i style="{QUIET}">{markup}</i></pre>', text)


def _with_code(markup: str) -> str:
    return re.sub("`([^`]+)`", r'<code style="font-style:normal">\1</code>', markup)

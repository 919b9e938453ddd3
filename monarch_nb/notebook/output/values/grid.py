"""Numbers of ranks as static HTML: a grid of hosts × ranks coloured by value, and behind it a table of all numbers.

The grid is text with coloured backgrounds: that survives wherever saved notebooks are shown. It has inline styles
only, and none that JupyterLab takes out of other people's notebooks. The number of a cell is under the mouse. The
table is for the keyboard, for screen readers and to copy from: Tab reaches it, Enter opens it.

Colours are viridis, whose lightness grows with the value, so that it reads for the colour-blind, and in light and dark.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.notebook.output.values.folding import Picture
from monarch_nb.notebook.output.values.spread import Number, Spread

MAX_RANKS = 1_024
"""Of more ranks there is no grid."""
_MANY_RANKS = 256
"""Of more ranks, numbers are in no more digits than tell them from each other."""
_PALETTE = ("#427", "#438", "#359", "#278", "#288", "#298", "#3b7", "#6c5", "#ad3", "#fe2")
_FIRST_LIGHT = 5
_ODD = {"nan": "nan", "inf": "inf", "-inf": "-∞ "}
_HATCHED = "color:#000;background:#ccc;background-image:repeating-linear-gradient(45deg,#999 0 1px,#fff 1px 4px)"
"""JupyterLab takes the lines out of other people's notebooks, not the grey."""
_MANY_ODD = "color:#000;background:#ccc"
_MAX_HATCHED = 64
_MAX_COLUMNS, _COLUMNS_WITHOUT_HOSTS, _MAX_LINES = 32, 8, 32
_MAX_DIGITS = 24
_TABLE_COLUMNS = 8
_COLUMNS_THAT_FIT = 16
"""Of more, a narrow page shows a part, and scrolls."""
_PRE = "margin:0;border:0;background:none;color:inherit;font:inherit;padding:0;white-space:pre"
_GRID = f"{_PRE};line-height:1.35;overflow-x:auto"
_TABLE = f"{_PRE};max-height:24em;overflow:auto"
_QUIET = "opacity:.75"

Hosts = Mapping[str, Sequence[int]]
"""The ranks of each node, by what it is called."""


def markup(picture: Picture, hosts: Hosts) -> str:
    """Return the grid and the table of numbers of ranks.

    Args:
        hosts: of all ranks of the run; without any, ranks stand in rows of eight.
    """
    blocks = _blocks(picture.spread, hosts)
    drawn = _grid(picture, blocks) if sum(len(ranks) for _, ranks in blocks) <= MAX_RANKS else ""
    title = f"{html.escape(picture.name or 'number')} of each rank"
    return (
        f'{drawn}<details><summary style="cursor:pointer"><span style="{_QUIET}">{title}</span></summary>'
        f'<pre tabindex="0" style="{_TABLE}">{_table(picture.spread, blocks)}</pre></details>'
    )


def _blocks(spread: Spread, hosts: Hosts) -> list[tuple[str, Sequence[int]]]:
    """Return the rows: whose ranks they are, and these. Ranks of which nobody knows the host come last."""
    blocks: list[tuple[str, Sequence[int]]] = []
    known: set[int] = set()
    for host, ranks in hosts.items():
        blocks += [(host, part) for part in _parts(sorted(ranks), _MAX_COLUMNS)]
        known.update(ranks)
    left = [rank for rank in sorted(spread.numbers) if rank not in known]
    return blocks + [(format_ranks(part), part) for part in _parts(left, _COLUMNS_WITHOUT_HOSTS)]


def _parts(ranks: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ranks[first : first + size] for first in range(0, len(ranks), size)]


# ---- the grid ----


def _grid(picture: Picture, blocks: Sequence[tuple[str, Sequence[int]]]) -> str:
    spread = picture.spread
    odd = sum(map(len, spread.odd.values()))
    cells = _Cells(spread, _HATCHED if odd <= _MAX_HATCHED else _MANY_ODD)
    width = max(len(host) for host, _ in blocks)
    columns = max(len(ranks) for _, ranks in blocks)
    across = -(-len(blocks) // _MAX_LINES)
    down = -(-len(blocks) // across)
    lines = []
    for first in range(down):
        drawn = [
            f"{html.escape(host.ljust(width))} {''.join(map(cells.of, ranks))}{'   ' * (columns - len(ranks))}"
            for host, ranks in blocks[first::down]
        ]
        lines.append("  ".join(drawn).rstrip())
    name = f"<b>{html.escape(picture.name)}</b>\n" if picture.name else ""
    what = f"{html.escape(picture.name or 'numbers')} of {len(spread.numbers):,} ranks in colours; the table has them"
    scrolls = ' tabindex="0"' if across * columns > _COLUMNS_THAT_FIT else ""
    drawn_lines = "\n".join([*lines, cells.legend(width)])
    return f'<pre role="img" aria-label="{what}"{scrolls} style="{_GRID}">{name}{drawn_lines}</pre>'


class _Cells:
    """The cells of a grid, three characters each."""

    def __init__(self, spread: Spread, odd_style: str) -> None:
        self._spread, self._odd_style = spread, odd_style
        self._far = frozenset(spread.far)
        self._rank = "rank " if len(spread.numbers) <= _MANY_RANKS else ""

    def of(self, rank: int) -> str:
        """Return the cell of a rank."""
        number = self._spread.numbers.get(rank)
        if number is None:
            return f"<i title='rank {rank}: no number'> · </i>"
        title = f"title='{self._rank}{rank}: {html.escape(self._spread.text_of(number))}'"
        if not number.is_finite:
            return f"<b style='{self._odd_style}' {title}>{_ODD[str(number.value)]}</b>"
        level = self._level(number)
        if rank in self._far:
            text = "#000" if level >= _FIRST_LIGHT else "#fff"
            return f"<b style='color:{text};background:{_PALETTE[level]}' {title}> ○ </b>"
        return f"<i style=background:{_PALETTE[level]} {title}>   </i>"

    def _level(self, number: Number) -> int:
        low, high = self._spread.low, self._spread.high
        if number.value <= low:
            return 0
        if number.value >= high:
            return len(_PALETTE) - 1
        part = _part(number.value, low, high)
        return min(len(_PALETTE) - 1, int(part * len(_PALETTE)))

    def legend(self, width: int) -> str:
        """Return the line below: which colours stand for what."""
        spread = self._spread
        if not spread.finite:
            return ""
        low, high = (spread.text_of(Number(end, repr(end))) for end in (spread.low, spread.high))
        colours = "".join(f"<i style=background:{colour}> </i>" for colour in _PALETTE)
        far = f'  <span style="{_QUIET}">○ far from the others</span>' if spread.far else ""
        return f'{"":{width}} <span style="{_QUIET}">{low}</span> {colours} <span style="{_QUIET}">{high}</span>{far}'


def _part(value: int | float, low: int | float, high: int | float) -> float:
    """Return where between `low` and `high` a value is, from 0 to 1, however large they are."""
    try:
        whole = high - low
        if whole == float("inf"):
            return (value / 2 - low / 2) / (high / 2 - low / 2)
        return (value - low) / whole
    except OverflowError:  # integers that no float can hold, among floats
        return 0.5


# ---- the table ----


def _table(spread: Spread, blocks: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Return all numbers, each behind its rank, in the ranks' own digits unless there are very many."""
    most_digits = _MAX_DIGITS if len(spread.numbers) <= _MANY_RANKS else 0
    texts = {
        rank: each.text if len(each.text) <= most_digits else spread.text_of(each)
        for rank, each in spread.numbers.items()
    }
    rank_width, width = len(str(max(texts))), max(map(len, texts.values()))
    rows: list[tuple[str, str]] = []
    for host, ranks in blocks:
        there = [rank for rank in ranks if rank in texts]
        name = "" if host == format_ranks(ranks) else host  # of which nobody knows the host
        for part in _parts(there, _TABLE_COLUMNS):
            cells = (
                f"{rank:{rank_width}}: {_highlighted(texts[rank], rank, spread)}{'':{width - len(texts[rank])}}"
                for rank in part
            )
            rows.append((name, "   ".join(cells).rstrip()))
            name = ""
    names = max(len(name) for name, _ in rows)
    return "\n".join(f"{html.escape(f'{name:{names}}  ' if names else '')}{cells}" for name, cells in rows)


def _highlighted(text: str, rank: int, spread: Spread) -> str:
    """Return a number; bold if it is not like the others."""
    is_odd = rank in spread.far or not spread.numbers[rank].is_finite
    return f"<b>{html.escape(text)}</b>" if is_odd else html.escape(text)

"""The rows of all ranks of a mesh: ranks that do the same are one row when there are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monarch_nb.client.instruments.late import LEAST_WAIT
from monarch_nb.client.top.ranks import KINDS, RankTop
from monarch_nb.client.top.straggler import Straggler, straggler_of
from monarch_nb.ground.rank_sets import counted, format_ranks, name_ranks
from monarch_nb.sizes import binary_size

MOST_ROWS = 16
"""So many ranks have rows of their own."""
ALL_WAIT = "all ranks wait in collectives"
IDLE = "nothing runs on these ranks"
_STUCK_SHARE = 0.95
_BAR = 12
_GLYPHS = dict(zip(KINDS, "█▓▒░b· ", strict=True))
HEADERS = ("rank", "node", "steps/s", "", *KINDS.values(), "memory", "CPU", "GPU", "where mostly")


class Shares(NamedTuple):
    """What ranks did for some of their time.

    Attributes:
        kind, name: what, as `Part` has it and as people read it.
        share: of the time, from 0 to 1.
        text: the share, behind which collective that was: "all_reduce 85%".
    """

    kind: str
    name: str
    share: float
    text: str

    @property
    def words(self) -> str:
        """ "torch 10%", "all_reduce 85%"."""
        return self.text if self.kind == "collective" else f"{self.name} {self.text}"


@dataclass(frozen=True)
class TopRow:
    """Ranks that do the same, in a table.

    Attributes:
        ranks: those of the row. is_late: they are waited for.
    """

    ranks: tuple[RankTop, ...]
    is_late: bool = False

    def share(self, kind: str) -> float:
        """Return which part of their time the ranks did something, from 0 to 1."""
        return sum(rank.share(kind) for rank in self.ranks) / len(self.ranks)

    @property
    def ranks_text(self) -> str:
        """ "0-2,4"."""
        return format_ranks([rank.rank for rank in self.ranks])

    @property
    def line(self) -> str:
        """The line of the user's code where they are mostly."""
        return self.ranks[0].line

    def shares(self) -> list[Shares]:
        """Return what the ranks did for more than a moment."""
        told = [(kind, name, self.share(kind), self._share_text(kind)) for kind, name in KINDS.items()]
        return [Shares(*each) for each in told if each[-1]]

    def texts(self) -> dict[str, str]:
        """Return what the row shows, by its name in HEADERS."""
        return dict(zip(HEADERS, self.cells(), strict=True))

    def cells(self) -> list[str]:
        """Return what the row shows, one text for each of HEADERS."""
        nodes = list(dict.fromkeys(rank.node for rank in self.ranks))
        memory = [rank.memory_bytes for rank in self.ranks if rank.memory_bytes]
        return [
            f"{self.ranks_text}{' ←' if self.is_late else ''}",
            nodes[0] if len(nodes) == 1 else counted(len(nodes), "node"),
            _range([rank.steps_per_s for rank in self.ranks], lambda value: f"{value:.3g}"),
            self.bar(),
            *(self._share_text(kind) for kind in KINDS),
            binary_size(max(memory)) if memory else "",
            _range([rank.cpu for rank in self.ranks], lambda value: f"{value:.0%}"),
            self._gpu(),
            self._where(),
        ]

    def bar(self) -> str:
        """Return the shares as a bar of characters."""
        bar = "".join(_GLYPHS[kind] * round(self.share(kind) * _BAR) for kind in KINDS)
        return bar[:_BAR].ljust(_BAR) if bar else ""

    def _share_text(self, kind: str) -> str:
        share = self.share(kind)
        if share < 0.005:
            return ""
        names = dict.fromkeys(part.what for rank in self.ranks for part in rank.parts if part.kind == kind)
        name = next(filter(None, names), "")
        return f"{name} {share:.0%}".lstrip()

    def _gpu(self) -> str:
        busy = _range([rank.gpu for rank in self.ranks], lambda value: f"{value:.0%}")
        used = max(rank.gpu_memory_bytes for rank in self.ranks)
        return f"{busy} {binary_size(used) if used else ''}".strip()

    def _where(self) -> str:
        rank = self.ranks[0]
        if rank.state not in ("running", "idle") or not rank.is_seen:
            return "looking…" if rank.state in ("running", "idle") else rank.state
        return "idle" if rank.parts[0].kind == "idle" else self.line


@dataclass(frozen=True)
class TopTable:
    """Where the ranks of a mesh were in the last seconds.

    Attributes:
        ranks: all that was asked for, by rank.
        others: so many ranks of the mesh were not asked for.
        straggler: who is waited for; None when nobody is.
        rows: the same, with ranks that do the same in one row when there are many.

    Example:
        >>> table = mesh.top()  # doctest: +SKIP
        >>> print(table.straggler)  # doctest: +SKIP
        rank 3 is waited for: 92% of its time in train.py:41 (data loader); ranks 0-2 wait in all_reduce (90%)
    """

    ranks: tuple[RankTop, ...]
    others: int = 0
    straggler: Straggler | None = field(init=False)
    rows: tuple[TopRow, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "straggler", straggler_of(self.ranks))
        late = set(self.straggler.ranks) if self.straggler else set()
        object.__setattr__(self, "rows", tuple(_rows(self.ranks, late)))

    @property
    def is_idle(self) -> bool:
        """Whether all ranks have been looked at, and none does anything."""
        return self.sentence == IDLE and all(rank.is_seen for rank in self.ranks)

    @property
    def sentence(self) -> str:
        """What there is to say of all."""
        seen = [rank for rank in self.ranks if rank.is_seen]
        if self.straggler is not None:
            return str(self.straggler)
        if all(rank.share("idle") == 1 for rank in seen) and not any(rank.state == "running" for rank in self.ranks):
            return IDLE
        if not seen:
            return "looking where the ranks are"
        if len(seen) < 2:
            return f"{name_ranks([rank.rank for rank in seen])} was looked at"
        least = min(rank.share("collective") for rank in seen)
        if self.others and least >= LEAST_WAIT:
            return self._waits_for_others(seen)
        if least >= _STUCK_SHARE:
            return ALL_WAIT
        dead = [rank.rank for rank in self.ranks if rank.state == "dead"]
        died = f"; {name_ranks(dead)} {'is' if len(dead) == 1 else 'are'} dead" if dead else ""
        return f"no rank is waited for{died}"

    def _waits_for_others(self, ranks: Sequence[RankTop]) -> str:
        """Who is waited for may be one that was not asked for."""
        are = "is" if self.others == 1 else "are"
        waiting = name_ranks([rank.rank for rank in ranks])
        return f"{waiting} wait in collectives; {counted(self.others, 'other rank')} {are} not looked at"

    def cells(self) -> list[list[str]]:
        """Return the texts of all rows, below HEADERS."""
        return [row.cells() for row in self.rows]

    def __str__(self) -> str:
        cells = [list(HEADERS), *self.cells()]
        kept = [column for column in range(len(HEADERS)) if any(row[column] for row in cells[1:])]
        widths = {column: max(len(row[column]) for row in cells) for column in kept}
        lines = ["  ".join(row[column].ljust(widths[column]) for column in kept).rstrip() for row in cells]
        return "\n".join([self.sentence, *lines])

    __repr__ = __str__


def _rows(ranks: Sequence[RankTop], late: set[int]) -> list[TopRow]:
    if len(ranks) <= MOST_ROWS:
        return [TopRow((rank,), rank.rank in late) for rank in ranks]
    alike: dict[tuple[object, ...], list[RankTop]] = {}
    for rank in ranks:
        first = rank.parts[0] if rank.parts else None
        does = (first.kind, first.what, first.line) if first else ()
        alike.setdefault((rank.rank in late, rank.state, does), []).append(rank)
    rows = [TopRow(tuple(group), group[0].rank in late) for group in alike.values()]
    return sorted(rows, key=lambda row: (not row.is_late, row.ranks[0].rank))


def _range(values: Sequence[float | None], text: object) -> str:
    known = [value for value in values if value is not None]
    if not known or not callable(text):
        return ""
    least, greatest = text(min(known)), text(max(known))
    return str(least) if least == greatest else f"{least}–{greatest}"

"""Where ranks were in the last seconds, of what their nodes tell, and who is waited for. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monarch_nb.client.instruments.profiles import LEAST_WAIT, late_among
from monarch_nb.client.pools.infos import RankInfo
from monarch_nb.ground.rank_sets import counted, format_ranks, name_ranks
from monarch_nb.proto import run_pb2
from monarch_nb.sizes import binary_size

KINDS = {
    "torch": "torch",
    "python": "Python",
    "loader": "data loader",
    "waiting": "waits",
    "breakpoint": "breakpoint",
    "collective": "collectives",
    "idle": "idle",
}
"""What a rank does, as people read it: in this order. See monarch_nb/worker/control/sampler.py."""


@dataclass(frozen=True)
class Part:
    """A part of the time of a rank.

    Attributes:
        kind: one of KINDS.
        what: the collective, when it is one.
        share: of the last seconds, from 0 to 1.
        line: the line of the user's code where it was for most of that: "train.py:41".
    """

    kind: str
    what: str
    share: float
    line: str


@dataclass(frozen=True)
class RankTop:
    """A rank.

    Attributes:
        state: "running", "idle", "dead", "starting", "unreachable", or "no answer" where only the rank is silent.
        parts: what it did, the greatest first; empty when it was not looked at yet.
        steps_per_s: of its optimizers; None when that is not known.
        memory_bytes: of the process (PSS).
        cpu: 1.0 is one processor; None when it is not known. gpu: how busy its GPUs were, from 0 to 1.
        gpu_memory_bytes: that is used on its GPUs.
    """

    rank: int
    node: str
    state: str
    parts: tuple[Part, ...] = ()
    steps_per_s: float | None = None
    memory_bytes: int = 0
    cpu: float | None = None
    gpu: float | None = None
    gpu_memory_bytes: int = 0

    @property
    def is_seen(self) -> bool:
        """Whether it was looked at."""
        return bool(self.parts)

    def share(self, kind: str) -> float:
        """Return which part of the time it did something, from 0 to 1."""
        return sum(part.share for part in self.parts if part.kind == kind)

    @property
    def own(self) -> Part | None:
        """Where it is mostly when it waits for no other rank; None when it always does."""
        return next((part for part in self.parts if part.kind != "collective"), None)

    @property
    def collective(self) -> str:
        """The collective in which it is mostly; empty for none."""
        return next((part.what for part in self.parts if part.kind == "collective"), "")

    @property
    def line(self) -> str:
        """The line where it is mostly."""
        return self.parts[0].line if self.parts else ""


def rank_top(info: RankInfo, looks: run_pb2.Looks | None, gpus: Iterable[tuple[float | None, int]] = ()) -> RankTop:
    """Return what is known of a rank.

    Args:
        looks: what it told; None when it did not answer.
        gpus: how busy each of its GPUs is, and the bytes that are used there.
    """
    gpus = list(gpus)
    busy = [each for each, _ in gpus if each is not None]
    state = "no answer" if looks is None and info.is_alive else info.state
    parts: tuple[Part, ...] = ()
    if looks is not None and looks.count:
        parts = tuple(Part(each.kind, each.what, each.looks / looks.count, each.line) for each in looks.shares)
    return RankTop(
        rank=info.rank,
        node=info.host,
        state=state,
        parts=parts,
        steps_per_s=_steps_per_s(looks),
        memory_bytes=info.memory_bytes,
        cpu=info.cpu,
        gpu=sum(busy) / len(busy) if busy else None,
        gpu_memory_bytes=sum(used for _, used in gpus),
    )


def _steps_per_s(looks: run_pb2.Looks | None) -> float | None:
    """Return how many steps a rank does; None when that is not known, or nothing runs."""
    if looks is None or not looks.HasField("steps_per_s") or all(share.kind == "idle" for share in looks.shares):
        return None
    return looks.steps_per_s


@dataclass(frozen=True)
class Straggler:
    """Who is waited for. As text the sentence that says so.

    Attributes:
        ranks: mostly one.
        share: of their time, in `line`, where they spend more of it than those that wait.
        kind: what they do there, as `Part` has it; "idle" when they run nothing.
        line: "train.py:41"; empty when it is not known.
        waiting: the ranks that wait. collective: in what, mostly. waiting_share: of their time.
    """

    ranks: tuple[int, ...]
    share: float
    kind: str
    line: str
    waiting: tuple[int, ...]
    collective: str
    waiting_share: float

    def __str__(self) -> str:
        is_one = len(self.ranks) == 1
        if self.kind == "idle":
            does = "runs nothing" if is_one else "run nothing"
        else:
            where = f"{self.line} ({KINDS.get(self.kind, self.kind)})" if self.line else KINDS.get(self.kind, self.kind)
            spends, its = ("spends", "its") if is_one else ("spend", "their")
            does = f"{spends} {self.share:.0%} of {its} time in {where}"
        wait = f"{'waits' if len(self.waiting) == 1 else 'wait'} for {'it' if is_one else 'them'} in {self.collective}"
        return f"Slow: {name_ranks(self.ranks)} {does}; {name_ranks(self.waiting)} {wait} ({self.waiting_share:.0%})"


def straggler_of(ranks: Sequence[RankTop]) -> Straggler | None:
    """Return who is waited for; None when nobody is: no rank waits, or all do, or half of them do not.

    Example:
    >>> from monarch_nb.client.instruments.top_table import Part
        >>> others = [RankTop(rank, "a", "running", (Part("collective", "all_reduce", 1.0, ""),)) for rank in (0, 1)]
        >>> late = RankTop(2, "a", "running", (Part("loader", "", 1.0, "train.py:41"),))
        >>> print(straggler_of([*others, late]))
        Slow: rank 2 spends 100% of its time in train.py:41 (data loader); ranks 0-1 wait for it in all_reduce (100%)
    """
    seen = [rank for rank in ranks if rank.is_seen]
    waits = {rank.rank: rank.share("collective") for rank in seen}
    late_ones = late_among(waits)
    if not late_ones:
        return None
    late = [rank for rank in seen if rank.rank in late_ones]
    waiting = [rank for rank in seen if rank not in late]
    collectives: defaultdict[str, float] = defaultdict(float)
    for part in (part for rank in waiting for part in rank.parts if part.kind == "collective"):
        collectives[part.what] += part.share
    kind, line, share = _slow_part(late, waiting)
    return Straggler(
        ranks=late_ones,
        share=share,
        kind=kind,
        line=line,
        waiting=tuple(rank.rank for rank in waiting),
        collective=max(collectives, key=lambda name: collectives[name]),
        waiting_share=sum(waits[rank.rank] for rank in waiting) / len(waiting),
    )


def _slow_part(late: Sequence[RankTop], waiting: Sequence[RankTop]) -> tuple[str, str, float]:
    """Return what the late ranks do for longer than the others, at which line mostly, and for which part of their time:
    what all do makes nobody wait.

    Of each kind a rank tells one line only, and ranks may tell different ones, so kinds are compared first.
    """
    places: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in (part for rank in late for part in rank.parts if part.kind != "collective"):
        places[part.kind, part.line] += part.share / len(late)

    def longer(kind: str) -> float:
        own = sum(share for (of, _), share in places.items() if of == kind)
        return own - sum(rank.share(kind) for rank in waiting) / len(waiting)

    kind, line = max(places, key=lambda place: (longer(place[0]), places[place]))
    return kind, line, places[kind, line]


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
        Slow: rank 3 spends 92% of its time in train.py:41 (data loader); ranks 0-2 wait for it in all_reduce (90%)
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
        return f"no rank is slow{died}"

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

"""What an interrupt of a run did, and how that is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monarch_nb.config import MONARCH_MESH
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.proto import run_pb2

NO_INTERRUPT = (
    "Monarch has no interrupt: stop() of its ProcMesh ends its processes, and "
    f"%mesh restart --mesh {MONARCH_MESH} ends all"
)
MAX_NAMED = 3
"""Of runs, in the text."""
PRESS = "interrupt again"
KILLS_WITHIN_S = 10.0
"""A press kills what does not stop when it comes so soon after that was said: later ones are about something else."""


@dataclass(frozen=True)
class InterruptReport:
    """What an interrupt did.

    Attributes:
        stopped: ranks that are free now.
        free: ranks that had finished before.
        unbegun: ranks on which it waited for its turn: it will not begin there.
        ahead: what goes on on those, which was before it.
        stuck: ranks that no interrupt reaches, and the line where each hangs.
        handling: ranks whose code has got the interrupt and goes on, and since when and where.
        kills: of these two those that another interrupt kills, if it comes soon.
        again: what another interrupt is, for who reads this.
        unreachable: ranks that go on as they were, and the node of each, which does not answer.
        aborted: ranks whose process group had to be aborted; the whole mesh needs `init_process_group()` again.
        restarted: ranks that were killed, and started again unless it was a script.
        is_script: its ranks are processes of its own.
        had_actors: those that were killed had actors.
        runs: of a whole mesh: the runs that were interrupted, and the ranks of each that are free now.
        dropped: of a whole mesh: the runs that waited, none of which has begun or will.
        messages: of a whole mesh: so many that waited for actors were dropped.
        goes_on: what Monarch's own actors execute: Monarch has no interrupt.
        others: of somebody else's mesh: other people's runs, which are not ours to interrupt.
    """

    stopped: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    unbegun: tuple[int, ...] = ()
    ahead: tuple[str, ...] = ()
    stuck: dict[int, str] = field(default_factory=dict)
    handling: dict[int, str] = field(default_factory=dict)
    kills: frozenset[int] = frozenset()
    again: str = "interrupt(kill_stuck=True)"
    unreachable: dict[int, str] = field(default_factory=dict)
    aborted: tuple[int, ...] = ()
    restarted: tuple[int, ...] = ()
    runs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    messages: int = 0
    others: tuple[str, ...] = ()
    goes_on: tuple[str, ...] = ()
    is_script: bool = False
    had_actors: bool = False

    @classmethod
    def of(
        cls,
        reports: Mapping[str, InterruptReport],
        dropped: Iterable[str] = (),
        messages: int = 0,
        others: Iterable[str] = (),
        goes_on: Iterable[str] = (),
    ) -> InterruptReport:
        """Return what the interrupts of several runs, by name, did together, besides dropping others, and messages, and
        leaving other people's alone, and what Monarch's actors execute."""
        all_of = reports.values()
        return cls(
            stopped=tuple(sorted({rank for report in all_of for rank in report.stopped})),
            free=tuple(sorted({rank for report in all_of for rank in report.free})),
            stuck={rank: line for report in all_of for rank, line in report.stuck.items()},
            handling={rank: line for report in all_of for rank, line in report.handling.items()},
            kills=frozenset().union(*(report.kills for report in all_of)),
            unreachable={rank: node for report in all_of for rank, node in report.unreachable.items()},
            aborted=tuple(sorted({rank for report in all_of for rank in report.aborted})),
            restarted=tuple(sorted({rank for report in all_of for rank in report.restarted})),
            runs={name: report.stopped for name, report in reports.items() if report.stopped},
            dropped=tuple(dropped),
            messages=messages,
            others=tuple(others),
            goes_on=tuple(goes_on),
            had_actors=any(report.had_actors for report in all_of),
            is_script=bool(reports) and all(report.is_script for report in all_of),
        )

    def then(self, later: InterruptReport) -> InterruptReport:
        """Return what this interrupt of a run and another one after it did."""
        return replace(
            later,
            stopped=tuple(sorted({*self.stopped, *later.stopped} - {*later.restarted})),
            free=self.free,
            unbegun=tuple(sorted({*self.unbegun, *later.unbegun})),
            ahead=later.ahead or self.ahead,
            aborted=tuple(sorted({*self.aborted, *later.aborted})),
            restarted=tuple(sorted({*self.restarted, *later.restarted})),
            had_actors=self.had_actors or later.had_actors,
        )

    def as_of(self, finished: Iterable[int]) -> InterruptReport:
        """Return what it says now that these ranks have finished."""
        left = (self.stuck.keys() | self.handling.keys() | self.unreachable.keys()) - set(finished)
        return replace(
            self,
            stopped=tuple(sorted({*self.stopped, *finished} - {*self.free, *self.unbegun, *self.restarted})),
            stuck={rank: line for rank, line in self.stuck.items() if rank in left},
            handling={rank: line for rank, line in self.handling.items() if rank in left},
            unreachable={rank: node for rank, node in self.unreachable.items() if rank in left},
        )

    def __str__(self) -> str:
        parts = [f"interrupted {self._what()}"] if self.stopped else []
        if self.unbegun:
            on = f"on {name_ranks(self.unbegun)}" if self.stopped else ""
            goes_on = f"{_named(self.ahead)} {'goes' if len(self.ahead) == 1 else 'go'} on" if self.ahead else ""
            parts += filter(None, [" ".join(filter(None, ["not begun", on])) + ": removed from the queue", goes_on])
        if self.aborted:
            parts.append("process group aborted: call dist.init_process_group() again and wrap DDP models again")
        parts += self.unstopped()
        if self.restarted and self.is_script:
            parts.append(f"killed {name_ranks(self.restarted)}")
        elif self.restarted:
            lost = "variables and actors are gone: spawn these again" if self.had_actors else "variables are lost"
            parts.append(f"killed and restarted {name_ranks(self.restarted)}: their {lost}")
        if self.dropped:
            parts.append(f"dropped {len(self.dropped)} that waited: {_named(self.dropped)}")
        if self.messages:
            parts.append(f"dropped {counted(self.messages, 'message')} that waited for actors")
        if self.goes_on:
            go = "goes" if len(self.goes_on) == 1 else "go"
            parts.append(f"{_named(self.goes_on)} {go} on: {NO_INTERRUPT}")
        if self.others:
            go = "goes" if len(self.others) == 1 else "go"
            parts.append(f"{_named(self.others)} {go} on: the owner of the mesh interrupts all cells, you only yours")
        return "; ".join(parts) or "nothing was running"

    def unstopped(self) -> list[str]:
        """Return a sentence for ranks that hang, one for those that handle the interrupt, and one for those whose nodes
        do not answer: together with what was interrupted that is two lines of a notebook, however many these are."""
        sentences = []
        kill = f"{self.again} within {KILLS_WITHIN_S:g} s to {'kill' if self.is_script else 'kill and restart'}"
        for does, do, places in (
            ("does not stop", "do not stop", self.stuck),
            ("handles the interrupt", "handle the interrupt", self.handling),
        ):
            if places:
                lines = dict.fromkeys(places.values())
                where = f"in {len(lines)} places: %mesh stacks" if len(lines) > 1 else next(iter(lines))
                said = f"{name_ranks(sorted(places))} {does if len(places) == 1 else do} ({where})"
                kills = f": {kill} {'it' if len(places) == 1 else 'them'}" if self.kills & places.keys() else ""
                sentences.append(f"{said}{kills}")
        if self.unreachable:
            first, *others = dict.fromkeys(self.unreachable.values())
            nodes = f"{first} and {counted(len(others), 'more node')} do" if others else f"{first} does"
            goes = "goes" if len(self.unreachable) == 1 else "go"
            ranks = name_ranks(sorted(self.unreachable))
            sentences.append(f"{ranks} can not be reached and {goes} on: {nodes} not answer (%mesh status)")
        return sentences

    def _what(self) -> str:
        """Return whose ranks were stopped: "run 12, cell [3], on ranks 0-7" where that was not known before."""
        named = (f"{run}{',' if ',' in run else ''} on {name_ranks(ranks)}" for run, ranks in self.runs.items())
        return " and ".join(named) or name_ranks(self.stopped)


def _named(runs: Sequence[str]) -> str:
    more = len(runs) - MAX_NAMED
    return "; ".join([*runs[:MAX_NAMED], *([f"and {more} more"] if more > 0 else [])])


def place_of(where: run_pb2.Where | None) -> str:
    """Return where a rank hangs, as far as it says so."""
    if where is None:
        return "it does not answer: native code holds the interpreter"
    return f"in {where.collective} at {where.line}" if where.collective else f"at {where.line or 'an unknown line'}"


def sorted_out(ranks: Iterable[int], where: Mapping[int, run_pb2.Where]) -> tuple[dict[int, str], dict[int, str]]:
    """Return of ranks that did not stop those that no interrupt reaches, and those that handle it, each with where it
    is: only the rank knows which."""
    stuck: dict[int, str] = {}
    handling: dict[int, str] = {}
    for rank in ranks:
        told = where.get(rank)
        if told is not None and told.HasField("handles_s"):
            handling[rank] = f"since {duration(told.handles_s)}, {place_of(told)}"
        else:
            stuck[rank] = place_of(told)
    return stuck, handling


def handled_by(ranks: Iterable[int]) -> str:
    """Return what is to be said of a run that was interrupted and has ended well: nothing if it had ended before."""
    chosen = list(ranks)
    return f"interrupted; {name_ranks(chosen)} went on to the end" if chosen else ""


def left_by_kernel(name: str) -> str:
    """Return what is to be said when the kernel that waits for a run ends."""
    return f"the kernel ends; {name} goes on: %mesh attach follows it"

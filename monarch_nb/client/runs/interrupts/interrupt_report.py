"""What an interrupt of a run did, and how that is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monarch_nb.config import MONARCH_MESH
from monarch_nb.ground.rank_sets import counted, name_ranks

if TYPE_CHECKING:
    from monarch_nb.proto import run_pb2

NO_INTERRUPT = (
    "Monarch has no interrupt: stop() of its ProcMesh ends its processes, and "
    f"%mesh restart --mesh {MONARCH_MESH} ends all"
)
MAX_NAMED = 3
"""Of runs, in the text."""


@dataclass(frozen=True)
class InterruptReport:
    """What an interrupt did.

    Attributes:
        stopped: ranks that are free now.
        free: ranks that had finished before.
        unbegun: ranks on which it waited for its turn: it will not begin there.
        ahead: what goes on on those, which was before it.
        stuck: ranks that did not stop in a few seconds, and the line where each hangs.
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
        left = (self.stuck.keys() | self.unreachable.keys()) - set(finished)
        return replace(
            self,
            stopped=tuple(sorted({*self.stopped, *finished} - {*self.free, *self.unbegun, *self.restarted})),
            stuck={rank: line for rank, line in self.stuck.items() if rank in left},
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
        parts += unstopped_lines(self.stuck, self.unreachable, is_script=self.is_script)
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

    def _what(self) -> str:
        """Return whose ranks were stopped: "run 12, cell [3], on ranks 0-7" where that was not known before."""
        named = (f"{run}{',' if ',' in run else ''} on {name_ranks(ranks)}" for run, ranks in self.runs.items())
        return " and ".join(named) or name_ranks(self.stopped)


def unstopped_lines(stuck: Mapping[int, str], unreachable: Mapping[int, str], *, is_script: bool = False) -> list[str]:
    """Return a sentence for ranks that hang, and one for those whose nodes do not answer: together with what was
    interrupted that is two lines of a notebook, however many these are."""
    sentences = []
    if stuck:
        does, them = ("does", "it") if len(stuck) == 1 else ("do", "them")
        lines = dict.fromkeys(stuck.values())
        where = f"in {len(lines)} places: %mesh stacks" if len(lines) > 1 else next(iter(lines))
        kill = "kill" if is_script else "kill and restart"
        sentences.append(f"{name_ranks(sorted(stuck))} {does} not stop ({where}): interrupt again to {kill} {them}")
    if unreachable:
        first, *others = dict.fromkeys(unreachable.values())
        nodes = f"{first} and {counted(len(others), 'more node')} do" if others else f"{first} does"
        goes = "goes" if len(unreachable) == 1 else "go"
        sentences.append(
            f"{name_ranks(sorted(unreachable))} can not be reached and {goes} on: {nodes} not answer (%mesh status)"
        )
    return sentences


def _named(runs: Sequence[str]) -> str:
    more = len(runs) - MAX_NAMED
    return "; ".join([*runs[:MAX_NAMED], *([f"and {more} more"] if more > 0 else [])])


def place_of(where: run_pb2.Where | None) -> str:
    """Return where a rank hangs, as far as it says so."""
    if where is None:
        return "it does not answer: native code holds the interpreter"
    return f"in {where.collective} at {where.line}" if where.collective else f"at {where.line or 'an unknown line'}"


def left_by_kernel(name: str) -> str:
    """Return what is to be said when the kernel that waits for a run ends."""
    return f"the kernel ends; {name} goes on: %mesh attach follows it"

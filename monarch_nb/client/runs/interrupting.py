"""A run is interrupted: its ranks are waited for, freed without costing their memory, named when they do not stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from monarch_nb.client.connections import events
from monarch_nb.client.connections.connection import GAP_S
from monarch_nb.client.runs.nodes import RunNodes
from monarch_nb.config import MONARCH_MESH, cadence, patience
from monarch_nb.errors import MonarchNbError, ProcessGroupAborted, RankFailure
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.runs.run import Run
    from monarch_nb.proto import run_pb2

NO_INTERRUPT = (
    "Monarch has no interrupt: stop() of its ProcMesh ends its processes, and "
    f"%mesh restart --mesh {MONARCH_MESH} ends all"
)
ABORTED = (
    "process group aborted: call dist.init_process_group(), wrap DDP again, "
    "send rank 0's optimizer (broadcast_object_list)"
)
"""Replicas that go on with optimizers a step apart drift apart without an error: DDP itself sends weights alone."""
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
        may_stop_ahead: the mesh is ours: an interrupt of all of it stops what was ahead, too.
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
    may_stop_ahead: bool = False
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
            may_stop_ahead=later.may_stop_ahead or self.may_stop_ahead,
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
            parts.append(" ".join(filter(None, ["not begun", on])) + ": removed from the queue")
        if self.unbegun and self.ahead:
            go, them = ("goes", "it") if len(self.ahead) == 1 else ("go", "them")
            stops = f": %mesh interrupt stops {them}" if self.may_stop_ahead else ""
            parts.append(f"{_named(self.ahead)} {go} on{stops}")
        if self.aborted:
            parts.append(ABORTED)
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
        return "no answer: native code holds the interpreter"
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


STOP_WAIT_S = patience(4.0)
"""How long ranks may take to stop after an interrupt before it is said what they do."""
_SAID_AGAIN_AFTER_S = cadence(5.0)
"""So soon it is said anew for how long ranks handle an interrupt, and each time after twice as long."""
_TORN_AFTER_S = cadence(0.5)
"""How long after a rank has failed for its torn group those that wait in it are freed: most fail themselves by then."""


class Doomed:
    """Ranks that the next interrupt kills: what no interrupt reaches, and what goes on after it has handled two. They
    are named before, and it is the next one only if it comes soon: later it is about something else.

    Attributes:
        ranks: those, by their last interrupt.
    """

    def __init__(self) -> None:
        self.ranks: frozenset[int] = frozenset()
        self._until_s = 0.0
        self._have_handled: set[int] = set()

    @property
    def now(self) -> frozenset[int]:
        """Those that an interrupt kills now."""
        return self.ranks if time.monotonic() < self._until_s else frozenset()

    def judge(self, report: InterruptReport) -> InterruptReport:
        """Return what ranks did at an interrupt, and with it whom the next one kills."""
        self.ranks = frozenset(report.stuck.keys() | (report.handling.keys() & self._have_handled))
        self._until_s = time.monotonic() + KILLS_WITHIN_S
        self._have_handled |= report.handling.keys()
        return replace(report, kills=self.ranks)


class Freeing:
    """Interrupts of one run. Everything here runs on the background loop.

    Attributes:
        freed: set when nothing that can be reached goes on.
        news: a rank has finished, or a node answers no more.
        is_unstopped: ranks went on after the last interrupt, although they have had the time to stop.
    """

    def __init__(
        self, run: Run, nodes: RunNodes, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._run, self._nodes, self._spawn = run, nodes, spawn
        self.freed, self.news = Flag(), asyncio.Event()
        self._stop_by_s: float | None = None  # until then ranks that were interrupted have the time to stop
        self.is_unstopped = False
        self.doomed = Doomed()
        self._saying: asyncio.Task[None] | None = None
        self._telling: asyncio.Future[None] | None = None
        self._torn_ranks: set[int] = set()  # whose code has failed because their group was torn

    async def interrupt(self, kill_stuck: bool) -> InterruptReport:
        """Interrupt what goes on, and wait a few seconds for it.

        Args:
            kill_stuck: kill and restart the ranks instead.
        """
        run = self._run
        if not run.done:
            self.freed.clear()
        before = run.results.keys() | run.finished_before
        left = [rank for rank in run.ranks if rank not in before]
        restarted: tuple[int, ...] = ()
        if kill_stuck:
            doomed = [rank for rank in left if rank in self.doomed.ranks]
            restarted = tuple(self._nodes.reachable(doomed or left))
            if restarted and run.is_script:
                await run.mesh.core.kill_script(run.id, restarted)
            elif restarted:
                await run.mesh.core.restart(restarted)
        else:
            await run.look_before_interrupt()
            run.send_interrupt()
        await self._wait_stopped(left)
        self._stop_by_s = None
        unstopped = await self._unstopped()
        ended = {rank: run.results[rank].outcome for rank in left if rank in run.results and rank not in restarted}
        unbegun = tuple(rank for rank, outcome in ended.items() if outcome == "cancelled")
        ahead: tuple[str, ...] = ()
        with contextlib.suppress(MonarchNbError):  # nobody has to know that
            ahead = await run.mesh.core.names_running_on(unbegun)
        return replace(
            unstopped,
            stopped=tuple(rank for rank in ended if rank not in unbegun),
            free=tuple(sorted(before)),
            unbegun=unbegun,
            ahead=ahead,
            may_stop_ahead=bool(ahead) and run.mesh.reservation.is_mine,
            aborted=tuple(result.rank for result in run.results.notable if result.group_aborted),
            restarted=restarted,
        )

    async def _wait_stopped(self, ranks: Iterable[int]) -> None:
        """Wait a few seconds for ranks to finish. Nodes that do not answer have the time to start an allocator."""
        is_patient = True

        def lose_patience() -> None:
            nonlocal is_patient
            is_patient = False
            self.news.set()

        loop = asyncio.get_running_loop()
        timer = loop.call_later(GAP_S, lose_patience)
        if self._stop_by_s is None:  # who presses again and again does not give them more time each time
            self._stop_by_s = loop.time() + STOP_WAIT_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._stop_by_s):
                while not self._run.done:
                    left = set(ranks) - self._run.results.keys()
                    if not self._run.is_completing and not (left if is_patient else self._nodes.reachable(left)):
                        break
                    self.news.clear()
                    await self.news.wait()
        timer.cancel()

    async def _unstopped(self) -> InterruptReport:
        """Say which ranks did not stop, and which can not be reached."""
        report = self.doomed.judge(await self.look())
        self.is_unstopped = bool(report.stuck or report.handling)
        if self._run.number:  # they have been told: not again when a link breaks
            self._nodes.withdraw_cancel(self._run.id, [*report.stuck, *report.handling])
        self.say(report)
        if self._saying is not None:
            self._saying.cancel()
        self._saying = self._spawn(self._say_on())
        if report.unreachable and not self.is_unstopped:
            await self.let_go()
        return report

    async def look(self) -> InterruptReport:
        """Return which ranks go on, and what each does."""
        run = self._run
        reachable = self._nodes.reachable(run.left())
        where = await run.mesh.core.where(reachable, run.id) if reachable else {}
        left = run.left()  # some have stopped meanwhile
        stuck, handling = sorted_out(self._nodes.reachable(left), where)
        unreachable = {rank: self._nodes.name_of(rank) for rank in left if rank not in stuck and rank not in handling}
        return InterruptReport(stuck=stuck, handling=handling, unreachable=unreachable, is_script=run.is_script)

    def say(self, report: InterruptReport) -> None:
        """Say what did not stop, also for how long ranks have handled the interrupt."""
        if sentences := replace(report, again=PRESS).unstopped():
            self._run.emit(events.Notice("; ".join(sentences), key="stuck"))

    async def _say_on(self) -> None:
        """Say it again, later and later, until nothing goes on: what was said is soon old."""
        after_s = _SAID_AGAIN_AFTER_S
        while self.is_unstopped and not self._run.done:
            await asyncio.sleep(after_s)
            after_s *= 2
            report = await self.look()
            self.say(replace(report, kills=self.doomed.now))

    def is_over(self) -> bool:
        """Whether what did not stop after an interrupt has stopped by now, or its node is away, so none is stuck."""
        if not self.is_unstopped or self._run.done or self._nodes.reachable(self._run.left()):
            return False
        self.is_unstopped = False
        return True

    async def let_go(self) -> None:
        """All that can be reached is free. The rest goes on: it is not interrupted when its node is there again, for
        nobody waits for that any more."""
        run = self._run
        if run.number:  # a run that may not have begun must not begin later
            run.is_interrupted = False
            self._nodes.withdraw_cancel(run.id, run.ranks)
        if any(result.group_aborted for result in run.results.notable):
            await self.abort_groups()
        self.freed.set()

    async def abort_groups(self) -> None:
        """Let all ranks of the mesh forget the groups that the interrupt broke, but not what a queued run has made."""
        await self._run.mesh.core.abort_groups("a run was interrupted in a collective", last_run=self._run.number)

    def seen(self, result: events.Result) -> events.Result:
        """Return the result of a rank as its run has it: who lost the group while all were interrupted, before the
        interrupt came there, was interrupted."""
        failure = result.failure
        if failure is None or not (self._run.is_interrupted and _is_torn(failure)):
            return result
        return replace(result, outcome="interrupted", failure=replace(failure, kind="interrupted"))

    def finds_torn_group(self) -> bool:
        """Return whether a further rank has died, or its code has failed because a peer left its group: others may wait
        there."""
        run = self._run
        torn = {failure.rank for failure in run.failures if failure.kind == "died" or _is_torn(failure)}
        is_news = not torn <= self._torn_ranks
        self._torn_ranks |= torn
        return is_news and not (run.is_script or run.is_interrupted) and bool(run.left())

    async def free_from_torn_group(self) -> None:
        """Break the group where it has lost a peer: nothing comes from it any more, but only a neighbour of the rank
        that has died learns that from Gloo, and nobody from NCCL. The others wait.

        A rank whose code handles the error has made another group, which is whole: it goes on.
        """
        await asyncio.sleep(_TORN_AFTER_S)
        run = self._run
        if run.is_interrupted or not run.left():
            return
        died = [failure.rank for failure in run.failures if failure.kind == "died"]
        reason = f"{name_ranks(died)} died" if died else f"{name_ranks(self._torn_ranks)} lost the process group"
        alive = [rank for rank in run.ranks if rank not in died]  # also those that have failed: all forget it
        told = run.mesh.core.abort_groups(reason, alive, last_run=run.number, if_torn=True, peer_died=bool(died))
        self._telling = asyncio.ensure_future(told)
        await asyncio.shield(self._telling)  # the run is over, and this task with it, when the first have heard it


def _is_torn(failure: RankFailure) -> bool:
    return failure.kind == "error" and failure.name == ProcessGroupAborted.__name__

"""Freeing the ranks of a run without costing their memory: interrupted, waited for, and named when they do not stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Protocol

from monarch_nb.client.connections import events
from monarch_nb.client.connections.connection import GAP_S
from monarch_nb.client.runs.interrupts.interrupt_report import KILLS_WITHIN_S, PRESS, InterruptReport, sorted_out
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.client.runs.nodes import RunNodes
from monarch_nb.client.runs.results import RunResults
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MonarchNbError, ProcessGroupAborted, RankFailure
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.rank_sets import name_ranks

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


class FreedRun(Protocol):
    """A run whose ranks are freed.

    Attributes:
        is_interrupted: it has been, by somebody who waits for that.
    """

    id: str
    number: int
    ranks: tuple[int, ...]
    results: RunResults
    finished_before: frozenset[int]
    is_script: bool
    is_interrupted: bool

    @property
    def failures(self) -> list[RankFailure]: ...

    @property
    def mesh(self) -> HeldMesh: ...

    @property
    def done(self) -> bool: ...

    @property
    def is_completing(self) -> bool: ...

    def left(self) -> list[int]: ...

    async def look_before_interrupt(self) -> None: ...

    def send_interrupt(self) -> None: ...

    def emit(self, event: events.Event) -> None: ...


class Freeing:
    """Interrupts of one run. Everything here runs on the background loop.

    Attributes:
        freed: set when nothing that can be reached goes on.
        news: a rank has finished, or a node answers no more.
        is_unstopped: ranks went on after the last interrupt, although they have had the time to stop.
    """

    def __init__(
        self, run: FreedRun, nodes: RunNodes, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
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
            for connection in self._nodes.connections([*report.stuck, *report.handling]):
                connection.withdraw_cancel(self._run.id)
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
            for connection in self._nodes.connections():
                connection.withdraw_cancel(run.id)
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

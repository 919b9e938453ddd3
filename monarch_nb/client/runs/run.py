"""A run: one execution of a body on some ranks of a mesh, followed from here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from monarch_nb.branches.folding import ranges_of, ranks_finished, results_of
from monarch_nb.client.connections import events
from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.connections.connection import GAP_S, Connection
from monarch_nb.client.connections.decoding import OutputDecoder, is_plain, result_event
from monarch_nb.client.presenting import name_here, served_notebook, whence_here
from monarch_nb.client.runs.interrupting import PRESS, Freeing, InterruptReport, handled_by, left_by_kernel
from monarch_nb.client.runs.mismatches import last_calls, wait_in_vain
from monarch_nb.client.runs.nodes import RunNodes
from monarch_nb.client.runs.notices import Absences, LoneTraining
from monarch_nb.client.runs.results import RunResults, RunStops, RunValues
from monarch_nb.client.runs.submission import Submission
from monarch_nb.client.runs.waits import ENDS_SCRIPT, FREES, WaitsWatch
from monarch_nb.config import cadence
from monarch_nb.errors import (
    MonarchNbError,
    NodeUnreachable,
    PickleError,
    RankFailure,
    ReservationNotFound,
    RunFailed,
    explained,
)
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.interrupting import at_waits, kernel_ends
from monarch_nb.ground.ranges import Ranges
from monarch_nb.ground.rank_sets import name_nodes, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monarch_nb.client.curves.plot import Plot
    from monarch_nb.client.logs.metrics import Columns
    from monarch_nb.client.logs.records import LogRecord
    from monarch_nb.client.meshes.mesh import Mesh


_log = logging.getLogger(__name__)

Listener = Callable[[events.Event], None]
OnError = Literal["free", "wait", "abort"]

ABORT_AFTER_S = cadence(0.5)
"""How long after a rank has failed the others are interrupted: those that fail likewise do so by then."""
LINE_AFTER_S = cadence(2.0)
"""How long a run has gone on before it says who waits in line for its nodes."""


class Run:
    """A run: code that ranks of a mesh execute, or have executed. `Mesh.run` and `Mesh.submit` return it.

    Attributes:
        id: made by the client, so that a retry can not run twice.
        ranks: the ranks that it runs on. title: the first line of its code.
        number: counts the runs of a mesh; logs have it. cell_number: of the notebook's cell, or 0.
        results: those of the ranks that have finished, by rank.
        is_script: it has processes of its own, which end with it.
        is_of_nodes: each node runs it once. Then messages name nodes, not ranks.
        is_calls: it consists of calls of actors (CallsRun). has_own_world: its ranks are a world of their own.
        is_collected: the allocators know that the results are here. One that was killed may have forgotten it.
        refusal: the error because of which nothing more comes from the run, or None.

    Example:
        >>> run = dev.mesh.submit("rank * 2")  # doctest: +SKIP
        >>> run.result(timeout_s=60)  # doctest: +SKIP
        [0, 2, 4, 6, 8, 10, 12, 14]
        >>> run = dev.mesh.submit("for n in range(3): print('loss:', 3 - n)\\nif rank: 1 / 0")  # doctest: +SKIP
        >>> run.wait(timeout_s=60), run.done, len(run.failures), run.values == run.kept_values  # doctest: +SKIP
        (True, True, 7, True)
        >>> print(run.name, run.failures[0].line, [record.text for record in run.logs()])  # doctest: +SKIP
        >>> sorted(run.metrics("loss", ranks=0))  # doctest: +SKIP
        ['loss', 'rank', 'step']
        >>> run = dev.mesh.submit("import time; time.sleep(60)")  # doctest: +SKIP
        >>> run.add_listener(print)  # doctest: +SKIP
        >>> run.wait_hang(timeout_s=0.1)  # nobody waits for anybody  # doctest: +SKIP
        ''
        >>> print(run.interrupt())  # doctest: +SKIP
        >>> run.cancel()  # the same without waiting  # doctest: +SKIP
    """

    def __init__(
        self,
        mesh: Mesh,
        run_id: str,
        ranks: Iterable[int],
        title: str,
        *,
        on_error: OnError = "wait",
        cell_number: int = 0,
        listener: Listener | None = None,
        is_apart: bool = False,
    ) -> None:
        self.mesh, self.id, self.ranks, self.title = mesh, run_id, tuple(ranks), title
        self.cell_number, self.notebook = cell_number, served_notebook()
        self.is_script = self.is_of_nodes = self.is_calls = self.has_own_world = False
        self.number = 0
        self.owner = ""
        """Who has submitted it, when that is somebody else."""
        self.finished_before: frozenset[int] = frozenset()
        """Ranks that had finished when this process began to follow it."""
        self.results = RunResults()
        self.submitted_at = time.time()
        self._began_s, self._line_told = time.monotonic(), ""
        self.run_id = run_id
        self._on_ranks = Ranges.of(self.ranks)
        self._nodes = RunNodes(mesh.core, self.ranks, is_apart=is_apart)
        self._absences = Absences(self, self._nodes, self._spawn)
        self._on_error = on_error
        self._listeners: list[Listener] = [listener] if listener else []
        self._values = RunValues()
        self.refusal: MonarchNbError | None = None
        self._done = Flag()
        self._lone_training = LoneTraining(self)
        self._decoder = OutputDecoder(self._lone_training.add)
        self.stops = RunStops()
        self._submission: Submission | None = None  # None of one that another client has submitted
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_aborting = False
        self._waits_watch = WaitsWatch(
            self.results,
            self._look,
            self._left_out,
            self.emit,
            self._is_in_vain,
            self._free_from_failed,
            lambda: ENDS_SCRIPT if self.is_script else FREES,
            lambda: self.stops.ranks,
        )
        self._watching_waits: asyncio.Task[None] | None = None
        self._waited = ""  # who waited for whom when it was interrupted from here
        self.is_completing = self.is_interrupted = self.is_collected = False
        self._is_awaited = False  # by somebody who takes the results at once
        self._freeing = Freeing(self, self._nodes, self._spawn)
        self._replaying: set[int] = set()  # ranks whose results have yet to come once more
        self._waits_on: set[int] = set()  # on some ranks of these nodes, for its turn
        if listener is not None:
            events.introduce(listener, self)

    def __repr__(self) -> str:
        state = "done" if self.done else f"{len(self.results)} of {len(self.ranks)} ranks finished"
        return f"<Run {self.name if self.number else self.id[:8]} on {self._named(self.ranks)}: {state}>"

    # ---- for callers, from any thread ----

    @property
    def name(self) -> str:
        """Its name for people: "run 46, cell [12]". With another notebook it is "run 46, cell [12] of eval.ipynb", and
        with another owner "bob's run 46, …"."""
        return name_here(self.number, self.cell_number, self.notebook, self.owner)

    @property
    def shows(self) -> bool:
        """Whether anybody is told what it prints."""
        return bool(self._listeners)

    @property
    def done(self) -> bool:
        """Whether every rank has finished."""
        return self._done.is_set()

    def wait_news(self, timeout_s: float | None = None) -> bool:
        """Wait until every rank has finished, or a rank has stopped at a breakpoint. Return whether that is so. Stops
        are known only while somebody listens to the output."""
        return self.stops.news.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every rank has finished. Return False when `timeout_s` is up before; the run goes on.

        A run that you have waited for counts as seen: `%mesh status` and `%mesh attach` do not name it as unseen.
        """
        is_done = self._done.wait(timeout_s)
        if is_done and not self.is_collected:
            self.collected()
        return is_done

    def wait_hang(self, timeout_s: float | None = None) -> str:
        """Wait until ranks wait in a collective for others that do not come. Return the sentence that says so. It is
        empty when the run has ended before, or `timeout_s` is up."""
        said: queue.SimpleQueue[str] = queue.SimpleQueue()

        def hear(event: events.Event) -> None:
            if isinstance(event, events.Finished):
                said.put("")
            elif isinstance(event, events.Notice) and event.key == "waits" and event.text:
                said.put(event.text)

        self.add_listener(hear)
        try:
            return self._waits_watch.told or said.get(timeout=timeout_s)
        except queue.Empty:
            return ""
        finally:
            self.replace_listener(hear, None)

    def result(self, timeout_s: float | None = None) -> list[Any]:
        """Wait until every rank has finished, and return the values of the last expression, one per rank.

        Args:
            timeout_s: the longest wait; by default no limit.

        Raises:
            TimeoutError: the run goes on after `timeout_s`. It is not stopped.
            RunFailed: it failed on some ranks. `values` has the values of the other ranks.
            PickleError: a value could not be pickled.
        """
        return self.ended(self.wait(timeout_s), timeout_s).values

    def ended(self, is_done: bool, timeout_s: float | None) -> Self:
        """Return the run when it has ended, and well. Else raise as `result` does."""
        if not is_done:
            raise self.timed_out(timeout_s or 0)
        if not self.is_collected:
            self.collected()
        self.raise_failures()
        return self

    def _named(self, ranks: Iterable[int]) -> str:
        return name_nodes(map(self._nodes.name_of, ranks)) if self.is_of_nodes else name_ranks(ranks)

    def timed_out(self, timeout_s: float) -> TimeoutError:
        """Return the error that says that the run goes on, and where."""
        return TimeoutError(
            f"{self.name} goes on after {timeout_s:g} s on {self._named(self.left())}: run.result() waits for it "
            "(mesh.running() yields the Run), mesh.interrupt() stops it; variables stay"
        )

    @property
    def ended_well(self) -> bool:
        """Whether every rank has finished, without any failure."""
        return self.done and self.refusal is None and not self.failures

    def raise_failures(self) -> None:
        """Raise what the run failed with, if it did."""
        if self.refusal is not None:
            raise self.refusal
        if failures := self.failures:
            failed = RunFailed(failures=failures, run=self)
            failed.is_held = not (self.is_script or self.is_of_nodes or self.is_calls)
            raise failed

    @property
    def failures(self) -> list[RankFailure]:
        """Why it failed, by rank."""
        failures = [result.failure for result in self.results.notable if result.failure is not None]
        return sorted(failures, key=lambda failure: failure.rank)

    @property
    def values(self) -> list[Any]:
        """The value of the last expression for each of `ranks`. It is None where there is none or the rank failed.

        Raises:
            PickleError: a value could not be pickled on its rank, or unpickled here. `kept_values` has the others.
        """
        try:
            return self._values.all(self.ranks)
        except PickleError as error:
            error.run = self
            raise

    @property
    def kept_values(self) -> list[Any]:
        """Like `values`, with a PickleError in place of each value that could not be pickled or unpickled."""
        return self._values.kept(self.ranks)

    def cancel(self) -> None:
        """Interrupt it where it runs, and drop it where it has not begun. Return at once."""
        post(self.send_interrupt)

    @property
    def is_unstopped(self) -> bool:
        """Whether ranks go on after its last interrupt, although they have had the time to stop."""
        return self._freeing.is_unstopped

    @property
    def may_kill(self) -> bool:
        """Whether it was just said that another interrupt kills those that did not stop."""
        return bool(self._freeing.doomed.now)

    def interrupt(self, kill_stuck: bool = False) -> InterruptReport:
        """Interrupt its ranks, and wait a few seconds until they are free. The ranks keep their memory.

        Args:
            kill_stuck: kill and restart the ranks that still do not stop.

        Returns:
            The ranks that stopped, and those that did not.
        """
        return call(self.stop_ranks(kill_stuck=kill_stuck))

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait as a blocked cell does. Ctrl-C interrupts the ranks. When some hang, this is said, and another Ctrl-C in
        the next 10 s kills and restarts these ranks. A run whose code handles the interrupt ends as any other.

        Returns:
            Whether the run is done.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when the ranks are free, or at once when Jupyter ends this kernel.
        """
        with at_waits():
            self._is_awaited = True
            try:
                return self.wait(timeout_s)
            except KeyboardInterrupt:
                report = self._free()
            finally:
                self._is_awaited = False
            if self.done:
                self.collected()
            if self.ended_well:
                if not self._listeners and (said := handled_by(report.stopped)):
                    sys.stderr.write(f"{said}\n")
                return True
            causes = [each for each in self.failures if each.kind == "error" and not each.is_consequence]
            failed = [f"rank {each.rank} {each.line}" for each in causes]
            raise KeyboardInterrupt("; ".join([str(report), *failed[:1]]))

    def wait_freed(self, timeout_s: float | None = None) -> bool:
        """Wait after an interrupt until every rank whose node answers has finished. Return whether they have."""
        return self._freeing.freed.wait(timeout_s)

    def _free(self) -> InterruptReport:
        """Interrupt the ranks until they are free, with Ctrl-C held back but where it waits. Those that have had no
        time to stop are never killed. When the kernel ends, let go."""
        report = InterruptReport(free=tuple(sorted(self.results.keys() | self.finished_before)))
        while True:
            if kernel_ends():
                raise KeyboardInterrupt(left_by_kernel(self.name)) from None
            with contextlib.suppress(KeyboardInterrupt):
                newest = self.interrupt(kill_stuck=self.may_kill)
                report = report.then(newest)
                if not self._listeners and (unstopped := replace(newest, again=PRESS).unstopped()):
                    sys.stderr.write("\n".join([*unstopped, ""]))
                self.wait_freed()  # what is stuck may still stop by itself
                return report.as_of(self.results)

    def collected(self) -> None:
        """Tell the allocators that the results are here, so that they need not keep them for a later kernel."""
        self.mesh.core.collected.append(self.id)
        post(self._tell_collected)

    def _tell_collected(self) -> None:
        self.mesh.core.collected.append(self.id)
        self.is_collected = True
        self.mesh.core.collect(self.id)

    def logs(self) -> Iterator[LogRecord]:
        """Yield everything that the run printed, from the ranks' files, as LogRecords."""
        return self.mesh.logs(run=self)

    def metrics(self, names: str | Sequence[str] | None = None, ranks: int | Iterable[int] | None = None) -> Columns:
        """Return the numbers that the run printed beside names, as in `loss: 2.31`: columns for `pandas.DataFrame`.

        Args:
            names: only these names. ranks: only these ranks.

        Returns:
            Columns of equal length, with a row for each line that has a number: "rank", "step" and a column for each
            name. A value is None where a line has none.

        Raises:
            UsageError: no line has the name. The message has the nearest names.
        """
        return self.mesh.metrics(names, ranks, run=self)

    def plot(self, *names: str, x: str = "", ranks: int | Iterable[int] | None = None) -> Plot:
        """Return curves of the numbers that it printed beside names, as `%mesh plot` draws them. A notebook's cell
        shows them live while it goes on.

        Args:
            names: a chart for each.
            x: against the number of this name; by default the step of a line.
            ranks: only of these ranks.

        Returns:
            The curves: `print` draws them with characters, `svg()` and `save("loss.svg")` as a picture.

        Raises:
            UsageError: no name is given, or no line has one; the message has those that there are.

        Example:
            >>> run.plot("loss")  # doctest: +SKIP
        """
        return self.mesh.plot(*names, x=x, ranks=ranks, run=self)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with the run's events, on the background thread. The first listener gets all events from the
        beginning of the run. Later listeners get the results so far, and the events from now on.
        """
        post(self._add_listener, listener)

    def replace_listener(self, old: Listener, new: Listener | None) -> None:
        """Send further events to `new` (or to nobody) instead of `old`, after the results so far."""
        post(self._replace_listener, old, new)

    # ---- on the background loop ----

    def _replace_listener(self, old: Listener, new: Listener | None) -> None:
        if new is not None:
            self._add_listener(new)
        if old in self._listeners:
            self._listeners.remove(old)

    def _add_listener(self, listener: Listener) -> None:
        is_first = not self._listeners
        self._listeners.append(listener)
        for result in self.results.values():
            events.tell(listener, result)
        if is_first:
            self._ask_for_output()
        if self.done and not self._replaying:
            events.tell(listener, events.Finished())

    def _ask_for_output(self) -> None:
        """Nobody listened so far: have everything sent from the beginning."""
        self._nodes.session.replay(self, self.mesh.id)
        if self.done:
            self._replaying = set(self.ranks)

    def emit(self, event: events.Event) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            events.tell(listener, event)

    def submit(self, spec: run_pb2.RunSpec) -> None:
        """Send it to the first node, which gives it its number, and passes it on to the others."""
        self._submission = Submission(self, self._described(spec))
        if not self._submission.begin():
            self._spawn(self._submission.number_elsewhere())
        self._watch_waits()
        if self.mesh.core.line_text:
            self.tell_line()
        if healed := self.mesh.core.healed:
            self.emit(events.Notice("\n".join(healed), key="healed"))
            healed.clear()

    def _described(self, spec: run_pb2.RunSpec) -> pb.Submit:
        return pb.Submit(
            mesh_id=self.mesh.id,
            run=spec,
            all_ranks=self.ranks if len(self.ranks) < self.mesh.extent.size else [],
            title=self.title,
            notebook=self.notebook,
            quiet=not self._listeners,
            whole=any(map(events.wants_whole, self._listeners)),
        )

    def follow(self, *, from_shown: bool) -> None:
        """Follow a run that another client submitted."""
        self._watch_waits()
        self._spawn(self._find_stops())
        self._nodes.session.follow(self, self.mesh.id, from_shown=from_shown)

    def on_queued(self, queued: pb.Queued) -> None:
        if not self.number:
            self.number = queued.number
            self.mesh.core.newest_number = max(self.mesh.core.newest_number, queued.number)
        if queued.ahead:
            self._waits_on.update(ranges_of(queued.nodes))
            waits = f"waits for: {'; '.join(queued.ahead)}"
            if self.cell_number and self.mesh.reservation.is_mine:  # its kernel does nothing else while it waits
                waits += f"; %mesh interrupt stops {'it' if len(queued.ahead) == 1 else 'them'}"
            self.emit(events.Notice(waits, key=events.QUEUE_NOTICE))
        else:
            self.on_started(ranges_of(queued.nodes))

    def tell_line(self) -> None:
        """Say, of a run that goes on for a while, that somebody waits in line for nodes like these, or nobody does."""
        asyncio.get_running_loop().call_later(
            max(0.0, self._began_s + LINE_AFTER_S - time.monotonic()), self._tell_line
        )

    def _tell_line(self) -> None:
        if not self.done and self.mesh.core.line_text != self._line_told:
            self._line_told = self.mesh.core.line_text
            self.emit(events.Notice(self._line_told, key=events.LINE_NOTICE))

    def on_started(self, nodes: Iterable[int]) -> None:
        if self._waits_on:
            self._waits_on.difference_update(nodes)
            if not self._waits_on:
                self.emit(events.Notice("", key=events.QUEUE_NOTICE))

    def on_output(self, output: pb.Output) -> None:
        self._waits_watch.printed = True
        for event in self._decoder.events_of(output):
            self.emit(event)
            if isinstance(event, events.Stopped):
                self._note_stop(event.rank, event.stop, on=event.on)

    def on_finished(self, finished: pb.Finished) -> None:
        if self.done:
            self._end_replay(ranks_finished(finished))
            if self.is_collected:  # by an allocator that was killed before it wrote that down
                self._nodes.session.collect(self.id)
        is_first = not self.results
        for packed in finished.results:
            self._on_result(packed)
        for equal in finished.equal:
            if is_plain(equal.result):
                self._on_plain_results(equal)
            else:
                for packed in results_of(equal):
                    self._on_result(packed)
        self._freeing.news.set()
        if len(self.results) == len(self.ranks):
            self._complete()
        elif is_first:
            self._watch_waits()  # the first ones: who waits is named from now on
        if self._on_error == "abort" and self._failed_ranks():
            self._begin_abort()
        elif self._freeing.finds_torn_group():
            self._spawn(self._freeing.free_from_torn_group())
        self._check_stuck()

    def _on_plain_results(self, equal: pb.EqualResults) -> None:
        """Ranks have come to the end, and there is nothing else to say of them."""
        ranks = self.results.left_of(self._on_ranks & ranges_of(equal.ranks))
        self.results.add_alike(ranks, equal, may_print_later=not (equal.result.untouched or self.is_script))
        self.stops.forget(ranks)
        if self._listeners:
            for rank in ranks:
                self.emit(self.results[rank])

    def _on_result(self, packed: run_pb2.RankResult) -> None:
        if packed.rank in self.results or packed.rank not in self._on_ranks:
            return
        self._values.add(packed)
        self.stops.forget([packed.rank])
        host = "" if packed.outcome == run_pb2.OUTCOME_OK else self._nodes.name_of(packed.rank)
        result = result_event(packed, host, of_script=self.is_script, of_node=self.is_of_nodes)
        result = self._freeing.seen(result)
        failure = result.failure
        misses = failure is not None and failure.name == FileNotFoundError.__name__
        if failure and misses and (line := self.mesh.reservation.files.why_missing(failure.message)):
            result = replace(result, failure=replace(failure, rendered=f"{failure.rendered.rstrip()}\n{line}"))
        self.results[packed.rank] = result
        self.emit(result)
        if packed.notice:
            text = self.results.lost(packed.rank, self._nodes.name_of(packed.rank), packed.notice)
            self.emit(events.Notice(text, key="loss"))
        if packed.hint:
            self.emit(events.Notice(packed.hint, key="hint"))

    def _note_stop(self, rank: int, stop: int, *, on: bool) -> None:
        if not self.done and rank not in self.results:
            self.stops.note(rank, stop, on=on)
            self.emit(events.Notice(self.stops.text, key="stopped"))

    async def _find_stops(self) -> None:
        """What has stopped before this process follows the run may have been told to another one."""
        replies = await self.mesh.core.control(self.left(), stops=True)
        for rank, reply in replies.items():
            for stop in reply.stops:
                if stop.run_id == self.id:
                    self._note_stop(rank, stop.stop, on=True)

    def _end_replay(self, ranks: Iterable[int]) -> None:
        """Ranks have said again how they ended, or will not say it."""
        if self._replaying:
            self._replaying.difference_update(ranks)
            if not self._replaying:
                self.emit(events.Finished())

    def on_refused(self, error: MonarchNbError) -> None:
        if self.done:
            self._end_replay(self.ranks)
            return
        self.refusal = self.refusal or error
        key = events.TIME_NOTICE if isinstance(error, ReservationNotFound) else "refused"
        self.emit(events.Notice(str(error), key=key))
        self._finish()

    def on_link(self, connection: Connection, up: bool) -> None:
        self._nodes.on_link(connection.name, up)
        self._freeing.news.set()
        if not self.done:
            self._absences.on_link(connection, up)
            if not up and self._freeing.is_unstopped:
                asyncio.get_running_loop().call_later(GAP_S, self._check_stuck)
            if self._submission is not None and self._submission.is_asked_in_vain(connection, up):
                self._spawn(self._submission.number_elsewhere())

    def on_node_replaced(self, node: int, ranks: Iterable[int], why: str) -> None:
        """Another node has the place of one, with new ranks that know nothing of this run."""
        connection = self.mesh.core.connections[node]
        if self._submission is not None and not self.number and node == self._submission.numbered_by:
            self.on_refused(NodeUnreachable(why, connection.name))
        lost = [rank for rank in self.left() if rank in ranks]
        if lost and not self.done:
            died = run_pb2.RankResult(outcome=run_pb2.OUTCOME_DIED, death=run_pb2.Death(likely_cause=why))
            finished = pb.Finished(run_id=self.id)
            for rank in lost:
                finished.results.add(rank=rank).MergeFrom(died)
            self.on_finished(finished)

    def _complete(self) -> None:
        """Every rank has finished: fetch large values and repair groups if need be, then tell everybody."""
        if self.is_completing:
            return
        self.is_completing = True
        blobs = self._values.to_fetch()
        # Only who interrupted it repairs: to others it may be an old run, and the mesh may have a new group since.
        aborted = self.is_interrupted and any(result.group_aborted for result in self.results.notable)
        is_asked = not (self.is_script or self.has_own_world)
        mismatch = is_asked and any(failure.died_of_mismatch for failure in self.failures)
        if blobs or aborted or mismatch:
            self._spawn(self._complete_slowly(blobs, aborted, mismatch))
        else:
            self._finish()

    async def _complete_slowly(self, blobs: list[run_pb2.RankResult], aborted: bool, mismatch: bool) -> None:
        try:
            if mismatch:
                await self._explain_mismatch()
            if aborted:
                await self._freeing.abort_groups()
            await asyncio.gather(*(self._fetch(packed) for packed in blobs))
        finally:
            self._finish()

    async def _explain_mismatch(self) -> None:
        """Gloo has ended ranks, and others have ended well, with a wrong result: these know what they have called."""
        ended, where = self.results.ranks_ok(), dict[int, run_pb2.Where]()
        for _ in range(2):  # torch's recorder is asked when nothing has moved since a look
            where = await self.mesh.core.where(ended, is_urgent=False)
        for failure in explained(self.failures, last_calls(where)):
            told = self.results[failure.rank]
            if failure != told.failure:
                self.results[failure.rank] = replace(told, failure=failure)
                self.emit(self.results[failure.rank])

    async def _fetch(self, packed: run_pb2.RankResult) -> None:
        connection = self.mesh.core.connection_of(packed.rank)
        try:
            packed.value_inline = await connection.read_blob(self.mesh.id, packed.value_blob)
        except MonarchNbError as error:
            packed.value_error = f"the value could not be fetched: {error}"

    def _finish(self) -> None:
        if not self._done.is_set():
            for text in self._decoder.rest():
                self.emit(text)
            self._lone_training.say()
            freed = any(result.outcome == "interrupted" for result in self.results.notable)
            waited = (self._waited or self._waits_watch.past) if freed else ""
            self.emit(events.Notice(waited, key="waits"))  # what the interrupt was for stays
            over = ["stuck", "stopped", *self._absences.keys()]
            for key in [*over, *([events.LINE_NOTICE] if self._line_told else [])]:
                self.emit(events.Notice("", key=key))
            self.emit(events.Finished())
            if self._is_awaited:
                self._tell_collected()  # now: to be woken for it once more is a tenth of what an empty cell costs
            self._done.set()
            self._freeing.freed.set()
            self.stops.over()
            self._freeing.news.set()
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            self._nodes.close()

    def _watch_waits(self) -> None:
        """From now on look where the ranks are, soon and then again and again."""
        if self._watching_waits is not None:
            self._watching_waits.cancel()
        self._watching_waits = self._spawn(self._waits_watch.go_on())

    async def _look(self) -> dict[int, run_pb2.Where] | None:
        if not (self._listeners or self._may_free()) or self._waits_on:
            return None
        finished = [] if self.is_script or self.has_own_world else self.results.ranks_ok()  # they know what they called
        return await self.mesh.core.where([*self.left(), *finished], self.id, is_urgent=False)

    def _may_free(self) -> bool:
        return self._on_error == "free" and not self.is_interrupted and bool(self._failed_ranks())

    async def _is_in_vain(self) -> bool:
        """Return whether all ranks that go on wait in vain for ranks that have failed, and may be freed."""
        if not self._may_free():
            return False
        size = self.mesh.extent.size
        where = await self.mesh.core.where(range(size))
        return wait_in_vain(where, self._failed_ranks(), self.left(), self.ranks, size)

    def _free_from_failed(self) -> None:
        """Free the ranks that go on, as ■ does."""
        failed, left = self._failed_ranks(), self.left()
        never = f"{self._named(failed)} failed and can never join {'it' if len(left) == 1 else 'them'}"
        kept = "all variables stay (--on-error wait lets ranks wait)"
        self.emit(events.Notice(f"{self._named(left)} freed: {never}; {kept}", key="abort"))
        self.send_interrupt()

    def _left_out(self) -> Mapping[int, str]:
        if self.is_script or self.is_calls or self.has_own_world:
            return {}  # a world of its own; called one by one
        return self._nodes.left_out(range(self.mesh.extent.size))

    def _failed_ranks(self) -> list[int]:
        return [failure.rank for failure in self.failures if failure.kind in ("error", "died")]

    def _begin_abort(self) -> None:
        if not self._is_aborting:
            self._is_aborting = True
            self._spawn(self._abort_others())

    async def _abort_others(self) -> None:
        """A rank has failed, so the others are interrupted, whatever they do."""
        await asyncio.sleep(ABORT_AFTER_S)
        if not self.is_interrupted and (left := self.left()):
            self._say_aborted(left)
            self.send_interrupt()

    def _say_aborted(self, ranks: list[int]) -> None:
        """Say for whose failure `ranks` are interrupted: not for those of ranks that others took along."""
        causes = [failure.rank for failure in self.failures if not failure.is_consequence]
        text = f"{self._named(ranks)} interrupted: {self._named(causes or self._failed_ranks())} failed"
        self.emit(events.Notice(text, key="abort"))

    async def look_before_interrupt(self) -> None:
        """Learn who waits for whom, for those who read it afterwards."""
        await self._waits_watch.look_before_interrupt()

    def send_interrupt(self) -> None:
        """Interrupt it on all ranks where it goes on; does not wait. On the background loop."""
        self._waited = self._waited or self._waits_watch.past
        self.is_interrupted = True
        self._cancel_left()

    def _cancel_left(self) -> None:
        is_from_here = self._submission is not None or (self.notebook and self.notebook == served_notebook())
        whence = "" if is_from_here else whence_here()
        self._nodes.session.cancel(self.id, whence)

    async def stop_ranks(self, *, kill_stuck: bool = False) -> InterruptReport:
        """As `interrupt`."""
        return await self._freeing.interrupt(kill_stuck)

    def left(self) -> list[int]:
        """The ranks that the run goes on on."""
        return [] if self.refusal else [rank for rank in self.ranks if rank not in self.results]

    def _check_stuck(self) -> None:
        if self._freeing.is_over():
            self._spawn(self._freeing.let_go())

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)
        return task


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.debug("%s", error, exc_info=error)

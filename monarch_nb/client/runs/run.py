"""A run: one execution of a body on some ranks of a mesh, followed from here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from monarch_nb.branches.folding import ranges_of, ranks_finished, results_of
from monarch_nb.branches.layout import earlier_run
from monarch_nb.client.connections import events
from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.connections.connection import GAP_S, Connection
from monarch_nb.client.connections.decoding import OutputDecoder, is_plain, result_event
from monarch_nb.client.connections.tree import FollowedThrough, TreeConnection
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.pools.held import current_owner
from monarch_nb.client.presenting import name_here, served_notebook
from monarch_nb.client.runs.interrupt_report import InterruptReport, left_by_kernel, place_of, unstopped_lines
from monarch_nb.client.runs.lone_training import LoneTraining
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.client.runs.nodes import RunNodes
from monarch_nb.client.runs.results import RunResults
from monarch_nb.client.runs.stops import RunStops
from monarch_nb.client.runs.values import RunValues
from monarch_nb.client.runs.waits_watch import WaitsWatch
from monarch_nb.errors import (
    MonarchNbError,
    NodeUnreachable,
    PickleError,
    RankFailure,
    ReservationExpired,
    RunFailed,
)
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.interrupting import at_waits, kernel_ends
from monarch_nb.ground.ranges import Ranges
from monarch_nb.ground.rank_sets import name_nodes, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

_log = logging.getLogger(__name__)

Listener = Callable[[events.Event], None]
OnError = Literal["wait", "abort"]

STOP_WAIT_S = 4.0
"""How long ranks may take to stop after an interrupt before they are called stuck."""
ABORT_AFTER_S = 0.5
"""How long after a rank has failed the others are interrupted: those that fail likewise do so by then."""
PROCEED_AFTER_S = 2.0
LINE_AFTER_S = 2.0
"""How long a run has gone on before it says who waits in line for its nodes."""


class Run:
    """A run that goes on, or went.

    Attributes:
        id: made by the client, so that a retry can not run twice.
        ranks: those it runs on. title: the first line of its code.
        number: counts the runs of a mesh; logs have it. cell_number: of the notebook's cell, or 0.
        results: by rank, of those that have finished.
        is_script: it has processes of its own, which end with it.
        is_of_nodes: what it runs is each node's: sentences name nodes, not ranks.
        is_calls: it is of calls of actors (CallsRun).
    """

    def __init__(
        self,
        mesh: HeldMesh,
        run_id: str,
        ranks: Iterable[int],
        title: str,
        *,
        on_error: OnError = "wait",
        cell_number: int = 0,
        listener: Listener | None = None,
        own_connections: bool = False,
    ) -> None:
        self.mesh, self.id, self.ranks, self.title = mesh, run_id, tuple(ranks), title
        self.cell_number, self.notebook = cell_number, served_notebook()
        self.is_script = self.is_of_nodes = self.is_calls = False
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
        self._nodes = RunNodes(mesh.core, self.ranks, own_connections=own_connections)
        self._on_error = on_error
        self._listeners: list[Listener] = [listener] if listener else []
        self._values = RunValues()
        self._lossy: dict[tuple[str, str], list[int]] = {}
        self._refusal: MonarchNbError | None = None
        self._done, self._freed = Flag(), Flag()
        self._lone_training = LoneTraining(self)
        self._decoder = OutputDecoder(self._lone_training.add)
        self.stops = RunStops()
        self._submits: dict[int, pb.Submit] = {}
        self._numbered_by = 0  # the node that was asked for its number
        self._tasks: set[asyncio.Task[None]] = set()
        self._started_on_first = self._is_aborting = self._spans_nodes = False
        self._waits_watch = WaitsWatch(self.results, self._look, self._left_out, self.emit)
        self._watching_waits: asyncio.Task[None] | None = None
        self._waited = ""  # who waited for whom when it was interrupted from here
        self._completing = self._interrupting = self._is_collected = False
        self.is_stuck = False  # ranks did not stop after the last interrupt, although they have had the time to
        self._stop_by_s: float | None = None  # until then ranks that were interrupted have the time to stop
        self._replaying: dict[FollowedThrough, set[int]] = {}  # ranks whose results have yet to come
        self._waits_on: set[object] = set()  # on some ranks of these nodes, for its turn
        self._news = asyncio.Event()  # a rank has finished, or a node answers no more

    def __repr__(self) -> str:
        state = "done" if self.done else f"{len(self.results)} of {len(self.ranks)} ranks finished"
        return f"<Run {self.name if self.number else self.id[:8]} on {self._named(self.ranks)}: {state}>"

    # ---- for callers, from any thread ----

    @property
    def name(self) -> str:
        """What it is called: "run 46, cell [12]"; another notebook's is called "run 46, cell [12] of eval.ipynb", and
        somebody else's "bob's run 46, …"."""
        return name_here(self.number, self.cell_number, self.notebook, self.owner)

    @property
    def done(self) -> bool:
        """Whether every rank has finished."""
        return self._done.is_set()

    def wait_news(self, timeout_s: float | None = None) -> bool:
        """Wait until every rank has finished, or one has stopped at a breakpoint, which is only learnt while somebody
        listens to its output; return whether that is so."""
        return self.stops.news.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every rank has finished; return whether they have."""
        return self._done.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> list[Any]:
        """Wait, and return the last expression's value of every rank.

        Raises:
            TimeoutError: it goes on after `timeout_s`; it is not stopped.
            RunFailed: it failed on some ranks; `values` has those of the others.
            PickleError: a value could not be pickled.
        """
        if not self.wait(timeout_s):
            raise self.timed_out(timeout_s or 0)
        self.collected()
        self.raise_failures()
        return self.values

    def _named(self, ranks: Iterable[int]) -> str:
        return name_nodes(map(self._nodes.name_of, ranks)) if self.is_of_nodes else name_ranks(ranks)

    def timed_out(self, timeout_s: float) -> TimeoutError:
        """Return the error that says that the run goes on, and where."""
        return TimeoutError(
            f"{self.name} goes on after {timeout_s:g} s on {self._named(self._left())}: run.result() waits for it "
            "(mesh.running() yields the Run), mesh.interrupt() stops it; variables stay"
        )

    def raise_failures(self) -> None:
        """Raise what the run failed with, if it did."""
        if self._refusal is not None:
            raise self._refusal
        if failures := self.failures:
            raise RunFailed(failures=failures, run=self)

    @property
    def failures(self) -> list[RankFailure]:
        """Why it failed, by rank."""
        failures = [result.failure for result in self.results.notable if result.failure is not None]
        return sorted(failures, key=lambda failure: failure.rank)

    @property
    def values(self) -> list[Any]:
        """The last expression's value by rank of `ranks`; None where there is none or the rank failed.

        Raises:
            PickleError: a value could not be pickled on its rank, or not unpickled here; `kept_values` has the others.
        """
        try:
            return self._values.all(self.ranks)
        except PickleError as error:
            error.run = self
            raise

    @property
    def kept_values(self) -> list[Any]:
        """As `values`, with a PickleError in place of each value that could not be brought here."""
        return self._values.kept(self.ranks)

    def logs(self) -> Iterator[LogRecord]:
        """Yield everything that it printed, from the ranks' files."""
        return self.mesh.logs(run=self)

    def cancel(self) -> None:
        """Interrupt it where it runs and drop it where it has not begun; does not wait."""
        post(self._send_interrupt)

    def interrupt(self, kill_stuck: bool = False) -> InterruptReport:
        """Free its ranks without costing their memory, and wait a few seconds until they are.

        Args:
            kill_stuck: kill and restart the ranks that still do not stop.
        """
        return call(self._interrupt(kill_stuck))

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait as a blocked cell does: Ctrl-C interrupts the ranks; once some are found to hang, another one kills and
        restarts those.

        Returns:
            Whether it is done.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when the ranks are free; at once when Jupyter ends this kernel.
        """
        with at_waits():
            try:
                return self.wait(timeout_s)
            except KeyboardInterrupt:
                report = self._free()
            if self.done:
                self.collected()
            raise KeyboardInterrupt(str(report))

    def wait_freed(self, timeout_s: float | None = None) -> bool:
        """Wait after an interrupt until every rank has finished, but for those whose node does not answer."""
        return self._freed.wait(timeout_s)

    def _free(self) -> InterruptReport:
        """Interrupt the ranks until they are free, with Ctrl-C held back but where it waits. Those that have had no
        time to stop are never killed. When the kernel ends, let go."""
        report = InterruptReport(free=tuple(sorted(self.results.keys() | self.finished_before)))
        while True:
            if kernel_ends():
                raise KeyboardInterrupt(left_by_kernel(self.name)) from None
            with contextlib.suppress(KeyboardInterrupt):
                report = report.then(self.interrupt(kill_stuck=self.is_stuck))
                self.wait_freed()  # what is stuck may still stop by itself
                return report.as_of(self.results)

    def collected(self) -> None:
        """Tell the allocators that the results are here: they need not be kept for a later kernel."""
        post(self._tell_collected)

    def _tell_collected(self) -> None:
        self._is_collected = True
        for connection in self._nodes.shared():
            connection.collect(self.id)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with the run's events, on the background thread: the first one with all of them from the
        run's beginning, later ones with the results so far and what comes from now on.
        """
        post(self._add_listener, listener)

    def replace_listener(self, old: Listener, new: Listener | None) -> None:
        """Tell `new` (or nobody) what would have been told to `old` from now on, after the results so far."""
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
            _tell(listener, result)
        if is_first:
            self._ask_for_output()
        if self.done and not self._replaying:
            _tell(listener, events.Finished())

    def _ask_for_output(self) -> None:
        """Nobody listened so far: have everything sent from the beginning."""
        for submit in self._submits.values():
            submit.quiet = False  # also of those that wait for the run's number
        for node, ranks in self._nodes.parts():
            if self.number or not self._submits or node == self._numbered_by or self.mesh.core.tree is not None:
                connection = self._nodes.connection(node)
                connection.replay(self, self.mesh.id)
                if self.done:
                    # A node says at once how all of its ranks ended, a tree does not.
                    self._replaying[connection] = set(ranks) if self.mesh.core.tree is not None else set()

    def emit(self, event: events.Event) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            _tell(listener, event)

    def submit(self, spec: run_pb2.RunSpec) -> None:
        """Send it: to the first node, which gives it its number, and when it has one to the others."""
        core = self.mesh.core
        by_node, first = dict(self._nodes.parts()), core.first_node
        self._numbered_by = first
        self._spans_nodes = core.tree is not None or len({first, *by_node}) > 1
        for node in {first, *by_node}:
            self._submits[node] = pb.Submit(
                mesh_id=self.mesh.id,
                run=spec,
                ranks=by_node.get(node, []) if core.tree is None else [],
                all_ranks=self.ranks if len(self.ranks) < self.mesh.extent.size else [],
                give_number=node == first,
                title=self.title,
                notebook=self.notebook,
                quiet=not self._listeners,
                owner=current_owner(core.connections[first].identity),
                newest=core.newest_number if node == first else 0,
            )
        if core.tree is not None:
            core.tree.submit(self, self._submits[first], first)
        else:
            core.connections[first].submit(self, self._submits[first])
        self._watch_waits()
        if core.line_text:
            self.tell_line()
        if self._spans_nodes:
            self._spawn(self._proceed_later())

    def follow(self, *, from_shown: bool) -> None:
        """Follow a run that another client submitted."""
        self._started_on_first = True
        self._watch_waits()
        self._spawn(self._find_stops())
        for connection in self._nodes.connections():
            connection.follow(self, self.mesh.id, from_shown=from_shown)

    def on_queued(self, connection: FollowedThrough, queued: pb.Queued) -> None:
        if not self.number:
            self.number = queued.number
            self.mesh.core.newest_number = max(self.mesh.core.newest_number, queued.number)
            self._submit_to_others(queued)
        if queued.ahead:
            self._waits_on.update(ranges_of(queued.nodes) or [connection])
            self.emit(events.Notice(f"waits for: {'; '.join(queued.ahead)}", key=events.QUEUE_NOTICE))
        else:
            self.on_started(connection, ranges_of(queued.nodes))

    def tell_line(self) -> None:
        """Say, of a run that goes on for a while, that somebody waits in line for nodes like these, or nobody does."""
        asyncio.get_running_loop().call_later(
            max(0.0, self._began_s + LINE_AFTER_S - time.monotonic()), self._tell_line
        )

    def _tell_line(self) -> None:
        if not self.done and self.mesh.core.line_text != self._line_told:
            self._line_told = self.mesh.core.line_text
            self.emit(events.Notice(self._line_told, key=events.LINE_NOTICE))

    def _submit_to_others(self, queued: pb.Queued) -> None:
        core = self.mesh.core
        for node, submit in self._submits.items():
            if node != self._numbered_by:
                submit.run.number = queued.number
                submit.after = earlier_run(queued.earlier, node)
                core.connections[node].submit(self, submit)
                if self._interrupting:
                    core.connections[node].cancel(self.id)

    async def _number_elsewhere(self) -> None:
        """The node that is to give it its number does not answer. If it runs nothing of it, nothing has begun: another
        one gives the number."""
        core, lost = self.mesh.core, self._numbered_by
        await core.choose_first()
        if core.tree is not None:
            await self._number_in_tree(core.tree)
            return
        if self.number or self.done or core.first_node == lost:
            return
        core.connections[lost].forget(self.id)
        unused, self._numbered_by = self._submits.pop(lost), core.first_node
        submit = self._submits.setdefault(self._numbered_by, unused)
        submit.give_number, submit.newest = True, core.newest_number
        core.connections[self._numbered_by].submit(self, submit)
        if self._interrupting:
            core.connections[self._numbered_by].cancel(self.id)

    async def _number_in_tree(self, tree: TreeConnection) -> None:
        """As above, where the lost node may have passed the run on, which says no more than the others know."""
        core, asked = self.mesh.core, self._numbered_by
        if core.first_node == asked and core.is_node_up(asked):
            return  # it was asked again
        number = await core.number_of(self.id)
        if self.number or self.done:
            return
        if number:
            tree.numbered(self.id, number)
        elif core.is_node_up(asked) or asked not in core.by_node(self.ranks):
            self._numbered_by = core.first_node
            tree.number_by(self.id, core.first_node, core.newest_number)

    def on_started(self, connection: FollowedThrough, nodes: Iterable[int] = ()) -> None:
        if self._waits_on:
            self._waits_on.difference_update(nodes or [connection])
            if not self._waits_on:
                self.emit(events.Notice("", key=events.QUEUE_NOTICE))

    async def _proceed_later(self) -> None:
        """A run before this one may never reach a node because its client died half-way: do not wait for it."""
        await asyncio.sleep(PROCEED_AFTER_S)
        if self.number and not self.done:
            for connection in self._nodes.connections():
                connection.send(proceed=pb.Proceed(mesh_id=self.mesh.id, run_id=self.id))

    def on_output(self, connection: FollowedThrough, output: pb.Output) -> None:
        self._waits_watch.printed = True
        if output.HasField("counted"):
            for event in self._decoder.events_of_counted(output.counted):
                self.emit(event)
        for rank_output in output.ranks:
            for rank in (rank_output.rank, *rank_output.also):
                self._on_items(rank, rank_output.items)

    def _on_items(self, rank: int, items: Iterable[pb.OutputItem]) -> None:
        for item in items:
            for event in self._decoder.events_of(rank, item):
                self.emit(event)
                if isinstance(event, events.Stopped):
                    self._note_stop(event.rank, event.stop, on=event.on)

    def on_finished(self, connection: FollowedThrough, finished: pb.Finished) -> None:
        if self.done:
            self._end_replay(connection, ranks_finished(finished))
            if self._is_collected:  # by an allocator that was killed before it wrote that down
                connection.collect(self.id)
        is_first = not self.results
        for packed in finished.results:
            self._on_result(packed)
        for equal in finished.equal:
            if is_plain(equal.result):
                self._on_plain_results(equal)
            else:
                for packed in results_of(equal):
                    self._on_result(packed)
        self._news.set()
        if len(self.results) == len(self.ranks):
            self._complete()
        elif is_first:
            self._watch_waits()  # the first ones: who waits is named from now on
        if self._on_error == "abort" and not self._is_aborting and self._failed_ranks():
            self._is_aborting = True
            self._spawn(self._abort_others())
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
        self.results[packed.rank] = result
        self.emit(result)
        if packed.notice:
            self._lossy.setdefault((self._nodes.name_of(packed.rank), packed.notice), []).append(packed.rank)
            lossy = self._lossy.items()
            text = "; ".join(f"{name_ranks(ranks)} on {node}: {why}" for (node, why), ranks in lossy)
            self.emit(events.Notice(text, key="loss"))
        if packed.hint:
            self.emit(events.Notice(packed.hint, key="hint"))

    def _note_stop(self, rank: int, stop: int, *, on: bool) -> None:
        if not self.done and rank not in self.results:
            self.stops.note(rank, stop, on=on)
            self.emit(events.Notice(self.stops.text, key="stopped"))

    async def _find_stops(self) -> None:
        """What has stopped before this process follows the run may have been told to another one."""
        replies = await self.mesh.core.control(self._left(), stops=True)
        for rank, reply in replies.items():
            for stop in reply.stops:
                if stop.run_id == self.id:
                    self._note_stop(rank, stop.stop, on=True)

    def _end_replay(self, connection: FollowedThrough, ranks: Iterable[int]) -> None:
        """Ranks have said again how they ended, or will not say it."""
        if (left := self._replaying.get(connection)) is not None:
            left.difference_update(ranks)
            if not left:
                del self._replaying[connection]
            if not self._replaying:
                self.emit(events.Finished())

    def on_refused(self, connection: FollowedThrough, error: MonarchNbError) -> None:
        if self.done:
            self._end_replay(connection, self.ranks)
            return
        self._refusal = self._refusal or error
        key = events.TIME_NOTICE if isinstance(error, ReservationExpired) else "refused"
        self.emit(events.Notice(str(error), key=key))
        self._finish()

    def on_link(self, connection: Connection, up: bool) -> None:
        self._nodes.on_link(connection.name, up)
        self._news.set()
        if not self.done:
            text = "" if up else connection.absence
            self.emit(events.Notice(text, key=f"link {connection.name}"))
            if not up and self.is_stuck:
                asyncio.get_running_loop().call_later(GAP_S, self._check_stuck)
            if self._submits and not self.number and self._is_asked_in_vain(connection, up):
                self._spawn(self._number_elsewhere())
        if up and self._spans_nodes and not self.done:
            # The allocator may have died before it wrote the run before this one down.
            self._spawn(self._proceed_later())

    def _is_asked_in_vain(self, connection: Connection, up: bool) -> bool:
        """Whether the node that is to give it its number can not, now that another one answers, or does not."""
        core = self.mesh.core
        if core.tree is not None:  # also when one is back that will be above it
            return up or core.connections[self._numbered_by] is connection
        is_asked = core.connections.get(self._numbered_by) is connection
        return not up and is_asked and not self._submits[self._numbered_by].ranks

    def on_node_replaced(self, node: int, ranks: Iterable[int], why: str) -> None:
        """Another node has the place of one, with new ranks that know nothing of this run."""
        connection = self.mesh.core.connections[node]
        if self._submits and not self.number and node == self._numbered_by:
            self.on_refused(
                connection, NodeUnreachable(f"{why}, which was to begin this: run it again", connection.name)
            )
        lost = [rank for rank in self._left() if rank in ranks]
        if lost and not self.done:
            died = run_pb2.RankResult(outcome=run_pb2.OUTCOME_DIED, death=run_pb2.Death(likely_cause=why))
            finished = pb.Finished(run_id=self.id)
            for rank in lost:
                finished.results.add(rank=rank).MergeFrom(died)
            self.on_finished(connection, finished)

    def _complete(self) -> None:
        """Every rank has finished: fetch large values and repair groups if need be, then tell everybody."""
        if self._completing:
            return
        self._completing = True
        blobs = self._values.to_fetch()
        # Only who interrupted it repairs: to others it may be an old run, and the mesh may have a new group since.
        aborted = self._interrupting and any(result.group_aborted for result in self.results.notable)
        if blobs or aborted:
            self._spawn(self._complete_slowly(blobs, aborted))
        else:
            self._finish()

    async def _complete_slowly(self, blobs: list[run_pb2.RankResult], aborted: bool) -> None:
        try:
            if aborted:
                await self._abort_groups()
            await asyncio.gather(*(self._fetch(packed) for packed in blobs))
        finally:
            self._finish()

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
            for key in (
                events.QUEUE_NOTICE,
                *([events.LINE_NOTICE] if self._line_told else ()),
                "stuck",
                "stopped",
                *(f"link {name}" for name in self._nodes.linked),
            ):
                self.emit(events.Notice("", key=key))
            self.emit(events.Finished())
            self._done.set()
            self._freed.set()
            self.stops.over()
            self._news.set()
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            self._nodes.close(self._spawn)

    def _watch_waits(self) -> None:
        """From now on look where the ranks are, soon and then again and again."""
        if self._watching_waits is not None:
            self._watching_waits.cancel()
        self._watching_waits = self._spawn(self._waits_watch.go_on())

    async def _look(self) -> dict[int, run_pb2.Where] | None:
        if not self._listeners or self._waits_on:
            return None
        return await self.mesh.core.where(self._left(), self.id, is_urgent=False)

    def _left_out(self) -> Mapping[int, str]:
        if self.is_script or self.is_calls:
            return {}  # a world of its own; called one by one
        return self._nodes.left_out(range(self.mesh.extent.size))

    def _failed_ranks(self) -> list[int]:
        return [failure.rank for failure in self.failures if failure.kind in ("error", "died")]

    async def _abort_others(self) -> None:
        """With on_error="abort": a rank has failed, so the others are interrupted, whatever they do."""
        await asyncio.sleep(ABORT_AFTER_S)
        if not self._interrupting and (left := self._left()):
            self._say_aborted(left)
            self._send_interrupt()

    def _say_aborted(self, ranks: list[int]) -> None:
        """Say for whose failure `ranks` are interrupted: not for those of ranks that others took along."""
        causes = [failure.rank for failure in self.failures if not failure.is_consequence]
        text = f"{self._named(ranks)} interrupted: {self._named(causes or self._failed_ranks())} failed"
        self.emit(events.Notice(text, key="abort"))

    def _send_interrupt(self) -> None:
        self._waited = self._waited or self._waits_watch.past
        self._interrupting = True
        self._cancel_left()

    def _cancel_left(self) -> None:
        for connection in self._nodes.connections(rank for rank in self.ranks if rank not in self.results):
            connection.cancel(self.id)

    async def _interrupt(self, kill_stuck: bool) -> InterruptReport:
        if not self.done:
            self._freed.clear()
        before = self.results.keys() | self.finished_before
        left = [rank for rank in self.ranks if rank not in before]
        restarted: tuple[int, ...] = ()
        if kill_stuck:
            restarted = tuple(self._nodes.reachable(left))
            if restarted and self.is_script:
                await self.mesh.core.kill_script(self.id, restarted)
            elif restarted:
                await self.mesh.core.restart(restarted)
        else:
            self._send_interrupt()
        await self._wait_stopped(left)
        self._stop_by_s = None
        stuck, unreachable = await self._unstopped()
        ended = {rank: self.results[rank].outcome for rank in left if rank in self.results and rank not in restarted}
        unbegun = tuple(rank for rank, outcome in ended.items() if outcome == "cancelled")
        ahead: tuple[str, ...] = ()
        with contextlib.suppress(MonarchNbError):  # nobody has to know that
            ahead = await self.mesh.core.names_running_on(unbegun)
        return InterruptReport(
            stopped=tuple(rank for rank in ended if rank not in unbegun),
            free=tuple(sorted(before)),
            unbegun=unbegun,
            ahead=ahead,
            stuck=stuck,
            unreachable=unreachable,
            aborted=tuple(result.rank for result in self.results.notable if result.group_aborted),
            restarted=restarted,
            is_script=self.is_script,
        )

    def _left(self) -> list[int]:
        """The ranks that the run goes on on."""
        return [] if self._refusal else [rank for rank in self.ranks if rank not in self.results]

    async def _wait_stopped(self, ranks: list[int]) -> None:
        """Wait a few seconds for ranks to finish. Nodes that do not answer have the time to start an allocator."""
        is_patient = True

        def lose_patience() -> None:
            nonlocal is_patient
            is_patient = False
            self._news.set()

        loop = asyncio.get_running_loop()
        timer = loop.call_later(GAP_S, lose_patience)
        if self._stop_by_s is None:  # who presses again and again does not give them more time each time
            self._stop_by_s = loop.time() + STOP_WAIT_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._stop_by_s):
                while not self.done:
                    left = set(ranks) - self.results.keys()
                    if not self._completing and not (left if is_patient else self._nodes.reachable(left)):
                        break
                    self._news.clear()
                    await self._news.wait()
        timer.cancel()

    async def _unstopped(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the ranks that did not stop, and where each is; and those that can not be reached, and their nodes."""
        reachable = self._nodes.reachable(self._left())
        where = await self.mesh.core.where(reachable, self.id) if reachable else {}
        left = self._left()  # some have stopped meanwhile
        reachable = self._nodes.reachable(left)
        stuck = {rank: place_of(where.get(rank)) for rank in reachable}
        unreachable = {rank: self._nodes.name_of(rank) for rank in left if rank not in reachable}
        self.is_stuck = bool(stuck)
        if self.number:  # they have been told: not again when a link breaks
            for connection in self._nodes.connections(stuck):
                connection.withdraw_cancel(self.id)
        if left:
            self.emit(
                events.Notice("; ".join(unstopped_lines(stuck, unreachable, is_script=self.is_script)), key="stuck")
            )
        if unreachable and not stuck:
            await self._let_go()
        return stuck, unreachable

    def _check_stuck(self) -> None:
        """What did not stop after an interrupt may have stopped by now, or its node may be away."""
        if self.is_stuck and not self.done and not self._nodes.reachable(self._left()):
            self.is_stuck = False
            self._spawn(self._let_go())

    async def _let_go(self) -> None:
        """All that can be reached is free. The rest goes on: it is not interrupted when its node is there again, for
        nobody waits for that any more."""
        if self.number:  # a run that may not have begun must not begin later
            self._interrupting = False
            for connection in self._nodes.connections():
                connection.withdraw_cancel(self.id)
        if any(result.group_aborted for result in self.results.notable):
            await self._abort_groups()
        self._freed.set()

    async def _abort_groups(self) -> None:
        """Let all ranks of the mesh forget the groups that the interrupt broke, but not what a queued run has made."""
        await self.mesh.core.abort_groups("a run was interrupted in a collective", last_run=self.number)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)
        return task


def _tell(listener: Listener, event: events.Event) -> None:
    try:
        listener(event)
    except Exception:  # noqa: BLE001 (a listener's fault must not cost the run its results)
        _log.exception("a listener failed at %r", event)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.debug("%s", error, exc_info=error)

"""In whose name this process calls actors: a cell of the notebook, or the script. What they print is theirs, and Ctrl-C
interrupts what was called in their name."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from monarch_nb.actor.engine.outside import CallState, Runs, Tag
from monarch_nb.client import presenting
from monarch_nb.client.actors.behind import Behind
from monarch_nb.client.connections.bridge import background_loop, call, post
from monarch_nb.client.connections.connection import GAP_S
from monarch_nb.client.connections.events import Event, Finished, Stopped, Stream, Text
from monarch_nb.client.debug.answering import Answering, Screen
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.client.runs.results import policy
from monarch_nb.client.runs.run import Listener
from monarch_nb.config import MAIN_MESH, MONARCH_MESH, cadence, gap, patience
from monarch_nb.errors import MonarchNbError

if TYPE_CHECKING:
    from monarch_nb.client.actors.runtime import Holdings


class Questions:
    """Questions, answered one after the other by those who wait. From any thread."""

    def __init__(self) -> None:
        self._asked: deque[Callable[[], None]] = deque()
        self._wakes: list[Callable[[], object]] = []
        self._lock, self._answering = threading.Lock(), threading.Lock()

    def ask(self, question: Callable[[], None]) -> None:
        """Have `question` called by somebody who waits, now or later; once, if it is asked again before."""
        with self._lock:
            if question not in self._asked:
                self._asked.append(question)
            wakes = self._wakes.copy()
        for wake in wakes:
            wake()

    def attend(self, wake: Callable[[], object]) -> None:
        """As the engine's Questions."""
        with self._lock:
            self._wakes.append(wake)
            is_due = bool(self._asked) and not self._answering.locked()
        if is_due:
            wake()

    def leave(self, wake: Callable[[], object]) -> None:
        """As the engine's Questions."""
        with self._lock:
            self._wakes.remove(wake)

    def answer(self) -> None:
        """As the engine's Questions: who is at it already answers the others as well."""
        while self._asked and self._answering.acquire(blocking=False):
            try:
                if self._asked:  # nobody else takes one now
                    self._asked.popleft()()
            finally:
                self._answering.release()


_LABEL = re.compile(r"\[(?P<name>[^\[\]\n]+) (?P<rank>\d+)/(?P<count>\d+)\] ")
OTHERS = "monarch"
"""Names the view of what no actor has printed."""


class Labelled:
    """Shows the lines of actors.

    Args:
        view: returns what is told the events of some ranks of a name.
    """

    def __init__(self, view: Callable[[Iterable[int], str], Listener]) -> None:
        self._view = view
        self._views: dict[tuple[str, int], Listener] = {}
        self._begun: dict[tuple[int, Stream], str] = {}

    def on_event(self, event: Event) -> None:
        """Take in an event of the run on the nodes."""
        if isinstance(event, Text):
            key = event.rank, event.stream
            whole, newline, self._begun[key] = (self._begun.get(key, "") + event.text).rpartition("\n")
            if newline:
                for line in whole.split("\n"):
                    self._show(event.rank, event.stream, line)
            return
        for view in self._views.values() or [self._view_of(OTHERS, 1)]:
            view(event)

    def _show(self, node: int, stream: Stream, line: str) -> None:
        label = _LABEL.match(line)
        if label is None:
            self._view_of(OTHERS, node + 1)(Text(node, stream, f"{line}\n"))
            return
        rank, count = int(label["rank"]), int(label["count"])
        self._view_of(label["name"], count)(Text(rank, stream, f"{line[label.end() :]}\n"))

    def _view_of(self, name: str, count: int) -> Listener:
        key = (name, 0 if name == OTHERS else count)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = self._view(range(count), "main" if name == OTHERS else name)
        return view


LOOK_S = cadence(0.5)
"""So often it is looked whether calls were answered."""
QUIET_S = gap(60.0)
"""A script that calls nothing for so long ends its runs; it opens others when it goes on."""
_RECENT = 100
"""So many cells are told what comes of their broadcasts later."""
END_WAIT_S = patience(10.0)
"""So long a cell waits at its end for what its calls have printed. It is long: on a busy machine nodes are slow."""

KILL_WAIT_S = patience(10.0)
"""So long it takes at most to say which ranks were killed and restarted."""


class Audience(Protocol):
    """Where what actors print is shown."""

    def listener(self, ranks: Iterable[int], mesh: str) -> Listener:
        """Return what is told the events of a run of calls on a mesh."""

    def finished(self, run: CallsRun) -> None:
        """A run was shown to its end."""

    def screen(self) -> Screen:
        """Return where people are asked what ranks ask."""

    def tell(self, text: str) -> None:
        """Tell people something."""


class CallsTag(Tag):
    """What `Outside.tag` returns.

    Attributes:
        runs: by mesh; one whose node did not say a number in time is missing.
    """

    def __init__(self, runs: Mapping[str, CallsRun], caller: Caller) -> None:
        at_breakpoints = policy(None)
        super().__init__({mesh: (run.id, run.number, at_breakpoints) for mesh, run in runs.items() if run.number})
        self._caller = caller

    def left(self) -> None:
        """As Tag's."""
        self._caller.has_left = True

    def interrupt(self) -> None:
        """As Tag's."""
        self._caller.interrupt()

    def aftermath(self) -> str:
        """As Tag's."""
        return self._caller.aftermath()

    def was_interrupted(self) -> None:
        """As Tag's."""
        self._caller.renounce({run_id for run_id, *_ in self.runs.values()})


class Caller:
    """Who calls actors: a cell, or a script. From any thread.

    Args:
        meshes: finds meshes.
        audience: shows what is printed.
        questions: what ranks ask.
        cell_number: the notebook's execution count; 0 in a script.

    Attributes:
        used_s: when it called something last, of the monotonic clock.
        is_over: the cell has returned; what it has left may go on to call.
        has_left: it has called what nobody waits for.
        run_ids: of all its runs, also those that have ended.
    """

    def __init__(self, meshes: Holdings, audience: Audience, questions: Questions, cell_number: int = 0) -> None:
        self.audience, self._questions = audience, questions
        self._meshes, self._cell_number = meshes, cell_number
        self._turn = threading.Lock()  # of who opens runs, and waits for the background loop meanwhile
        self._lock = threading.Lock()  # the background loop takes it, too: nobody waits for anything who has it
        self._opening: list[CallsRun] = []
        self._runs: dict[str, CallsRun] = {}
        self._tags: dict[frozenset[str], CallsTag] = {}
        self._interrupted: list[CallsRun] = []
        self._killers: list[threading.Thread] = []
        self._killed: list[str] = []
        self.run_ids: set[str] = set()
        self.is_over = self.has_left = False
        self.used_s = time.monotonic()

    def tag(self, mesh_ids: Collection[str], title: str) -> CallsTag:
        """As `Outside.tag`. The first call on a mesh opens its run, which takes a moment, and those on the other meshes
        that the called actors may call in turn."""
        key = mesh_ids if isinstance(mesh_ids, frozenset) else frozenset(mesh_ids)
        self.used_s = time.monotonic()
        if over := {run.id for run in self.runs if run.is_interrupted}:
            self.renounce(over)
        if tag := self._tags.get(key):
            return tag
        with self._turn:
            try:
                return self._opened_tag(key, title)
            finally:
                self._opening = []

    def _opened_tag(self, key: frozenset[str], title: str) -> CallsTag:
        reach = self._meshes.in_reach(key)
        found = {mesh_id: self._runs.get(mesh_id) or self._open(mesh_id, title) for mesh_id in reach}
        for run in self._opening:
            run.wait_number(GAP_S)
            if run.waits_everywhere:
                run.wait_everywhere(GAP_S)
        runs = {mesh_id: run for mesh_id, run in found.items() if run}
        tag = CallsTag(runs, self)
        with self._lock:
            if self._opening:  # what is called with the others' tags may go there as well
                self._tags.clear()
            if runs.items() <= self._runs.items():  # else they were interrupted meanwhile
                self._tags[key] = tag
        return tag

    def _open(self, mesh_id: str, title: str) -> CallsRun | None:
        mesh = self._meshes.mesh(mesh_id)
        if mesh is None:
            return None
        if mesh.name == MONARCH_MESH:
            listener: Listener = Labelled(self.audience.listener).on_event
        else:
            listener = self.audience.listener(range(mesh.extent.size), mesh.name)
        run = mesh.open_calls(title, cell_number=self._cell_number, listener=listener)
        with self._lock:
            self._runs[mesh_id] = run
            self._opening.append(run)
        run.waits_everywhere = mesh.name == MONARCH_MESH
        self.run_ids.add(run.id)
        run.add_listener(_hearing(run, self.audience, self._questions))
        return run

    @property
    def runs(self) -> list[CallsRun]:
        """Those that go on."""
        return list(self._runs.values())

    @property
    def all_runs(self) -> list[CallsRun]:
        """Those that go on, also those that were interrupted."""
        return [*self._runs.values(), *self._interrupted]

    @property
    def is_interrupted(self) -> bool:
        """Whether some were interrupted."""
        return bool(self._interrupted)

    def interrupt(self) -> None:
        """Interrupt what was called in this name; what is called from now on is not touched. Does not block. Ranks that
        did not stop at the last interrupt are killed and restarted, when that has just been said."""
        with self._lock:
            runs, self._runs = list(self._runs.values()), {}
            self._tags.clear()
            interrupted = self._interrupted = [*(run for run in self._interrupted if not run.done), *runs]
        for run in interrupted:
            is_kill = run.may_kill
            thread = threading.Thread(
                target=self._interrupt, args=[run, is_kill], name="monarch_nb interrupts", daemon=True
            )
            if is_kill:
                self._killers.append(thread)
            thread.start()

    def _interrupt(self, run: CallsRun, is_kill: bool) -> None:
        with contextlib.suppress(MonarchNbError):  # a node does not answer: nothing was killed there
            report = run.interrupt(is_kill)
            if report.restarted:
                mesh = self._meshes.mesh(run.mesh.id)
                on = "" if mesh is None or mesh.name == MAIN_MESH else f"on {mesh.name}: "
                self._killed.append(f"{on}{replace(report, stopped=(), free=())}")

    def aftermath(self) -> str:
        """As Tag's."""
        until_s = time.monotonic() + KILL_WAIT_S
        for thread in self._killers:
            thread.join(max(0.0, until_s - time.monotonic()))
        return "; ".join(self._killed)

    def renounce(self, run_ids: Collection[str]) -> None:
        """Call nothing more in the name of runs that somebody has interrupted: what is called next opens others."""
        with self._lock:
            over = {mesh_id: run for mesh_id, run in self._runs.items() if run.id in run_ids}
            for mesh_id in over:
                del self._runs[mesh_id]
            self._tags.clear()
        for run in over.values():
            run.end()

    def end(self, calls: Iterable[CallState] = ()) -> list[CallsRun]:
        """End the runs in whose name nothing of `calls` is called; return them."""
        awaited = {run_id for call in calls for run_id, *_ in call.runs.values()}
        with self._lock:
            known = (*self._runs.values(), *self._interrupted)
            over = [run for run in known if run.id not in awaited and run not in self._opening]
            self._runs = {mesh_id: run for mesh_id, run in self._runs.items() if run not in over}
            self._interrupted = [run for run in self._interrupted if run not in over]
            self._tags.clear()
        for run in over:
            run.end()
        return over

    @property
    def goes_on(self) -> bool:
        """Whether it has runs that have not ended."""
        return bool(self._runs or self._interrupted)


class Callers:
    """Who calls actors in this process, one after the other: the cells of the notebook, else the script.

    Args:
        meshes: as Caller's.
        audience: of the script.
        calls: returns the calls that are not answered yet.

    Attributes:
        questions: what ranks ask of them.
    """

    def __init__(self, meshes: Holdings, audience: Audience, calls: Callable[[], list[CallState]]) -> None:
        self._meshes, self._calls = meshes, calls
        self.questions = Questions()
        self._script = self._current = Caller(meshes, audience, self.questions)
        self._past: list[Caller] = []
        self._recent: deque[Caller] = deque(maxlen=_RECENT)
        self._behind = Behind(meshes.mesh)
        self._is_looking = False

    @property
    def current(self) -> Caller:
        """Who calls now."""
        cell = presenting.calling_cell()
        audience = self._script.audience if cell is None else cell
        if audience is not self._current.audience:
            self._past.append(self._current)
            if cell is None:
                self._current = self._script
            else:
                self._current = Caller(self._meshes, cell, self.questions, cell.number)
                self._recent.append(self._current)
                cell.when_over(self.end_cell)
        return self._current

    def who_called(self, runs: Runs) -> Caller:
        """Return who called in the name of some runs; who calls now when that is not known any more."""
        ids = {run_id for run_id, *_ in runs.values()}
        return next((each for each in (self._script, *reversed(self._recent)) if ids & each.run_ids), self.current)

    def tag(self, mesh_ids: Collection[str], title: str) -> CallsTag:
        """As `Outside.tag`."""
        tag = self.current.tag(mesh_ids, title)
        if not self._is_looking:
            post(self._look_soon)
        return tag

    def end_cell(self, *, is_interrupted: bool) -> bool:
        """The cell is over: its runs end when its calls were answered. What those that were answered have printed is
        there.

        Args:
            is_interrupted: by Ctrl-C: so is what it has called and was not answered.

        Returns:
            whether more may be printed in its name.
        """
        caller = self._current
        call(self._behind.end(caller.all_runs, is_interrupted=caller.is_interrupted))
        ended = caller.end(self._calls())
        caller.is_over = True  # only now: else the background loop ends them, and nobody waits for what they printed
        if is_interrupted and caller.goes_on:
            caller.interrupt()
        with contextlib.suppress(KeyboardInterrupt):  # what is printed now comes all the same
            _wait_printed(ended)
        post(self._look_soon)
        return caller.goes_on or caller.has_left

    def end_all(self) -> None:
        """The process ends: what its calls have printed is there."""
        _wait_printed([run for caller in (self._current, *self._past) for run in caller.end()])

    # ---- on the background loop ----

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            background_loop().call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._is_looking = False
        calls = self._calls()
        current = self._current
        for caller in (*self._past, current):
            if caller.is_over or caller is not current or time.monotonic() - caller.used_s > QUIET_S:
                caller.end(calls)
        self._past = [caller for caller in self._past if caller.goes_on]
        self._behind.look(calls, current.runs)
        if self._past or current.goes_on:
            self._look_soon()


def _wait_printed(runs: Iterable[CallsRun]) -> None:
    until_s = time.monotonic() + END_WAIT_S
    for run in runs:
        run.wait_printed(max(0.0, until_s - time.monotonic()))


def _hearing(run: CallsRun, audience: Audience, questions: Questions) -> Listener:
    answer = Answering(run, audience.screen())

    def on_event(event: Event) -> None:
        if isinstance(event, Finished):
            audience.finished(run)
        elif isinstance(event, Stopped) and event.on:
            questions.ask(answer)

    return on_event

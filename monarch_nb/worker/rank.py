"""A rank: a forked child of the template that runs cells, pushes and pulls for ever, or one script.

The main thread has one asyncio loop: it reads the work connection, runs cells, and lets background tasks of the user's
go on in between. The control thread (control/thread.py) answers meanwhile.

`asyncio.run()` and `loop.run_until_complete()` in a cell raise "cannot be called from a running event loop", as they do
in a notebook's kernel: a cell can await at its top level. A script has the main thread to itself: the loop pauses.
"""

import asyncio
import atexit
import contextvars
import os
import socket
import sys
import threading
import time
import traceback
from bdb import BdbQuit
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf.message import DecodeError

from monarch_nb.actor.engine import process as engine
from monarch_nb.actor.engine.outside import Execution
from monarch_nb.config import UNFOLDED_RANKS, cadence
from monarch_nb.errors import MeshMismatch, NoProcessGroup, NotFinite, ProcessGroupAborted
from monarch_nb.ground.frames import FrameError, FrameSplitter
from monarch_nb.ground.printing import encodable
from monarch_nb.integrations import lightning
from monarch_nb.proto.run_pb2 import (
    OUTCOME_ERROR,
    OUTCOME_INTERRUPTED,
    OUTCOME_OK,
    Failure,
    RankResult,
    RunSpec,
)
from monarch_nb.proto.worker_pb2 import FromRank, RankSpec, StoreLost, ToRank
from monarch_nb.worker import become_rank, memory, run_secret, steps
from monarch_nb.worker.autosaves import armed
from monarch_nb.worker.control.executions import Executions
from monarch_nb.worker.control.interrupts import ActiveRun, Activities, Interrupter
from monarch_nb.worker.control.thread import ControlThread
from monarch_nb.worker.debug.debugger import Debugger
from monarch_nb.worker.groups import c10d, forming
from monarch_nb.worker.imports import LateVariables
from monarch_nb.worker.mail import MailBlobs, Post, RankOutside
from monarch_nb.worker.monarch import loop
from monarch_nb.worker.reload import Reloader
from monarch_nb.worker.runs import cells, instruments, script, values
from monarch_nb.worker.runs.cells import Worlds
from monarch_nb.worker.runs.results import Results
from monarch_nb.worker.runs.values import LiveActors
from monarch_nb.worker.shell import failures, streams
from monarch_nb.worker.shell.shell import LastValue, RankShell
from monarch_nb.worker.user_code import UserCode

_EXIT_TIMEOUT_S = cadence(1.0)
_RECEIVE_BYTES = 1 << 16
_EXIT_SETUP_FAILED = 70

Body = Coroutine[Any, None, BaseException | None]
"""Runs a body; returns what user code raised."""


def run_rank(spec: RankSpec, listener: socket.socket, shell: RankShell) -> NoReturn:
    """Be a rank until told to exit. Called in the forked child, of which it takes possession.

    Args:
        spec: what to be.
        listener: where the allocator connects.
        shell: the template's shell.
    """
    try:
        become_rank.become_rank(spec)
        Rank(spec, listener, shell).serve()
    except BaseException:  # noqa: BLE001 -- the template logs it
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(_EXIT_SETUP_FAILED)


class Rank:
    """The main thread's side."""

    def __init__(self, spec: RankSpec, listener: socket.socket, shell: RankShell) -> None:
        self._spec = spec
        self._shell = shell
        self._listener = listener
        self._loop = streams.RankLoop()
        self._context = contextvars.copy_context()
        self._results = Results(spec.rank)
        self._user_code = UserCode(shell.cell_label, spec.directory, spec.workspace)
        shell.user_code, shell.name_files = self._user_code, self._user_code.name_files
        self._reloader = Reloader(shell, self._user_code, spec.workspace, for_script=spec.for_script)
        worlds = Worlds(spec.rank, shell.user_ns)
        self._runner = cells.CellRunner(shell, spec.blob_directory, self._reloader, worlds)
        entries = cells.user_code_entries() | {script.call.__code__}
        files = cells.not_user_files() | {script.__file__}
        self._activities = Activities()
        outputs = streams.CallOutputs(spec.log_directory, spec.rank)
        self._debugger = Debugger(self._user_code, entries, self._wake_control)
        self._keeper = armed.keeper(
            spec.environment,
            self._when_idle,
            lambda hold: self._interrupter.between_runs(hold),
            for_script=spec.for_script,
        )
        self._executions = Executions(
            self._activities, self._user_code, spec.mesh_id, outputs, self._debugger, self._keeper
        )
        self._interrupter = Interrupter(self._activities, self._loop, self._user_code, entries, files)
        self._queue: deque[RunSpec] = deque()
        self._script: RunSpec | None = None
        self._work: socket.socket | None = None
        self._pid = os.getpid()
        blobs = MailBlobs(Path(spec.mail_directory), spec.rank)
        self._post = Post(spec.node, spec.process, blobs, engine.process, self._forget_socket)
        self._control = ControlThread(
            listener,
            keeper=self._keeper,
            post=self._post,
            activities=self._activities,
            executions=self._executions,
            actors=lambda: [*(made.actors() if (made := engine.installed()) else ()), *loop.actors()],
            withdraw=lambda run_id: made.withdraw(run_id) if (made := engine.installed()) else None,
            interrupter=self._interrupter,
            user_code=self._user_code,
            entries=entries,
            namespace=shell.user_ns,
            debugger=self._debugger,
            on_work=self._take_work_connection,
            on_abort=self._after_abort,
            on_exit=self._exit,
        )

    def _interrupt_execution(self, execution: Execution) -> None:
        self._executions.interrupt(execution)
        self._control.press()

    def serve(self) -> None:
        """Serve for ever."""
        self._output = streams.RunOutput(self._spec.log_directory, 0, self._spec.rank)
        self._context.run(streams.begin_output, self._output)
        self._output.goes_on(1)  # for ever: threads that no run has started, such as the control thread, stay there
        streams.install(self._output, self._control.wake_for_text)
        moves = self._spec.store_note and not self._spec.for_script  # the store of a script does not move
        note = Path(self._spec.store_note) if moves else None
        forming.install(note, self._report_lost_store)
        self._debugger.install()
        self._keeper.watch.begin()
        presets = become_rank.presets(os.environ)
        self._shell.user_ns.update(presets)
        last: LastValue = self._shell.displayhook  # type: ignore[assignment]
        last.tells_facts = presets["world_size"] > UNFOLDED_RANKS
        self._shell.user_ns["actors"] = LiveActors(lambda: made.instances() if (made := engine.installed()) else {})
        self._interrupter.install()
        self._interrupter.hide()
        outside = RankOutside(self._post, self._executions.executing, self._interrupt_execution, self._spec.python)
        engine.install(engine.Process(outside, f"rank {self._spec.rank}"))
        self._control.start()
        if self._spec.for_script:
            script.be_plain(self._shell, self._spec.environment, self._spec.directory)
        else:
            asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001 -- sys.exit() in a background task of the user's
                traceback.print_exc()
            if (spec := self._script) is not None:
                self._script = None
                self._run_script(spec)

    def _report_lost_store(self, address: tuple[str, int]) -> None:
        host, port = address
        self._results.tell(FromRank(store_lost=StoreLost(host=host, port=port)))

    def _forget_socket(self, connection: socket.socket) -> None:
        self._control.forget_socket(connection)

    # ---- work connection ----

    def _take_work_connection(self, connection: socket.socket, splitter: FrameSplitter, messages: list[ToRank]) -> None:
        """On the control thread: answer at once, even when the main thread is busy; it reads when it is free."""
        self._results.attach(connection)
        self._loop.call_soon_threadsafe(self._read_from, connection, splitter, messages)

    def _read_from(self, connection: socket.socket, splitter: FrameSplitter, messages: list[ToRank]) -> None:
        if self._work is not None:
            self._close_work()
        self._work = connection
        self._loop.add_reader(connection, self._receive, connection, splitter)
        for message in messages:
            self._handle(message)

    def _receive(self, connection: socket.socket, splitter: FrameSplitter) -> None:
        try:
            data = connection.recv(_RECEIVE_BYTES)
            messages = [ToRank.FromString(frame) for frame in splitter.feed(data)]
        except BlockingIOError:
            return
        except (OSError, FrameError, DecodeError):  # the allocator is gone, or it is none
            data, messages = b"", []
        if not data:
            self._close_work()
        for message in messages:
            self._handle(message)

    def _close_work(self) -> None:
        if self._work is not None:
            self._loop.remove_reader(self._work)
            self._results.detach(self._work)
            self._control.forget_socket(self._work)
            self._work.close()
            self._work = None

    def _handle(self, message: ToRank) -> None:
        match message.WhichOneof("message"):
            case "run":
                queued = any(spec.run_id == message.run.run_id for spec in self._queue)
                if not queued and not self._results.knows(message.run.run_id):
                    self._queue.append(message.run)
                    self._run_next()
            case "forget_results":
                self._results.forget(message.forget_results.run_ids)

    # ---- runs ----

    def _run_next(self) -> None:
        """Run what is queued; a cell that awaits goes on as a task."""
        while self._queue and self._interrupter.active is None:
            spec = self._queue.popleft()
            if spec.HasField("script"):
                self._script = spec
                self._loop.stop()
                return
            active = ActiveRun(spec.run_id, has_status=spec.cell.HasField("script"))
            result = RankResult(run_id=spec.run_id, rank=self._spec.rank, outcome=OUTCOME_OK)
            self._results.start(spec.run_id)
            self._debugger.release_error()
            if not self._debugger.looks_at_error:
                self._shell.release_error(spec.cell.code or spec.pull.expression)
            try:
                self._begin(spec, active, result)
            except Exception as error:  # noqa: BLE001 -- no memory, what user code did to this process: a run ends
                self._finish(error, active, result, self._output)

    def _begin(self, spec: RunSpec, active: ActiveRun, result: RankResult) -> None:
        """Run a body, to its end unless it awaits."""
        output = self._output_of(spec)
        self._keeper.begin_run(spec.number)
        self._interrupter.install()
        part = () if spec.own_world else tuple(spec.ranks)
        forming.begin_run(spec.number, part)
        run_secret.begin_run(spec.secret)
        c10d.free_unused()
        steps.begin_run()
        lightning.begin_run(part)
        if not self._interrupter.begin(active):
            self._finish(active.error(), active, result, output)
            return
        transformed = None
        if spec.HasField("cell"):
            if (saving := sys.modules.get("monarch_nb.worker.saving.entry")) is not None and spec.cell.cell_number:
                self._context.run(saving.tell_news)
            transformed = self._context.run(self._runner.transform, spec.cell, spec.number)
        body = self._runner.run(spec, transformed, result)
        if transformed is not None and transformed.may_await:
            whole = self._finish_later(body, active, result, output)
            active.task = self._loop.create_task(whole, context=self._context)
        else:
            self._finish(self._context.run(_run_now, body), active, result, output)

    def _run_script(self, spec: RunSpec) -> None:
        """Run a script, outside of the loop. Afterwards the allocator ends this process."""
        active = ActiveRun(spec.run_id, is_script=True)
        result = RankResult(run_id=spec.run_id, rank=self._spec.rank, outcome=OUTCOME_OK)
        self._results.start(spec.run_id)
        output = self._output_of(spec)
        self._interrupter.install()
        self._keeper.begin_run(spec.number)
        steps.begin_run()
        late = LateVariables() if os.environ.get("RANK") == "0" else None  # it is much the same on all
        status = script.INTERRUPTED
        error: BaseException | None = active.error()
        if self._interrupter.begin(active):
            status, error = self._context.run(self._execute, spec)
        if os.getpid() != self._pid:
            self._context.run(_leave, status)
        if spec.instruments:
            self._context.run(self._leave_found, spec)
        if status == 0:
            error = None
        elif isinstance(error := self._behind_exit(error or SystemExit(), of_script=True), SystemExit):
            error = failures.explain_status(error, status)
        values.store_value(result, status, self._spec.blob_directory)
        result.hint = late.hint() if late is not None else ""
        self._finish(error, active, result, output)

    def _behind_exit(self, error: BaseException, *, of_script: bool) -> BaseException:
        """Return the interrupt to which a library answered with `sys.exit()`, as Lightning does; else the error: an
        exit of a script's own lines is meant. Its traceback begins where the library caught it: when that is below the
        user's frames, the exit's has them."""
        cause = error.__context__ if isinstance(error, SystemExit) else None
        if not isinstance(cause, KeyboardInterrupt):
            return error
        if of_script and self._user_code.owns_end_of(error.__traceback__):
            return error
        is_users = self._user_code.line_of_traceback(cause.__traceback__)
        return cause if is_users else cause.with_traceback(error.__traceback__)

    def _execute(self, spec: RunSpec) -> tuple[int, BaseException | None]:
        try:
            self._reloader.follow(spec.tree)
            with instruments.of_run(spec, self._spec.rank, self._user_code):
                return script.Program(spec.script, self._spec.directory).run()
        except BaseException as error:  # noqa: BLE001 -- of a module of the user's that is executed again
            return script.exit_status(error), error

    def _leave_found(self, spec: RunSpec) -> None:
        try:
            instruments.leave_found(spec.run_id, self._spec.rank, self._spec.blob_directory)
        except OSError as error:
            sys.stderr.write(f"what {', '.join(spec.instruments)} found can not be written: {error}\n")

    def _output_of(self, spec: RunSpec) -> streams.RunOutput:
        """Return the run's output, now the current one: new files, unless it is told to use the untouched ones."""
        number = spec.output or spec.number
        if number != self._output.number:
            self._output = streams.RunOutput(self._spec.log_directory, number, self._spec.rank)
        # Also for those in use (1.6 µs): a run that wrote nothing may have closed its descriptors.
        self._context.run(streams.begin_output, self._output)
        self._output.serve(spec.run_id, spec.on_breakpoint)
        return self._output

    async def _finish_later(self, body: Body, active: ActiveRun, result: RankResult, output: streams.RunOutput) -> None:
        self._finish(await body, active, result, output)
        self._loop.call_soon(self._run_next)

    def _finish(
        self, error: BaseException | None, active: ActiveRun, result: RankResult, output: streams.RunOutput
    ) -> None:
        """Report a run whose user code has ended with `error` or well."""
        if os.getpid() != self._pid:
            self._context.run(_leave_forked_child, error)
        output.goes_on(-1)
        self._debugger.code_ended()
        self._interrupter.finished()
        self._keeper.end_run()
        try:
            self._fill(error, active, result, output)
            self._results.finish(result)
        except Exception as problem:  # noqa: BLE001 -- as in `_run_next`
            result.outcome = OUTCOME_ERROR
            message = f"the result of the run can not be sent: {type(problem).__name__}: {problem}"
            told = Failure(name="RuntimeError", message=encodable(message), traceback=encodable(traceback.format_exc()))
            result.failure.CopyFrom(told)
            _drop_value(result)
            self._results.finish(result)

    def _fill(
        self, error: BaseException | None, active: ActiveRun, result: RankResult, output: streams.RunOutput
    ) -> None:
        """Fill `result` with all that is known at the end of a run."""
        if error is not None:
            if not active.is_script:
                memory.note(error, self._shell.user_ns, active.run_id)
            self._shell.keep_error(error)
            self._describe(error, active, result)
        result.group_aborted = active.group_aborted and not active.is_script
        result.duration_s = time.monotonic() - active.started_s
        result.end.CopyFrom(output.cursor())
        output.end(result.end, self._loop)
        result.untouched = output.untouched
        result.notice = output.notice
        self._activities.forget_groups(active)

    def _describe(self, error: BaseException, active: ActiveRun, result: RankResult) -> None:
        """Fill `result` with what became of an error."""
        error = self._behind_exit(error, of_script=active.is_script)
        shown, only_users = error, False
        result.outcome = OUTCOME_ERROR
        if isinstance(error, SystemExit) and active.is_script:
            shown, only_users = error, True
            if active.requested_at is not None:
                result.outcome = OUTCOME_INTERRUPTED
        elif active.was_ended_by(error):
            result.outcome, only_users = OUTCOME_INTERRUPTED, True
            shown = active.error().with_traceback(error.__traceback__)
        elif isinstance(error, SystemExit):
            shown = failures.explain_exit(error)
        else:
            shown = failures.readable(error, makes_another=not active.is_script)
            explained = (MeshMismatch, NoProcessGroup, NotFinite, ProcessGroupAborted, BdbQuit)
            only_users = isinstance(shown, explained) or failures.is_refused_call(shown)
        result.failure.CopyFrom(failures.describe(self._shell, self._user_code, shown, only_users=only_users))
        if isinstance(error, SystemExit) and active.is_script:
            result.failure.traceback = ""  # it is meant, and has said why: as in Python
        self._shell.remember_error(shown)
        self._debugger.run_failed()
        if not active.has_status:
            _drop_value(result)

    def _when_idle(self, action: Callable[[], None]) -> None:
        """Have the main thread call something between runs. From any thread."""
        self._loop.call_soon_threadsafe(action)

    def _wake_control(self) -> None:
        """From any thread."""
        self._control.wake()

    def _after_abort(self) -> None:
        """On the control thread."""
        self._loop.call_soon_threadsafe(self._activities.forget_groups)

    # ---- end ----

    def _exit(self) -> None:
        """On the control thread: run what atexit holds for at most a second, then end."""
        if self._interrupter.active is None:
            self._loop.call_soon_threadsafe(_leave)
        else:
            threading.Thread(target=_leave, daemon=True).start()
        threading.Event().wait(_EXIT_TIMEOUT_S)
        os._exit(0)


def _drop_value(result: RankResult) -> None:
    result.bundle_json = ""
    result.ClearField("value")


def _run_now(body: Body) -> BaseException | None:
    """Run a coroutine that does not wait."""
    try:
        body.send(None)
    except StopIteration as stop:
        error: BaseException | None = stop.value
        return error
    raise AssertionError("a cell without await has waited")


def _leave(status: int = 0) -> NoReturn:
    atexit._run_exitfuncs()
    streams.flush_standard()
    streams.current_output().flush()
    os._exit(status)


def _leave_forked_child(error: BaseException | None) -> NoReturn:
    """The user forked, and the child came to the end of the cell: it must not go on as a second rank."""
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    status = script.exit_status(error)
    streams.flush_standard()
    streams.current_output().flush()
    os._exit(status)

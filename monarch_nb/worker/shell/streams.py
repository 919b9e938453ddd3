"""Where a rank's output goes: plain files, one set per run.

`sys.stdout` and `sys.stderr` are made once and live for ever, so a logging handler made in run 3 still works in run 30.
Each write goes to the run of its context: asyncio tasks copy the context of the cell that made them. A thread writes to
the run of the code that started it as long as that goes on, and then to the newest: pools and heartbeats outlive the
cell that made them (`install` patches `Thread.start`, because threads inherit no context before 3.14). When the newest
has ended without a trace, so that its cell shows nothing, the thread writes to its own again.
File descriptors 1 and 2 point at the newest run of the main thread, so that C++ libraries and child processes are
caught too. They are the process's, not a thread's: when an endpoint starts a process they point at its run until it
ends; what C++ code prints meanwhile goes there as well.

Nothing here can block on a reader or fail for want of space: what a full disk refuses is dropped, and noted once in
`RunOutput.notice`, which the rank's result carries to the allocator.
"""

import asyncio
import contextlib
import functools
import hashlib
import io
import json
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Any

from monarch_nb.config import cadence, run_file
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto.run_pb2 import ON_BREAKPOINT_UNSPECIFIED, Cursor, Display, Mark
from monarch_nb.worker.shell import descriptors

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_THREAD_ATTRIBUTE = "_monarch_nb_run"
_OWN_THREADS = "monarch"
"""How the names of our own begin: actors' and mail's are silent between endpoints."""
_KINDS = ("out", "err", "marks")
_MARKS = 2
_KEPT_OUTPUTS = 4
_PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn"}

FLUSH_AFTER_S = cadence(0.2)
"""The beginning of a line is written this long after it was printed, at the latest."""

_run_of_context: ContextVar["RunOutput"] = ContextVar("monarch_nb_run")
_newest: "RunOutput | None" = None
"""Of the main thread."""
_latest: "RunOutput | None" = None
"""Of the run that began last, be it of calls."""
_streams: "dict[str, RunStream]" = {}
_described: "RunOutput | None" = None
"""The one that file descriptors 1 and 2 point at."""
_alive: "weakref.WeakSet[RunOutput]" = weakref.WeakSet()
_unflushed: "list[RunOutput]" = []
_flushing = threading.Lock()
"""Held while another thread flushes and while a child is forked: buffers have locks of their own."""


class RunOutput:
    """The output files of one run on this rank: RANK.out, RANK.err and RANK.marks, each made once something needs it.

    Closed when nothing refers to it any more: no context, no thread, no newer run.

    Args:
        directory: holds one directory per run.
        number: the run's number.
        rank: this rank.

    Attributes:
        notice: why output was lost; empty while none was.
        has_started_processes: whether a process was started that may write here.
        going: how many runs and endpoints that write here have not ended.
        is_lent: whether endpoints that belong to no run have written here.
        untouched: its run has ended and said so: nobody looks for what is written here.
        run_id: of the run that writes here now.
        on_breakpoint: what `breakpoint()` does in it.
        passed: the breakpoints that were passed in it, and it was said.
        shown: a digest of what each display with an id shows.
    """

    run_id = ""
    on_breakpoint: int = ON_BREAKPOINT_UNSPECIFIED

    def __init__(self, directory: str, number: int, rank: int) -> None:
        self.directory, self.number = directory, number
        self.notice = ""
        self.has_started_processes = False
        self.going = 0
        self.is_lent = False
        self.untouched = False
        self.passed: set[str] = set()
        self.shown: dict[str, bytes] = {}
        self._base = str(run_file(Path(directory), number, rank, ""))
        self._descriptors: list[int | None] = [None, None, None]
        self._is_elsewhere = [False, False]
        self._lock = threading.RLock()
        self.last: int | None = None
        self.is_listed = False
        self.renew()
        _alive.add(self)

    def serve(self, run_id: str, on_breakpoint: int) -> None:
        """A run begins that writes here."""
        self.run_id, self.on_breakpoint = run_id, on_breakpoint
        self.passed.clear()
        self.untouched = False
        self.goes_on(1)

    def goes_on(self, change: int) -> None:
        """A run or an endpoint that writes here begins (1) or has ended (-1)."""
        with self._lock:
            self.going = max(0, self.going + change)

    def redirect_descriptors(self) -> None:
        """Point file descriptors 1 and 2 at this run."""
        global _described
        before, _described = _described or self, self
        for kind in (0, 1):
            before.turn(kind, is_elsewhere=False)
            descriptors.plain_dup2(self._descriptor(kind), kind + 1, inheritable=True)

    def follow(self, kind: int) -> None:
        """Have what Python writes go where descriptor 1 or 2 points by now, which user code has moved."""
        self.turn(kind, is_elsewhere=not descriptors.is_same_file(self._descriptor(kind), kind + 1))

    def turn(self, kind: int, *, is_elsewhere: bool) -> None:
        """Write to this run, or to where its descriptor 1 or 2 points."""
        if is_elsewhere != self._is_elsewhere[kind] or is_elsewhere:
            self._is_elsewhere[kind] = is_elsewhere
            self._text[kind] = self.writers[kind] = None

    def has_descriptors(self) -> bool:
        """Return whether file descriptors 1 and 2 still are this run's: user code may have pointed them elsewhere."""
        return all(descriptors.is_same_file(self._descriptor(kind), kind + 1) for kind in (0, 1))

    def switch(self, kind: int) -> None:
        """Note in the marks that Python code writes to the other stream from here on."""
        with self._lock:
            if self.last is not None:
                self.flush()
                self._mark(Mark())
            self.last = kind

    def write_bytes(self, kind: int, data: bytes) -> None:
        """Write raw bytes, after the text before them."""
        if self.last != kind:
            self.switch(kind)
        text = self._text[kind] or self._make_text(kind)
        try:
            text.flush()
            text.buffer.write(data)
            text.buffer.flush()
        except OSError as error:
            self.lose(kind, error)

    def shows(self, display_id: str | None, content: str) -> bool:
        """Return whether the display with that id shows this already; it does now. An update ten times a second of a
        chart that has not changed would fill the disk, and the notebook."""
        if display_id is None:
            return False
        before = self.shown.get(display_id)
        self.shown[display_id] = hashlib.blake2b(content.encode(), digest_size=16).digest()
        return self.shown[display_id] == before

    def display(self, display: Display) -> None:
        """Store a display at this place of the output."""
        with self._lock:
            self.flush()
            self._mark(Mark(display=display))

    def flush(self) -> None:
        """Write what is buffered (the beginning of a line)."""
        for kind, text in enumerate(self._text):
            try:
                if text is not None:
                    text.flush()
            except OSError as error:
                self.lose(kind, error)

    def cursor(self) -> Cursor:
        """Return the sizes of the files, with everything flushed."""
        self.flush()
        marks = os.fstat(self._descriptor(_MARKS)).st_size if self._descriptors[_MARKS] is not None else 0
        return Cursor(stdout_bytes=self._size_bytes(0), stderr_bytes=self._size_bytes(1), marks_bytes=marks)

    def end(self, end: Cursor, loop: "RankLoop") -> None:
        """Its run has ended: it is untouched if nothing was written and nothing that the run left behind could still
        write. Then the next run may use it.

        Args:
            end: what `cursor` has just said.
            loop: the main thread's, whose tasks and timers count.
        """
        self.untouched = not (
            end.stdout_bytes
            or end.stderr_bytes
            or end.marks_bytes
            or self.notice
            or self.has_started_processes
            or self.is_lent
            or any(_output_of(thread) is self and not _is_own(thread) for thread in threading.enumerate())
            or (loop.has_had_tasks and bool(asyncio.all_tasks(loop) - {asyncio.current_task(loop)}))
            or len(getattr(loop, "_scheduled", ())) > 0
        )

    def lose(self, kind: int, error: OSError) -> None:
        """Drop what could not be written, so that the rank goes on."""
        self.notice = self.notice or f"output was lost: {error.strerror or error}"
        stuck, self._text[kind] = self._text[kind], None
        self._make_text(kind)
        if stuck is not None:
            raw = stuck.buffer.raw  # type: ignore[attr-defined]
            raw.close()  # else the stuck text would be tried again when it is deleted

    def renew(self) -> None:
        """Have new writers, made when they are needed, which no thread (left behind in a parent) holds locked."""
        self._text: list[io.TextIOWrapper | None] = [None, None]
        self.writers: list[Callable[[str], int] | None] = [None, None]

    def write_text(self, kind: int, text: str) -> int:
        """Write the first text to a stream; `writers` has the means for the next."""
        return (self._text[kind] or self._make_text(kind)).write(text)

    def _make_text(self, kind: int) -> io.TextIOWrapper:
        with self._lock:
            if (made := self._text[kind]) is not None:  # by another thread
                return made
            descriptor = kind + 1 if self._is_elsewhere[kind] else self._descriptor(kind)
            raw = io.FileIO(descriptor, "wb", closefd=False)
            text = io.TextIOWrapper(
                io.BufferedWriter(raw), "utf-8", "backslashreplace", newline="\n", line_buffering=True
            )
            self._text[kind] = text
            self.writers[kind] = text.write
            return text

    def _descriptor(self, kind: int) -> int:
        descriptor = self._descriptors[kind]
        if descriptor is None:
            with self._lock:
                descriptor = self._descriptors[kind]
                if descriptor is None:
                    descriptor = self._descriptors[kind] = self._open(_KINDS[kind])
        return descriptor

    def _size_bytes(self, kind: int) -> int:
        return os.fstat(self._descriptor(kind)).st_size

    def _open(self, kind: str) -> int:
        path = self._base + kind
        try:
            try:
                return descriptors.above_standard(os.open(path, _FLAGS, 0o600))
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                return descriptors.above_standard(os.open(path, _FLAGS, 0o600))
        except OSError as error:  # a full disk, or no descriptors left
            self.notice = self.notice or f"output was lost: {error.strerror}: {path}"
            return descriptors.nowhere()

    def _mark(self, mark: Mark) -> None:
        mark.stdout_bytes, mark.stderr_bytes = self._size_bytes(0), self._size_bytes(1)
        try:
            os.write(self._descriptor(_MARKS), encode_frame(mark.SerializeToString()))
        except OSError as error:
            self.notice = self.notice or f"output was lost: {error.strerror}"

    def __del__(self) -> None:
        self.flush()
        for descriptor in self._descriptors:
            if descriptor is not None and descriptor != descriptors.nowhere():
                os.close(descriptor)


class CapturedOutput(RunOutput):
    """What a debugger's command prints: text that a function gets, instead of files."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self.last, self.is_listed = None, True
        self.writers = [None, None]
        self.shown = {}

    def switch(self, kind: int) -> None:
        self.last = kind

    def write_text(self, kind: int, text: str) -> int:
        self._write(text)
        return len(text)

    def write_bytes(self, kind: int, data: bytes) -> None:
        self._write(data.decode("utf-8", "backslashreplace"))

    def display(self, display: Display) -> None:
        data = json.loads(display.content_json or "{}").get("data", {})
        if text := data.get("text/plain"):
            self._write(f"{text}\n")

    def flush(self) -> None:
        """Nothing is held back."""

    def __del__(self) -> None:
        """Nothing to close."""


@contextlib.contextmanager
def captured(write: Callable[[str], object]) -> Iterator[None]:
    """Give what the block prints in this thread to `write`; other threads print as before."""
    token = _run_of_context.set(CapturedOutput(write))
    try:
        yield
    finally:
        _run_of_context.reset(token)


def is_captured() -> bool:
    """Return whether what is printed here is captured."""
    return isinstance(_run_of_context.get(None), CapturedOutput)


class RankLoop(asyncio.SelectorEventLoop):
    """The main thread's loop. It knows whether it ever had a task: to look for tasks after every run takes long."""

    has_had_tasks = False

    def create_task(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        self.has_had_tasks = True
        return super().create_task(*args, **kwargs)


class CallOutputs:
    """The outputs of runs of calls, by number: each is kept while it is used, and the newest for the next call.

    Args:
        directory: holds one directory per run.
        rank: this rank.
    """

    def __init__(self, directory: str, rank: int) -> None:
        self._directory, self._rank = directory, rank
        self._lock = threading.Lock()
        self._used: weakref.WeakValueDictionary[int, RunOutput] = weakref.WeakValueDictionary()
        self._newest: deque[RunOutput] = deque(maxlen=_KEPT_OUTPUTS)

    def of(self, number: int) -> RunOutput:
        """Return the output of a run of calls. From any thread."""
        output = self._used.get(number)
        if output is None:
            with self._lock:
                output = self._used.get(number)
                if output is None:
                    output = self._used[number] = RunOutput(self._directory, number, self._rank)
                    self._newest.append(output)
                    global _latest
                    _latest = output
        return output


def enter_output(output: RunOutput | None) -> Token[RunOutput]:
    """Let what the calling context writes go to `output`; None stands for that of the main thread's newest run."""
    if output is None:
        output = newest_output()
        output.is_lent = True
    output.goes_on(1)
    return _run_of_context.set(output)


def leave_output(token: Token[RunOutput]) -> None:
    """Let it go where it went before `enter_output`, with everything flushed."""
    output = _run_of_context.get()
    flush_standard()
    output.flush()
    output.goes_on(-1)
    _run_of_context.reset(token)
    if _described is output and output is not _newest and _newest is not None and output.has_descriptors():
        _newest.redirect_descriptors()


class _Lasting(io.IOBase):
    """What stdout and stderr of all runs have in common, as text and as bytes: nothing closes them."""

    _kind: int

    def flush(self) -> None:
        current_output().flush()

    def fileno(self) -> int:
        return self._kind + 1

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Flush only: the stream serves later runs."""
        self.flush()

    @property
    def closed(self) -> bool:
        return False

    def __del__(self) -> None:
        """Nothing to close."""


class RunStream(_Lasting, io.TextIOBase):
    """`sys.stdout` or `sys.stderr`: line-buffered text that goes to the run of the context that writes it."""

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = True
    write_through = True
    mode = "w"

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self.name = ("<stdout>", "<stderr>")[kind]
        self.buffer = RunBytes(kind)
        self.write = _make_write(kind)  # type: ignore[method-assign]  # a closure: print calls it twice a line

    def isatty(self) -> bool:
        return False

    def detach(self) -> "RunBytes":  # type: ignore[override]
        """Return the bytes below, for a wrapper; this stream goes on."""
        return self.buffer

    def reconfigure(self, **_: Any) -> None:
        """Accepted for the sake of programs that call it; the stream stays UTF-8 and line-buffered."""


class RunBytes(_Lasting, io.BufferedIOBase):
    """The `buffer` of a RunStream: raw bytes, which need not be valid UTF-8."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def write(self, data: Any) -> int:
        copied = bytes(data)
        current_output().write_bytes(self._kind, copied)
        return len(copied)


def current_output() -> RunOutput:
    """Return the output of the run that the calling code belongs to."""
    output = _run_of_context.get(None)
    if output is not None:
        return output
    started_in = _output_of(threading.current_thread())
    if started_in is None:
        return newest_output()
    return started_in if started_in.going or _latest is None or _latest.untouched else _latest


def newest_output() -> RunOutput:
    """Return the output of the main thread's newest run."""
    assert _newest is not None, "install() was not called"
    return _newest


def _output_of(thread: threading.Thread) -> RunOutput | None:
    return getattr(thread, _THREAD_ATTRIBUTE, None)


def _is_own(thread: threading.Thread) -> bool:
    return thread.name.startswith(_OWN_THREADS)


def begin_output(output: RunOutput) -> None:
    """Make `output` the one of the calling context, of file descriptors 1 and 2 and of all that belongs to no run."""
    global _newest, _latest
    if _newest is not None:
        _newest.flush()
    _newest = _latest = output
    _run_of_context.set(output)
    output.redirect_descriptors()
    for name, stream in _streams.items():
        if getattr(sys, name, None) is None or getattr(getattr(sys, name), "closed", False):
            setattr(sys, name, stream)  # user code replaced it and closed the replacement


def flush_standard() -> None:
    """Have `sys.stdout` and `sys.stderr` write what they hold back, whatever user code has put there: a wrapper of our
    stream, or a file of descriptor 1, has a buffer of its own. What can not be written is lost."""
    for name, stream in _streams.items():
        if (current := getattr(sys, name, None)) is not stream:
            with contextlib.suppress(Exception):
                current.flush()  # type: ignore[union-attr]


def flush_unflushed() -> None:
    """Write the beginnings of lines. Called by another thread, FLUSH_AFTER_S after `install`'s `on_text` was."""
    with _flushing:
        while _unflushed:
            output = _unflushed.pop()
            output.is_listed = False
            output.flush()


def install(output: RunOutput, on_text: Callable[[], None]) -> None:
    """Replace the standard streams of this process and let threads keep the run that started them.

    Args:
        output: the first.
        on_text: called when there is text that `flush_unflushed` will have to flush, once until it has.
    """
    begin_output(output)
    descriptors.nowhere()
    global _on_text
    _on_text = on_text
    sys.stdout = sys.__stdout__ = _streams["stdout"] = RunStream(0)  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = _streams["stderr"] = RunStream(1)  # type: ignore[misc, assignment]
    os.register_at_fork(before=_before_fork, after_in_parent=_flushing.release, after_in_child=_after_fork_in_child)
    start = threading.Thread.start

    @functools.wraps(start)
    def start_with_run(thread: threading.Thread) -> None:
        setattr(thread, _THREAD_ATTRIBUTE, current_output())
        start(thread)

    sys.addaudithook(_note_started_process)
    descriptors.tell_of_moves(_flush_described, _follow_described)
    threading.Thread.start = start_with_run  # type: ignore[method-assign, assignment]


def _note_started_process(event: str, _: object) -> None:
    if event in _PROCESS_EVENTS and _newest is not None:
        output = current_output()
        output.has_started_processes = True
        output.flush()  # what it prints comes after what was printed before
        if output is not _described and _described is not None and _described.has_descriptors():
            output.redirect_descriptors()


def _flush_described() -> None:
    if _described is not None:
        _described.flush()


def _follow_described(descriptor: int) -> None:
    if _described is not None:
        _described.follow(descriptor - 1)


def _before_fork() -> None:
    """A fork copies buffers; flushed ones are not written twice."""
    _flushing.acquire()
    for output in list(_alive):
        output.flush()


def _after_fork_in_child() -> None:
    global _on_text
    _on_text = _nothing  # nobody would flush
    for output in list(_alive):
        output.renew()
    _flushing.release()


def _nothing() -> None:
    """Nobody waits for text."""


_on_text: Callable[[], None] = _nothing


def _make_write(kind: int) -> Callable[[str], int]:
    get = _run_of_context.get

    def write(text: str) -> int:
        output = get(None)
        if output is None:
            output = current_output()
        if output.last != kind:
            output.switch(kind)
        if not output.is_listed:
            output.is_listed = True
            _unflushed.append(output)
            _on_text()
        try:
            writer = output.writers[kind]
            return writer(text) if writer is not None else output.write_text(kind, text)
        except OSError as error:
            output.lose(kind, error)
            return len(text)

    return write

"""`%%mesh --profile`: torch.profiler on some ranks of a run, over a few steps of its training.

The recording begins with the run. The first step ends it: it was not representative, and profilers are slow to start.
After a step of warm-up the next ones are recorded. A run that makes no step, or only one, keeps the first recording.

Torch takes 1.5 kB of memory for an event, and loops make up to half a million in a second. So the recording pauses
once, soon after its beginning, to see how many there are in a second, and ends before there are too many.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import importlib
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monarch_nb.config import cadence
from monarch_nb.worker.instruments import traces
from monarch_nb.worker.instruments.traces import Collected
from monarch_nb.worker.runs.instruments import Later, is_chosen, running
from monarch_nb.worker.steps import OptimizerNames, StepCounter, Watch
from monarch_nb.worker.user_code import unbroken

STEPS = 5
"""So many steps are recorded."""
MOST_S = 60.0
"""The recording of a run that makes no step ends after this time."""
MOST_EVENTS = 500_000
"""A recording ends when it has about so many events."""
_LOOK_AFTER_S = cadence(0.5)
_WARM_UP = 1
_QUIET_LOG_LEVEL = "99"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNDER_WAY = "torch has one profiler at a time, and one is under way already: stop it, then --profile again"
_NO_STEP = "no optimizer made a step in this time"
_MANY_EVENTS = "more would be too many events"
_NO_WARM_UP = "recorded is the first step, without a warm-up: a profile of steps needs at least 3"
_TAKEN_AWAY = "the code started a profiler of its own, and torch has one at a time: leave one of the two out"


class TorchProfile:
    """The profile of one run on this rank.

    Args:
        steps: how many steps are recorded.
        ranks: those that are profiled; by default the first of the run on each node.
        most_s: how long a run that makes no step is recorded.
        most_events: how many events are recorded, about.
    """

    def __init__(
        self,
        steps: int = STEPS,
        ranks: Sequence[int] | None = None,
        most_s: float = MOST_S,
        most_events: int = MOST_EVENTS,
    ) -> None:
        self._steps, self._most_s, self._most_events = steps, most_s, most_events
        self._is_chosen, self._is_on = is_chosen(ranks), False
        self._problem = self._why = ""
        self._is_out_of_time = False
        self._profile: Any = None
        self._before: list[tuple[Any, int, int]] = []  # what was recorded before steps, and from when to when
        self._recorded: Any = None
        self._boundaries_ns: list[int] = []  # of steps
        self._begun_ns = self._last_step_ns = 0
        self._halted_ns = 0  # when the recording was last told to end, or to go to the next step: that takes a while
        self._rate_per_s = 0.0
        self._counter, self._names = StepCounter(), OptimizerNames()
        self._watch = Watch(self._stepped)
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Record from now on, unless somebody else does."""
        if not self._is_chosen:
            return
        importlib.import_module("torch.profiler")
        if _is_recording():
            self._problem = _UNDER_WAY
            return
        self._start()
        self._watch.begin()
        self._later(min(_LOOK_AFTER_S, self._most_s), self._look)

    def end(self) -> Later | None:
        """Stop; return where the time went and the trace. None on a rank that was not chosen.

        To write a trace takes seconds if it is long: not now, so that an interrupted run ends at once.
        """
        self._stop()
        self._watch.end()  # not before: torch does not expect that a hook removes one
        if not self._is_chosen:
            return None
        facts = {
            "host": socket.gethostname(),
            "boot": _boot_id(),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        }
        rank = running().rank
        return Later(lambda: facts | self._found(rank))

    # ---- while the run goes on ----

    @property
    def _made(self) -> int:
        """How many steps have ended."""
        return len(self._boundaries_ns)

    def _start(self) -> None:
        from torch import cuda
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda.is_available() else [])]
        with _quiet():
            self._profile = profile(activities=activities, schedule=self._action, on_trace_ready=self._ready)
            self._profile.record_steps = False  # between two steps of a loop is not always a place that has no operator
            self._profile.start()
        self._is_on, self._begun_ns = True, time.time_ns()

    def _action(self, step: int) -> Any:
        """Return what the profiler does in a step; the first begins with the run."""
        from torch.profiler import ProfilerAction

        if step in (0, _WARM_UP + self._steps):
            return ProfilerAction.RECORD_AND_SAVE
        if step <= _WARM_UP:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if step < _WARM_UP + self._steps else ProfilerAction.NONE

    def _ready(self, profile: Any) -> None:
        """Take in what was recorded."""
        if self._made > _WARM_UP:
            self._recorded = profile.profiler
            return
        self._before.append((profile.profiler, self._begun_ns, self._end_ns()))
        if not self._rate_per_s:
            count = len(profile.profiler.kineto_results.events())
            self._rate_per_s = max(1, count) * 1e9 / max(1, self._halted_ns - self._begun_ns)

    def _end_ns(self) -> int:
        """Return when the recording ends that ends now: at its last step, if it was one."""
        return self._last_step_ns if self._last_step_ns > self._begun_ns else self._halted_ns

    def _look(self) -> None:
        """See how many events there are in a second, and go on for as long as that allows."""
        if not self._is_on or self._made or self._is_taken_away():
            return
        self._halted_ns = time.time_ns()
        with _quiet():
            self._profile.stop()
        self._is_on = False
        recorded_s = (self._halted_ns - self._begun_ns) / 1e9
        enough_s = self._most_events / self._rate_per_s
        self._why = _NO_STEP if self._most_s < enough_s else _MANY_EVENTS
        left_s = min(self._most_s, enough_s) - recorded_s
        if left_s > 0:
            self._start()
            self._later(left_s, self._out_of_time)
        else:
            self._out_of_time()

    def _out_of_time(self) -> None:
        if self._made != _WARM_UP:
            self._is_out_of_time = True
            self._stop()

    def _stepped(self, optimizer: Any) -> None:
        if not self._is_on or threading.current_thread() is not threading.main_thread():
            return
        if self._counter.completes(self._names.of(optimizer)):
            self._last_step_ns = time.time_ns()
            self._watch.call_between(lambda: unbroken(self._next_step))

    def _next_step(self) -> None:
        if not self._is_on or self._is_taken_away():
            return
        now_ns = self._halted_ns = time.time_ns()
        with _quiet():
            self._profile.step()
        self._boundaries_ns.append(now_ns)
        if self._made == _WARM_UP + 1:
            self._begun_ns, self._why = now_ns, _MANY_EVENTS
            self._later(self._most_events / self._rate_per_s, self._out_of_time)
        if self._made > _WARM_UP + self._steps:
            self._recorded = self._profile.profiler
            self._stop()

    def _is_taken_away(self) -> bool:
        """Return whether somebody else's profiler has ended this one."""
        if self._made != _WARM_UP and self._is_on and not _is_recording():
            self._problem, self._is_on = _TAKEN_AWAY, False
        return self._problem == _TAKEN_AWAY

    def _stop(self) -> None:
        """Switch it off, whatever state it is in."""
        if self._timer is not None:
            self._timer.cancel()
        self._watch.call_off()
        if self._is_on and self._made <= _WARM_UP + self._steps and not self._is_taken_away():
            self._halted_ns = time.time_ns()
            if self._made > _WARM_UP:  # the last step has not ended, or no other followed
                self._boundaries_ns.append(max(self._end_ns(), self._boundaries_ns[-1]))
            try:
                with _quiet():
                    self._profile.stop()
            except Exception as error:  # noqa: BLE001 -- an interrupt may have hit it in the middle of anything
                self._problem = f"the profiler was broken off: {type(error).__name__}: {error}"
            finally:
                if _is_recording():
                    _autograd()._disable_profiler()
        self._is_on = False

    def _later(self, after_s: float, function: Callable[[], None]) -> None:
        """Call something on the main thread after a time, instead of what was to be called."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(min(after_s, threading.TIMEOUT_MAX), _soon_on_main_thread, [function])
        self._timer.daemon = True
        self._timer.start()

    # ---- afterwards ----

    def _found(self, rank: int) -> dict[str, Any]:
        if not self._problem:
            try:
                return self._told(rank)
            except (OSError, ValueError, RuntimeError) as error:
                self._problem = f"the trace can not be written: {error}"
        return {"problem": self._problem}

    def _told(self, rank: int) -> dict[str, Any]:
        """Write what was recorded, and return what is told of it."""
        has_steps = self._recorded is not None
        if has_steps:
            steps_ns = self._boundaries_ns[_WARM_UP:]
            parts = [(self._recorded, steps_ns[0], steps_ns[-1])]
        else:
            steps_ns, parts = [], self._before
        note = self._note(len(steps_ns) - 1 if has_steps else 0, sum(part[2] - part[1] for part in parts) / 1e9)
        self._profile, self._recorded, self._before = None, None, []  # events take much memory
        with tempfile.TemporaryDirectory(prefix="monarch-nb-trace-") as directory:
            return _written(Path(directory), parts, steps_ns, rank) | {"note": note}

    def _note(self, steps: int, seconds: float) -> str:
        """Return why there is less than was asked for, if so."""
        if self._is_out_of_time:
            return f"{f'{steps} steps' if steps else f'the first {seconds:.1f} s'} were recorded: {self._why}"
        if steps:
            return f"the cell ended after {steps} of {self._steps} steps" if steps < self._steps else ""
        return _NO_WARM_UP if self._last_step_ns else ""


def _written(directory: Path, parts: list[tuple[Any, int, int]], steps_ns: Sequence[int], rank: int) -> dict[str, Any]:
    """Write recordings as the lines of one trace, and return where their time went.

    Args:
        parts: the recordings, and from when to when they are. They are taken out.
        steps_ns: where steps begin, and where the last one ends; none if there are none.
        rank: whose they are.
    """
    collected = Collected()
    name, packed = f"rank {rank} ({socket.gethostname()})", directory / "lines.gz"
    windows: list[tuple[float, float]] = []
    count = base_ns = 0
    with gzip.open(packed, "wt", 1, "utf-8") as lines:
        while parts:
            profiler, begun_ns, ended_ns = parts.pop(0)
            path = directory / "trace.json"
            profiler.export_chrome_trace(str(path))
            del profiler
            with path.open(encoding="utf-8", errors="replace") as file:
                written = traces.write_lines(
                    file, lines.write, rank=rank, name=name, own_pid=os.getpid(), see=collected.add
                )
            path.unlink()
            base_ns, count = written.base_ns, count + written.events
            windows.append(((begun_ns - base_ns) / 1000, (ended_ns - base_ns) / 1000))
        for event in traces.step_events([each - base_ns for each in steps_ns], _WARM_UP + 1, rank) if steps_ns else ():
            lines.write(traces.line(event))
    usage = collected.usage(windows)
    return {
        "steps": max(0, len(steps_ns) - 1),
        "seconds": usage.duration_us / 1e6,
        "on_device": usage.on_device,
        "shares": tuple(usage.shares),
        "operators": [tuple(each) for each in usage.operators],
        "events": count,
        "base_ns": base_ns,
        "trace": packed.read_bytes(),
    }


def _is_recording() -> bool:
    """Return whether torch's profiler records in this thread, whoever started it."""
    return bool(_autograd()._profiler_enabled())


def _autograd() -> Any:
    return importlib.import_module("torch.autograd")


@contextmanager
def _quiet() -> Iterator[None]:
    """Have the profiler log nothing into the cell. Its log level is read when it logs for the first time."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET_LOG_LEVEL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)


_PendingCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_MOST_PENDING = 32  # as many as Python keeps
_pending: list[Any] = []
"""What Python may still have to call: it must not be collected before."""


def _soon_on_main_thread(function: Callable[[], None]) -> None:
    """Have the main thread call something at its next line of Python: only the thread that has started torch's profiler
    can stop it."""

    def call(_: int | None) -> int:
        unbroken(function)
        return 0

    _pending.append(_PendingCall(call))
    del _pending[:-_MOST_PENDING]
    ctypes.pythonapi.Py_AddPendingCall(_pending[-1], None)


def _boot_id() -> str:
    """Return what processes have in common that have the same clock."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return socket.gethostname()


# ---- `%%mesh --memory-history`: torch's record of what was allocated on the GPU, by whom and when, around a run

_HISTORY_ENTRIES = 100_000
"""Of the newest events: a few tens of megabytes."""
_NO_GPU = "there is no GPU, and torch records nothing of main memory: %mesh memory shows what is held there"


class MemoryHistory:
    """The history of one run on this rank.

    Args:
        ranks: those that record; by default the first of the run on each node.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self._is_chosen, self._is_on = is_chosen(ranks), False

    def begin(self) -> None:
        """Record from now on."""
        torch: Any = sys.modules.get("torch")
        if self._is_chosen and torch is not None and torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(max_entries=_HISTORY_ENTRIES)
            self._is_on = True

    def end(self) -> dict[str, Any] | None:
        """Stop; return the snapshot. None on a rank that was not chosen."""
        if not self._is_chosen:
            return None
        if not self._is_on:
            return {"problem": _NO_GPU}
        self._is_on = False
        try:
            with tempfile.TemporaryDirectory(prefix="monarch-nb-memory-") as directory:
                path = Path(directory, f"rank{os.environ.get('RANK', '0')}.pickle")
                sys.modules["torch"].cuda.memory._dump_snapshot(str(path))
                return {"snapshot": path.read_bytes()}
        except OSError as error:
            return {"problem": f"the snapshot can not be written: {error}"}
        finally:
            sys.modules["torch"].cuda.memory._record_memory_history(enabled=None)

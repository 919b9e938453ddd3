"""`%%mesh --profile`: torch.profiler on some ranks of a run, over a few steps of its training.

The recording begins with the run. The first step ends it: it was not representative, and profilers are slow to start.
After a step of warm-up the next ones are recorded. A run that makes no step, or only one, keeps the first recording.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import importlib
import os
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monarch_nb.worker.autosaves.steps import OptimizerNames, StepCounter, Watch
from monarch_nb.worker.instruments import traces
from monarch_nb.worker.instruments.shares import Collected
from monarch_nb.worker.runs.instruments import is_chosen

STEPS = 5
"""So many steps are recorded."""
MOST_S = 60.0
"""The recording of a run that makes no step ends after this time."""
_WARM_UP = 1
_QUIET_LOG_LEVEL = "99"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNDER_WAY = "torch has one profiler at a time, and one is under way already: stop it, then --profile again"
_TAKEN_AWAY = "the code started a profiler of its own, and torch has one at a time: leave one of the two out"


class TorchProfile:
    """The profile of one run on this rank.

    Args:
        steps: how many steps are recorded.
        ranks: those that are profiled; by default the first of the run on each node.
        most_s: how long a run that makes no step is recorded.
        most_bytes: how long a trace may be.
    """

    def __init__(
        self,
        steps: int = STEPS,
        ranks: Sequence[int] | None = None,
        most_s: float = MOST_S,
        most_bytes: int | None = None,
    ) -> None:
        self._steps, self._most_s = steps, most_s
        self._most_bytes = traces.MOST_BYTES if most_bytes is None else most_bytes
        self._is_chosen, self._is_on = is_chosen(ranks), False
        self._problem = self._note = ""
        self._boundaries_ns: list[int] = []
        self._last_step_ns = 0
        self._profile: Any = None
        self._recorded: Any = None
        self._before_steps: Any = None
        self._counter, self._names = StepCounter(), OptimizerNames()
        self._watch = Watch(self._stepped)
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Record from now on, unless somebody else does."""
        if not self._is_chosen:
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        if _is_recording():
            self._problem = _UNDER_WAY
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        with _quiet():
            self._profile = profile(activities=activities, schedule=self._action, on_trace_ready=self._ready)
            self._profile.record_steps = False  # between two steps of a loop is not always a place that has no operator
            self._profile.start()
        self._is_on = True
        self._boundaries_ns.append(time.time_ns())
        self._watch.begin()
        self._timer = threading.Timer(self._most_s, _soon_on_main_thread, [self._out_of_time])
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> dict[str, Any] | None:
        """Stop; return where the time went and the trace, as plain data. None on a rank that was not chosen."""
        self._stop()
        if not self._is_chosen:
            return None
        facts = {"host": socket.gethostname(), "boot": _boot_id(), "world_size": int(os.environ.get("WORLD_SIZE", "1"))}
        if not self._problem:
            try:
                return facts | self._told()
            except (OSError, ValueError, RuntimeError) as error:
                self._problem = f"the trace can not be written: {error}"
        return facts | {"problem": self._problem}

    # ---- while the run goes on ----

    def _action(self, step: int) -> Any:
        """Return what the profiler does in a step; the first begins with the run."""
        from torch.profiler import ProfilerAction

        if step in (0, _WARM_UP + self._steps):
            return ProfilerAction.RECORD_AND_SAVE
        if step <= _WARM_UP:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if step < _WARM_UP + self._steps else ProfilerAction.NONE

    def _ready(self, profile: Any) -> None:
        if len(self._boundaries_ns) > _WARM_UP + 1:
            self._recorded = profile.profiler
        else:
            self._before_steps = profile.profiler

    def _stepped(self, optimizer: Any) -> None:
        if threading.current_thread() is threading.main_thread() and self._counter.completes(self._names.of(optimizer)):
            self._last_step_ns = time.time_ns()
            self._watch.call_between(self._next_step)

    def _next_step(self) -> None:
        if not self._is_on:
            return
        if self._timer is not None:  # it makes steps
            self._timer.cancel()
        self._boundaries_ns.append(time.time_ns())
        with _quiet():
            self._profile.step()
        if len(self._boundaries_ns) > _WARM_UP + self._steps + 1:
            self._stop()

    def _out_of_time(self) -> None:
        if self._is_on and len(self._boundaries_ns) == 1:
            self._note = f"recorded for {self._most_s:.0f} s: no optimizer made a step in this time"
            self._stop()

    def _stop(self) -> None:
        """Switch it off, whatever state it is in."""
        if self._timer is not None:
            self._timer.cancel()
        self._watch.end()
        if not self._is_on:
            return
        self._is_on = False
        begun = len(self._boundaries_ns)
        is_open = begun <= _WARM_UP + self._steps + 1
        if is_open and begun != _WARM_UP + 1 and not _is_recording():
            self._problem = _TAKEN_AWAY
            return
        if is_open:  # the last step has not ended, or no other followed
            self._boundaries_ns.append(self._end_ns())
        try:
            with _quiet():
                self._profile.stop()
        except Exception as error:  # noqa: BLE001 -- an interrupt may have hit it in the middle of anything
            self._problem = self._problem or f"the profiler was broken off: {type(error).__name__}: {error}"
        finally:
            if _is_recording():
                _autograd()._disable_profiler()

    def _end_ns(self) -> int:
        """Return when the recording ends that ends now: at its last step, if it was one."""
        return self._last_step_ns if self._last_step_ns > self._boundaries_ns[-1] else time.time_ns()

    # ---- afterwards ----

    def _told(self) -> dict[str, Any]:
        profiler = self._recorded or self._before_steps
        boundaries = self._boundaries_ns[_WARM_UP + 1 :] if self._recorded else self._boundaries_ns[:2]
        first = _WARM_UP + 1 if self._recorded else 0
        if not first and self._last_step_ns:
            self._note = "recorded is the first step, without a warm-up: a profile of steps needs at least 3"
        elif first and len(boundaries) <= self._steps:
            self._note = f"the cell ended after {len(boundaries) - 1} of {self._steps} steps"
        with tempfile.TemporaryDirectory(prefix="monarch-nb-trace-") as directory:
            path, packed = Path(directory, "trace.json"), Path(directory, "lines.gz")
            profiler.export_chrome_trace(str(path))
            self._profile = self._recorded = self._before_steps = profiler = None  # events take much memory
            return self._read(path, packed, boundaries, first) | {"trace": packed.read_bytes()}

    def _read(self, path: Path, packed: Path, boundaries_ns: Sequence[int], first: int) -> dict[str, Any]:
        rank, collected = int(os.environ.get("RANK", "0")), Collected()
        last_us = None
        if path.stat().st_size > self._most_bytes:
            with path.open(encoding="utf-8", errors="replace") as file:
                last_us = traces.last_begin(file, self._most_bytes)
        with path.open(encoding="utf-8", errors="replace") as file, gzip.open(packed, "wt", 1, "utf-8") as lines:
            written = traces.write_lines(
                file,
                lines.write,
                rank=rank,
                name=f"rank {rank} ({socket.gethostname()})",
                own_pid=os.getpid(),
                last_us=last_us,
                see=collected.add,
            )
            steps_ns = [each - written.base_ns for each in boundaries_ns]
            for event in traces.step_events(steps_ns, first, rank) if first else ():
                lines.write(traces.line(event))
        steps_us = [each / 1000 for each in steps_ns]
        window = (steps_us[0], steps_us[-1] if last_us is None else min(last_us, steps_us[-1]))
        usage = collected.usage(window)
        return {
            "steps": len(boundaries_ns) - 1 if first else 0,
            "warm": bool(first),
            "seconds": usage.duration_us / 1e6,
            "on_device": usage.on_device,
            "shares": tuple(usage.shares),
            "operators": [tuple(each) for each in usage.operators],
            "events": written.events,
            "base_ns": written.base_ns,
            "cut_s": None if last_us is None else max(0.0, (steps_us[-1] - last_us) / 1e6),
            "note": self._note,
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
_pending: list[Any] = []
"""What Python is to call must not be collected before."""


def _soon_on_main_thread(function: Callable[[], None]) -> None:
    """Have the main thread call something at its next line of Python: only the thread that has started torch's profiler
    can stop it."""

    def call(_: int | None) -> int:
        function()
        return 0

    _pending[:] = [_PendingCall(call)]
    ctypes.pythonapi.Py_AddPendingCall(_pending[0], None)


def _boot_id() -> str:
    """Return what processes have in common that have the same clock."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return socket.gethostname()

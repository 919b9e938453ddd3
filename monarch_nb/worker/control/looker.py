"""The thread that looks where this rank is, 20 times a second while somebody watches. Without anybody there is none."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from types import CodeType, FrameType
from typing import NamedTuple

from monarch_nb.config import cadence, gap
from monarch_nb.proto.run_pb2 import Looks
from monarch_nb.worker.control.activities import thread_state
from monarch_nb.worker.control.looks import IDLE, Look, Window, computes, kind_of
from monarch_nb.worker.control.switching import switching_within
from monarch_nb.worker.groups import collectives
from monarch_nb.worker.text import encodable
from monarch_nb.worker.user_code import UserCode

INTERVAL_S = cadence(0.05)
LEASE_S = gap(5.0)
"""Whoever watches asks more often than that."""
_MOST_CODES = 4096
_SWITCH_S = 0.001


class Seen(NamedTuple):
    """A thread that executes user code.

    Attributes:
        thread: its ident. native_thread: what the kernel calls it.
        frames: those of user code, innermost first.
        run_id: of the run whose code it is; empty for an endpoint of an actor.
    """

    thread: int
    native_thread: int
    frames: list[FrameType]
    run_id: str = ""


class Looker:
    """Looks at what this rank executes.

    Args:
        seen: returns the thread to look at; None while nothing runs.
        user_code: knows the user's frames.
        steps: returns how many steps the rank's trainings have taken.
    """

    def __init__(self, seen: Callable[[], Seen | None], user_code: UserCode, steps: Callable[[], int]) -> None:
        self._seen, self._user_code, self._steps = seen, user_code, steps
        self._lock = threading.Lock()
        self._window = Window()
        self._until_s = 0.0
        self._thread: threading.Thread | None = None
        self._run_id = ""
        self._owned: dict[CodeType, bool] = {}
        self._processor: tuple[int, float, float] | None = None
        os.register_at_fork(after_in_child=self._forget)

    def watched(self, last_s: float = 0) -> Looks:
        """Return what was seen in the last seconds; look on, or begin to. From any thread.

        Args:
            last_s: so many seconds; 0: as many as are remembered.
        """
        now_s = time.monotonic()
        with self._lock:
            self._until_s = now_s + LEASE_S
            if self._thread is None:
                self._window.clear()
                self._thread = threading.Thread(target=self._look_on, name="monarch_nb-looker", daemon=True)
                self._thread.start()
            shares, rate = self._window.shares(now_s - last_s if last_s else 0), self._window.steps_per_s(now_s)
        told = Looks(count=sum(share.looks for share in shares), steps_per_s=rate)
        for share in shares:
            told.shares.add(kind=share.kind, what=share.what, looks=share.looks, line=encodable(share.line))
        return told

    def _forget(self) -> None:
        """In a child that the user forks: it has no such thread, and nobody asks."""
        self._lock, self._thread = threading.Lock(), None

    def _look_on(self) -> None:
        """Look until nobody has asked for a while."""
        pause = allocate_lock()  # time.sleep may be another one by now
        pause.acquire()
        self._look()  # not kept: it does not know yet whether the thread uses a processor
        with switching_within(_SWITCH_S):
            while True:
                pause.acquire(timeout=INTERVAL_S)
                look = self._look()
                now_s = time.monotonic()
                with self._lock:
                    if now_s > self._until_s:
                        self._thread = None
                        self._owned.clear()
                        return
                    self._window.add(now_s, look, self._steps())

    def _look(self) -> Look:
        """Look once. Frames are let go at once: what they hold would live on with them."""
        seen = self._seen()
        if seen is None:
            return Look(IDLE)
        if seen.run_id and seen.run_id != self._run_id:
            self._run_id = seen.run_id
            with self._lock:
                self._window.forget_steps()
        frames = seen.frames
        collective = collectives.glimpse(frames[0], _source_line) if frames else ""
        line = next((self._line(frame) for frame in frames if self._owns(frame)), "")
        files = [frame.f_code.co_filename for frame in frames]
        is_busy = computes(self._processor_since(seen.thread), lambda: thread_state(seen.native_thread)[0])
        return Look(*kind_of(files, collective, is_busy=is_busy, has_gpu=_has_gpu()), line, bool(seen.run_id))

    def _line(self, frame: FrameType) -> str:
        return self._user_code.line(frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno)

    def _owns(self, frame: FrameType) -> bool:
        """Whether a frame is the user's: known of its code, because paths take long to compare."""
        owned = self._owned.get(frame.f_code)
        if owned is None:
            if len(self._owned) >= _MOST_CODES:
                self._owned.clear()
            owned = self._owned[frame.f_code] = self._user_code.owns(frame)
        return owned

    def _processor_since(self, thread: int) -> float | None:
        """Return which part of a processor a thread used since the last look at it."""
        now_s = time.monotonic()
        try:
            used_s = time.clock_gettime(time.pthread_getcpuclockid(thread))
        except OSError:  # it has ended
            return None
        before, self._processor = self._processor, (thread, now_s, used_s)
        if before is None or before[0] != thread:
            return None
        return (used_s - before[2]) / max(now_s - before[1], 1e-6)


def _source_line(code: CodeType, number: int) -> str:
    return linecache.getline(code.co_filename, number)


def _has_gpu() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized()

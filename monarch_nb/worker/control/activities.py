"""What executes user code on this rank: a run on the main thread, endpoints on the threads of actors. And how one that
hangs in a collective is freed, whichever thread it is on.

Process groups are the rank's, not a thread's: breaking them frees all that hang, and all that use them are told so.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from monarch_nb.config import cadence
from monarch_nb.errors import GROUP_ABORTED, ProcessGroupAborted
from monarch_nb.worker.groups import breaking, c10d, records
from monarch_nb.worker.shell.failures import RunInterrupted, interruption
from monarch_nb.worker.user_code import outwards

PRESS_INTERVAL_S = cadence(0.1)
_PEERS_BREAK_WITHIN_S = 3 * PRESS_INTERVAL_S
"""Peers that hang in a collective break it one interval after their interrupt."""


@dataclass(eq=False, kw_only=True)
class Activity:
    """User code that a thread of this rank executes.

    Attributes:
        run_id: of the run that it is, or is called in the name of.
        thread: the thread's ident.
        makes_another: whether another group can be made after one was broken: the process goes on.
        task: that executes it when it may await.
        requested_at: when its interrupt was asked for; None when none was.
        interrupted_by: who asked for that, when it is not who submitted the run.
        delivered_at: when the interrupt was raised in user code, its task cancelled, or a handler of its own told; None
            when there is none, or it has yet to be.
        collective: what it was freed from.
        group_aborted: process groups were broken under it.
        abort: what to raise in user code because its group was aborted, though it was not interrupted.
        abort_delivered: it was raised.
    """

    run_id: str
    thread: int
    makes_another: bool = True
    started_s: float = field(default_factory=time.monotonic)
    task: asyncio.Task[object] | None = None
    requested_at: float | None = None
    interrupted_by: str = ""
    delivered_at: float | None = None
    collective: str = ""
    group_aborted: bool = False
    abort: ProcessGroupAborted | None = None
    abort_delivered: bool = False
    _cpu_ticks: int = -1
    _place: tuple[int, int] | None = None

    def request(self) -> None:
        """Note that it is to be interrupted."""
        self.requested_at = time.monotonic()
        self.delivered_at = None

    @property
    def delivered(self) -> bool:
        """Whether user code has got its interrupt: what it does since is its own."""
        return self.delivered_at is not None

    def deliver(self) -> None:
        """Note that user code gets its interrupt now."""
        self.delivered_at = time.monotonic()

    def waited_s(self) -> float:
        """Return how long ago its interrupt was asked for."""
        return time.monotonic() - (self.requested_at or time.monotonic())

    def error(self) -> RunInterrupted:
        """Return what its interrupt raises."""
        return interruption(
            self.collective, self.group_aborted, makes_another=self.makes_another, by=self.interrupted_by
        )

    @property
    def is_due(self) -> bool:
        """Whether user code is to raise something."""
        has_abort = self.abort is not None and not self.abort_delivered
        return has_abort or (self.requested_at is not None and not self.delivered)

    def take_due(self) -> BaseException:
        """Return what user code raises now, which is then delivered. It `is_due`."""
        if self.abort is not None and not self.abort_delivered:
            self.abort_delivered = True
            return self.abort
        self.deliver()
        return self.error()

    def poke(self) -> None:
        """Make its thread raise what is due, if it executes user code now. From any thread."""
        raise NotImplementedError

    def native_thread(self) -> int:
        """Return what the kernel calls its thread."""
        natives = (each.native_id for each in threading.enumerate() if each.ident == self.thread)
        return next(natives, None) or 0

    def frame(self) -> FrameType | None:
        """Return the innermost frame of its thread; None when that executes something else meanwhile."""
        return sys._current_frames().get(self.thread)

    def may_wait_unseen(self) -> bool:
        """Return whether its thread may wait for a peer in C code that no name tells."""
        return self.task is None and not self.delivered

    def is_blocked(self) -> bool:
        """Return whether its thread sleeps and has used no CPU since this was last asked."""
        state, ticks = thread_state(self.native_thread())
        before, self._cpu_ticks = self._cpu_ticks, ticks
        return state == "S" and ticks == before

    def is_still(self) -> bool:
        """Return whether its thread is where it was when this was last asked. One that waits for its GPU spins."""
        frame, before = self.frame(), self._place
        self._place = (id(frame), frame.f_lasti) if frame is not None else None
        return before is not None and self._place == before

    def was_ended_by(self, error: BaseException) -> bool:
        """Return whether `error` is what its interrupt caused; note what that did to process groups.

        Its peers were interrupted too: they may have broken the group that this rank was about to use.
        """
        if self.requested_at is None:
            return False
        aborted = breaking.readable(error)
        if aborted is not None:
            self.group_aborted = True
            self.collective = self.collective or aborted.collective
        elif isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
            self.group_aborted = self.group_aborted or breaking.is_broken(_PEERS_BREAK_WITHIN_S)
        return aborted is not None or isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))


class Activities:
    """All that executes user code now.

    Attributes:
        must_forget: groups were broken while somebody used them: who ends last forgets them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[Activity, None] = {}
        self.must_forget = False

    def __iter__(self) -> Iterator[Activity]:
        """Over those that there are now: others begin meanwhile, on their own threads."""
        return iter(list(self._all))

    def begin(self, activity: Activity) -> None:
        """It is about to execute user code."""
        self._all[activity] = None

    def end(self, activity: Activity) -> None:
        """It has ended. On its thread, which waits for what is being done to it."""
        with self._lock:
            self._all.pop(activity, None)

    def forget_groups(self, ended: Activity | None = None) -> None:
        """Forget the groups that were broken, unless there is somebody to be freed from them, who does it then.

        Args:
            ended: what has used them.
        """
        if ended is None:
            self.must_forget = True
        if self.must_forget or (ended is not None and ended.group_aborted):
            self.must_forget = any(each.group_aborted for each in self)
            if not self.must_forget:
                breaking.forget_groups()

    def break_groups(
        self,
        reason: str,
        last_run: int = 0,
        *,
        follows: bool = False,
        freed: Activity | None = None,
        collective: str = "",
    ) -> None:
        """Break this rank's process groups, but none that a run after `last_run` made. On the control thread.

        Args:
            reason, follows: as `breaking.break_groups` takes them.
            freed: who hangs in them, and is marked, as are all that can be seen to.
            collective: in which.
        """
        with self._lock:
            if freed is not None and freed not in self._all:
                return
            waiting = {each: name for each in self if (name := collective_of(each))}
            if freed is not None:
                waiting.setdefault(freed, collective)

            def stop_others() -> None:
                # A kernel of an aborted communicator ends without an error, its data undefined: none may go on.
                if c10d.uses_nccl():
                    are_open = bool(records.open_on_gpu())
                    for each in self:
                        if each.requested_at is None and (are_open or each in waiting or _is_in_torch(each)):
                            each.abort = ProcessGroupAborted(f"{reason}; {GROUP_ABORTED}", reason=reason)
                            each.abort_delivered = False
                            each.poke()

            threads = [each.thread for each in waiting]
            if breaking.break_groups(reason, last_run, follows=follows, threads=threads, prepare=stop_others):
                for each, name in waiting.items():
                    each.group_aborted = True
                    each.collective = each.collective or name

    def free_if_hung(self, activity: Activity) -> None:
        """Break this rank's process groups if an activity that is interrupted hangs in a collective. On the control
        thread."""
        collective, blocked, still = collective_of(activity), activity.is_blocked(), activity.is_still()
        if collective and collective != "backward":
            hangs = True
        elif collective or activity.may_wait_unseen():
            # Backward may only compute; and C code that no interrupt reaches may be a wait without a name: one for the
            # GPU, too, where a collective of NCCL waits for peers.
            hangs = breaking.in_use() and (blocked or (still and bool(records.open_on_gpu())))
        else:
            hangs = False
        if hangs:
            self.break_groups("interrupted", freed=activity, collective=collective or "")


def collective_of(activity: Activity) -> str | None:
    """Return the collective that its thread waits in."""
    frame = activity.frame()
    return breaking.collective(frame) if frame is not None else None


def _is_in_torch(activity: Activity) -> bool:
    return any(f"{os.sep}torch{os.sep}" in frame.f_code.co_filename for frame in outwards(activity.frame()))


def thread_state(thread_id: int) -> tuple[str, int]:
    """Return the state letter of a thread of this process and the CPU time it has used, in clock ticks."""
    try:
        with open(f"/proc/self/task/{thread_id}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", -1
    return fields[0].decode(), int(fields[11]) + int(fields[12])

"""How a collective that hangs is broken from outside, and what is left of its groups forgotten.

A collective that hangs in C++ does not see SIGINT. `break_groups` frees it from the control thread by shutting down
the connections that it waits on (Gloo, the store) or aborting its communicator (NCCL); `forget_groups` then clears
what torch remembers, so that the next `dist.init_process_group()` makes a clean group. Nothing in memory is lost.

What can not be freed: a thread of Gloo's that was sending to a peer at the moment when that peer died, which happens
in one of 80 kills in a loop of small all_reduces; a store that user code connected to and that no group uses.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from monarch_nb.config import cadence, patience
from monarch_nb.errors import GROUP_ABORTED, ProcessGroupAborted
from monarch_nb.worker.groups import c10d, calls
from monarch_nb.worker.groups.connections import GroupConnections
from monarch_nb.worker.groups.rendezvous import Rendezvous

_BREAK_WAIT_S = cadence(0.2)
_CLOSE_WAIT_S = cadence(0.5)
_FREE_WAIT_S = patience(2.0)
_LEAVE_WAIT_S = patience(1.0)
_SWEEP_S = cadence(0.05)
_NO_GROUP = "process group has not been initialized"


@dataclass(frozen=True)
class _Break:
    """Why groups were broken, and what the thread was in that was to be freed.

    Attributes:
        follows: the reason only follows from another one, which may still be heard of.
    """

    reason: str = ""
    collective: str | None = None
    follows: bool = False

    def then(self, told: _Break) -> _Break:
        """Return why they were, now that another reason is told: the first counts, unless it follows from that one."""
        is_cause = self.follows and not told.follows
        return replace(told, collective=told.collective or self.collective) if is_cause else self

    def error(self, cause: BaseException | None = None) -> ProcessGroupAborted:
        """Return what user code should have seen in place of `cause`."""
        where = calls.collective_of(cause) if cause is not None else None
        where = where or self.collective or ""
        text = f"interrupted in {where}" if where else "interrupted"
        if self.reason not in ("", "interrupted"):
            text = f"{text} ({self.reason})" if where else self.reason
        return ProcessGroupAborted(f"{text}; {GROUP_ABORTED}", collective=where, reason=self.reason)


class _State:
    """What this process knows of its groups.

    Attributes:
        connections: of the groups.
        rendezvous: how they are made; None before `install`.
        hush: silences torch while groups are broken.
        broken: why they were broken; None while they are whole.
        breaker: the thread that does it.
        forgotten: why the last groups were forgotten; None once new ones were made.
        dropped: the groups that were forgotten.
        forgetting: held while they are forgotten.
        run: the number of the newest run. made_in: that of the run which made the last default group, or tried to.
    """

    def __init__(self) -> None:
        self.connections = GroupConnections()
        self.rendezvous: Rendezvous | None = None
        self.hush = c10d.Hush()
        self.broken: _Break | None = None
        self.breaker: _Breaker | None = None
        self.forgotten: _Break | None = None
        self.dropped: weakref.WeakSet[Any] = weakref.WeakSet()
        self.forgetting = threading.Lock()
        self.run = self.made_in = 0


state = _State()


def in_use() -> bool:
    """Return whether this rank has a default group, or is making one."""
    return state.connections.is_making or c10d.default_group() is not None


def collective(frame: FrameType) -> str | None:
    """Return what a thread waits for: "all_reduce", "recv", "init_process_group", "new_group", "store wait", …

    "wait" is `work.wait()` of an asynchronous operation. "backward" is also said while it only computes. What C++ code
    is called by C++ code is not seen.

    Args:
        frame: the thread's innermost Python frame.
    """
    name = calls.collective(frame)
    return None if name in ("backward", "wait") and not in_use() else name


def break_groups(
    reason: str,
    last_run: int = 0,
    *,
    follows: bool = False,
    threads: Collection[int] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> bool:
    """Make whatever waits for peers or the store fail soon. Call it from any thread but those that hang.

    It is done in 0.03 s when nothing moves; a transfer gets up to 5 s to come to its end, without holding up the
    caller. A second call does no harm.

    Args:
        reason: shown to the user: "interrupted", or a clause such as "rank 3 was restarted".
        last_run: spare groups that runs after this one made; 0 spares none.
        follows: the reason is that peers lost the group: what they lost it of takes its place when it is told.
        threads: the idents of those that are to be freed, besides all that can be seen to be in a collective; the main
            thread when it is not given.
        prepare: called before anything is broken, if something is.

    Returns:
        Whether there was anything to break.
    """
    threads = (threading.main_thread().ident or 0,) if threads is None else threads
    frames = sys._current_frames()
    waiting = {thread: name for thread, frame in frames.items() if (name := collective(frame))}
    where = next((waiting[thread] for thread in (*threads, *waiting) if thread in waiting), None)
    with state.connections.lock:
        if last_run and state.made_in > last_run:
            return False
        if not in_use() and not state.connections.all():
            if state.forgotten is not None:  # its connection to the store was broken as well
                state.forgotten = _Break(reason)  # as its peers call it
            return False
        prepare()
        told = _Break(reason, where, follows)
        state.broken = state.broken.then(told) if state.broken else told
        state.hush.begin()
        breaker = state.breaker
        if breaker is None or not breaker.is_alive() or breaker.cause is not state.broken:
            breaker = state.breaker = _Breaker(state.broken, {*threads, *waiting})
            breaker.start()
    breaker.swept.wait(_BREAK_WAIT_S)
    return True


def is_torn(*, peer_died: bool = False) -> bool:
    """Return whether the default group has lost a peer. Asks nobody, so it never waits.

    Args:
        peer_died: some rank has. NCCL notices nothing of that; Gloo loses a connection.
    """
    return state.connections.lost_peers() or (peer_died and c10d.uses_nccl())


def forget_groups() -> None:
    """Clear all that torch knows of groups that were broken, here or by a peer. Call it from a thread that was in one
    of them, or would be in the next.

    Does nothing when no group is broken, or when user code has made a new one since. Never raises, and ends in
    seconds whatever the groups do.
    """
    with state.forgetting:
        if state.broken is None and not is_left():
            return
        state.hush.begin()
        with state.connections.lock:
            state.forgotten, state.broken = state.broken or _Break(), None
            state.connections.shut_down(stores=False)
        drop_groups()
        state.hush.end()


def is_broken(wait_s: float = 0) -> bool:
    """Return whether the default group is broken: here, or by a peer.

    Args:
        wait_s: look again for so long, for peers that are being interrupted at this moment.
    """
    return state.broken is not None or is_left(wait_s)


def readable(error: BaseException) -> ProcessGroupAborted | None:
    """Return a short error in place of one that a broken group caused, or None when `error` is something else.

    A group is also broken by a peer: one that was interrupted a moment before this rank, or died.

    Args:
        error: what user code raised, with its traceback.
    """
    if isinstance(error, ProcessGroupAborted):
        return error
    if isinstance(error, KeyboardInterrupt) and state.broken is not None:
        return state.broken.error(error)
    if isinstance(error, ValueError):
        return _explain_missing_group(str(error))
    if not calls.is_group_error(error):
        return None
    if state.broken is not None:
        return state.broken.error(error)
    if not calls.is_lost_connection(error):
        return None
    if state.forgotten is not None:
        return state.forgotten.error(error)
    is_new = calls.collective_of(error) in ("init_process_group", "new_group")
    if is_new or state.connections.lost_peers(_CLOSE_WAIT_S):
        return _Break("a peer was interrupted or died").error(error)
    if state.dropped and calls.in_wrapped_model(error):
        return ProcessGroupAborted(
            "this model's process group was aborted: wrap the model in DistributedDataParallel again"
        )
    return None


def lacks_group(error: BaseException) -> bool:
    """Return whether torch raised `error` because no default group was made."""
    return isinstance(error, ValueError) and _NO_GROUP in str(error)


def _explain_missing_group(text: str) -> ProcessGroupAborted | None:
    if _NO_GROUP in text and state.forgotten is not None:
        return state.forgotten.error()
    if "not initialized in the world group map" in text and state.dropped:
        return ProcessGroupAborted("this process group was aborted: make it again with `dist.new_group()`")
    return None


def drop_groups() -> None:
    state.connections.forget_default()
    if state.rendezvous is not None:
        c10d.run_bounded(state.rendezvous.leave, _LEAVE_WAIT_S)
    groups = c10d.clear_books()
    state.dropped.update(groups)
    c10d.release(groups)


class _Breaker(threading.Thread):
    """Shuts connections down until the threads are free, or have gone on to something else.

    The store's comes last: the next group can use it again, and it may be all that a group that is being made has.

    Attributes:
        swept: set when all connections to peers have been shut down.
    """

    def __init__(self, cause: _Break, threads: Iterable[int]) -> None:
        super().__init__(name="monarch_nb-break", daemon=True)
        self.cause = cause
        frames = sys._current_frames()
        self._places = {thread: _place(frames[thread]) for thread in threads if thread in frames}
        self.swept = threading.Event()

    def run(self) -> None:
        if state.rendezvous is not None:
            c10d.run_bounded(state.rendezvous.leave, _SWEEP_S)
        c10d.abort_nccl()
        state.connections.wait_for_standstill()
        deadline, stores = time.monotonic() + _FREE_WAIT_S, False
        while self._sweep(stores):
            # An init has moments without any connection, and connects more than once: stay until it has failed.
            if state.connections.wait_until_made(_SWEEP_S):
                time.sleep(_SWEEP_S)  # what it takes to be woken, raise and leave
                if time.monotonic() > deadline or not self._is_needed():
                    return
                stores = True

    def _is_needed(self) -> bool:
        """Return whether a thread is where it was, or in the next collective already."""
        frames = sys._current_frames()
        return any(
            (frame := frames.get(thread)) is not None and (_place(frame) == place or collective(frame) is not None)
            for thread, place in self._places.items()
        )

    def _sweep(self, stores: bool) -> bool:
        """Shut down what there is now; return False when the groups that were to be broken are gone."""
        with state.connections.lock:
            is_current = state.broken is self.cause
            if is_current:
                state.connections.shut_down(stores=stores or state.connections.is_making)
        self.swept.set()
        return is_current


def _place(frame: FrameType) -> tuple[int, int]:
    """Return where a thread is, given its innermost frame: the same again when it has not moved."""
    return id(frame), frame.f_lasti


def raise_if_broken() -> None:
    """Do not begin to make a group, or return one, when groups were broken at a moment that torch did not notice."""
    if state.broken is not None:
        raise state.broken.error()


def note_interrupt() -> None:
    """Python code that makes or destroys a group was interrupted: ranks differ now in what they have done of it."""
    state.broken = state.broken or _Break("interrupted")


def is_left(wait_s: float = 0) -> bool:
    """Return whether a peer has left the default group: then it is of no use to anyone."""
    if c10d.default_group() is None or state.rendezvous is None:
        return False
    return state.connections.lost_peers(wait_s) or state.rendezvous.was_left()

"""torch.distributed for ranks that live long: groups that can be broken from outside, forgotten and made again.

A collective that hangs in C++ does not see SIGINT. `break_groups` frees it from the control thread by shutting down
the connections that it waits on (Gloo, the store) or aborting its communicator (NCCL); `forget_groups` then clears
what torch remembers, so that the next `dist.init_process_group()` makes a clean group. Nothing in memory is lost.

What can not be freed: a thread of Gloo's that was sending more than the kernel buffers to a peer at the moment when
that peer died; a store that user code connected to and that no group uses.
"""

from __future__ import annotations

import functools
import inspect
import os
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any
from urllib.parse import urlparse

from monarch_nb.errors import GROUP_ABORTED, ProcessGroupAborted
from monarch_nb.worker.groups import c10d, collectives, connections, group_connections, held_groups, rendezvous
from monarch_nb.worker.groups.connections import Endpoint, resolve
from monarch_nb.worker.groups.group_connections import GroupConnections
from monarch_nb.worker.groups.rendezvous import Rendezvous
from monarch_nb.worker.groups.store_connection import connect

__all__ = [
    "begin_run",
    "break_groups",
    "collective",
    "forget_groups",
    "in_use",
    "install",
    "is_broken",
    "keeps_books",
    "readable",
]

_BREAK_WAIT_S = 0.2
_CLOSE_WAIT_S = 0.1
_FREE_WAIT_S = 2.0
_LEAVE_WAIT_S = 1.0
_SWEEP_S = 0.05
_LOOPBACK = "127.0.0.1"
_DESCRIPTORS = 1 << 16
_BOOKKEEPING = {__file__, *(module.__file__ for module in (c10d, connections, group_connections, rendezvous))}
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")


@dataclass(frozen=True)
class _Break:
    """Why groups were broken, and what the main thread was in."""

    reason: str = ""
    collective: str | None = None

    def error(self, cause: BaseException | None = None) -> ProcessGroupAborted:
        """Return what user code should have seen in place of `cause`."""
        where = collectives.collective_of(cause) if cause is not None else None
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
        self.run = self.made_in = 0


_state = _State()


def prepare() -> None:
    """In the template, before ranks are forked: do once what every rank would have to."""
    c10d.find_holders(("init_process_group", "destroy_process_group"))


def install() -> None:
    """Prepare torch.distributed, now or when it is imported. Call once, in the rank, with its environment set."""
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    # A destroyed group that a model still refers to keeps its descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _DESCRIPTORS), most))
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    mesh_store = (host, int(port)) if host and port else None
    _state.rendezvous = Rendezvous(mesh_store, _state.connections.endpoints, _state.hush)
    c10d.when_imported(functools.partial(_patch, _state.rendezvous))


def begin_run(number: int) -> None:
    """What makes a group from now on belongs to this run. On the main thread."""
    _state.run = number
    held_groups.free_unused()


def in_use() -> bool:
    """Return whether this rank has a default group, or is making one."""
    return _state.connections.is_making or c10d.default_group() is not None


def collective(frame: FrameType) -> str | None:
    """Return what a thread waits for: "all_reduce", "recv", "init_process_group", "new_group", "store wait", …

    "wait" is `work.wait()` of an asynchronous operation. "backward" is also said while it only computes. What C++ code
    is called by C++ code is not seen.

    Args:
        frame: the thread's innermost Python frame.
    """
    name = collectives.collective(frame)
    return None if name in ("backward", "wait") and not in_use() else name


def break_groups(reason: str, last_run: int = 0, *, prepare: Callable[[], None] = lambda: None) -> bool:
    """Make whatever waits for peers or the store fail soon. Call it from any thread but the one that hangs.

    It is done in 0.03 s when nothing moves; a transfer gets up to 5 s to come to its end, without holding up the
    caller. A second call does no harm.

    Args:
        reason: shown to the user: "interrupted", or a clause such as "rank 3 was restarted".
        last_run: spare groups that runs after this one made; 0 spares none.
        prepare: called before anything is broken, if something is.

    Returns:
        Whether there was anything to break.
    """
    main = _main_frame()
    where = collective(main) if main is not None else None
    with _state.connections.lock:
        if last_run and _state.made_in > last_run:
            return False
        if not in_use() and not _state.connections.all():
            if _state.forgotten is not None:  # its connection to the store was broken as well
                _state.forgotten = _Break(reason)  # as its peers call it
            return False
        prepare()
        _state.broken = _state.broken or _Break(reason, where)
        _state.hush.begin()
        breaker = _state.breaker
        if breaker is None or not breaker.is_alive() or breaker.cause is not _state.broken:
            breaker = _state.breaker = _Breaker(_state.broken)
            breaker.start()
    breaker.swept.wait(_BREAK_WAIT_S)
    return True


def forget_groups() -> None:
    """Clear all that torch knows of groups that were broken, here or by a peer. Call it from the main thread.

    Does nothing when no group is broken, or when user code has made a new one since. Never raises, and ends in
    seconds whatever the groups do.
    """
    if _state.broken is None and not _is_left():
        return
    _state.hush.begin()
    with _state.connections.lock:
        _state.forgotten, _state.broken = _state.broken or _Break(), None
        _state.connections.shut_down(stores=False)
    _drop_groups()
    _state.hush.end()


def is_broken(wait_s: float = 0) -> bool:
    """Return whether the default group is broken: here, or by a peer.

    Args:
        wait_s: look again for so long, for peers that are being interrupted at this moment.
    """
    return _state.broken is not None or _is_left(wait_s)


def keeps_books(frames: Iterable[FrameType]) -> bool:
    """Return whether a thread is in our own code that notes what groups there are: an exception would spoil it.

    Args:
        frames: the thread's, innermost first.
    """
    for each in frames:
        path = each.f_code.co_filename
        if path in _BOOKKEEPING:
            return True
        is_standard = path.startswith(("<frozen ", _STANDARD_LIBRARY)) and "-packages" not in path
        if not is_standard:
            break
    return False


def readable(error: BaseException) -> ProcessGroupAborted | None:
    """Return a short error in place of one that a broken group caused, or None when `error` is something else.

    A group is also broken by a peer: one that was interrupted a moment before this rank, or died.

    Args:
        error: what user code raised, with its traceback.
    """
    if isinstance(error, ProcessGroupAborted):
        return error
    if isinstance(error, KeyboardInterrupt) and _state.broken is not None:
        return _state.broken.error(error)
    if isinstance(error, ValueError):
        return _explain_missing_group(str(error))
    if not collectives.is_group_error(error):
        return None
    if _state.broken is not None:
        return _state.broken.error(error)
    if not collectives.is_lost_connection(error):
        return None
    if _state.forgotten is not None:
        return _state.forgotten.error(error)
    is_new = collectives.collective_of(error) in ("init_process_group", "new_group")
    if is_new or _state.connections.lost_peers(_CLOSE_WAIT_S):
        return _Break("a peer was interrupted or died").error(error)
    if _state.dropped and collectives.in_wrapped_model(error):
        return ProcessGroupAborted(
            "this model's process group was aborted: wrap the model in DistributedDataParallel again"
        )
    return None


def _explain_missing_group(text: str) -> ProcessGroupAborted | None:
    if "process group has not been initialized" in text and _state.forgotten is not None:
        return _state.forgotten.error()
    if "not initialized in the world group map" in text and _state.dropped:
        return ProcessGroupAborted("this process group was aborted: make it again with `dist.new_group()`")
    return None


def _drop_groups() -> None:
    _state.connections.forget_default()
    if _state.rendezvous is not None:
        c10d.run_bounded(_state.rendezvous.leave, _LEAVE_WAIT_S)
    groups = c10d.clear_books()
    _state.dropped.update(groups)
    c10d.release(groups)


class _Breaker(threading.Thread):
    """Shuts connections down until the main thread is free, or has gone on to something else.

    The store's comes last: the next group can use it again, and it may be all that a group that is being made has.

    Attributes:
        swept: set when all connections to peers have been shut down.
    """

    def __init__(self, cause: _Break) -> None:
        super().__init__(name="monarch_nb-break", daemon=True)
        self.cause, self._place = cause, _place()
        self.swept = threading.Event()

    def run(self) -> None:
        if _state.rendezvous is not None:
            c10d.run_bounded(_state.rendezvous.leave, _SWEEP_S)
        c10d.abort_nccl()
        _state.connections.wait_for_standstill()
        deadline, stores = time.monotonic() + _FREE_WAIT_S, False
        while self._sweep(stores):
            # An init has moments without any connection, and connects more than once: stay until it has failed.
            if _state.connections.wait_until_made(_SWEEP_S):
                time.sleep(_SWEEP_S)  # what it takes to be woken, raise and leave
                if time.monotonic() > deadline or not self._is_needed():
                    return
                stores = True

    def _is_needed(self) -> bool:
        """Return whether the main thread is where it was, or in the next collective already."""
        frame = _main_frame()
        return _place() == self._place or (frame is not None and collective(frame) is not None)

    def _sweep(self, stores: bool) -> bool:
        """Shut down what there is now; return False when the groups that were to be broken are gone."""
        with _state.connections.lock:
            is_current = _state.broken is self.cause
            if is_current:
                _state.connections.shut_down(stores=stores or _state.connections.is_making)
        self.swept.set()
        return is_current


def _place() -> tuple[int, int]:
    """Return where the main thread is: the same again when it has not moved."""
    frame = _main_frame()
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _raise_if_broken() -> None:
    """Do not begin to make a group, or return one, when groups were broken at a moment that torch did not notice."""
    if _state.broken is not None:
        raise _state.broken.error()


def _note_interrupt() -> None:
    """Python code that makes or destroys a group was interrupted: ranks differ now in what they have done of it."""
    _state.broken = _state.broken or _Break("interrupted")


# ---- what users call


def _patch(rendezvous: Rendezvous, module: Any) -> None:
    held_groups.install()
    c10d.replace(module.init_process_group, _wrap_init(rendezvous, module))
    c10d.replace(module.destroy_process_group, _wrap_destroy(module))
    module._new_process_group_helper = _wrap_helper(module._new_process_group_helper)
    handlers: Any = sys.modules["torch.distributed.rendezvous"]
    handlers._rendezvous_handlers["env"] = functools.partial(_meet, rendezvous)
    handlers._create_c10d_store = functools.partial(_make_store, handlers._create_c10d_store)


def _meet(rendezvous: Rendezvous, url: str, **options: Any) -> Iterator[Any]:
    with _state.connections.making():
        triple = rendezvous(url, **options)
    yield triple
    raise RuntimeError("Unable to perform re-rendezvous using env:// method")


def _make_store(make: Any, host: str, port: int, rank: int, world_size: int, timeout: timedelta, *options: Any) -> Any:
    """What `tcp://` does: rank 0 hosts a store, the others connect to it."""
    if rank == 0:
        # To its own, wherever the address leads; and for a world of one, because it would wait for the others here,
        # where it can not be freed, and waits for them again when the group is made.
        return make(_LOOPBACK, port, rank, 1, timeout, *options)

    def attempt(within: timedelta) -> Any:
        return make(host, port, rank, world_size, within, *options)

    return connect(attempt, f"{host}:{port}", timeout, _state.hush)


def _wrap_helper(helper: Callable[..., Any]) -> Callable[..., Any]:
    """The function of torch's that makes every group."""

    @functools.wraps(helper)
    def wrapper(group_size: int, *args: Any, **kwargs: Any) -> Any:
        _raise_if_broken()
        try:
            with _state.connections.making(group_size):
                made = helper(group_size, *args, **kwargs)
        except KeyboardInterrupt:
            _note_interrupt()
            raise
        _raise_if_broken()
        return made

    return wrapper


def _wrap_init(rendezvous: Rendezvous, module: Any) -> Callable[..., None]:
    init: Callable[..., None] = module.init_process_group
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        wanted = signature.bind(*args, **kwargs).arguments
        if c10d.default_group() is not None:
            if _state.broken is None and not _is_left():
                if _is_same_group(module, wanted):
                    _say_kept(module)
                    return
                init(*args, **kwargs)  # raises
            forget_groups()
        _state.made_in = _state.run  # first: a break of older groups that comes between these two must not last
        _state.broken = None
        _state.hush.end()
        _state.connections.endpoints |= _endpoints(wanted)
        rendezvous.forget()
        hook = sys.excepthook
        try:
            with _state.connections.making_default():
                init(*args, **kwargs)
            _raise_if_broken()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                _note_interrupt()
            _drop_groups()
            raise
        finally:
            sys.excepthook = hook  # torch adds a layer of "[rank0]:" at every init
        _state.forgotten = None

    return init_process_group


def _is_left(wait_s: float = 0) -> bool:
    """Return whether a peer has left the default group: then it is of no use to anyone."""
    if c10d.default_group() is None or _state.rendezvous is None:
        return False
    return _state.connections.lost_peers(wait_s) or _state.rendezvous.was_left()


def _is_same_group(module: Any, wanted: dict[str, Any]) -> bool:
    """Return whether an init asks for what there is, as that of a cell that is run again."""
    backend, world_size = wanted.get("backend"), wanted.get("world_size", -1)
    return (backend is None or backend.lower() == module.get_backend()) and world_size in (-1, module.get_world_size())


def _say_kept(module: Any) -> None:
    text = f"keeping the process group of {module.get_world_size()} ranks"
    sys.stderr.write(f"{text} (for a new one, call dist.destroy_process_group() first)\n")


def _endpoints(wanted: dict[str, Any]) -> set[Endpoint]:
    """Return where the store listens that an init was told to use."""
    url = urlparse(wanted.get("init_method") or "")
    if url.scheme == "tcp" and url.hostname and url.port:
        return resolve(url.hostname, url.port) | resolve(_LOOPBACK, url.port)
    store: Any = wanted.get("store")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return resolve(store.host, store.port) if hasattr(store, "host") and hasattr(store, "port") else set()


def _wrap_destroy(module: Any) -> Callable[..., None]:
    destroy: Callable[..., None] = module.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if _state.broken is not None:
            forget_groups()
        if group is None:
            is_gone = c10d.default_group() is None and _state.forgotten is not None
        else:
            is_gone = group in _state.dropped
        try:
            if not is_gone:
                if _state.rendezvous is not None and group in (None, c10d.default_group()):
                    _state.rendezvous.leave()  # connections end when it is freed, later: peers would keep it till then
                destroy(group)
        except KeyboardInterrupt:
            _note_interrupt()
            raise
        if c10d.default_group() is None:
            _state.connections.forget_default()

    return destroy_process_group

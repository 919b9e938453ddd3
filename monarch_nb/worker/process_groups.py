"""torch.distributed for ranks that live long: groups that can be broken from outside, forgotten and made again.

A collective that hangs in C++ does not see SIGINT. `break_groups` frees it from the control thread by shutting down
the connections that it waits on (Gloo, the store) or aborting its communicator (NCCL); `forget_groups` then clears
what torch remembers, so that the next `dist.init_process_group()` makes a clean group. Nothing in memory is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.abc
import importlib.machinery
import os
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from monarch_nb.errors import ProcessGroupAborted
from monarch_nb.worker import collectives, connections
from monarch_nb.worker.rendezvous import Rendezvous

__all__ = ["break_groups", "collective", "forget_groups", "in_use", "install", "readable"]

_C10D = "torch.distributed.distributed_c10d"
_INIT_WAIT_S = 2.0
_SWEEP_S = 0.02
_NCCL_ABORT_WAIT_S = 5.0
_RELEASE_WAIT_S = 2.0
_DESCRIPTORS = 1 << 16
_LOG_FATAL = 3
_WRAP_AGAIN = "wrap the model in DistributedDataParallel again"
_CALL_AGAIN = "call `dist.init_process_group()` again"


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
            text += f" ({self.reason})"
        text += f"; process group aborted, {_CALL_AGAIN}"
        if cause is not None and collectives.in_wrapped_model(cause):
            text += f" and {_WRAP_AGAIN}"
        return ProcessGroupAborted(text, collective=where, reason=self.reason)


@dataclass
class _State:
    """What this process knows of its groups.

    Attributes:
        rendezvous: the handler of env://; None before `install`.
        lock: held while connections are shut down, and while an init begins.
        windows: how many inits (of groups, nested) are in progress.
        inits: how many there have been, nested ones not counted.
        quiet: set while no init is in progress.
        others: listeners of loops like Gloo's that existed before the init in progress.
        group_size: of the group that is being made.
        gloo: listeners of all groups' loops.
        whole: listeners of the default group's loops, with the number of connections that each had at first.
        broken: why the groups were broken; None while they are whole.
        forgotten: why the last groups were forgotten; None once new ones were made.
        dropped: the groups that were forgotten.
        log_level: of torch's C++ code, while it is silenced.
    """

    rendezvous: Rendezvous | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    windows: int = 0
    inits: int = 0
    quiet: threading.Event = field(default_factory=threading.Event)
    others: frozenset[int] = frozenset()
    group_size: int = 0
    gloo: frozenset[int] = frozenset()
    whole: dict[int, int] = field(default_factory=dict)
    broken: _Break | None = None
    forgotten: _Break | None = None
    dropped: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    log_level: int | None = None


_state = _State()


def install() -> None:
    """Prepare torch.distributed, now or when it is imported. Call once, in the rank, with its environment set."""
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    # A destroyed group that a model still refers to keeps its descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _DESCRIPTORS), most))
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    _state.rendezvous = Rendezvous((host, int(port)) if host and port else None)
    _state.quiet.set()
    if c10d := sys.modules.get(_C10D):
        _patch(c10d)
    else:
        sys.meta_path.insert(0, _AfterImport())


def in_use() -> bool:
    """Return whether this rank has a default group, or is making one."""
    return _state.windows > 0 or _default_group() is not None


def collective(frame: FrameType) -> str | None:
    """Return what a thread waits for: "all_reduce", "recv", "init_process_group", "new_group", "store wait", …

    "wait" is `work.wait()` of an asynchronous operation. "backward" is also said while it only computes. What C++ code
    is called by C++ code is not seen.

    Args:
        frame: the thread's innermost Python frame.
    """
    name = collectives.collective(frame)
    return None if name in ("backward", "wait") and not in_use() else name


def break_groups(reason: str) -> bool:
    """Make whatever waits for peers or the store fail at once. Call it from any thread but the one that hangs.

    For NCCL, make SIGINT pending before, so that the cell can not go on with undefined data.

    Args:
        reason: shown to the user: "interrupted", or a clause such as "rank 3 was restarted".

    Returns:
        Whether there was anything to break.
    """
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    where = collective(main) if main is not None else None
    with _state.lock:
        had_group, init = in_use(), _state.inits
        if had_group:
            _state.broken = _Break(reason, where)
            _hush()
        count = _shut_down_connections()
    count += _abort_nccl()
    deadline = time.monotonic() + _INIT_WAIT_S
    while not _state.quiet.wait(_SWEEP_S) and time.monotonic() < deadline:
        # An init goes through moments without any connection to shut down: stay until it has failed.
        with _state.lock:
            if _state.inits != init:
                break  # it has failed, and this is the next
            count += _shut_down_connections()
    return had_group or count > 0


def forget_groups() -> None:
    """Clear all that torch knows of groups that were broken, here or by a peer. Call it from the main thread.

    Does nothing when no group is broken, or when user code has made a new one since. Never raises. Old groups are
    released in a thread of their own, so that one that hangs does not hold up the rank.
    """
    if _state.broken is None and not _lost_peers():
        return
    _state.forgotten, _state.broken = _state.broken or _Break(), None
    with _state.lock:
        _shut_down_connections()
    groups = _clear(sys.modules[_C10D])
    for group in groups:
        _state.dropped.add(group)
    _run_bounded(functools.partial(_release, groups), _RELEASE_WAIT_S)
    _speak()


def readable(error: BaseException) -> BaseException | None:
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
    if _lost_peers():
        return _Break("a peer was interrupted or died").error(error)
    if _state.dropped and collectives.in_wrapped_model(error):
        return ProcessGroupAborted(f"this model's process group was aborted: {_WRAP_AGAIN}")
    return None


def _explain_missing_group(text: str) -> ProcessGroupAborted | None:
    if "process group has not been initialized" in text and _state.forgotten is not None:
        return _state.forgotten.error()
    if "not initialized in the world group map" in text and _state.dropped:
        return ProcessGroupAborted("this process group was aborted: make it again with `dist.new_group()`")
    return None


# ---- connections and communicators


def _group_loops() -> list[connections.GlooLoop]:
    """The Gloo loops of process groups, also of one that is being made."""
    return [loop for loop in connections.gloo_loops() if loop.listener in _state.gloo or _is_being_made(loop)]


def _is_being_made(loop: connections.GlooLoop) -> bool:
    return _state.windows > 0 and loop.listener not in _state.gloo | _state.others


def _shut_down_connections() -> int:
    endpoints = set()
    for host, port in _state.rendezvous.endpoints if _state.rendezvous else ():
        endpoints |= connections.resolve(host, port)
    count = connections.shut_down(connections.connections_to(endpoints))
    for loop in _group_loops():
        count += connections.shut_down(loop.connections)
        if _is_being_made(loop):
            connections.knock(loop, _state.group_size)
    return count


def _abort_nccl() -> int:
    """Abort every NCCL communicator, as torch's `_abort_process_group` does, but leave torch's books alone."""
    c10d: Any = sys.modules.get(_C10D)
    if c10d is None or not c10d.is_nccl_available():
        return 0
    import torch

    backends = []
    for group in sorted(c10d._world.pg_names, key=lambda group: c10d._world.pg_names[group], reverse=True):
        with contextlib.suppress(RuntimeError):  # no backend for CUDA
            if isinstance(backend := group._get_backend(torch.device("cuda")), c10d.ProcessGroupNCCL):
                backends.append(backend)

    def abort() -> None:
        backends[0]._group_start()
        for backend in backends:
            backend.abort()
        backends[0]._group_end()

    if backends:
        _run_bounded(abort, _NCCL_ABORT_WAIT_S)
    return len(backends)


def _lost_peers() -> bool:
    """Whether a peer has left the default group: then it is of no use to anyone."""
    now = {loop.listener: len(loop.connections) for loop in _group_loops()}
    return any(now.get(listener, 0) < count for listener, count in _state.whole.items())


def _hush() -> None:
    """Keep torch's C++ code from writing pages of stack to stderr about the connections that are shut down."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a build with other symbols: noisy, no harm
        level = _log_level()
        if _state.log_level is None:
            _state.log_level = level.value
        level.value = _LOG_FATAL


def _speak() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if _state.log_level is not None:
            _log_level().value = _state.log_level
            _state.log_level = None


def _log_level() -> ctypes.c_int:
    library = Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libc10.so"
    return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")


# ---- torch's books


def _default_group() -> Any:
    c10d: Any = sys.modules.get(_C10D)
    return c10d._world.default_pg if c10d is not None and hasattr(c10d, "_world") else None


def _clear(c10d: Any) -> list[Any]:
    """Empty torch's books as its `destroy_process_group` does; return the groups that were in them."""
    world = c10d._world
    groups = list(world.pg_names)
    c10d._update_default_pg(None)
    for book in (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.tags_to_pg,
        world.pg_coalesce_state,
    ):
        book.clear()
    c10d._unregister_all_process_groups()
    # Differs between ranks after an init that failed; then the next group would wait under different names.
    world.group_count = 0
    _state.whole = {}
    return groups


def _release(groups: list[Any]) -> None:
    while groups:
        with contextlib.suppress(Exception):
            groups.pop().shutdown()


def _run_bounded(action: Callable[[], None], wait_s: float) -> None:
    thread = threading.Thread(target=action, name="monarch_nb-groups", daemon=True)
    thread.start()
    thread.join(wait_s)


# ---- patches


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Patches distributed_c10d when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _C10D:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            self._loader = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _patch(module)


def _patch(c10d: Any) -> None:
    package: Any = sys.modules["torch.distributed"]
    for name, wrap in (("init_process_group", _wrap_init), ("destroy_process_group", _wrap_destroy)):
        wrapped = wrap(c10d, getattr(c10d, name))
        setattr(c10d, name, wrapped)
        setattr(package, name, wrapped)
    c10d._new_process_group_helper = _wrap_helper(c10d._new_process_group_helper)
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["env"] = _env_handler


def _env_handler(url: str, **options: Any) -> Iterator[Any]:
    assert _state.rendezvous is not None
    with _window():
        triple = next(_state.rendezvous(url, **options))
    yield triple
    raise RuntimeError("Unable to perform re-rendezvous using env:// method")


def _wrap_helper(helper: Callable[..., Any]) -> Callable[..., Any]:
    """The function that makes every group: only connections that appear while it runs can belong to one."""

    @functools.wraps(helper)
    def wrapper(group_size: int, *args: Any, **kwargs: Any) -> Any:
        _state.group_size = group_size
        with _window():
            return helper(group_size, *args, **kwargs)

    return wrapper


def _wrap_init(c10d: Any, init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if _default_group() is not None:
            if _state.broken is None and not _lost_peers():
                _keep_or_raise(c10d, init, args, kwargs)
                return
            forget_groups()
        _state.broken = None
        hook = sys.excepthook
        try:
            with _window():
                init(*args, **kwargs)
                loops = [loop for loop in connections.gloo_loops() if _is_being_made(loop)]
        except BaseException:
            _release(_clear(c10d))
            raise
        finally:
            sys.excepthook = hook  # torch adds a layer of "[rank0]:" at every init
        _state.whole = {loop.listener: len(loop.connections) for loop in loops}
        _state.forgotten = None

    return init_process_group


def _keep_or_raise(c10d: Any, init: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep a healthy group when the same init runs again, as a cell does that is run again."""
    backend = kwargs.get("backend", args[0] if args else None)
    world_size = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
    if backend not in (None, c10d.get_backend()) or world_size not in (-1, c10d.get_world_size()):
        init(*args, **kwargs)  # raises
    text = f"keeping the process group of {c10d.get_world_size()} ranks"
    sys.stderr.write(f"{text} (for a new one, call dist.destroy_process_group() first)\n")


def _wrap_destroy(c10d: Any, destroy: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if _state.broken is not None:
            forget_groups()
        gone = _default_group() is None and _state.forgotten is not None if group is None else group in _state.dropped
        if not gone:
            destroy(group)
        if _default_group() is None:
            _state.whole = {}

    return destroy_process_group


@contextlib.contextmanager
def _window() -> Iterator[None]:
    """While it is open, new Gloo loops belong to process groups."""
    with _state.lock:
        if _state.windows == 0:
            _state.others = frozenset(loop.listener for loop in connections.gloo_loops()) - _state.gloo
            _state.inits += 1
            _state.quiet.clear()
        _state.windows += 1
    try:
        yield
        if _state.broken is not None:  # at a moment that torch did not notice
            raise _state.broken.error()
    finally:
        if _state.windows == 1:
            _state.gloo = frozenset(loop.listener for loop in _group_loops())
        _state.windows -= 1
        if _state.windows == 0:
            _state.quiet.set()

"""What is done to the insides of torch.distributed: all that depends on its private names, which torch may change; what
its flight recorders have written down; and when a group may be freed.

None of these functions imports torch; where it is not imported there is nothing to do.

A group may never be freed while that could hang. The destructor of a Gloo group waits for its operations and joins its
threads. It must not run where that can not end:

- **The interpreter's lock (GIL) is held meanwhile.** One of those threads may be freeing the last all-reduce, and with
  it Python objects that autograd's thread-local state copies into every operation: that needs the lock
  (https://github.com/pytorch/pytorch/issues/56297). Where a Python object is the last to refer to a group, torch
  releases the lock first (since 2.9: pytorch/pytorch#154976). But DistributedDataParallel's C++ reducer refers to it
  too, and after `destroy_process_group()` the model is freed last. So the group's Python object is held here until the
  reducer is gone, however and wherever that is freed.
- **It is one of those threads.** It frees what a communication hook of DDP's was given, and PowerSGD's state refers to
  the group: a thread that joins itself aborts the process. So every group is held here until no Python object refers to
  it any more, and freed by a thread of ours, when the next group is made or the next run begins.
- **The process is a forked child**, as a DataLoader's worker, which has none of these threads. There a group may be
  freed by the garbage collector, with a model that was part of a cycle. So a child holds what it inherits for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from monarch_nb.config import patience
from monarch_nb.worker.imports import after_import

MODULE = "torch.distributed.distributed_c10d"
_ABORT_WAIT_S = patience(5.0)
_RELEASE_WAIT_S = patience(2.0)
_LOG_FATAL = 3

_holders: dict[str, list[ModuleType]] = {}


def when_imported(patch: Callable[[Any], None]) -> None:
    """Call `patch` with distributed_c10d: now if it is imported, else when it is."""
    after_import(MODULE, patch)


def replace(function: Callable[..., Any], by: Callable[..., Any]) -> None:
    """Replace a function in all modules of torch.distributed that have imported it."""
    for module in _holders.get(function.__name__) or _find_holders(function):
        setattr(module, function.__name__, by)


def find_holders(names: Sequence[str]) -> None:
    """In the template: find the modules in which ranks will replace these functions of distributed_c10d.

    Looking for them touches every module that is imported; in a forked rank that would copy thousands of pages.
    """
    if module := sys.modules.get(MODULE):
        for name in names:
            _holders[name] = _find_holders(getattr(module, name))


def _find_holders(function: Callable[..., Any]) -> list[ModuleType]:
    modules = [module for path, module in list(sys.modules.items()) if path.startswith("torch.distributed")]
    return [module for module in modules if vars(module).get(function.__name__) is function]


def default_group() -> Any:
    """Return the default group, or None."""
    c10d: Any = sys.modules.get(MODULE)
    return c10d._world.default_pg if c10d is not None and hasattr(c10d, "_world") else None


@dataclass(frozen=True)
class Group:
    """A process group of this rank.

    Attributes:
        own: torch's object. name, description: torch's.
        ranks: of the world. is_default: it is that of `init_process_group()`.
    """

    own: Any
    name: str
    description: str
    ranks: tuple[int, ...]
    is_default: bool


def groups() -> list[Group]:
    """Return the groups that this rank is in."""
    c10d: Any = sys.modules.get(MODULE)
    if c10d is None or not hasattr(c10d, "_world"):
        return []
    return [group for each in list(c10d._world.pg_names) if (group := known_group(each)) is not None]


def known_group(own: Any) -> Group | None:
    """Return what is known of one of torch's groups, None of the default one; None when there is no such group."""
    c10d: Any = sys.modules[MODULE]
    world = c10d._world
    own = world.default_pg if own is None else own
    name, ranks = world.pg_names.get(own), world.pg_group_ranks.get(own)
    if name is None or ranks is None:
        return None
    return Group(own, name, str(getattr(own, "group_desc", "")), tuple(sorted(ranks)), own is world.default_pg)


def count_of_calls(group: Group) -> int | None:
    """Return how many calls a group has numbered here; None where it does not number them."""
    backends: list[Any] = []
    for device in getattr(group.own, "_device_types", ()):
        with contextlib.suppress(RuntimeError):  # no backend for it
            backend = group.own._get_backend(device)
            if all(backend is not other for other in backends):
                backends.append(backend)
    with contextlib.suppress(RuntimeError, AttributeError):
        return sum(backend._get_sequence_number_for_group() for backend in backends) if backends else None
    return None


def wait_for_peers(made: Mapping[str, Any]) -> None:
    """Wait until all ranks have made the default group, as they have: a rank that ends sooner, or destroys it, closes
    connections that a slower one is still making, and Gloo fails there. Ranks come and go in milliseconds here; under
    torchrun it takes a process longer to end than its peers to connect.

    Args:
        made: what `_new_process_group_helper` was called with.
    """
    c10d: Any = sys.modules[MODULE]
    backend, size = str(made["backend"]).lower(), made["group_size"]
    if size > 1 and ("gloo" in backend or backend == "undefined"):  # NCCL connects later; Gloo is among the defaults
        timeout = made.get("timeout") or c10d.default_pg_timeout
        c10d._store_based_barrier(made["group_rank"], made["store"], made["group_name"], size, timeout)


def clear_books() -> list[Any]:
    """Empty torch's books of groups, as its `destroy_process_group` does; return the groups that were in them."""
    c10d: Any = sys.modules.get(MODULE)
    if c10d is None:
        return []
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
    return groups


def release(groups: list[Any]) -> None:
    """Shut groups down and empty the list, in a thread of its own: one that hangs does not hold up the rank."""
    run_bounded(functools.partial(_shut_down, groups), _RELEASE_WAIT_S)


def uses_nccl() -> bool:
    """Return whether a group is one of NCCL, and the process uses a GPU."""
    module: Any = sys.modules.get(MODULE)
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if module is None or cuda is None or not cuda.is_initialized():
        return False
    return any("nccl" in str(backends) for backends in module._world.pg_backend_config.values())


def abort_nccl() -> None:
    """Abort every NCCL communicator, as torch's `_abort_process_group` does, but leave the books alone."""
    c10d: Any = sys.modules.get(MODULE)
    if c10d is None or not c10d.is_nccl_available():
        return
    device = sys.modules["torch"].device("cuda")
    backends = []
    names = c10d._world.pg_names
    for group in sorted(names, key=names.__getitem__, reverse=True):
        with contextlib.suppress(RuntimeError):  # no backend for CUDA
            backend = group._get_backend(device)
            backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            if isinstance(backend, c10d.ProcessGroupNCCL):
                backends.append(backend)

    def abort() -> None:
        backends[0]._group_start()  # else their aborts wait for each other
        for backend in backends:
            backend.abort()
        backends[0]._group_end()

    if backends:
        run_bounded(abort, _ABORT_WAIT_S)


def run_bounded(action: Callable[[], None], wait_s: float) -> None:
    """Do `action` in a thread of its own, and wait at most `wait_s` for its end."""
    thread = threading.Thread(target=action, name="monarch_nb-groups", daemon=True)
    thread.start()
    thread.join(wait_s)


class Hush:
    """Keeps torch's C++ code from writing pages of stack to stderr about connections that are shut down.

    From `begin` to `end`, and in a `with` statement; these may overlap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._level: int | None = None
        self._held = False
        self._depth = 0

    def begin(self) -> None:
        """Log only what is fatal."""
        self._change(held=True)

    def end(self) -> None:
        """Log as before."""
        self._change(held=False)

    def __enter__(self) -> None:
        self._change(deeper=1)

    def __exit__(self, *_: object) -> None:
        self._change(deeper=-1)

    def _change(self, *, held: bool | None = None, deeper: int = 0) -> None:
        with self._lock:
            self._held = self._held if held is None else held
            self._depth += deeper
            silent, variable = self._held or self._depth > 0, _log_level()
            if variable is None:
                return
            if silent and self._level is None:
                self._level, variable.value = variable.value, _LOG_FATAL
            elif not silent and self._level is not None:
                variable.value, self._level = self._level, None


def _log_level() -> ctypes.c_int | None:
    """Return the C++ variable, or None in a build of torch that has no such name: noisier, but no harm."""
    torch = sys.modules.get("torch")
    library = Path(torch.__file__ or "").parent / "lib" / "libc10.so" if torch is not None else Path()
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


def _shut_down(groups: list[Any]) -> None:
    while groups:
        with contextlib.suppress(RuntimeError):  # it is broken
            groups.pop().shutdown()


_C_MODULE = "torch._C._distributed_c10d"


_first_record = 0
"""The first record of NCCL that is of today's groups."""


def recorded() -> list[dict[str, Any]]:
    """Return all that is written down; nothing where the recorders are off, or are not in this torch."""
    return [*_dumped("_dump_nccl_trace_json"), *_dumped("_dump_fr_trace_json")]


def open_on_gpu() -> list[dict[str, Any]]:
    """Return NCCL's calls in today's groups that are not over on the GPU."""
    return [each for each in _open_records() if each.get("record_id", 0) >= _first_record]


def begin_records() -> None:
    """A default group is about to be made. What is open now is of others: a call of an aborted group stays open."""
    global _first_record
    _first_record = 1 + max((int(each.get("record_id", -1)) for each in _open_records()), default=-1)


def _open_records() -> list[dict[str, Any]]:
    return _dumped("_dump_nccl_trace_json", includeCollectives=True, onlyActive=True)


def _dumped(function: str, **options: bool) -> list[dict[str, Any]]:
    dump = getattr(sys.modules.get(_C_MODULE), function, None)
    if dump is None:
        return []
    with contextlib.suppress(RuntimeError, TypeError, ValueError):
        entries: list[dict[str, Any]] = json.loads(dump(**options)).get("entries", [])
        return entries
    return []


_MENDED = "2.14"
"""The first torch that releases the lock there too; docs/internals/groups.md says which ones were tried."""

_freeing = threading.Lock()
_groups: list[Any] = []
"""All that there are, but for what was freed."""
_OWN = 2
"""References to a group that nobody else refers to: the list's, and that of the call which counts them."""
_FREE_WAIT_S = patience(2.0)
_inherited: list[Any] = []
"""From the process that forked this one: never freed."""
_held: dict[weakref.ref[Any], Any] = {}
"""What is held for whom. Weak references to C++ objects are told after the destructor, unlike those to Python's own."""


def hold_groups() -> None:
    """Hold groups from now on. Call once, when torch.distributed was imported."""
    torch_c10d: Any = sys.modules["torch._C._distributed_c10d"]
    torch_c10d.ProcessGroup.__init__ = _noting(torch_c10d.ProcessGroup.__init__)
    os.register_at_fork(after_in_child=lambda: _inherited.extend(_groups))
    if sys.modules["torch"].__version__ < _MENDED:
        torch_c10d.Reducer.__init__ = _holding(torch_c10d.ProcessGroup, torch_c10d.Reducer.__init__)
        torch_c10d.Reducer._update_process_group = _holding(
            torch_c10d.ProcessGroup, torch_c10d.Reducer._update_process_group
        )
        torch_c10d.Logger.__init__ = _holding(torch_c10d.Reducer, torch_c10d.Logger.__init__)  # it owns the reducer too


def free_unused() -> None:
    """Free the groups that nobody refers to any more. Between runs or before a group is made; nothing happens when
    another thread does it already."""
    if not _freeing.acquire(blocking=False):
        return
    try:
        unused = [_groups.pop(at) for at in reversed(range(len(_groups))) if sys.getrefcount(_groups[at]) == _OWN]
    finally:
        _freeing.release()
    if unused:
        run_bounded(unused.clear, _FREE_WAIT_S)


def _noting(initialise: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialise)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        free_unused()
        initialise(self, *args, **kwargs)
        _groups.append(self)

    return wrapper


def _holding(kind: type, method: Callable[..., None]) -> Callable[..., None]:
    """Return a method whose object holds the argument of this kind until it is freed, or is given another one."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, kind):
                _held[weakref.ref(self, _held.pop)] = argument

    return wrapper

"""When a process group may be freed: never while that could hang.

The destructor of a Gloo group waits for its operations and joins its threads. It must not run where that can not end:

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

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from monarch_nb.config import patience
from monarch_nb.worker.groups import c10d

_MENDED = "2.14"
"""The first torch that releases the lock there too; docs/internals/groups.md says which ones were tried."""

_freeing = threading.Lock()
_groups: list[Any] = []
"""All that there are, but for what was freed."""
_OURS = 2
"""References to a group that nobody else refers to: the list's, and that of the call which counts them."""
_FREE_WAIT_S = patience(2.0)
_inherited: list[Any] = []
"""From the process that forked this one: never freed."""
_held: dict[weakref.ref[Any], Any] = {}
"""What is held for whom. Weak references to C++ objects are told after the destructor, unlike those to Python's own."""


def install() -> None:
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
        unused = [_groups.pop(at) for at in reversed(range(len(_groups))) if sys.getrefcount(_groups[at]) == _OURS]
    finally:
        _freeing.release()
    if unused:
        c10d.run_bounded(unused.clear, _FREE_WAIT_S)


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

"""When a process group may be freed: never while that could hang.

The destructor of a Gloo group waits for its operations and joins its threads. Two things make that wait for ever:

- **The interpreter's lock (GIL) is held meanwhile.** One of those threads may be freeing the last all-reduce, and with
  it Python objects that autograd's thread-local state copies into every operation: that needs the lock
  (https://github.com/pytorch/pytorch/issues/56297). Where a Python object is the last to refer to a group, torch
  releases the lock first (since 2.9: pytorch/pytorch#154976). But DistributedDataParallel's C++ reducer refers to it
  too, and after `destroy_process_group()` the model is freed last. So the group's Python object is held here until the
  reducer is gone, however and wherever that is freed. There is nothing to wait for, and nothing is kept for longer.
- **The process is a forked child**, as a DataLoader's worker, which has none of these threads. There a group may be
  freed by the garbage collector, with a model that was part of a cycle. So a child holds what it inherits for ever.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

_MENDED = "2.14"
"""The first torch that releases the lock there too; docs/architecture.md says which ones were tried."""

_groups: weakref.WeakSet[Any] = weakref.WeakSet()
_held: dict[weakref.ref[Any], Any] = {}
"""What is held for whom. Weak references to C++ objects are told after the destructor, unlike those to Python's own."""
_inherited: list[Any] = []


def install() -> None:
    """Hold groups from now on. Call once, when torch.distributed was imported."""
    c10d: Any = sys.modules["torch._C._distributed_c10d"]
    c10d.ProcessGroup.__init__ = _noting(c10d.ProcessGroup.__init__)
    os.register_at_fork(after_in_child=_hold_inherited)
    if sys.modules["torch"].__version__ < _MENDED:
        c10d.Reducer.__init__ = _holding(c10d.ProcessGroup, c10d.Reducer.__init__)
        c10d.Reducer._update_process_group = _holding(c10d.ProcessGroup, c10d.Reducer._update_process_group)
        c10d.Logger.__init__ = _holding(c10d.Reducer, c10d.Logger.__init__)  # it owns the reducer too


def _noting(initialise: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialise)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        _groups.add(self)

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


def _hold_inherited() -> None:
    _inherited.extend(_groups)

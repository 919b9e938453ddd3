"""Recognise torch.distributed in stacks and errors, without importing torch."""

from __future__ import annotations

import dis
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

_SKIPPED_FILES = re.compile(r"/torch/distributed/c10d_logger\.py$|/monarch_nb/worker/[a-z0-9_/]+\.py$|/contextlib\.py$")
_PUBLIC_FILES = re.compile(r"/torch/distributed/(distributed_c10d|_functional_collectives|rendezvous)\.py$")
_NAMES = (
    (re.compile(r"/torch/distributed/distributed_c10d\.py$"), "_new_group_with_tag", "new_group"),
    (re.compile(r"/torch/autograd/graph\.py$"), "_engine_run_backward", "backward"),
    (re.compile(r"/torch/nn/parallel/distributed\.py$"), "__init__", "DistributedDataParallel"),
    (re.compile(r"/torch/nn/parallel/distributed\.py$"), "forward", "DistributedDataParallel.forward"),
)
_WRAPPED_GROUP = re.compile(r"/torch/(nn/parallel/distributed|autograd/graph)\.py$")
_LONGEST_CALL = 50
_STORE_METHODS = {"wait", "get", "multi_get", "queue_pop"}
_LOADS = {"LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_CLOSURE"}
_GROUP_ERROR = re.compile(
    r"gloo/|\bc10d\b|\bNCCL\b|TCPStore|Connection (closed|reset) by peer|Connection was likely closed|Broken pipe"
)
# Gloo only connects to peers that listen, or have: one that is refused by the store may have the wrong address.
_LOST_CONNECTION = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Gloo connectFullMesh failed.*Connection refused", re.DOTALL
)


def collective(frame: FrameType) -> str | None:
    """Return the collective that a thread is in, or None when it is in none that can be seen.

    Args:
        frame: the thread's innermost Python frame.

    Returns:
        "all_reduce", "recv", "barrier", "init_process_group", "new_group", …; "backward" (also while it computes);
        "wait" for `work.wait()`; "store wait".
    """
    return _innermost(_outwards(frame)) or _awaited(frame)


def glimpse(frame: FrameType, source_line: Callable[[CodeType, int], str]) -> str:
    """Return what `collective` does, or "", in microseconds: for who looks again and again while the thread goes on. It
    takes no values out of frames: a `wait()` that is C++ all the way is one for a collective.

    Args:
        frame: the thread's innermost Python frame.
        source_line: returns a line of the source of some code.
    """
    if name := _innermost(_outwards(frame)):
        return name
    code, number = frame.f_code, frame.f_lineno
    if "wait" not in code.co_names or number is None or ".wait(" not in source_line(code, number):
        return ""
    called = _call_at(code, frame.f_lasti)
    return "wait" if called is not None and called[0] == "wait" else ""


def is_group_error(error: BaseException) -> bool:
    """Return whether Gloo, NCCL or a store raised `error`, or what was raised while it was handled."""
    return any(
        isinstance(each, RuntimeError) and (_is_torchs(each) or _GROUP_ERROR.search(str(each)) is not None)
        for each in _chain(error)
    )


def is_lost_connection(error: BaseException) -> bool:
    """Return whether a group error says that a connection ended, not that a wait timed out."""
    return any(_LOST_CONNECTION.search(str(each)) for each in _chain(error))


def collective_of(error: BaseException) -> str | None:
    """Return the collective in which `error` was raised, or None when it was in none that can be seen."""
    for each in _chain(error):
        frames = list(traceback.walk_tb(each.__traceback__))
        if frames and (name := _innermost(frame for frame, _ in reversed(frames))):
            return name
    return None


def in_wrapped_model(error: BaseException) -> bool:
    """Return whether `error` was raised inside a DistributedDataParallel or in backward."""
    frames = (frame for each in _chain(error) for frame, _ in traceback.walk_tb(each.__traceback__))
    return any(_WRAPPED_GROUP.search(frame.f_code.co_filename) for frame in frames)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, and what it was raised from or while handling."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _is_torchs(error: RuntimeError) -> bool:
    kind = type(error)
    return kind.__module__.startswith("torch.") and kind.__name__.startswith("Dist")


def _innermost(frames: Iterable[FrameType]) -> str | None:
    """Return the outermost name among the innermost frames that are torch's, which come first."""
    found = None
    for frame in frames:
        name = _name(frame.f_code.co_filename, frame.f_code.co_name)
        if name is None:
            break
        found = name or found
    return found


@lru_cache(maxsize=4096)
def _name(path: str, function: str) -> str | None:
    """Return a collective's name for a function of torch, "" for one that is part of something else, None outside."""
    for file, private, name in _NAMES:
        if function == private and file.search(path):
            return name
    if _PUBLIC_FILES.search(path):
        return "" if function.startswith("_") or function == "rendezvous" else function
    return "" if "/torch/" in path or _SKIPPED_FILES.search(path) else None


def _awaited(frame: FrameType) -> str | None:
    """Recognise `work.wait()` and `store.get(key)`: they are C++ all the way, so the stack ends at their caller."""
    call = _method_called(frame)
    if call is None:
        return None
    method, receiver = call
    if receiver is None:
        return "wait" if method == "wait" else None
    kinds = {kind.__name__ for kind in type(receiver).__mro__ if kind.__module__.startswith("torch.")}
    if method == "wait" and kinds & {"Work", "Future"}:
        return "wait"
    return "store wait" if method in _STORE_METHODS and "Store" in kinds else None


def _method_called(frame: FrameType) -> tuple[str, Any] | None:
    """Return the name of the method that `frame` is calling, and its object when that is a name like `a` or `a.b`."""
    called = _call_at(frame.f_code, frame.f_lasti)
    if called is None:
        return None
    method, names = called
    if not names:
        return method, None
    value = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
    for name in names[1:]:
        value = getattr(value, "__dict__", {}).get(name)
    return method, value


@lru_cache(maxsize=32)
def _call_at(code: CodeType, position: int) -> tuple[str, list[str]] | None:
    """Return the name of the method that code calls, and the names that its object is reached by. A rank that hangs is
    asked again and again, and reading the code of a long function takes milliseconds."""
    steps = [step for step in dis.get_instructions(code) if step.offset <= position]
    if not steps or not steps[-1].opname.startswith("CALL"):
        return None
    start = _start(steps[-1])
    # All that makes up `a.b.method` begins where the call begins.
    chain = [step for step in steps[-_LONGEST_CALL:-1] if _start(step) == start]
    while chain and chain[-1].opname not in ("LOAD_METHOD", "LOAD_ATTR"):
        chain.pop()
    if start is None or not chain:
        return None
    method = str(chain.pop().argval)
    if not chain or chain[0].opname not in _LOADS or any(step.opname != "LOAD_ATTR" for step in chain[1:]):
        return method, []
    return method, [str(step.argval) for step in chain]


def _start(instruction: dis.Instruction) -> tuple[int, int] | None:
    position = instruction.positions
    if position is None or position.lineno is None or position.col_offset is None:
        return None
    return position.lineno, position.col_offset

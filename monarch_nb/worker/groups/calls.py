"""torch.distributed in stacks and errors: what a thread has called of it, with which tensors, in which group, and the
how many-th call that is. Without importing torch.

Nothing is patched: it is read from the frames of torch's functions, from the numbers that groups give their calls, and,
where no frame tells, from torch's flight recorder.
"""

from __future__ import annotations

import dis
import os
import re
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.user_code import error_chain, outwards

FILE = "torch/distributed/distributed_c10d.py"
_OPERANDS = ("tensor", "input_tensor", "input", "input_list", "input_tensor_list", "tensors", "tensor_list")
"""Arguments of torch's functions that must be alike on all ranks; the first that a function has."""
_MAY_DIFFER = re.compile("^all_to_all|_object|barrier")
_HAS_ONE_PEER = re.compile("i?send|i?recv")
_NCCLS_PEER = re.compile(r"(?P<name>send|recv) \d+(->|<-)(?P<peer>\d+)")
"""What NCCL calls a send or a receive in the flight recorder, with ranks of the group."""
_PUBLIC_NAMES = {"_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor"}
"""What the flight recorder calls some of torch's functions."""
_UNNAMED = ("", "undefined")
_TYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Byte": "uint8",
    "Char": "int8",
    "Bool": "bool",
}
"""What the flight recorder calls the types of tensors."""


_TOLD = {
    *("retired", "process_group", "record_id", "collective_seq_id"),
    *("profiling_name", "input_sizes", "input_dtypes"),
}
"""What is needed of an entry of the flight recorder, whose form torch may change."""


@dataclass(frozen=True)
class Call:
    """A collective, as one rank has called it.

    Attributes:
        collective: "all_reduce".
        operands: "float32[1024]"; empty when they are not known, or may differ.
        group: "the default group".
        peer: of a send or a receive, the other rank of the world; None where it is any, or not known.
    """

    collective: str
    operands: str = ""
    group: str = ""
    peer: int | None = None


class Calls:
    """Looks at calls, again and again. The flight recorder is asked only when a rank has stood still since the last
    look. Where a frame names a collective it is asked once: it writes down all that it knows."""

    def __init__(self) -> None:
        self._seen: object = None
        self._place: tuple[CodeType, int] | None = None
        self._recorded: Call | None = None
        self._is_asked = False

    def look(self, frames: Sequence[FrameType], collective: str) -> tuple[Call | None, Mapping[str, int]]:
        """Return what a thread waits in, and how many calls this rank has made in each of its groups.

        NCCL's calls return at once. The thread waits later, where it needs the result, and no frame names a collective
        there. What it waits for is then the oldest call that is not over on the GPU.

        Args:
            frames: the thread's, innermost first.
            collective: what it is in, as `collectives.collective` says; empty when no frame names one.
        """
        place = (frames[0].f_code, frames[0].f_lasti) if frames else None
        is_at_the_same_place, self._place = place == self._place, place
        named, counts, stands_still = self._count(executes=True)
        if not frames or not named:
            return None, counts
        if not collective:
            return _on_gpus(named, counts) if stands_still and is_at_the_same_place else (None, counts)
        call = of_frames(frames, collective)
        if call is None:
            self._ask(stands_still, lambda: of_record(c10d.recorded(), named))
        return call or self._recorded, counts

    def last(self) -> tuple[Call | None, Mapping[str, int]]:
        """Return the last call of a rank that executes nothing, and how many it has made in each of its groups. Gloo
        ends a call where enough bytes have come, whatever a peer has called."""
        named, counts, stands_still = self._count(executes=False)
        if named:
            self._ask(stands_still, lambda: last_of_record(c10d.recorded(), named))
        return self._recorded, counts

    def _count(self, *, executes: bool) -> tuple[Mapping[str, c10d.Group], Mapping[str, int], bool]:
        """Return the groups by name, how many calls were made in each, and whether it is as at the last look."""
        groups = c10d.groups()
        counts = {_named(group): count for group in groups if (count := c10d.count_of_calls(group)) is not None}
        # Another group may have the same name and as many calls. A reference to it would keep it from being freed.
        seen = ([weakref.ref(each.own) for each in groups], counts, executes)
        stands_still, self._seen = seen == self._seen, seen
        if not stands_still:
            self._recorded, self._is_asked = None, False
        return {each.name: each for each in groups}, counts, stands_still

    def _ask(self, stands_still: bool, find: Callable[[], Call | None]) -> None:
        if stands_still and not self._is_asked:
            self._recorded, self._is_asked = find(), True


def _on_gpus(groups: Mapping[str, c10d.Group], counts: Mapping[str, int]) -> tuple[Call | None, Mapping[str, int]]:
    """Return the oldest call that is not over on this rank's GPU. Of its group, calls after it do not count."""
    found = _open(c10d.open_on_gpu(), groups)
    if not found:
        return None, counts
    oldest = min(found, key=lambda each: int(each["record_id"]))
    call = _call(oldest, groups)
    if call.group not in counts:
        return call, counts
    numbers = [int(each["collective_seq_id"]) for each in found if each["process_group"] == oldest["process_group"]]
    later = max(numbers) - int(oldest["collective_seq_id"])
    return call, {**counts, call.group: counts[call.group] - later}


def world(frames: Iterable[FrameType]) -> tuple[int, int]:
    """Return how many ranks the default group has, or that which a thread waits to make, and this one's number there;
    zeros where there is none.

    Args:
        frames: the thread's.
    """
    group = c10d.default_group()
    if group is not None:
        return group.size(), group.rank()
    for frame in frames:
        if frame.f_code.co_name == "init_process_group" and frame.f_code.co_filename.endswith(FILE):
            names = frame.f_locals
            size, number = names.get("world_size", -1), names.get("rank", -1)
            if size == -1 and names.get("init_method") in (None, "env://"):
                size, number = (int(os.environ.get(name) or 0) for name in ("WORLD_SIZE", "RANK"))
            return (size, number) if size > 0 else (0, 0)
    return 0, 0


def of_frames(frames: Iterable[FrameType], collective: str) -> Call | None:
    """Return the call of a collective whose frame is among these; None when it is not."""
    for frame in frames:
        if frame.f_code.co_name == collective and frame.f_code.co_filename.endswith(FILE):
            names = frame.f_locals
            may_differ = _MAY_DIFFER.search(collective) is not None
            value = next((names[name] for name in _OPERANDS if name in names), None)
            group = c10d.known_group(names.get("group"))
            operands, name = "" if may_differ else _described(value), _named(group) if group else ""
            return Call(collective, operands, name, _peer(collective, names, group) if group else None)
    return None


def _peer(collective: str, names: Mapping[str, Any], group: c10d.Group) -> int | None:
    """Return the other rank of a send or a receive, from its arguments."""
    if _HAS_ONE_PEER.match(collective):
        for of_world, of_group in (("dst", "group_dst"), ("src", "group_src")):
            if names.get(of_world) is not None:
                return int(names[of_world])
            if names.get(of_group) is not None:
                return int(group.ranks[names[of_group]])
    return None


def of_error(error: BaseException, collective: str) -> tuple[Call, int, int] | None:
    """Return the call in which an error was raised, the how many-th of its group that is, and how many ranks the group
    has; None when that is not known, or when the call has no partners that are alike."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    call = of_frames(reversed(frames), collective)
    if call is None or _HAS_ONE_PEER.match(call.collective):
        return None
    group = next((each for each in c10d.groups() if _named(each) == call.group), None)
    count = c10d.count_of_calls(group) if group is not None else None
    return (call, count, len(group.ranks)) if group is not None and count else None


def of_record(entries: Iterable[Mapping[str, Any]], groups: Mapping[str, c10d.Group]) -> Call | None:
    """Return the newest call that is not over.

    Args:
        entries: of the flight recorder.
        groups: that this rank is in, by torch's names.
    """
    return _newest(_open(entries, groups), groups)


def last_of_record(entries: Iterable[Mapping[str, Any]], groups: Mapping[str, c10d.Group]) -> Call | None:
    """Return the newest call, whether it is over or not. As `of_record`."""
    return _newest(_told(entries, groups), groups)


def _newest(entries: Sequence[Mapping[str, Any]], groups: Mapping[str, c10d.Group]) -> Call | None:
    return _call(max(entries, key=lambda each: int(each["record_id"])), groups) if entries else None


def _open(entries: Iterable[Mapping[str, Any]], groups: Mapping[str, c10d.Group]) -> list[Mapping[str, Any]]:
    return [each for each in _told(entries, groups) if not each["retired"]]


def _told(entries: Iterable[Mapping[str, Any]], groups: Mapping[str, c10d.Group]) -> list[Mapping[str, Any]]:
    return [each for each in entries if each.keys() >= _TOLD and each["process_group"][0] in groups]


def _call(entry: Mapping[str, Any], groups: Mapping[str, c10d.Group]) -> Call:
    collective = str(entry["profiling_name"]).rpartition(":")[2]
    collective = _PUBLIC_NAMES.get(collective, collective)
    sizes, types = entry["input_sizes"], entry["input_dtypes"]
    tensors = [f"{_TYPES.get(kind, kind.lower())}{size}" for kind, size in zip(types, sizes, strict=False)]
    operands = "" if _MAY_DIFFER.search(collective) else _listed([each.replace(" ", "") for each in tensors])
    group = groups[entry["process_group"][0]]
    if between := _NCCLS_PEER.fullmatch(collective):
        return Call(between["name"], operands, _named(group), group.ranks[int(between["peer"])])
    return Call(collective, operands, _named(group))


def _named(group: c10d.Group) -> str:
    """Return what a group is called on all of its ranks."""
    if group.is_default:
        return "the default group"
    return f"group {group.name if group.description in _UNNAMED else group.description} ({name_ranks(group.ranks)})"


def _described(value: Any) -> str:
    """Return "float32[1024]" for a tensor, and "2 × float32[8]" for a list of such."""
    tensors = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(hasattr(each, "dtype") and hasattr(each, "shape") for each in tensors):
        return ""
    kinds = [f"{str(each.dtype).removeprefix('torch.')}{[*each.shape]}".replace(" ", "") for each in tensors]
    return _listed(kinds)


def _listed(tensors: Sequence[str]) -> str:
    if len(tensors) > 1 and len(set(tensors)) == 1:
        return f"{len(tensors)} × {tensors[0]}"
    return ", ".join(tensors[:3]) + (", …" if len(tensors) > 3 else "")


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
    return _innermost(outwards(frame)) or _awaited(frame)


def glimpse(frame: FrameType, source_line: Callable[[CodeType, int], str]) -> str:
    """Return what `collective` does, or "", in microseconds: for who looks again and again while the thread goes on. It
    takes no values out of frames: a `wait()` that is C++ all the way is one for a collective.

    Args:
        frame: the thread's innermost Python frame.
        source_line: returns a line of the source of some code.
    """
    if name := _innermost(outwards(frame)):
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
        for each in error_chain(error)
    )


def is_lost_connection(error: BaseException) -> bool:
    """Return whether a group error says that a connection ended, not that a wait timed out."""
    return any(_LOST_CONNECTION.search(str(each)) for each in error_chain(error))


def collective_of(error: BaseException) -> str | None:
    """Return the collective in which `error` was raised, or None when it was in none that can be seen."""
    for each in error_chain(error):
        frames = list(traceback.walk_tb(each.__traceback__))
        if frames and (name := _innermost(frame for frame, _ in reversed(frames))):
            return name
    return None


def in_wrapped_model(error: BaseException) -> bool:
    """Return whether `error` was raised inside a DistributedDataParallel or in backward."""
    frames = (frame for each in error_chain(error) for frame, _ in traceback.walk_tb(each.__traceback__))
    return any(_WRAPPED_GROUP.search(frame.f_code.co_filename) for frame in frames)


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

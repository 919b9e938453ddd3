"""What a thread has called of torch.distributed: with which tensors, in which group, and the how many-th call that is.

Nothing is patched: it is read from the frames of torch's functions, from the numbers that groups give their calls, and,
where no frame tells, from torch's flight recorder.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.groups import c10d, records

_FILE = "torch/distributed/distributed_c10d.py"
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
        self._counts: Mapping[str, int] = {}
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
        groups = c10d.groups()
        counts = {_named(group): count for group in groups if (count := c10d.count_of_calls(group)) is not None}
        place = (frames[0].f_code, frames[0].f_lasti) if frames else None
        stands_still, self._counts = counts == self._counts, counts
        is_at_the_same_place, self._place = place == self._place, place
        if not stands_still:
            self._recorded, self._is_asked = None, False
        if not frames or not groups:
            return None, counts
        named = {each.name: each for each in groups}
        if not collective:
            return _on_gpus(named, counts) if stands_still and is_at_the_same_place else (None, counts)
        call = of_frames(frames, collective)
        if call is None and stands_still and not self._is_asked:
            self._recorded, self._is_asked = of_record(records.recorded(), named), True
        return call or self._recorded, counts


def _on_gpus(groups: Mapping[str, c10d.Group], counts: Mapping[str, int]) -> tuple[Call | None, Mapping[str, int]]:
    """Return the oldest call that is not over on this rank's GPU. Of its group, calls after it do not count."""
    found = _open(records.open_on_gpu(), groups)
    if not found:
        return None, counts
    oldest = min(found, key=lambda each: int(each["record_id"]))
    call = _call(oldest, groups)
    if call.group not in counts:
        return call, counts
    numbers = [int(each["collective_seq_id"]) for each in found if each["process_group"] == oldest["process_group"]]
    later = max(numbers) - int(oldest["collective_seq_id"])
    return call, {**counts, call.group: counts[call.group] - later}


def of_frames(frames: Iterable[FrameType], collective: str) -> Call | None:
    """Return the call of a collective whose frame is among these; None when it is not."""
    for frame in frames:
        if frame.f_code.co_name == collective and frame.f_code.co_filename.endswith(_FILE):
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
    found = _open(entries, groups)
    return _call(max(found, key=lambda each: int(each["record_id"])), groups) if found else None


def _open(entries: Iterable[Mapping[str, Any]], groups: Mapping[str, c10d.Group]) -> list[Mapping[str, Any]]:
    told = [each for each in entries if each.keys() >= _TOLD]
    return [each for each in told if not each["retired"] and each["process_group"][0] in groups]


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

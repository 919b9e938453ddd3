"""What a rank has called, from frames and from what torch's flight recorder has written down."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch

from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.calls import Call, Calls, of_frames, of_record, world


class Own:
    """Stands for torch's object."""


GROUPS = {
    "0": c10d.Group(Own(), "0", "default_pg", (0, 1, 2, 3), True),
    "1": c10d.Group(Own(), "1", "undefined", (0, 2), False),
    "2": c10d.Group(Own(), "2", "dp", (1, 3), False),
}


def entry(number: int, name: str, group: str, *, retired: bool = False, **other: Any) -> dict[str, Any]:
    """Return what torch 2.13 writes down of a call, in part."""
    told = {"record_id": number, "profiling_name": f"gloo:{name}", "process_group": [group, ""], "retired": retired}
    told["collective_seq_id"] = number
    return told | {"input_sizes": [[2, 8]], "input_dtypes": ["BFloat16"]} | other


def test_the_newest_call_that_is_not_over() -> None:
    default, one, dp = "the default group", "group 1 (ranks 0,2)", "group dp (ranks 1,3)"
    odd = entry(0, "gather", "0", input_sizes=[[4], [4]], input_dtypes=["Float", "Odd"])
    found: list[tuple[list[dict[str, Any]], Call | None]] = [
        ([], None),
        ([entry(0, "all_reduce", "0", retired=True)], None),
        ([entry(8, "reduce", "0"), entry(9, "all_reduce", "0")], Call("all_reduce", "bfloat16[2,8]", default)),
        ([entry(0, "broadcast", "1")], Call("broadcast", "bfloat16[2,8]", one)),
        ([entry(0, "all_to_all", "2")], Call("all_to_all", "", dp)),
        ([entry(0, "all_reduce", "9")], None),
        ([entry(0, "recv 0<-1", "1")], Call("recv", "bfloat16[2,8]", one, peer=2)),
        ([{"record_id": 3, "state": "scheduled"}], None),
        ([odd], Call("gather", "float32[4], odd[4]", default)),
    ]
    for entries, call in found:
        assert of_record(entries, GROUPS) == call


def test_a_thread_that_stands_still_waits_for_the_oldest_call_that_is_open_on_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL's calls return at once, and no frame names one where a thread needs the result."""
    count, found = 7, [entry(6, "x", "0", profiling_name="nccl:_all_gather_base"), entry(7, "broadcast", "0")]
    monkeypatch.setattr(c10d, "groups", lambda: list(GROUPS.values()))
    monkeypatch.setattr(c10d, "count_of_calls", lambda group: count if group.is_default else 2)
    monkeypatch.setattr(c10d, "open_on_gpu", lambda: found)
    calls, here, elsewhere = Calls(), frame_of("item"), frame_of("cpu")
    other = {"group 1 (ranks 0,2)": 2, "group dp (ranks 1,3)": 2}
    as_counted = {"the default group": 7, **other}
    assert calls.look([here], "") == (None, as_counted), "it may have come just now"
    expected = Call("all_gather_into_tensor", "bfloat16[2,8]", "the default group")
    assert calls.look([here], "") == (expected, {"the default group": 6, **other}), "the 7th waits for it"
    assert calls.look([elsewhere], "") == (None, as_counted), "it goes on"
    count = 8
    assert calls.look([elsewhere], "")[0] is None, "it goes on"
    found.clear()
    assert calls.look([elsewhere], "")[0] is None, "the GPU is done: it computes"
    assert calls.look([], "") == (None, {**as_counted, "the default group": 8})


def test_a_rank_that_has_ended_its_run_knows_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written down once: that takes long."""
    asked: list[list[dict[str, Any]]] = []
    count, found = 4, [entry(9, "all_reduce", "0", retired=True), entry(8, "barrier", "0", retired=True)]
    monkeypatch.setattr(c10d, "groups", lambda: [GROUPS["0"]])
    monkeypatch.setattr(c10d, "count_of_calls", lambda _: count)
    monkeypatch.setattr(c10d, "recorded", lambda: asked.append(found) or found)
    calls, last = Calls(), Call("all_reduce", "bfloat16[2,8]", "the default group")
    assert calls.look([frame_of("item")], "") == (None, {"the default group": 4})
    told = [calls.last()[0] for _ in range(4)]
    assert (told, len(asked)) == ([None, last, last, last], 1)
    count = 5
    assert calls.last() == (None, {"the default group": 5}), "it goes on"


def test_a_new_group_that_has_made_as_many_calls_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group, found = GROUPS["0"], [entry(1, "all_reduce", "0", retired=True)]
    monkeypatch.setattr(c10d, "groups", lambda: [group])
    monkeypatch.setattr(c10d, "count_of_calls", lambda _: 1)
    monkeypatch.setattr(c10d, "recorded", lambda: found)
    calls = Calls()
    assert [calls.last()[0] for _ in range(2)] == [None, Call("all_reduce", "bfloat16[2,8]", "the default group")]
    group, found = replace(group, own=Own()), [*found, entry(2, "broadcast", "0", retired=True)]
    assert [calls.last()[0] for _ in range(2)] == [None, Call("broadcast", "bfloat16[2,8]", "the default group")]


def test_which_world_is_that_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "3")
    init = "init_process_group"
    assert world([frame_of("item")]) == (0, 0)
    assert world([frame_of(init, init_method="env://", world_size=-1, rank=-1)]) == (8, 3)
    assert world([frame_of(init, init_method=None, world_size=2, rank=1)]) == (2, 1)
    assert world([frame_of(init, init_method="tcp://host:1?rank=0&world_size=2", world_size=-1, rank=-1)]) == (0, 0)


def frame_of(name: str, **names: Any) -> FrameType:
    """Return the frame of a function of torch's, with these local variables."""
    source = f"def {name}({', '.join(names)}):\n    return frame()\n"
    scope: dict[str, Any] = {"frame": lambda: sys._getframe(1)}
    exec(compile(source, "/x/site-packages/torch/distributed/distributed_c10d.py", "exec"), scope)
    frame: FrameType = scope[name](**names)
    return frame


@pytest.mark.parametrize(
    ("name", "names", "operands"),
    [
        ("all_reduce", {"tensor": torch.ones(2, 3)}, "float32[2,3]"),
        ("all_gather", {"tensor_list": [torch.ones(1)], "tensor": torch.ones(4, dtype=torch.int64)}, "int64[4]"),
        ("reduce_scatter", {"output": torch.ones(9), "input_list": [torch.ones(4)] * 4}, "4 × float32[4]"),
        ("all_to_all_single", {"output": torch.ones(1), "input": torch.ones(9)}, ""),
        ("all_gather_object", {"input_tensor": torch.ones(9)}, ""),
        ("barrier", {}, ""),
        ("broadcast", {"tensor": "no tensor"}, ""),
    ],
)
def test_tensors_of_a_frame(name: str, names: dict[str, Any], operands: str) -> None:
    frame = frame_of(name, **names)
    assert of_frames([sys._getframe(), frame], name) == Call(name, operands, "")
    assert of_frames([sys._getframe()], name) is None

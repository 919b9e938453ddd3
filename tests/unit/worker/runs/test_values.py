"""Values on their way between notebook and rank: in the message, or as files."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

from monarch_nb.ground.frames import pack_pickle, unpack_pickle
from monarch_nb.proto.run_pb2 import RankResult
from monarch_nb.worker.runs import values


def test_values_are_inline_until_they_are_large(tmp_path: Path) -> None:
    small, large = RankResult(run_id="a", rank=1), RankResult(run_id="b", rank=1)
    values.store_value(small, {"x": 1}, str(tmp_path))
    assert unpack_pickle(small.value_inline) == {"x": 1}
    values.store_value(large, numpy.ones(100_000), str(tmp_path / "made"))
    assert large.WhichOneof("value") == "value_blob"
    assert os.listdir(tmp_path / "made") == [large.value_blob]


def test_a_value_that_can_not_be_stored_is_explained(tmp_path: Path) -> None:
    result = RankResult(run_id="b", rank=1)
    values.store_value(result, bytes(1_000_000), "/proc/nowhere")
    assert "can not store" in result.value_error


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (threading.Lock(), "the result, a lock"),
        ([1, threading.Lock()], "the result[1], a lock"),
        ({"a": (1, {"b": threading.Lock()})}, "the result['a'][1]['b'], a lock"),
    ],
)
def test_what_can_not_be_pickled_is_named(value: Any, name: str) -> None:
    result = RankResult()
    values.store_value(result, value, "")
    assert result.value_error.startswith(f"can not pickle {name}: TypeError")


def test_pushed_arrays_are_private_views_of_the_file(tmp_path: Path) -> None:
    import cloudpickle

    blob = tmp_path / "blob"
    values.write_blob(blob, pack_pickle({"a": numpy.zeros(1000)}, cloudpickle.dumps))
    first, second = values.load_variables(blob)["a"], values.load_variables(blob)["a"]
    first += 1
    assert (first.sum(), second.sum()) == (1000, 0)
    values.write_blob(blob, pack_pickle([1], cloudpickle.dumps))
    with pytest.raises(TypeError, match="a list"):
        values.load_variables(blob)

"""Values on their way between notebook and rank: in the message, or as files."""

from __future__ import annotations

import threading

from monarch_nb.proto.run_pb2 import RankResult
from monarch_nb.worker.runs import values


def test_what_can_not_be_stored_or_pickled_is_explained() -> None:
    result, lock = RankResult(run_id="b", rank=1), threading.Lock()
    values.store_value(result, bytes(1_000_000), "/proc/nowhere")
    assert "can not store" in result.value_error
    for value, name in (([1, lock], "the result[1]"), ({"a": (1, {"b": lock})}, "the result['a'][1]['b']")):
        values.store_value(result, value, "")
        assert result.value_error.startswith(f"can not pickle {name}, a lock: TypeError")

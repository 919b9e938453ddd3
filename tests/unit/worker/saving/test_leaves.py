"""States taken apart and put together; what tells whether two ranks have the same."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from monarch_nb.worker import digests
from monarch_nb.worker.saving import collecting
from monarch_nb.worker.saving.leaves import (
    Leaf,
    description,
    pickled,
    put_together,
    take_apart,
    unpickled,
)

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.binary(max_size=3)
)
STATES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers(0, 9) | st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
)


@given(STATES)
def test_a_state_is_put_together_as_it_was_and_has_one_description(state: Any) -> None:
    leaves = take_apart("x", state)
    assert len({leaf.key for leaf in leaves}) == len(leaves)
    assert put_together((leaf.path, leaf.value) for leaf in leaves) == state
    again = unpickled(pickled(state))
    assert again == state
    assert description(Leaf("x", (), state)) == description(Leaf("x", (), again))


def test_a_value_of_many_small_parts_is_a_single_leaf() -> None:
    rows = [{"x": torch.ones(3), "label": number} for number in range(600)]
    assert [leaf.path for leaf in take_apart("rows", rows, keeps_types=True)] == [()]
    assert len(take_apart("rows", rows[:400], keeps_types=True)) == 800
    assert len(take_apart("optimizer", rows)) == 1200
    large = torch.ones(1 << 16)
    assert len(take_apart("average", {f"layer{number}": large for number in range(1200)}, keeps_types=True)) == 1200


def test_tensors_come_back_to_the_kind_of_device_that_they_were_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collecting.device_here("cuda") == "cpu", "there is none here"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert [collecting.device_here(kind) for kind in ("cuda", "cpu", "")] == ["cuda:3", "cpu", "cpu"]


def test_keys_are_those_of_dcp_and_names_those_of_the_plain_module() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    flat, _ = flatten_state_dict(state)
    assert [leaf.key for name, each in state.items() for leaf in take_apart(name, each)] == list(flat)
    names = ["_orig_mod.0.weight", "0._orig_mod.bias", "0._checkpoint_wrapped_module.x", "my_orig_mod.y"]
    leaves = take_apart("m", dict.fromkeys(names, 1))
    assert [leaf.key for leaf in leaves] == ["m.0.weight", "m.0.bias", "m.0.x", "m.my_orig_mod.y"]


def test_a_digest_sees_each_element() -> None:
    for size in (0, 1, 7, (1 << 19) - 1, (1 << 19) + 3, 1 << 20):
        tensor = torch.arange(size, dtype=torch.int32)
        digest = digests.digest(tensor)
        assert digest == digests.digest(tensor.clone())
        for place in {0, size // 3, size - 1} if size else set():
            other = tensor.clone()
            other[place] ^= 1 << 31 - 1
            assert digests.digest(other) != digest
        assert size < 2 or digests.digest(tensor.flip(0)) != digest


def test_any_dtype_and_layout_has_a_digest() -> None:
    for dtype in (torch.bool, torch.complex64, torch.float8_e4m3fn):
        tensor = torch.ones(4, 6).to(dtype)
        assert digests.digest(tensor.T) == digests.digest(tensor.T.contiguous())
        assert digests.digest(torch.tensor(1).to(dtype))


def test_plain_values_are_read_without_executing_anything_and_others_only_if_they_are_trusted() -> None:
    plain = [numpy.arange(3), numpy.float64(2.5), {1, 2}, frozenset("a"), range(3), torch.float32, 1j, bytearray(b"x")]
    for value in plain:
        assert repr(unpickled(pickled(value))) == repr(value)
    data = pickled({"a": Own()})
    with pytest.raises(pickle.UnpicklingError):
        unpickled(data)
    assert isinstance(unpickled(data, trusted=True)["a"], Own)


class Own:
    pass

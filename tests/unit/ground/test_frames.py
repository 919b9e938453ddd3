"""Frames survive any cut of the stream; packed pickles share their buffers."""

import itertools
import pickle
import struct

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.ground.frames import (
    MAX_FRAME_BYTES,
    FrameError,
    FrameSplitter,
    encode_frame,
    pack_pickle,
    unpack_pickle,
)

payloads = st.lists(st.binary(max_size=40), max_size=6)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(payloads, st.lists(st.integers(0, 10_000), max_size=12))
def test_a_splitter_does_not_care_where_the_stream_is_cut(frames: list[bytes], places: list[int]) -> None:
    splitter = FrameSplitter()
    stream = b"".join(map(encode_frame, frames))
    assert [frame for piece in cut(stream, places) for frame in splitter.feed(piece)] == frames


def test_what_is_impossible_is_refused() -> None:
    with pytest.raises(FrameError, match="impossible frame"):
        list(FrameSplitter().feed(struct.pack(">I", MAX_FRAME_BYTES + 1)))
    with pytest.raises(TypeError, match="generator"):  # as `dumps` says
        pack_pickle((n for n in []), cloudpickle.dumps)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_a_packed_value_is_the_same_value(value: object) -> None:
    assert unpack_pickle(b"".join(pack_pickle(value, pickle.dumps))) == value


@given(st.lists(st.integers(0, 300), max_size=5))
def test_arrays_are_views_of_the_packed_bytes(sizes: list[int]) -> None:
    arrays = [np.arange(size, dtype=np.float64) for size in sizes]
    packed = bytearray(b"".join(pack_pickle(arrays, cloudpickle.dumps)))
    for array, expected in zip(unpack_pickle(packed), arrays, strict=True):
        assert np.array_equal(array, expected)
        if len(array):
            assert np.shares_memory(array, np.frombuffer(packed, np.uint8))
            assert array.ctypes.data % 8 == 0, "torn across a word: some instructions fault"


def test_a_large_array_is_not_copied_by_packing() -> None:
    array = np.zeros(1 << 20)
    largest = max(pack_pickle({"a": array}, cloudpickle.dumps), key=len)
    assert np.shares_memory(np.frombuffer(largest, np.uint8), array)
    spread = np.arange(100).reshape(10, 10)[::2, ::3]  # not contiguous
    assert np.array_equal(unpack_pickle(bytearray(b"".join(pack_pickle(spread, cloudpickle.dumps)))), spread)


@given(st.binary(max_size=60), st.integers(0, 10_000))
def test_other_bytes_and_a_truncated_pickle_are_refused(data: bytes, place: int) -> None:
    whole = b"".join(pack_pickle([np.arange(50), "text"], cloudpickle.dumps))
    for none in (data, whole[: place % len(whole)]):
        with pytest.raises(ValueError, match="not a packed pickle"):
            unpack_pickle(none)

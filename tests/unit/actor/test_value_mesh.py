"""Values with coordinates: access, mesh operations, travel, and what is shown of them."""

import pickle
from typing import Any

import numpy
import pytest

from monarch_nb.actor.value_mesh import Extent, Point, ValueMesh

HOSTS_GPUS = Extent(["hosts", "gpus"], [2, 2])


@pytest.fixture
def letters() -> ValueMesh[str]:
    return ValueMesh(HOSTS_GPUS, ["a", "b", "c", "d"])


class TestAccess:
    def test_values_have_places(self, letters: ValueMesh[str]) -> None:
        expected = [(Point(rank, HOSTS_GPUS), value) for rank, value in enumerate("abcd")]
        assert list(letters) == list(letters.items()) == expected
        letters.values().clear()  # it is the caller's
        assert (letters.values(), len(letters)) == (["a", "b", "c", "d"], 4)
        assert letters.item(hosts=1, gpus=0) == letters.get(2) == "c"
        assert ValueMesh(Extent([], []), [7]).item() == 7

    @pytest.mark.parametrize(
        ("coordinates", "error", "text"),
        [
            ({"hosts": 0}, KeyError, "'gpus'"),
            ({"hosts": 0, "gpus": 0, "x": 1}, KeyError, "item has extra dimensions: ['x']"),
            ({"hosts": 0, "gpus": 2}, IndexError, "gpus=2"),
        ],
    )
    def test_places_that_do_not_exist(
        self, letters: ValueMesh[str], coordinates: dict[str, Any], error: type[Exception], text: str
    ) -> None:
        with pytest.raises(error) as failure:
            letters.item(**coordinates)
        assert text in str(failure.value)

    def test_every_rank_has_a_value_and_nobody_else(self, letters: ValueMesh[str]) -> None:
        for rank in (-1, 4):
            with pytest.raises(ValueError, match=rf"^index {rank} out of range \(len=4\)$"):
                letters.get(rank)
        with pytest.raises(ValueError, match=r"^invalid value mesh: expected 2 ranks, but contains 1 ranks$"):
            ValueMesh(Extent({"gpus": 2}), [1])


class TestOperations:
    def test_they_are_those_of_a_mesh(self, letters: ValueMesh[str]) -> None:
        part = letters.slice(hosts=1)
        assert [(dict(point), value) for point, value in part] == [({"gpus": 0}, "c"), ({"gpus": 1}, "d")]
        assert part.slice(gpus=slice(1, 2)).item(gpus=0) == "d"
        assert letters.slice(gpus=1).flatten("hosts").values() == ["b", "d"]
        result = letters.flatten("all").split(all=("x", "y"), x=2).rename(x="hosts")
        assert (result.sizes, result.item(hosts=1, y=1)) == ({"hosts": 2, "y": 2}, "d")
        called = Extent({"hosts": 2, "gpus": 4}).region.slice({"gpus": slice(1, 4, 2)})  # a part of a mesh
        assert ValueMesh(called, [1, 3, 5, 7]).slice(hosts=1).values() == [5, 7]


def test_it_travels_without_more_than_its_values() -> None:
    values = list(range(1000))
    mesh = ValueMesh(Extent({"gpus": 1000}), values)
    list(mesh)
    copy = pickle.loads(pickle.dumps(mesh))
    assert (copy.extent, copy.values()) == (mesh.extent, values)
    assert len(pickle.dumps(mesh)) < len(pickle.dumps(values)) + 200


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class TestText:
    def test_equal_values_are_shown_once_and_columns_stay_in_line(self) -> None:
        mesh = ValueMesh(Extent({"hosts": 2, "gpus": 3}), [0.5, 0.5, {"b": 1, "a": 2}, 0.5, "x", 0.5])
        shown = "ValueMesh({hosts: 2, gpus: 3}):\n  ranks 0-1,3,5: 0.5\n  rank 2: {'b': 1, 'a': 2}\n  rank 4: 'x'"
        assert repr(mesh) == shown
        mesh = ValueMesh(Extent({"gpus": 2}), [numpy.eye(2)] * 2)
        assert repr(mesh) == "ValueMesh({gpus: 2}):\n  ranks 0-1:\n    array([[1., 0.],\n           [0., 1.]])"

    def test_long_values_many_values_and_many_ranks_are_cut(self) -> None:
        for value in ("x" * 10_000, [["x" * 100] * 100] * 100, {n: n for n in range(10_000)}, 10**5000):
            assert len(repr(ValueMesh(Extent({"gpus": 1}), [value]))) < 1100
        lines = repr(ValueMesh(Extent({"gpus": 4096}), list(range(4096)))).splitlines()
        assert (len(lines), lines[-1]) == (18, "  … and 4,080 ranks with other values")
        text = repr(ValueMesh(Extent({"gpus": 4096}), [rank % 2 for rank in range(4096)]))
        assert "ranks 0,2,4," in text
        assert ",… (2,048 ranks): 0" in text
        assert len(text) < 250

    def test_odd_values_have_a_text(self) -> None:
        other = type("array", (), {"__repr__": lambda self: "array of another kind"})()
        for value, said in ((other, "array of another kind"), (Unreadable(), "Unreadable")):
            assert said in repr(ValueMesh(Extent({"gpus": 1}), [value]))

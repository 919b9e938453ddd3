"""Regions and mesh operations: the laws against numpy, the errors as Monarch words them."""

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.actor.value_mesh import Extent, MeshTrait, Point, Region

HOSTS_GPUS = Extent(["hosts", "gpus"], [2, 4])


@dataclass
class Places(MeshTrait):
    """A mesh of nothing."""

    region: Region

    def _region(self) -> Region:
        return self.region

    def _with_region(self, region: Region) -> "Places":
        return Places(region)

    def as_array(self) -> numpy.ndarray:
        return numpy.array(self.region.ranks()).reshape(self.region.sizes)


def places(**sizes: int) -> Places:
    return Places(Extent(sizes).region)


GPUS = places(gpus=4)
MESH = places(hosts=2, gpus=4)

meshes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(
    lambda sizes: places(**{f"dim{i}": size for i, size in enumerate(sizes)})
)


def selectors(size: int) -> st.SearchStrategy[int | slice]:
    def forward(chosen: slice) -> bool:
        return len(range(size)[chosen]) > 0 and (chosen.step is None or chosen.step > 0)

    return st.integers(0, size - 1) | st.slices(size).filter(forward)


@st.composite
def sliced(draw: st.DrawFn) -> tuple[Places, Places, numpy.ndarray]:
    """A mesh, a slice of it (of a slice), and what numpy makes of the same."""
    mesh = draw(meshes)
    part, array = mesh, mesh.as_array()
    for _ in range(2):
        chosen = {label: draw(selectors(size)) for label, size in part.sizes.items() if draw(st.booleans())}
        array = array[tuple(chosen.get(label, slice(None)) for label in part.sizes)]
        part = part.slice(**chosen)
    return mesh, part, array


class TestLaws:
    @given(sliced())
    def test_slices_are_numpy_s(self, case: tuple[Places, Places, numpy.ndarray]) -> None:
        mesh, part, array = case
        assert part.as_array().tolist() == array.tolist()
        assert tuple(part.sizes.values()) == array.shape
        assert len(part) == part.size() == array.size
        ranks = list(part.region.ranks())
        for base_rank in range(-3, len(mesh) + 3):
            assert part.region.index_of(base_rank) == (ranks.index(base_rank) if base_rank in ranks else None)
        for base_rank in ranks:
            assert list(part.slice(**part.region.point_of(base_rank)).region.ranks()) == [base_rank]
        copy = pickle.loads(pickle.dumps(part.region))
        assert copy == part.region
        assert "_ranks" not in vars(copy), "it travels small"
        assert mesh.flatten("all").split(all=tuple(mesh.sizes), **mesh.sizes) == mesh

    @given(sliced(), st.data())
    def test_split_is_reshape(self, case: tuple[Places, Places, numpy.ndarray], data: st.DataObject) -> None:
        _, part, array = case
        if not part.sizes:
            return
        label, size = data.draw(st.sampled_from(list(part.sizes.items())))
        outer = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        result = part.split(**{label: ("outer", "inner"), "outer": outer})
        at = list(part.sizes).index(label)
        assert list(result.sizes)[at : at + 2] == ["outer", "inner"]
        shape = (*array.shape[:at], outer, size // outer, *array.shape[at + 1 :])
        assert result.as_array().tolist() == array.reshape(shape).tolist()

    @given(sliced())
    def test_flatten_keeps_the_order_or_refuses_gaps(self, case: tuple[Places, Places, numpy.ndarray]) -> None:
        _, part, array = case
        ranks = array.reshape(-1).tolist()
        try:
            flat = part.flatten("all")
        except ValueError:
            assert part.region.strides != places(**part.sizes).region.strides
        else:
            assert list(flat.region.ranks()) == ranks
            assert flat.sizes == {"all": len(ranks)}


UNEVEN = "Dimension 'gpus' of size 4 is not evenly divided by"
EVEN = slice(0, 4, 2)


class TestOperations:
    """Each line was compared with torchmonarch 0.7."""

    @pytest.mark.parametrize(
        ("operation", "sizes", "ranks"),
        [
            (lambda: GPUS.slice(gpus=True), {}, [1]),
            (lambda: GPUS.slice(gpus=slice(-2, None)), {"gpus": 2}, [2, 3]),
            (lambda: GPUS.slice(gpus=slice(-10, 2)), {"gpus": 2}, [0, 1]),
            (lambda: MESH.slice(gpus=slice(0, 2), hosts=slice(1, 2)), {"hosts": 1, "gpus": 2}, [4, 5]),
            (lambda: MESH.slice(**Point(5, HOSTS_GPUS)), {}, [5]),
            (lambda: MESH.rename(gpus="hosts", hosts="gpus"), {"gpus": 2, "hosts": 4}, [*range(8)]),
            (
                lambda: MESH.split(hosts=("dp", "pp"), gpus=("tp", "cp"), pp=2, cp=2),
                {"dp": 1, "pp": 2, "tp": 2, "cp": 2},
                [*range(8)],
            ),
            (lambda: MESH.slice(gpus=EVEN).split(gpus=("a", "b"), a=2), {"hosts": 2, "a": 2, "b": 1}, [0, 2, 4, 6]),
            (lambda: MESH.split(gpus=["gpus", "b"], b=2), {"hosts": 2, "gpus": 2, "b": 2}, [*range(8)]),
        ],
    )
    def test_results(self, operation: Callable[[], Places], sizes: dict[str, int], ranks: list[int]) -> None:
        result = operation()
        assert list(result.sizes.items()) == list(sizes.items())
        assert list(result.region.ranks()) == ranks

    @pytest.mark.parametrize(
        ("operation", "error", "text"),
        [
            (lambda: GPUS.slice(gpus=-1), IndexError, "index out of range"),
            (lambda: GPUS.slice(gpus=4), IndexError, "index out of range"),
            (lambda: GPUS.slice(gpus=slice(2, 2)), ValueError, "empty range 2:2:1"),
            (lambda: GPUS.slice(gpus=slice(3, 0, -1)), ValueError, "backwards"),
            (lambda: MESH.slice(hosts=1).slice(hosts=1), TypeError, "Shape does not have dimension labeled 'hosts'"),
            (lambda: GPUS.slice(gpus=1.5), TypeError, "'float' object cannot be interpreted as an integer"),
            (lambda: MESH.slice(gpus=EVEN).flatten("x"), ValueError, "sparse mesh: ndslice.strides=[4, 2] != dense"),
            (lambda: MESH.rename(q="g"), ValueError, "'q' is not an existing dim. Expected an integer size constraint"),
            (lambda: MESH.rename(gpus="hosts"), ValueError, "Duplicate dimension name 'hosts'"),
            (lambda: MESH.split(gpus=("a", "b")), ValueError, "both b and a have unknown size. Specify at least one"),
            (lambda: MESH.split(gpus=("a", "b"), a=3), ValueError, f"{UNEVEN} ('a', 'b') with sizes (3, '?')"),
            (lambda: MESH.split(gpus=("a", "b"), a=2, b=1), ValueError, f"{UNEVEN} ('a', 'b') with sizes (2, 1)"),
            (lambda: MESH.split(gpus="ab"), ValueError, "expected a sequence of dimensions, but got 'ab'"),
            (lambda: MESH.split(gpus=("a", "a"), a=2), ValueError, "Duplicate dimension name 'a'"),
            (lambda: MESH.split(gpus=("x", "y"), x=2, z=3), ValueError, "unused size constraints: ('z',)"),
            (lambda: MESH.split(gpus=("a", "b"), a=0), ValueError, "a=0"),
            (lambda: MESH.size("z"), KeyError, "does not have dimension 'z'"),
            (lambda: MESH.region.point_of(8), ValueError, "rank 8 is not part of"),
        ],
    )
    def test_errors(self, operation: Callable[[], object], error: type[Exception], text: str) -> None:
        with pytest.raises(error) as failure:
            operation()
        assert text in str(failure.value)

    def test_sizes(self) -> None:
        assert MESH.size() == MESH.size(["hosts", "gpus"]) == len(MESH) == 8
        assert (MESH.size("gpus"), MESH.size([]), len(MESH.slice(hosts=0, gpus=0))) == (4, 1, 1)
        assert MESH.extent == HOSTS_GPUS


class TestExtent:
    def test_both_forms_are_the_same(self) -> None:
        extent = Extent(["hosts", "gpus"], [2, 4])
        assert extent == Extent({"hosts": 2, "gpus": 4}) == Extent(extent) == pickle.loads(pickle.dumps(extent))
        assert (extent.labels, extent.sizes, repr(extent)) == (["hosts", "gpus"], [2, 4], "{hosts: 2, gpus: 4}")
        assert extent.nelements == extent.size == 8
        assert Extent(["gpus", "hosts"], [4, 2]) != extent, "the order of dimensions matters"

        assert (Extent([], []).size, str(Extent([], []))) == (1, "1 rank")

    @pytest.mark.parametrize("error", [KeyError, ValueError])
    @pytest.mark.parametrize("mapping", [HOSTS_GPUS, HOSTS_GPUS.point(3)])
    def test_an_unknown_dimension_is_both_errors(self, error: type[Exception], mapping: Extent | Point) -> None:
        with pytest.raises(error, match=r"^Dimension 'z' not found: there is hosts, gpus$"):
            mapping["z"]
        assert mapping.get("z") is None
        assert "z" not in mapping

    def test_malformed(self) -> None:
        for labels, sizes in ((["a"], [2, 3]), (["a", "a"], [2, 3]), (["a"], [-1])):
            with pytest.raises(ValueError):  # noqa: PT011 -- each says something else
                Extent(labels, sizes)


class TestPoint:
    def test_it_is_a_mapping_that_knows_sizes(self) -> None:
        point = Point(6, HOSTS_GPUS)
        assert dict(point) == {"hosts": 1, "gpus": 2}
        assert (point["gpus"], point.size("gpus"), point.rank, len(point)) == (2, 4, 6, 2)
        assert repr(point) == "{'hosts': 1/2, 'gpus': 2/4}"
        assert pickle.loads(pickle.dumps(point)) == point == HOSTS_GPUS.point(6)
        assert point not in ({"hosts": 1, "gpus": 2}, Point(6, Extent({"gpus": 8})))
        for rank in (-1, 8):
            with pytest.raises(ValueError, match=f"^out of range: total ranks 8; does not contain rank {rank}$"):
                Point(rank, HOSTS_GPUS)

    @given(meshes, st.data())
    def test_coordinates_are_numpy_s(self, mesh: Places, data: st.DataObject) -> None:
        rank = data.draw(st.integers(0, math.prod(mesh.sizes.values()) - 1))
        expected = numpy.unravel_index(rank, tuple(mesh.sizes.values()))
        assert list(mesh.extent.point(rank).values()) == [int(coordinate) for coordinate in expected]

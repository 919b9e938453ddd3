"""Values with coordinates. A call of a mesh's actors returns them."""

from __future__ import annotations

import operator
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from monarch_nb.errors import DimensionError
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.shape import Extent, Point, Region, Selector

__all__ = ["Extent", "MeshTrait", "Point", "Region"]


class MeshTrait(ABC):
    """The base class of meshes: places with coordinates, and an object at each place.

    Every operation returns another mesh of the same objects. Ranks of the result count from 0, in row-major order.
    """

    @abstractmethod
    def _region(self) -> Region:
        """Return the shape, and which base ranks are in it."""

    @abstractmethod
    def _with_region(self, region: Region) -> Self:
        """Return the mesh of a part of this one: `region` has base ranks of `_region()` only."""

    def slice(self, **selection: Selector) -> Self:
        """Return a part of the mesh.

        Args:
            selection: a number or a slice for each dimension. A number removes the dimension, a slice keeps it.

        Raises:
            TypeError: there is no such dimension, or a value is neither a number nor a slice.
            IndexError: a number is out of range. Numbers do not count from the end.
            ValueError: a slice selects nothing, or runs backwards.

        Example:
            >>> mesh.slice(hosts=0, gpus=slice(2, 6))
        """
        return self._with_region(self._region().slice(selection))

    def split(self, **requests: Iterable[str] | int) -> Self:
        """Split dimensions into several. Sizes that you do not give are inferred. Other dimensions stay.

        Args:
            requests: for a dimension the names of its parts, and for a part its size.

        Raises:
            ValueError: the sizes do not fit, or can not be inferred.

        Example:
            >>> mesh.split(hosts=("dp", "pp"), gpus=("tp", "cp"), pp=2, cp=2)
        """
        return self._with_region(self._region().split(requests))

    def flatten(self, name: str) -> Self:
        """Make one dimension of all dimensions.

        Raises:
            ValueError: there are gaps between the ranks, as in a slice with steps or across rows.
        """
        return self._with_region(self._region().flatten(name))

    def rename(self, **names: str) -> Self:
        """Rename dimensions, as in `mesh.rename(hosts="dp", gpus="tp")`.

        Raises:
            ValueError: there is no such dimension, or two dimensions would have one name.
        """
        return self._with_region(self._region().rename(names))

    def size(self, dim: str | Iterable[str] | None = None) -> int:
        """Return the number of places.

        Args:
            dim: one dimension, or several, whose sizes are multiplied; by default all.

        Raises:
            KeyError: there is no such dimension.
        """
        extent = self._region().extent
        if dim is None:
            return extent.size
        product = 1
        for label in [dim] if isinstance(dim, str) else dim:
            if label not in extent:
                raise DimensionError(f"{type(self).__name__}({extent!r}) does not have dimension {label!r}")
            product *= extent[label]
        return product

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return dict(self._region().extent)

    @property
    def extent(self) -> Extent:
        """The shape."""
        return self._region().extent

    def __len__(self) -> int:
        return len(self._region())


Value = TypeVar("Value")

_MAX_GROUPS = 16
_MAX_TEXT = 1000
_MAX_RANKS_TEXT = 60
_MAX_INTEGER_BITS = 640


class ValueMesh(MeshTrait, Generic[Value]):
    """One value per rank, in the shape of the mesh that was called. It is the result of `call`.

    You can slice, split, flatten and rename it like the mesh. Ranks of the result count from 0.

    Example:
        >>> losses = trainers.step.call(10).get()
        >>> for point, loss in losses:  # or losses.items()
        ...     print(point["hosts"], point["gpus"], loss)
        >>> max(losses.values()), losses.item(hosts=0, gpus=3)

    Args:
        shape: an extent, or the part of a mesh that was called.
        values: in row-major order.

    Raises:
        ValueError: the number of values differs from the number of ranks.
    """

    def __init__(self, shape: Extent | Region, values: Sequence[Value]) -> None:
        self._extent = shape.extent if isinstance(shape, Region) else shape
        self._values = list(values)
        if len(self._values) != self._extent.size:
            raise ValueError(
                f"invalid value mesh: expected {self._extent.size} ranks, but contains {len(self._values)} ranks"
            )

    def _region(self) -> Region:
        return self._extent.region

    def _with_region(self, region: Region) -> ValueMesh[Value]:
        return ValueMesh(region, [self._values[rank] for rank in region.ranks()])

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueMesh, (self._extent, self._values)

    def __iter__(self) -> Iterator[tuple[Point, Value]]:
        return self.items()

    def items(self) -> Iterator[tuple[Point, Value]]:
        """Yield pairs of a Point and its value, in row-major order."""
        for rank, value in enumerate(self._values):
            yield Point(rank, self._extent), value

    def values(self) -> list[Value]:
        """Return the values alone, in row-major order."""
        return list(self._values)

    def get(self, rank: int) -> Value:
        """Return the value of a rank of this mesh.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < len(self._values):
            raise ValueError(f"index {rank} out of range (len={len(self._values)})")
        return self._values[rank]

    def item(self, **coordinates: int) -> Value:
        """Return the value at a place.

        Args:
            coordinates: one for each dimension of the mesh.

        Raises:
            KeyError: a dimension is missing, or the mesh has no such dimension.
            IndexError: a coordinate is out of range.
        """
        if missing := [label for label in self._extent if label not in coordinates]:
            raise DimensionError(f"item is missing dimensions: {missing}. This mesh is {self._extent!r}")
        if extra := [label for label in coordinates if label not in self._extent]:
            raise DimensionError(f"item has extra dimensions: {extra}. This mesh is {self._extent!r}")
        chosen = {label: operator.index(coordinate) for label, coordinate in coordinates.items()}
        [rank] = self._region().slice(chosen).ranks()
        return self._values[rank]

    def __repr__(self) -> str:
        """Show equal values once, with their ranks. Long values, and many different ones, are cut."""
        ranks_of: dict[str, list[int]] = {}
        for rank, value in enumerate(self._values):
            ranks_of.setdefault(_REPR.repr(value), []).append(rank)
        groups = list(ranks_of.items())
        lines = [f"  {_ranks_text(ranks)}:{_indented(text)}" for text, ranks in groups[:_MAX_GROUPS]]
        if left_out := sum(len(ranks) for _, ranks in groups[_MAX_GROUPS:]):
            lines.append(f"  … and {counted(left_out, 'rank')} with other values")
        return "\n".join([f"ValueMesh({self._extent!r}):", *lines])


class _ShortRepr(reprlib.Repr):
    """The texts of values, of bounded length, made without the text of a whole long container."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxdict = 20
        self.maxstring, self.maxlevel = 200, 4
        self.maxother = _MAX_TEXT

    def repr(self, x: object) -> str:
        text = super().repr(x)
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write very long numbers."""
        return repr(x) if x.bit_length() < _MAX_INTEGER_BITS else f"<integer of {x.bit_length()} bits>"

    def repr_array(self, x: object, level: int) -> str:
        """The base goes by the name of the class, and other libraries have arrays too."""
        return self.repr_instance(x, level)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """As the base's, in the dict's own order."""
        if level <= 0 and x:
            return "{...}"
        pieces: list[str] = []
        for key, value in x.items():
            if len(pieces) == self.maxdict:
                pieces.append("...")
                break
            pieces.append(f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}")
        return "{" + ", ".join(pieces) + "}"


_REPR = _ShortRepr()


def _ranks_text(ranks: list[int]) -> str:
    text = name_ranks(ranks)
    if len(text) <= _MAX_RANKS_TEXT:
        return text
    shown, _, _ = text[:_MAX_RANKS_TEXT].rpartition(",")
    return f"{shown},… ({counted(len(ranks), 'rank')})"


def _indented(text: str) -> str:
    """Values of several lines (tensors) start on a line of their own, so that their columns stay in line."""
    return f" {text}" if "\n" not in text else "\n    " + text.replace("\n", "\n    ")

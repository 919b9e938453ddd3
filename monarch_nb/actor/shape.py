"""What host, proc, actor and value meshes share: to be sliced, split, flattened, renamed and measured."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

from monarch_nb.errors import DimensionError
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

"""What host, proc, actor and value meshes share: to be sliced, split, flattened, renamed and measured."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

from monarch_nb.errors import DimensionError
from monarch_nb.shape import Extent, Point, Region, Selector

__all__ = ["Extent", "MeshTrait", "Point", "Region"]


class MeshTrait(ABC):
    """A mesh: places with coordinates, and something at each of them.

    Every operation returns another mesh over the same things; ranks of the result count from 0, in row-major order.
    """

    @abstractmethod
    def _region(self) -> Region:
        """Return the shape, and which base ranks are in it."""

    @abstractmethod
    def _with_region(self, region: Region) -> Self:
        """Return the mesh of a part of this one: `region` has base ranks of `_region()` only."""

    def slice(self, **selection: Selector) -> Self:
        """Select along named dimensions: a number takes the dimension away, a slice keeps it.

        Example:
            >>> mesh.slice(hosts=0, gpus=slice(2, 6))

        Raises:
            TypeError: an unknown dimension, or what is neither a number nor a slice.
            IndexError: a number out of range; they do not count from the end.
            ValueError: a slice that selects nothing, or runs backwards.
        """
        return self._with_region(self._region().slice(selection))

    def split(self, **requests: Iterable[str] | int) -> Self:
        """Split dimensions into several; sizes that are not given are inferred, other dimensions stay.

        Example:
            >>> mesh.split(hosts=("dp", "pp"), gpus=("tp", "cp"), pp=2, cp=2)

        Raises:
            ValueError: what does not fit, or is not said.
        """
        return self._with_region(self._region().split(requests))

    def flatten(self, name: str) -> Self:
        """Make one dimension of all.

        Raises:
            ValueError: there are gaps between the ranks (a slice with steps, or across rows).
        """
        return self._with_region(self._region().flatten(name))

    def rename(self, **names: str) -> Self:
        """Give dimensions other names, e.g. `mesh.rename(hosts="dp", gpus="tp")`.

        Raises:
            ValueError: an unknown dimension, or a name that two would have.
        """
        return self._with_region(self._region().rename(names))

    def size(self, dim: str | Iterable[str] | None = None) -> int:
        """Return the number of places: of the mesh, along a dimension, or of several dimensions multiplied.

        Raises:
            KeyError: an unknown dimension.
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

"""Extents, points, regions and sets of ranks: pure arithmetic.

An extent labels the dimensions of a mesh, e.g. `{"hosts": 2, "procs": 4}`; ranks count in row-major order, as in
torch's DeviceMesh and Monarch. A region is what a slice of a mesh is: an extent, and the ranks of the mesh behind it.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

from monarch_nb.errors import DimensionError, TargetError


def reserve_flags(nodes: int, procs: int, gpus: int) -> str:
    """Return how `%mesh reserve` is asked for so many nodes and ranks of each.

    Example:
        >>> reserve_flags(2, 4, 0), reserve_flags(1, 0, 8)
        ('--nodes 2 --procs 4', '--nodes 1 --gpus 8')
    """
    return f"--nodes {nodes} {f'--gpus {gpus}' if gpus else f'--procs {procs}'}"


Selector: TypeAlias = int | slice
"""What is taken along a dimension: one place of it, or a part of it."""


class Extent(Mapping[str, int]):
    """The labelled shape of a mesh: a mapping from dimensions to sizes, the outermost dimension first.

    Ranks count in row-major order.

    Example:
        >>> extent = Extent(["hosts", "procs"], [2, 4])  # or Extent({"hosts": 2, "procs": 4})
        >>> extent.size, extent.point(5)
        (8, {'hosts': 1/2, 'procs': 1/4})
        >>> extent.ranks(hosts=0, procs=slice(0, 2))
        (0, 1)
        >>> extent.labels, extent.sizes, extent.nelements, extent.region.labels
        (['hosts', 'procs'], [2, 4], 8, ('hosts', 'procs'))

    Raises:
        ValueError: the numbers of labels and sizes differ, a label is there twice, or a size is negative.
    """

    __slots__ = ("_sizes",)

    @overload
    def __init__(self, labels: Mapping[str, int], /) -> None: ...
    @overload
    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None: ...
    def __init__(self, labels: Mapping[str, int] | Sequence[str], sizes: Sequence[int] | None = None) -> None:
        if isinstance(labels, Mapping):
            sizes = list(labels.values())
            labels = list(labels)
        if sizes is None:
            raise TypeError("Extent needs labels and sizes: Extent(['hosts', 'procs'], [2, 4])")
        if len(labels) != len(sizes):
            raise ValueError(f"label/sizes dimension mismatch: {len(labels)} != {len(sizes)}")
        self._sizes = {label: operator.index(size) for label, size in zip(labels, sizes, strict=True)}
        if len(self._sizes) < len(labels):
            raise ValueError(f"an extent has every dimension once, not {', '.join(labels)}")
        if any(size < 0 for size in self._sizes.values()):
            raise ValueError(f"a dimension has a size of 0 or more, unlike those of {self!r}")

    def __getitem__(self, label: str) -> int:
        try:
            return self._sizes[label]
        except KeyError:
            raise DimensionError(f"Dimension {label!r} not found: there is {_listed(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{label}: {size}" for label, size in self._sizes.items()) + "}"

    def __str__(self) -> str:
        return " × ".join(f"{size} {label}" for label, size in self._sizes.items()) or "1 rank"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Extent):
            return list(self._sizes.items()) == list(other._sizes.items())
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash(tuple(self._sizes.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Extent, (self.labels, self.sizes)

    @property
    def labels(self) -> list[str]:
        """The dimensions, outermost first."""
        return list(self._sizes)

    @property
    def sizes(self) -> list[int]:
        """The sizes of the dimensions, outermost first."""
        return list(self._sizes.values())

    @property
    def nelements(self) -> int:
        """The number of ranks, under Monarch's name."""
        return self.size

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self._sizes.values())

    @property
    def region(self) -> Region:
        """All ranks of this extent."""
        sizes = tuple(self._sizes.values())
        return Region(tuple(self._sizes), 0, sizes, _row_major(sizes))

    def point(self, rank: int) -> Point:
        """Return the Point of `rank`, which has its coordinates.

        Raises:
            ValueError: there is no such rank.
        """
        return Point(rank, self)

    def ranks(self, **selection: Selector | tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks whose coordinates are in `selection`.

        Args:
            selection: for each dimension a coordinate, a slice, or a tuple of coordinates. A dimension that you do not
                name is taken whole.

        Raises:
            TargetError: there is no such dimension, or a coordinate is out of range.
        """
        for name in selection:
            if name not in self._sizes:
                raise TargetError(f"no dimension {name!r}; this mesh has {', '.join(self._sizes)}")
        axes: list[Iterable[int]] = []
        for name, size in self._sizes.items():
            chosen = selection.get(name, slice(None))
            if isinstance(chosen, slice):
                axes.append(range(size)[chosen])
                continue
            places = chosen if isinstance(chosen, tuple) else (chosen,)
            for place in places:
                if not -size <= place < size:
                    known = f"{name} has {size} ({name}=0{f' to {name}={size - 1}' if size > 1 else ''})"
                    raise TargetError(f"{name}={place} is out of range: {known}")
            axes.append(sorted({place % size for place in places}))
        strides = _row_major(self.sizes)
        return tuple(sum(map(operator.mul, coordinates, strides)) for coordinates in itertools.product(*axes))

    def part_of(self, ranks: Sequence[int]) -> Extent:
        """Return the shape of a part of a mesh of this extent. Dimensions in which the part has one place are left
        out. A part that is no slice has one dimension, "ranks".

        Example:
            >>> Extent({"hosts": 2, "procs": 4}).part_of([4, 5])
            {procs: 2}
        """
        if len(ranks) == self.size:
            return self
        places: dict[str, list[int]] = {label: [] for label in self}
        for rank in ranks:
            for label, place in self.point(rank).items():
                if place not in places[label]:
                    places[label].append(place)
        if math.prod(map(len, places.values())) != len(ranks):
            return Extent({"ranks": len(ranks)})
        return Extent({label: len(found) for label, found in places.items() if len(found) > 1 or self[label] == 1})


class Point(Mapping[str, int]):
    """A rank's place in an extent: a mapping from dimensions to coordinates.

    Example:
        >>> point = Point(5, Extent({"hosts": 2, "procs": 4}))
        >>> point, point.rank, point["procs"], point.size("procs")
        ({'hosts': 1/2, 'procs': 1/4}, 5, 1, 4)
        >>> mesh.slice(**point)  # the mesh of that rank alone

    Attributes:
        rank: its number in row-major order.
        extent: the mesh's shape.

    Raises:
        ValueError: the extent has no such rank.
    """

    __slots__ = ("extent", "rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        if not 0 <= rank < extent.size:
            raise ValueError(f"out of range: total ranks {extent.size}; does not contain rank {rank}")
        self.rank, self.extent = rank, extent

    def _coordinates(self) -> dict[str, int]:
        rank, coordinates = self.rank, []
        for size in reversed(self.extent.sizes):
            rank, coordinate = divmod(rank, size)
            coordinates.append(coordinate)
        return dict(zip(self.extent, reversed(coordinates), strict=True))

    def __getitem__(self, label: str) -> int:
        self.extent[label]
        return self._coordinates()[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent)

    def __len__(self) -> int:
        return len(self.extent)

    def __repr__(self) -> str:
        places = (f"{label!r}: {coordinate}/{self.size(label)}" for label, coordinate in self._coordinates().items())
        return "{" + ", ".join(places) + "}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return self.rank == other.rank and self.extent == other.extent

    def __hash__(self) -> int:
        return hash((self.rank, self.extent))

    def __reduce__(self) -> tuple[Any, ...]:
        return Point, (self.rank, self.extent)

    def size(self, label: str) -> int:
        """Return the size of a dimension of the extent.

        Raises:
            DimensionError: there is no such dimension. It is a ValueError and a KeyError.
        """
        return self.extent[label]


@dataclass(frozen=True)
class Region:
    """A rectangular part of a mesh: what remains of it after slicing, splitting, renaming.

    The ranks of the whole mesh are called base ranks; those of the region count from 0, in row-major order of what
    it is now. No operation changes the order of ranks, so strides fall from the outermost dimension to the innermost.

    Attributes:
        labels: the dimensions, outermost first.
        offset: the base rank of the region's rank 0.
        sizes: of the dimensions.
        strides: by how much a step along each dimension changes the base rank.
    """

    labels: tuple[str, ...]
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Region, (self.labels, self.offset, self.sizes, self.strides)

    def __len__(self) -> int:
        return math.prod(self.sizes)

    @functools.cached_property
    def extent(self) -> Extent:
        """The shape of this part."""
        return Extent(self.labels, self.sizes)

    @functools.cached_property
    def _ranks(self) -> Sequence[int]:
        if self.strides == _row_major(self.sizes):
            return range(self.offset, self.offset + len(self))
        ranks = [self.offset]
        for size, stride in zip(self.sizes, self.strides, strict=True):
            steps = range(0, size * stride, stride)
            ranks = [rank + step for rank in ranks for step in steps]
        return tuple(ranks)

    def ranks(self) -> Sequence[int]:
        """Return the base ranks of the region's ranks 0, 1, 2, …: `ranks()[index]` is the inverse of `index_of`."""
        return self._ranks

    def index_of(self, base_rank: int) -> int | None:
        """Return the rank in this region of a base rank; None if it is not part of it."""
        index, rest = 0, base_rank - self.offset
        for size, stride in zip(self.sizes, self.strides, strict=True):
            coordinate = 0
            if size > 1:
                coordinate, rest = divmod(rest, stride)
            if not 0 <= coordinate < size:
                return None
            index = index * size + coordinate
        return index if rest == 0 else None

    def point_of(self, base_rank: int) -> Point:
        """Return where a base rank is in this region.

        Raises:
            ValueError: it is not part of it.
        """
        index = self.index_of(base_rank)
        if index is None:
            raise ValueError(f"rank {base_rank} is not part of the slice {self.extent!r}")
        return Point(index, self.extent)

    def slice(self, selection: Mapping[str, Selector]) -> Region:
        """Select along dimensions: a number takes the dimension away, a slice keeps it.

        Raises:
            TypeError: an unknown dimension, or what is neither a number nor a slice.
            IndexError: a number out of range; they do not count from the end.
            ValueError: a slice that selects nothing, or runs backwards.
        """
        for label in selection:
            if label not in self.labels:
                raise TypeError(f"Shape does not have dimension labeled {label!r}: there is {_listed(self.labels)}")
        offset, kept = self.offset, []
        for label, size, stride in zip(self.labels, self.sizes, self.strides, strict=True):
            chosen = selection.get(label, slice(None))
            if isinstance(chosen, slice):
                steps = _steps(chosen, label, size)
                offset += steps.start * stride
                kept.append((label, len(steps), stride * steps.step))
            else:
                index = operator.index(chosen)
                if not 0 <= index < size:
                    known = f"{size} (0 to {size - 1})" if size > 1 else "only index 0"
                    raise IndexError(f"index out of range: {label}={index}, but {label} has {known}")
                offset += index * stride
        labels, sizes, strides = _columns(kept)
        return Region(labels, offset, sizes, strides)

    def split(self, requests: Mapping[str, Iterable[str] | int]) -> Region:
        """Split dimensions: `{"hosts": ("dp", "pp"), "pp": 2}`; one size of each may be left to be inferred.

        Raises:
            ValueError: what does not fit, or is not said.
        """
        new_labels: dict[str, tuple[str, ...]] = {label: (label,) for label in self.labels}
        known: dict[str, int] = {}
        for key, request in requests.items():
            if key in self.labels:
                if isinstance(request, str) or not isinstance(request, Iterable):
                    raise ValueError(f"expected a sequence of dimensions, but got {request!r}")
                new_labels[key] = tuple(request)
            elif isinstance(request, int):
                known[key] = request
            else:
                raise ValueError(f"{key!r} is not an existing dim. Expected an integer size constraint on a new dim.")
        _check_new_labels([label for labels in new_labels.values() for label in labels], known)
        parts: list[tuple[str, int, int]] = []
        for label, size, stride in zip(self.labels, self.sizes, self.strides, strict=True):
            sizes = _split_sizes(label, size, new_labels[label], known)
            strides = (step * stride for step in _row_major(sizes))
            parts += zip(new_labels[label], sizes, strides, strict=True)
        labels, all_sizes, all_strides = _columns(parts)
        return Region(labels, self.offset, all_sizes, all_strides)

    def flatten(self, label: str) -> Region:
        """Make one dimension of all.

        Raises:
            ValueError: there are gaps between the base ranks.
        """
        dense = _row_major(self.sizes)
        if self.strides != dense:
            raise ValueError(
                f"cannot flatten sparse mesh: ndslice.strides={list(self.strides)} != dense_strides={list(dense)}"
            )
        return Region((label,), self.offset, (len(self),), (1,))

    def rename(self, names: Mapping[str, str]) -> Region:
        """Give dimensions other names.

        Raises:
            ValueError: an unknown dimension, or a name that two would have.
        """
        return self.split({old: (new,) for old, new in names.items()})


def _row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a mesh of these sizes that has no gaps."""
    strides = list(itertools.accumulate(reversed(sizes), operator.mul, initial=1))[:-1]
    return tuple(reversed(strides))


def _steps(chosen: slice, label: str, size: int) -> range:
    start, stop, step = chosen.indices(size)
    if step < 0:
        raise ValueError(f"a mesh is not sliced backwards: {label} by steps of {step}")
    if start >= stop:
        raise ValueError(f"empty range {start}:{stop}:{step}: {label} has {size}")
    return range(start, stop, step)


def _columns(dimensions: Iterable[tuple[str, int, int]]) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    rows = list(dimensions)
    return tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows)


def _check_new_labels(labels: Sequence[object], known: Mapping[str, int]) -> None:
    for index, label in enumerate(labels):
        if not isinstance(label, str):
            raise ValueError(f"a dimension's name is a text, not {label!r}")
        if label in labels[:index]:
            raise ValueError(f"Duplicate dimension name {label!r}")
    if unused := tuple(label for label in known if label not in labels):
        raise ValueError(f"unused size constraints: {unused}")
    for label, size in known.items():
        if size < 1:
            raise ValueError(f"{label}={size}: a dimension has a size of 1 or more")


def _split_sizes(label: str, size: int, parts: tuple[str, ...], known: Mapping[str, int]) -> list[int]:
    """Return the sizes of the dimensions that a dimension is split into."""
    unknown = [part for part in parts if part not in known]
    if len(unknown) > 1:
        first, second = unknown[:2]
        raise ValueError(
            f"Cannot infer size of {parts} because both {second} and {first} have unknown size. "
            f"Specify at least one as argument, e.g. {second}=4"
        )
    inferred, rest = divmod(size, math.prod(known[part] for part in parts if part in known))
    if rest or (not unknown and inferred != 1):
        sizes = tuple(known.get(part, "?") for part in parts)
        raise ValueError(f"Dimension {label!r} of size {size} is not evenly divided by {parts} with sizes {sizes}")
    return [known.get(part, inferred) for part in parts]


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(labels) or "no dimension"


def parse_targets(text: str, extent: Extent) -> tuple[int, ...]:
    """Return the sorted ranks that `text` names: `0`, `0,2-3`, `-1`, `::2`, `4:`, `all`, or
    `hosts=0,procs=0:2`; also `hosts=0,procs=(1,3)`, as in Monarch.

    `2-3` includes 3 (as in Slurm and in our output); `2:3` excludes it (as in Python).

    Raises:
        TargetError: `text` is malformed, selects nothing, or names a rank that the mesh does not have.
    """
    text = _without_frills(text)
    if not text:
        raise TargetError("empty targets: name ranks as in 0, 0,2-3, ::2, all or hosts=0")
    if text == "all":
        return tuple(range(extent.size))
    if "=" in text:
        return _parse_dimensions(text, extent)
    ranks: set[int] = set()
    for part in text.split(","):
        chosen = _parse_part(part, extent.size, text)
        if not chosen:
            raise TargetError(f"targets {text!r}: {part} selects no rank; {_known(extent.size)}")
        ranks.update(chosen)
    return tuple(sorted(ranks))


def _without_frills(text: str) -> str:
    """Return targets without a pair of brackets around them and without spaces beside separators."""
    text = text.strip()
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1]
    return re.sub(r"\s*([,:=()-])\s*", r"\1", text).strip()


def _parse_part(part: str, size: int, text: str) -> Sequence[int]:
    if match := re.fullmatch(r"(\d+)-(\d+)", part):
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise TargetError(f"targets {text!r}: {part} runs backwards")
        _check_range((first, last), size)
        return range(first, last + 1)
    if re.fullmatch(r"-?\d+", part):
        rank = int(part)
        _check_range((rank,), size)
        return (rank % size,)
    return range(size)[_parse_slice(part, text)]


def _parse_slice(part: str, text: str) -> slice:
    if ":" not in part or not re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", part):
        raise TargetError(f"can not read targets {text!r}: name ranks as in 0, 0,2-3, ::2, all or hosts=0,procs=0:2")
    values = [int(value) if value else None for value in part.split(":")]
    if len(values) == 3 and values[2] == 0:
        raise TargetError(f"targets {text!r}: a step of 0")
    return slice(*values)


def _parse_dimensions(text: str, extent: Extent) -> tuple[int, ...]:
    selection: dict[str, Selector | tuple[int, ...]] = {}
    for part in re.split(r",(?![^(]*\))", text):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise TargetError(f"can not read targets {text!r}: write every dimension as NAME=NUMBER or NAME=FROM:TO")
        if name in selection:
            raise TargetError(f"targets {text!r} name {name} twice")
        if match := re.fullmatch(r"\((-?\d+(?:,-?\d+)*),?\)", value):
            selection[name] = tuple(int(place) for place in match[1].split(","))
        else:
            selection[name] = int(value) if re.fullmatch(r"-?\d+", value) else _parse_slice(value, text)
    ranks = extent.ranks(**selection)
    if not ranks:
        raise TargetError(f"targets {text!r} select no rank of {extent}")
    return tuple(sorted(ranks))


def _check_range(ranks: Iterable[int], size: int) -> None:
    for rank in ranks:
        if not -size <= rank < size:
            raise TargetError(f"no rank {rank}: {_known(size)}")


def _known(size: int) -> str:
    return f"this mesh has ranks 0 to {size - 1}" if size > 1 else "the only rank of this mesh is 0"

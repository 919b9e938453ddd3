"""Extents, points and sets of ranks: pure arithmetic.

An extent labels the dimensions of a mesh, e.g. `{"hosts": 2, "procs": 4}`; ranks count in row-major order, as in
torch's DeviceMesh and Monarch.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from monarch_nb.errors import TargetError


class Extent(Mapping[str, int]):
    """The labelled shape of a mesh.

    Example:
        >>> extent = Extent({"hosts": 2, "procs": 4})
        >>> extent.size, extent.point(5)
        (8, {'hosts': 1, 'procs': 1})
        >>> extent.ranks(hosts=0, procs=slice(0, 2))
        (0, 1)
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)

    def __getitem__(self, name: str) -> int:
        return self._sizes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        return repr(self._sizes)

    def __hash__(self) -> int:
        return hash(tuple(self._sizes.items()))

    def __str__(self) -> str:
        return " × ".join(f"{size} {name}" for name, size in self._sizes.items())

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self._sizes.values())

    def point(self, rank: int) -> dict[str, int]:
        """Return the coordinates of `rank`."""
        coordinates = {}
        for name, size in reversed(self._sizes.items()):
            rank, coordinates[name] = divmod(rank, size)
        return {name: coordinates[name] for name in self._sizes}

    def ranks(self, **selection: int | slice) -> tuple[int, ...]:
        """Return the ranks whose coordinates are in `selection`; a dimension that is not named is taken whole.

        Raises:
            TargetError: an unknown dimension, or a coordinate out of range.
        """
        for name in selection:
            if name not in self._sizes:
                raise TargetError(f"no dimension {name!r}; this mesh has {', '.join(self._sizes)}")
        axes: list[Iterable[int]] = []
        for name, size in self._sizes.items():
            chosen = selection.get(name, slice(None))
            if isinstance(chosen, slice):
                axes.append(range(size)[chosen])
            elif -size <= chosen < size:
                axes.append([chosen % size])
            else:
                raise TargetError(f"{name}={chosen} is out of range: {name} has {size} ({name}=0 to {name}={size - 1})")
        return tuple(self._rank(coordinates) for coordinates in itertools.product(*axes))

    def _rank(self, coordinates: tuple[int, ...]) -> int:
        rank = 0
        for coordinate, size in zip(coordinates, self._sizes.values(), strict=True):
            rank = rank * size + coordinate
        return rank


def parse_targets(text: str, extent: Extent) -> tuple[int, ...]:
    """Return the sorted ranks that `text` names: `0`, `0,2-3`, `-1`, `::2`, `4:`, `all`, or `hosts=0,procs=0:2`.

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
            raise TargetError(f"targets {text!r}: {part} selects no rank; this mesh has ranks 0 to {extent.size - 1}")
        ranks.update(chosen)
    return tuple(sorted(ranks))


def _without_frills(text: str) -> str:
    """Return targets without a pair of brackets around them and without spaces beside separators."""
    text = text.strip()
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1]
    return re.sub(r"\s*([,:=-])\s*", r"\1", text).strip()


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
    selection: dict[str, int | slice] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise TargetError(f"can not read targets {text!r}: write every dimension as NAME=NUMBER or NAME=FROM:TO")
        if name in selection:
            raise TargetError(f"targets {text!r} name {name} twice")
        selection[name] = int(value) if re.fullmatch(r"-?\d+", value) else _parse_slice(value, text)
    ranks = extent.ranks(**selection)
    if not ranks:
        raise TargetError(f"targets {text!r} select no rank of {extent}")
    return tuple(sorted(ranks))


def _check_range(ranks: Iterable[int], size: int) -> None:
    for rank in ranks:
        if not -size <= rank < size:
            raise TargetError(f"no rank {rank}: this mesh has ranks 0 to {size - 1}")

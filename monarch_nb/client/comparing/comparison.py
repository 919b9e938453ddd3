"""Which parts of a value are equal on which ranks, from what each rank says of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monarch_nb.worker.comparing.leaves import Leaf


@dataclass(frozen=True)
class Version:
    """What some ranks have under a name.

    Attributes:
        ranks: those that have it, in order.
        facts: what it is: "[512, 512] float32 cpu", or the type of a plain value.
        contents: the digest of a tensor; the text of a plain value.
        distance: of a tensor, the greatest difference from the most common version, and where it is; "" while unknown.
        nan, inf: how many elements of a tensor are not finite.
        since: of a parameter, since when it differs from the most common version, if `--deterministic` has recorded it:
            "step 3 of run 12"; else "".
    """

    ranks: tuple[int, ...]
    facts: str
    contents: str
    distance: str = ""
    nan: int = 0
    inf: int = 0
    since: str = ""


@dataclass(frozen=True)
class Difference:
    """A name under which ranks do not all have the same.

    Attributes:
        path: the name; empty for the value itself.
        is_tensor: whether it is a tensor, or a plain value.
        versions: the most common one first; of equally common ones that of the first rank.
        missing: ranks that have nothing under this name.
    """

    path: str
    is_tensor: bool
    versions: tuple[Version, ...]
    missing: tuple[int, ...] = ()

    def with_versions(self, versions: Iterable[Version]) -> Difference:
        """Return it with more known of its versions."""
        return replace(self, versions=tuple(versions))


@dataclass(frozen=True)
class Compared:
    """What was found out about some ranks that are meant to be equal.

    Attributes:
        ranks: those that were compared with each other.
        tensors, values: how many names there are, of tensors and of plain values.
        differences: the names under which ranks differ, in the order of the value.
        alone: how many tensors each rank has a part of its own of, so that there was nothing to compare.
    """

    ranks: tuple[int, ...]
    tensors: int
    values: int
    differences: tuple[Difference, ...]
    alone: int = 0


def compared(told: Mapping[tuple[int, ...], Sequence[Leaf]]) -> Compared:
    """Compare what ranks have.

    Args:
        told: the parts of the value on ranks, by the ranks that have exactly these.

    Example:
        >>> same, other = [Leaf("lr", "float", "0.1")], [Leaf("lr", "float", "0.2")]
        >>> [version.ranks for version in compared({(0, 2): same, (1,): other}).differences[0].versions]
        [(0, 2), (1,)]
    """
    everybody = tuple(sorted(rank for ranks in told for rank in ranks))
    named = _by_name(told)
    found = (_difference(path, part, versions, everybody) for (path, part), versions in named.items())
    differences = [difference for difference in found if difference is not None]
    paths = {path: versions for (path, _), versions in named.items()}
    is_tensor = {path: any(leaf.is_tensor for leaf in versions) for path, versions in paths.items()}
    partners: dict[str, list[int]] = {}
    for (path, part), versions in named.items():
        if part:
            partners.setdefault(path, []).append(sum(map(len, versions.values())))
    return Compared(
        everybody,
        tensors=sum(is_tensor.values()),
        values=len(paths) - sum(is_tensor.values()),
        differences=tuple(differences),
        alone=sum(max(counts) == 1 for counts in partners.values()),
    )


_Versions = dict[Leaf, list[int]]


def _by_name(told: Mapping[tuple[int, ...], Sequence[Leaf]]) -> dict[tuple[str, str], _Versions]:
    """Return which ranks have which version, by name and part, in the order of the value."""
    named: dict[tuple[str, str], _Versions] = {}
    for ranks, leaves in sorted(told.items()):
        for leaf in leaves:
            named.setdefault((leaf.path, leaf.part), {}).setdefault(leaf, []).extend(ranks)
    return named


def _difference(path: str, part: str, versions: _Versions, everybody: Sequence[int]) -> Difference | None:
    having = {rank for ranks in versions.values() for rank in ranks}
    missing = () if part else tuple(rank for rank in everybody if rank not in having)
    if len(versions) == 1 and not missing:
        return None
    ordered = sorted(versions.items(), key=lambda each: (-len(each[1]), min(each[1])))
    return Difference(
        path,
        any(leaf.is_tensor for leaf in versions),
        tuple(Version(tuple(sorted(ranks)), leaf.facts, leaf.contents) for leaf, ranks in ordered),
        missing,
    )

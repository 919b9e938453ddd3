"""What differs between ranks; what is said of it: a sentence, a row for each difference, what is left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.worker.comparing import Leaf


@dataclass(frozen=True)
class Version:
    """What some ranks have under a name.

    Attributes:
        ranks: those that have it, in order.
        facts: what it is: "[512, 512] float32 cpu", or the type of a plain value.
        contents: the digest of a tensor; the text of a plain value.
        distance: of a tensor, the greatest difference from the most common version, and where it is; "" while unknown.
        nan, inf: how many elements of a tensor are not finite.
    """

    ranks: tuple[int, ...]
    facts: str
    contents: str
    distance: str = ""
    nan: int = 0
    inf: int = 0


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


MOST_ROWS = 20
"""A report shows so many differences; `differences` has all."""
MOST_VERSIONS = 4
"""A row tells apart so many groups of ranks."""
MOST_CHARACTERS = 60
"""Of a plain value."""


@dataclass(frozen=True)
class DiffReport:
    """Which ranks have other values than the rest. `Mesh.diff` returns it; `str` of it is what `%mesh diff` shows.

    Attributes:
        expression: what was compared.
        groups: what was found in each group of ranks that are meant to be equal. Without `over` there is one.
        left_out: how many parts of the value were not compared, because it has too many.
        late: of environments, by rank, the variables that were set after a rank had read them.
        reserving: with `late`, the line that reserves the same ranks, but for its flags.
        of_digests: what the values are, where ranks told digests of them: "random state". These are not shown.

    Example:
        >>> report = mesh.diff("model")  # doctest: +SKIP
        >>> [difference.path for difference in report.differences]  # doctest: +SKIP
        ['layers.2.weight']
    """

    expression: str
    groups: tuple[Compared, ...]
    left_out: int = 0
    of_digests: str = ""
    late: Mapping[int, Sequence[str]] = field(default_factory=dict)
    reserving: str = ""

    @property
    def differences(self) -> list[Difference]:
        """All differences, group by group."""
        return [difference for group in self.groups for difference in group.differences]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def __str__(self) -> str:
        rows = self.rows()
        width = max((len(row[0]) for row in rows), default=0)
        return "\n".join([self.title, *(f"  {name:<{width}}  {said}" for name, said in rows), *self.notes()])

    __repr__ = __str__

    @property
    def title(self) -> str:
        """How much is equal, on which ranks. Groups of which the same is true are told once."""
        lines: dict[str, list[Compared]] = {}
        for group in self.groups:
            lines.setdefault(_how_much(group, self.of_digests or "value"), []).append(group)
        if len(self.groups) == 1:
            return f"{next(iter(lines))} on {name_ranks(self.groups[0].ranks)}"
        return "\n".join(f"{line} {_named(groups)}" for line, groups in lines.items())

    def rows(self) -> list[tuple[str, str]]:
        """Return a name and a sentence for each difference, as many as are shown."""
        sentence = _sentence_of_digests if self.of_digests else _sentence
        rows = []
        for each, modules in self._folded()[:MOST_ROWS]:
            of = f" of {counted(modules, 'module')}" if modules > 1 else ""
            rows.append((f"{each.path or self.expression}{of}", sentence(each)))
        return rows

    def _folded(self) -> list[tuple[Difference, int]]:
        """Return the differences, each with how many modules it is of: `model.eval()` changes `training` of all."""
        modules: dict[object, list[Difference]] = {}
        for each in self.differences:
            is_training = each.path.rpartition(".")[2] == "training"
            key = (each.versions, each.missing) if is_training else id(each)
            modules.setdefault(key, []).append(each)
        return [(same[0], len(same)) for same in modules.values()]

    def notes(self) -> list[str]:
        """Return what the rows do not say."""
        notes = []
        if (more := len(self._folded()) - MOST_ROWS) > 0:
            notes.append(f"{more:,} more names differ: mesh.diff({self.expression!r}).differences has all")
        if alone := max(group.alone for group in self.groups):
            notes.append(f"{counted(alone, 'tensor')} in shards: each rank has its own, there is nothing to compare")
        if self.left_out:
            notes.append(f"{self.left_out:,} parts more were not compared: name a part, as in {self.expression}['a']")
        return notes + late_notes(self.late, self.reserving)


def late_notes(late: Mapping[int, Sequence[str]], reserving: str) -> list[str]:
    """Return a sentence for each group of ranks that have set the same variables too late. Arguments as `DiffReport`
    has them."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, names in late.items():
        groups.setdefault(tuple(names), []).append(rank)
    return [
        f"{name_ranks(ranks)}: {', '.join(names)} changed too late to count, after Python or a module had "
        f"read {'it' if len(names) == 1 else 'them'}: "
        f"{reserving} {' '.join(f'--env {name}=…' for name in names)} --replace (variables of the ranks are lost)"
        for names, ranks in groups.items()
        if names
    ]


def _named(groups: Sequence[Compared]) -> str:
    """Return "within each of 2 groups: 0,2 | 1,3", or "on ranks 1,3"."""
    if len(groups) == 1:
        return f"on {name_ranks(groups[0].ranks)}"
    return f"within each of {counted(len(groups), 'group')}: {_listed(groups)}"


def _listed(groups: Sequence[Compared]) -> str:
    named = [name_ranks(group.ranks).partition(" ")[2] for group in groups[:MOST_VERSIONS]]
    return " | ".join([*named, *(["…"] if len(groups) > MOST_VERSIONS else [])])


def _how_much(group: Compared, noun: str) -> str:
    """Return "112 of 113 tensors are equal", or the like."""
    tensors = {each.path for each in group.differences if each.is_tensor}
    values = {each.path for each in group.differences if not each.is_tensor}
    said = []
    if count := group.tensors - group.alone:
        said.append(_of(count - len(tensors), count, "tensor"))
    if (count := group.values) and (values or not group.tensors):  # nothing is said of equal values beside tensors
        said.append(_of(count - len(values), count, noun))
    return " and ".join(said) if said else "there is nothing to compare"


def _of(equal: int, count: int, noun: str) -> str:
    if count == 1:
        return f"the {noun} is equal" if equal else f"the {noun} differs"
    if equal == count:
        return f"all {count:,} {noun}s are equal"
    return f"{equal:,} of {count:,} {noun}s are equal"


def _sentence(difference: Difference) -> str:
    """Return what ranks have under a name."""
    most = difference.versions[0]
    same_kind = len({version.facts for version in difference.versions}) == 1
    said = [f"{most.facts.removesuffix(' requires_grad')}:"] if same_kind and difference.is_tensor else []
    parts = [_first(most, difference, same_kind=same_kind)]
    parts += [_other(each, difference, same_kind=same_kind) for each in difference.versions[1:MOST_VERSIONS]]
    if more := difference.versions[MOST_VERSIONS:]:
        others = sorted(rank for version in more for rank in version.ranks)
        parts.append(f"{counted(len(more), 'version')} more on {name_ranks(others)}")
    if difference.missing:
        parts.append(f"{name_ranks(difference.missing)}: not there")
    return " ".join([*said, "; ".join(parts)])


def _sentence_of_digests(difference: Difference) -> str:
    """Return which ranks have the same under a name, where nobody can read what they have."""
    alike = [version.ranks for version in difference.versions if len(version.ranks) > 1]
    alone = sorted(rank for version in difference.versions if len(version.ranks) == 1 for rank in version.ranks)
    if not alike and not difference.missing:
        return "each rank has its own"
    parts = [f"{name_ranks(ranks)} equal" for ranks in alike[:MOST_VERSIONS]]
    if more := alike[MOST_VERSIONS:]:
        parts.append(f"{counted(len(more), 'group')} more of equal ranks")
    if alone:
        parts.append(f"{name_ranks(alone)} {'differs' if len(alone) == 1 else 'differ, each has its own'}")
    if difference.missing:
        parts.append(f"{name_ranks(difference.missing)}: not there")
    return "; ".join(parts)


def _first(most: Version, difference: Difference, *, same_kind: bool) -> str:
    ranks = name_ranks(most.ranks)
    if not (difference.is_tensor and same_kind):
        return f"{ranks}: {_value(most, difference)}"
    return f"{ranks} {'is the reference' if len(most.ranks) == 1 else 'equal'}{_not_finite(most)}"


def _other(version: Version, difference: Difference, *, same_kind: bool) -> str:
    ranks = name_ranks(version.ranks)
    if not (difference.is_tensor and same_kind):
        return f"{ranks}: {_value(version, difference)}"
    verb = "differs" if len(version.ranks) == 1 else "differ"
    return f"{ranks} {verb}{f': {version.distance}' if version.distance else ''}{_not_finite(version)}"


def _value(version: Version, difference: Difference) -> str:
    if difference.is_tensor:
        return version.facts
    text = version.contents
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _not_finite(version: Version) -> str:
    found = [f"{count:,} {name}" for count, name in ((version.nan, "nan"), (version.inf, "inf")) if count]
    return f" ({' and '.join(found)})" if found else ""

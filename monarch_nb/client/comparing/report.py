"""What is said of a comparison: a sentence, a row for each difference, and what was left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb.client.comparing.comparison import Compared, Difference, Version
from monarch_nb.ground.rank_sets import counted, name_ranks

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
        return notes


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
    said = ", from ".join(filter(None, (version.distance, version.since)))
    return f"{ranks} {verb}{f': {said}' if said else ''}{_not_finite(version)}"


def _value(version: Version, difference: Difference) -> str:
    if difference.is_tensor:
        return version.facts
    text = version.contents
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _not_finite(version: Version) -> str:
    found = [f"{count:,} {name}" for count, name in ((version.nan, "nan"), (version.inf, "inf")) if count]
    return f" ({' and '.join(found)})" if found else ""

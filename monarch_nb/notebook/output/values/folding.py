"""Values of many ranks become a few rows: what folds, and what the rows say. Pure."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_nb.config import UNFOLDED_RANKS
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines.spreads import fold_texts
from monarch_nb.lines.templates import MAX_FOLDED_CHARACTERS
from monarch_nb.notebook.output.rows import ResultGroup
from monarch_nb.notebook.output.values.spread import Number, Spread, some_ranks

UNFOLDED_VALUES = 3
"""So many different numbers, or tensors, are shown as they are."""
FIRST_VALUES = 5
"""Of what does not fold, so many different values are shown at once."""
_UNFOLDED_SHAPES = 3
_STATISTICS = ("min", "max", "mean")


@dataclass(frozen=True, slots=True)
class Picture:
    """What can be drawn of the numbers of ranks: `name` says what they are, if that is not clear."""

    name: str
    spread: Spread


@dataclass(frozen=True, slots=True)
class FoldedRow:
    """Different values of a set of ranks, in a few lines."""

    ranks: int
    lines: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True)
class MoreRows:
    """Values that are shown when somebody asks for them."""

    groups: tuple[ResultGroup, ...]

    @property
    def ranks(self) -> int:
        return _ranks(self.groups)


Part = ResultGroup | FoldedRow | MoreRows


def folded(groups: Sequence[ResultGroup], without_value: int = 0) -> list[Part]:
    """Return what to show of the values of a run, in order: as they are on a few ranks, folded on many.

    Args:
        groups: the ranks of each different value, in order of the first rank.
        without_value: the ranks that returned None, a bit set. They are named beside numbers of the others.
    """
    if sum(group.ranks.bit_count() for group in groups) <= UNFOLDED_RANKS:
        return list(groups)
    kinds: dict[Any, list[ResultGroup]] = {}
    for group in groups:
        kinds.setdefault(_kind(group), []).append(group)
    parts: list[Part] = []
    for kind, alike in kinds.items():
        if kind is None:
            parts += _first_few(_fold_texts(alike))
        elif len(alike) <= UNFOLDED_VALUES:
            parts += alike
        elif kind[0] == "tensor":
            parts += _tensor_rows(alike)
        else:
            parts.append(_number_row(alike))
    if without_value and any(isinstance(part, FoldedRow) for part in parts):
        parts.append(ResultGroup(without_value, {"text/plain": "None"}))
    return sorted(parts, key=lambda part: (isinstance(part, MoreRows), part.ranks & -part.ranks))


def _fold_texts(groups: list[ResultGroup]) -> list[ResultGroup]:
    """Return values that are neither numbers nor tensors: those whose texts differ only in numbers fold as lines do."""
    texts = [(group.ranks, group.bundle["text/plain"]) for group in groups if _is_short_text(group)]
    if len(texts) <= UNFOLDED_VALUES:
        return groups
    of_ranks = {
        ranks: ResultGroup(ranks, {"text/plain": "\n".join(lines)})
        for ranks, lines in fold_texts((ranks, text.split("\n")) for ranks, text in texts)
    }
    alone = {group.ranks: group for group in groups if not _is_short_text(group) or group.ranks in of_ranks}
    return sorted((of_ranks | alone).values(), key=lambda group: group.ranks & -group.ranks)


def _is_short_text(group: ResultGroup) -> bool:
    text = group.bundle.get("text/plain")
    return isinstance(text, str) and len(group.bundle) == 1 and len(text) <= MAX_FOLDED_CHARACTERS


def _first_few(groups: list[ResultGroup]) -> list[Part]:
    if len(groups) <= FIRST_VALUES + 1:
        return list(groups)
    return [*groups[:FIRST_VALUES], MoreRows(tuple(groups[FIRST_VALUES:]))]


def _kind(group: ResultGroup) -> Any:
    """Return by what values fold with each other; None of what does not. The facts come from a rank of any version."""
    facts = next(iter(group.facts.values()), {})
    try:
        if "number" in facts:
            Number.read(facts["number"])
            return ("number",)
        if "numbers" in facts:
            for _, text in facts["numbers"]:
                Number.read(text)
            return "numbers", tuple(name for name, _ in facts["numbers"])
        if "tensor" in facts:
            tensor = facts["tensor"]
            device = tensor["device"].partition(":")[0]
            return "tensor", tensor["type"], tensor["dtype"], device, len(tensor["shape"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None


# ---- numbers ----


def _number_row(groups: list[ResultGroup]) -> FoldedRow:
    fields: dict[str, dict[int, Number]] = {}
    for rank, facts in _facts(groups):
        for name, text in [("", facts["number"])] if "number" in facts else facts["numbers"]:
            fields.setdefault(name, {})[rank] = Number.read(text)
    spreads = {name: Spread.of(dict(sorted(numbers.items()))) for name, numbers in fields.items()}
    width = max(map(len, spreads))
    lines = [f"{name + ':':{width + 1}} {spread.sentence(counts=False)}" for name, spread in spreads.items() if name]
    return FoldedRow(
        _ranks(groups),
        tuple(lines or [spread.sentence() for spread in spreads.values()]),
        tuple(Picture(name, spread) for name, spread in spreads.items() if not spread.is_equal or spread.odd),
    )


def _facts(groups: Iterable[ResultGroup]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the facts of each rank's value."""
    return itertools.chain.from_iterable(group.facts.items() for group in groups)


def _ranks(groups: Iterable[ResultGroup]) -> int:
    return functools.reduce(operator.or_, (group.ranks for group in groups))


# ---- tensors ----


@dataclass(slots=True)
class _Alike:
    """Tensors that share a row: of one shape, or of any when there are many shapes."""

    groups: list[ResultGroup] = field(default_factory=list)

    def tensors(self) -> dict[int, Mapping[str, Any]]:
        return dict(sorted((rank, facts["tensor"]) for rank, facts in _facts(self.groups)))


def _tensor_rows(groups: list[ResultGroup]) -> list[FoldedRow]:
    """Return a row for each shape, or when there are many one with the range of each dimension."""
    shapes: dict[tuple[int, ...], _Alike] = {}
    for group in groups:
        facts = next(iter(group.facts.values()))
        shapes.setdefault(tuple(facts["tensor"]["shape"]), _Alike()).groups.append(group)
    if len(shapes) > _UNFOLDED_SHAPES:
        return [_tensor_row(_Alike(groups))]
    return [_tensor_row(alike) for alike in shapes.values()]


def _tensor_row(alike: _Alike) -> FoldedRow:
    tensors = alike.tensors()
    spreads = {}
    for name in _STATISTICS:
        if numbers := {rank: Number.read(facts[name]) for rank, facts in tensors.items() if name in facts}:
            spreads[name] = Spread.of(numbers)
    odd = {kind: {rank: facts[kind] for rank, facts in tensors.items() if facts.get(kind)} for kind in ("nan", "inf")}
    ends = [f"{name} {_ends(spread)}" for name, spread in spreads.items()]
    lines = [_described(tensors), ", ".join(ends[:2]), " · ".join([*ends[2:], *_odd(odd)])]
    means = {rank: Number.read(facts.get("mean", "nan")) for rank, facts in tensors.items() if "step" in facts}
    for kind in ("inf", "nan"):
        means |= {rank: Number(float(kind), kind) for rank in odd[kind]}
    pictures = [Picture("mean", Spread.of(means))] if means and len(set(means.values())) > 1 else []
    return FoldedRow(_ranks(alike.groups), tuple(filter(None, lines)), tuple(pictures))


def _ends(spread: Spread) -> str:
    if spread.is_equal:
        return spread.text_of(spread.numbers[spread.finite[0]]) if spread.finite else "no number"
    return spread.ends(" to ")


def _described(tensors: Mapping[int, Mapping[str, Any]]) -> str:
    """Return what the tensors are: "tensor [8–16, 768] float32 cuda:0-7 on 128 ranks"."""
    first = next(iter(tensors.values()))
    sizes = [sorted(set(dimension)) for dimension in zip(*(facts["shape"] for facts in tensors.values()), strict=True)]
    shape = ", ".join(str(size[0]) if len(size) == 1 else f"{size[0]}–{size[-1]}" for size in sizes)
    kind, _, _ = first["device"].partition(":")
    numbers = {number for facts in tensors.values() if (number := facts["device"].partition(":")[2]).isdecimal()}
    device = f" {kind}" + (f":{format_ranks(map(int, numbers))}" if numbers else "") if kind else ""
    steps = sorted({facts["step"] for facts in tensors.values() if facts.get("step", 1) > 1})
    part = f", ≈ from one in {steps[-1]:,} elements" if steps else ""
    return f"{first['type']} [{shape}] {first['dtype']}{device} on {len(tensors):,} ranks{part}"


def _odd(odd: Mapping[str, Mapping[int, int]]) -> list[str]:
    """Return who has elements that are no numbers, and how many: "nan on rank 5 (12 elements)"."""
    told = []
    for kind, counts in odd.items():
        if counts:
            found = sorted(set(counts.values()))
            many = f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
            told.append(f"{kind} on {some_ranks(counts)} ({many} element{'s' * (many != '1')})")
    return told

"""Stacks and how long they were there, as trees; trees of ranks that look the same are one."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ALIKE = 0.15
"""Ranks look the same when so much of their time, at most, was spent in other lines."""


class Frame(NamedTuple):
    """A frame. `line` is 0 where all lines of the function are one: outside of the user's code."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        if not self.line:
            return f"{self.function} ({os.path.basename(self.file)})" if self.file else self.function
        file = os.path.basename(self.file) if os.path.isabs(self.file) else self.file
        inside = "" if self.function.startswith("<") else f" {self.function}"
        return f"{file}:{self.line}{inside}"


@dataclass
class Node:
    """A frame in one place of the tree, and what it called.

    Attributes:
        own_s: how long it was the innermost one.
    """

    own_s: float = 0.0
    called: dict[Frame, Node] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        """How long it was there."""
        return self.own_s + sum(node.total_s for node in self.called.values())


@dataclass(frozen=True)
class Flame:
    """The stacks of ranks that look the same: as long as each of them was there on average.

    Attributes:
        ranks: whose.
        root: of no frame; it calls the outermost ones.
        looks: at all of these ranks together.
        is_cut: there were more stacks than are kept: some time counts for frames further out.
    """

    ranks: tuple[int, ...]
    root: Node
    looks: int
    is_cut: bool

    def lines(self) -> dict[Frame, float]:
        """Return how long each of the user's lines was the innermost one."""
        found: defaultdict[Frame, float] = defaultdict(float)
        pending: list[tuple[Node, Frame | None]] = [(self.root, None)]
        while pending:
            node, users = pending.pop()
            if node.own_s and users is not None:
                found[users] += node.own_s
            pending += [(child, frame if frame.line else users) for frame, child in node.called.items()]
        return dict(found)

    def stacks(self) -> Iterator[tuple[tuple[Frame, ...], float]]:
        """Yield stacks, outermost frame first, and how long each was there."""
        pending: list[tuple[Node, tuple[Frame, ...]]] = [(self.root, ())]
        while pending:
            node, stack = pending.pop()
            if node.own_s and stack:
                yield stack, node.own_s
            pending += [(child, (*stack, frame)) for frame, child in reversed(node.called.items())]


def flame_of(rank: int, told: Mapping[str, Any]) -> Flame:
    """Return the stacks of a rank as it told them: see StackCounts in monarch_nb/worker/instruments."""
    frames = [Frame(*frame) for frame in told["frames"]]
    root = Node()
    nodes: list[Node] = []
    for parent, frame, own_s in zip(told["parents"], told["frame_of"], told["own_s"], strict=True):
        node = Node(own_s)
        (nodes[parent] if parent >= 0 else root).called[frames[frame]] = node
        nodes.append(node)
    return Flame((rank,), root, told["looks"], told["is_cut"])


def together(flames: Sequence[Flame]) -> list[Flame]:
    """Return flames with those of ranks that look the same as one; the greatest group first."""
    groups: list[list[Flame]] = []
    for flame in flames:
        group = next((group for group in groups if _distance(group[0], flame) <= _allowed(group[0], flame)), None)
        if group is None:
            groups.append([flame])
        else:
            group.append(flame)
    groups.sort(key=lambda group: -len(group))
    return [_mean(group) for group in groups]


def _distance(one: Flame, other: Flame) -> float:
    """Return which part of the time was spent in other lines, or not at all because one took longer."""
    mine, others = one.lines(), other.lines()
    most_s = max(one.root.total_s, other.root.total_s, 1e-9)
    return sum(abs(mine.get(line, 0.0) - others.get(line, 0.0)) for line in {*mine, *others}) / 2 / most_s


def _allowed(one: Flame, other: Flame) -> float:
    """Few looks tell little: as much as chance makes is no difference."""
    kinds = len({*one.lines(), *other.lines()})
    return ALIKE + math.sqrt(kinds / max(1, min(one.looks, other.looks))) / 2


def _mean(group: Sequence[Flame]) -> Flame:
    root = _sum([flame.root for flame in group], 1 / len(group))
    ranks = tuple(sorted(rank for flame in group for rank in flame.ranks))
    return Flame(ranks, root, sum(flame.looks for flame in group), any(flame.is_cut for flame in group))


def _sum(nodes: Sequence[Node], factor: float) -> Node:
    found = Node(sum(node.own_s for node in nodes) * factor)
    for frame in dict.fromkeys(frame for node in nodes for frame in node.called):
        found.called[frame] = _sum([node.called[frame] for node in nodes if frame in node.called], factor)
    return found

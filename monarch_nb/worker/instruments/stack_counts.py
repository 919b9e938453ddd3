"""How long stacks were there, in a tree of bounded size. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

MOST_NODES = 20_000
MOST_DEPTH = 200


class Frame(NamedTuple):
    """A frame of a stack, as people read it.

    Attributes:
        line: of the user's code, the line that is executed; 0 elsewhere: all lines of the function are one.
    """

    function: str
    file: str
    line: int


class StackCounts:
    """Counts stacks. What has no place in the tree any more counts for the frame that called it.

    Example:
        >>> counts = StackCounts()
        >>> counts.add([Frame("<module>", "train.py", 3), Frame("step", "train.py", 9)], 0.5)
        >>> told = counts.told()
        >>> told["parents"], told["own_s"]
        ([-1, 0], [0.0, 0.5])
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._children: dict[tuple[int, int], int] = {}
        self._parents: list[int] = []
        self._frame_of: list[int] = []
        self._own_s: list[float] = []
        self._looks, self._is_cut = 0, False

    def add(self, stack: Iterable[Frame], seconds: float) -> None:
        """Count a stack that was there for some time.

        Args:
            stack: outermost frame first; not empty.
        """
        self._looks += 1
        node = -1
        for depth, frame in enumerate(stack):
            child = self._children.get((node, self._frames.get(frame, -1)))
            if child is None:
                if depth >= MOST_DEPTH or (len(self._parents) >= MOST_NODES and node >= 0):
                    self._is_cut = True
                    break
                child = self._grow(node, frame)
            node = child
        self._own_s[node] += seconds

    def _grow(self, node: int, frame: Frame) -> int:
        """Return a new node for a frame that another one called."""
        number = self._frames.setdefault(frame, len(self._frames))
        child = self._children[node, number] = len(self._parents)
        self._parents.append(node)
        self._frame_of.append(number)
        self._own_s.append(0.0)
        return child

    def told(self) -> dict[str, Any]:
        """Return all as plain data: nodes as lists, each after its parent."""
        return {
            "looks": self._looks,
            "is_cut": self._is_cut,
            "frames": [tuple(frame) for frame in self._frames],
            "parents": self._parents,
            "frame_of": self._frame_of,
            "own_s": self._own_s,
        }

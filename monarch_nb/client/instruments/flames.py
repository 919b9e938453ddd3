"""Flame graphs: stacks and how long they were there, as trees, as the file of speedscope, and as a picture."""

from __future__ import annotations

import html
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_nb.client.instruments.asked import found_on
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run

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


SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(name: str, flames: Sequence[Flame]) -> dict[str, Any]:
    """Return the content of the file: a profile for each group of ranks.

    Args:
        name: of the whole: "run 12".
    """
    numbers: dict[Frame, int] = {}
    profiles = []
    for flame in flames:
        samples, weights = [], []
        for stack, seconds in flame.stacks():
            samples.append([numbers.setdefault(frame, len(numbers)) for frame in stack])
            weights.append(round(seconds, 6))
        profiles.append(
            {
                "type": "sampled",
                "name": name_ranks(flame.ranks),
                "unit": "seconds",
                "startValue": 0,
                "endValue": round(sum(weights), 6),
                "samples": samples,
                "weights": weights,
            }
        )
    return {
        "$schema": SCHEMA,
        "exporter": "monarch_nb",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in numbers]},
        "profiles": profiles,
    }


def _frame(frame: Frame) -> dict[str, Any]:
    told: dict[str, Any] = {"name": str(frame) if frame.line else frame.function}
    if frame.file:
        told["file"] = frame.file
    if frame.line:
        told["line"] = frame.line
    return told


WIDTH = 900
MOST_BOXES = 500
"""Of the whole picture: a saved notebook stays small."""
MOST_FLAMES = 4
_MOST_DEPTH = 50
_LEAST_SHARE = 0.002
_ROW, _HEADING = 18, 26
_CHARACTER = 6.7
_USERS, _TORCH, _OTHER = "#e8862e", "#3d8bd0", "#8a8a8a"
"""They lie half transparent on the ground, so they do on light and on dark."""
_LIGHT, _DARK = {"back": "#ffffff", "text": "#212121"}, {"back": "#111111", "text": "#e0e0e0"}
_LABS = {"back": "--jp-layout-color0", "text": "--jp-content-font-color1"}
_FONT = "var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace)"


@dataclass(frozen=True)
class Box:
    """A frame in the picture: where it begins and how wide it is, from 0 to 1, and how many frames are outside."""

    frame: Frame
    start: float
    share: float
    depth: int
    seconds: float


def boxes(flame: Flame, most: int) -> list[Box]:
    """Return the widest boxes of a flame graph: never one without the frame that called it."""
    totals: dict[int, float] = {}
    _measure(flame.root, totals)
    whole_s = totals[id(flame.root)] or 1.0

    def below(node: Node, start_s: float, depth: int) -> Iterator[Box]:
        for frame, child in sorted(node.called.items(), key=lambda one: -totals[id(one[1])]):
            total_s = totals[id(child)]
            if total_s / whole_s < _LEAST_SHARE or depth >= _MOST_DEPTH:
                continue
            yield Box(frame, start_s / whole_s, total_s / whole_s, depth, total_s)
            yield from below(child, start_s, depth + 1)
            start_s += total_s

    return sorted(below(flame.root, 0.0, 0), key=lambda box: -box.share)[:most]


def _measure(node: Node, totals: dict[int, float]) -> float:
    total_s = node.own_s
    for child in node.called.values():
        total_s += _measure(child, totals)
    totals[id(node)] = total_s
    return total_s


def svg(flames: Sequence[Flame]) -> str:
    """Return the picture: a flame graph for each of the first groups of ranks, callers above what they called."""
    shown = flames[:MOST_FLAMES]
    parts: list[str] = []
    top = 4.0
    for flame in shown:
        found = boxes(flame, MOST_BOXES // len(shown))
        parts.append(f'<g transform="translate(0 {top:g})">')
        parts.append(_text(4, 16, f"{name_ranks(flame.ranks)} · {duration(flame.root.total_s)}", " font-weight='600'"))
        parts += [_drawn(box) for box in found]
        parts.append("</g>")
        top += _HEADING + _ROW * (1 + max((box.depth for box in found), default=-1)) + 8
    title = f"Flame graph of {', '.join(name_ranks(flame.ranks) for flame in shown)}"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="mnb-flames" viewBox="0 0 {WIDTH} {top:g}" width="{WIDTH}" '
        f'height="{top:g}" role="img" aria-label="{html.escape(title)}" style="max-width:100%;height:auto" '
        f'font-size="11" font-family="{_FONT}"><style>{_style()}</style>'
        f'<rect class="b" width="{WIDTH}" height="{top:g}" fill="{_LIGHT["back"]}"/>'
    )
    return "".join([opening, *parts, "</svg>"])


def _drawn(box: Box) -> str:
    x, width, y = box.start * WIDTH, box.share * WIDTH, _HEADING + box.depth * _ROW
    room = int((width - 6) / _CHARACTER)
    label = str(box.frame)
    label = label if len(label) <= room else f"{label[: room - 1]}…" if room >= 4 else ""
    where = f"{box.frame.function} ({box.frame.file}{f':{box.frame.line}' if box.frame.line else ''})"
    said = html.escape(f"{where}: {box.share:.1%}, {duration(box.seconds)}")
    return (
        f'<g><title>{said}</title><rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" height="{_ROW - 1}" '
        f'fill="{_colour(box.frame)}" fill-opacity="0.5"/>{_text(x + 3, y + 12.5, label) if label else ""}</g>'
    )


def _colour(frame: Frame) -> str:
    if frame.line:
        return _USERS
    return _TORCH if "/torch/" in frame.file else _OTHER


def _text(x: float, y: float, text: str, extra: str = "") -> str:
    return f'<text class="t" x="{x:.1f}" y="{y:g}" fill="{_LIGHT["text"]}"{extra}>{html.escape(text)}</text>'


def _style() -> str:
    def variables(colours: dict[str, str]) -> str:
        return "".join(f"--mnb-{name}:{colour};" for name, colour in colours.items())

    return (
        f".mnb-flames{{{variables(_LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{.mnb-flames{{{variables(_DARK)}}}}}"
        f".mnb-flames .b{{fill:var({_LABS['back']},var(--mnb-back))}}"
        f".mnb-flames .t{{fill:var({_LABS['text']},var(--mnb-text));pointer-events:none}}"
    )


PYTHON_PROFILE = "python-profile"
DIRECTORY = "traces"
_MOST_LINES, _LEAST_OF_LINE = 5, 0.005


@dataclass(frozen=True)
class Flames:
    """Where the time of a run went, by stacks of Python. A notebook shows it as a picture.

    Attributes:
        name: of the run: "run 12".
        groups: the stacks of ranks that look the same, the most ranks first.
        missing: ranks that told nothing: they are dead, compute something else now, or were asked before.
        dead: those of them that are.
    """

    name: str
    groups: tuple[Flame, ...]
    missing: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What there is to say besides."""
        said = []
        if self.dead:
            is_dead = "is dead, so it tells" if len(self.dead) == 1 else "are dead, so they tell"
            said.append(f"{name_ranks(self.dead)} {is_dead} nothing")
        if silent := set(self.missing) - set(self.dead):
            verb = "tells" if len(silent) == 1 else "tell"
            said.append(f"{name_ranks(silent)} {verb} nothing (busy with another run, or asked before)")
        if (hidden := len(self.groups) - MOST_FLAMES) > 0:
            said.append(f"{counted(hidden, 'other group')} of ranks in the file alone")
        if any(flame.is_cut for flame in self.groups):
            said.append("there were more stacks than are kept: some time counts for the frames that called them")
        return said

    def svg(self) -> str:
        """Return the picture."""
        return svg(self.groups)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file that https://www.speedscope.app opens, and return its path.

        Raises:
            OSError: it can not be written.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(speedscope(self.name, self.groups), separators=(",", ":")), encoding="utf-8")
        return target

    def __str__(self) -> str:
        return "\n".join([*(line for flame in self.groups for line in _hottest(flame)), *self.notes])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if not self.groups:
            return {"text/plain": str(self)}
        return {"image/svg+xml": self.svg(), "text/plain": str(self)}


def flames_of(mesh: Mesh, run: Run) -> Flames:
    """Return where the time of a run went, by stacks of Python that its ranks had. It can be asked for once.

    Args:
        run: that has ended, also by failing, with the instrument "python-profile".

    Raises:
        UsageError: it goes on.

    Example:
        >>> run = mesh.run("train()", instruments={"python-profile": {}})  # doctest: +SKIP
        >>> flames = mesh.flames_of(run)  # doctest: +SKIP
        >>> flames.save("traces/train.speedscope.json")  # doctest: +SKIP
    """
    if not run.done:
        raise UsageError(f"run {run.number} goes on: run.result() waits for its end, then there is a profile")
    found = found_on(mesh, run, PYTHON_PROFILE)
    flames = [flame_of(rank, told) for rank, told in sorted(found.items()) if told["looks"]]
    missing = tuple(rank for rank in run.ranks if rank not in found)
    died = {failure.rank for failure in run.failures if failure.kind == "died"}
    if missing and not run.is_script:
        died |= {info.rank for info in mesh.status() if info.state == "dead"}
    dead = tuple(rank for rank in missing if rank in died)
    return Flames(f"run {run.number}", tuple(together(flames)), missing, dead)


def _hottest(flame: Flame) -> Iterator[str]:
    """Yield the lines of the user's where most of the time went."""
    whole_s = flame.root.total_s or 1.0
    yield f"{name_ranks(flame.ranks)} · {duration(whole_s)}"
    lines = sorted(flame.lines().items(), key=lambda one: -one[1])[:_MOST_LINES]
    for frame, seconds in lines:
        if seconds / whole_s >= _LEAST_OF_LINE:
            yield f"  {seconds / whole_s:4.0%}  {frame}"

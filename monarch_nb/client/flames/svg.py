"""Flame graphs as an SVG picture without any library: bounded in size, light and dark, with titles to hover over."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from monarch_nb.client.flames.trees import Flame, Frame, Node
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.times import duration

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

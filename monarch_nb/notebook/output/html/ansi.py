"""ANSI escape codes: colours become inline-styled HTML, everything else that a terminal would act on is dropped.

Inline styles, because the places that show saved notebooks strip `<style>`; Jupyter's own palette, because it reads on
light and dark.
"""

import html
from functools import lru_cache
from typing import NamedTuple

from monarch_nb.ground.escapes import ESCAPE, clean

_PALETTE = ("#3E424D", "#E75C58", "#00A250", "#DDB62B", "#208FFB", "#D160C4", "#60C6C8", "#C5C1B4")
_BRIGHT = ("#6B7080", "#B22B31", "#007427", "#B27D12", "#0065CA", "#A03196", "#258F8F", "#A1A6B2")
_CUBE = (0, 95, 135, 175, 215, 255)
_FOREGROUND, _BACKGROUND = "var(--jp-content-font-color1,#111)", "var(--jp-layout-color0,#fff)"


class Style(NamedTuple):
    """What the text that follows looks like, in the parameters that chose it: "31" or "48;5;9" for colours, and the
    numbers of the switches that are on."""

    foreground: str = ""
    background: str = ""
    switches: frozenset[int] = frozenset()


PLAIN = Style()
_BOLD, _FAINT, _ITALIC, _UNDERLINE, _INVERSE, _STRIKE = 1, 2, 3, 4, 7, 9
_SWITCHES = (_BOLD, _FAINT, _ITALIC, _UNDERLINE, _INVERSE, _STRIKE)
_OFF = {22: {_BOLD, _FAINT}, 23: {_ITALIC}, 24: {_UNDERLINE}, 27: {_INVERSE}, 29: {_STRIKE}}


def to_html(text: str) -> str:
    """Return `text` as HTML: escaped, colours as spans, other control codes dropped.

    Example:
        >>> to_html("a<b \\x1b[1mbold\\x1b[0m")
        'a&lt;b <span style="font-weight:bold">bold</span>'
    """
    if "\x1b" not in text:
        return _escape(text)
    pieces, style, position = [], PLAIN, 0
    for match in ESCAPE.finditer(text):
        pieces.append(_span(text[position : match.start()], style))
        if match[2] == "m":
            style = apply(style, match[1])
        position = match.end()
    pieces.append(_span(text[position:], style))
    return "".join(pieces)


@lru_cache(1024)
def apply(style: Style, parameters: str) -> Style:
    """Return `style` after the escape code `ESC [ parameters m`; parameters that make no sense change nothing."""
    if parameters.startswith(("<", "=", ">", "?")):
        return style
    codes = parameters.replace(":", ";").split(";")
    values = [int(code[:9]) if code.isdecimal() else 0 for code in codes[:64]]
    while values:
        value = values.pop(0)
        if value == 0:
            style = PLAIN
        elif value in _SWITCHES:
            style = style._replace(switches=style.switches | {value})
        elif value in _OFF:
            style = style._replace(switches=style.switches - _OFF[value])
        elif 30 <= value < 40 or 90 <= value < 98:
            style = style._replace(foreground=_colour(value, 38, values))
        elif 40 <= value < 50 or 100 <= value < 108:
            style = style._replace(background=_colour(value, 48, values))
    return style


@lru_cache(1024)
def parameters_of(style: Style) -> str:
    """Return the parameters that lead from the plain style to `style`; empty for the plain style itself."""
    return ";".join(filter(None, (*map(str, sorted(style.switches)), style.foreground, style.background)))


def _colour(value: int, extended: int, values: list[int]) -> str:
    """Return the parameters of a colour, taking those of an extended one out of `values`; empty for the default."""
    if value != extended:
        return "" if value == extended + 1 else str(value)
    count = {5: 2, 2: 4}.get(values[0], 0) if values else 0
    taken, values[:] = values[:count], values[max(count, 1) :]
    if not count or len(taken) < count:
        return ""
    return ";".join(map(str, (extended, taken[0], *(min(each, 255) for each in taken[1:]))))


@lru_cache(1024)
def _css(style: Style) -> str:
    foreground, background = _css_colour(style.foreground), _css_colour(style.background)
    if ";" not in style.background and background and _INVERSE not in style.switches:
        foreground = "" if foreground == background else foreground  # IPython marks yellow strings yellow
        background += "55"  # translucent: whatever the theme, the text on it can be read
    if _INVERSE in style.switches:
        foreground, background = background or _BACKGROUND, foreground or _FOREGROUND
    lines = {_UNDERLINE: "underline", _STRIKE: "line-through"}
    rules = {
        "color": foreground,
        "background": background,
        "font-weight": "bold" if _BOLD in style.switches else "",
        "opacity": ".6" if _FAINT in style.switches else "",
        "font-style": "italic" if _ITALIC in style.switches else "",
        "text-decoration": " ".join(name for code, name in lines.items() if code in style.switches),
    }
    return ";".join(f"{name}:{value}" for name, value in rules.items() if value)


def _css_colour(parameters: str) -> str:
    if not parameters:
        return ""
    values = [int(value) for value in parameters.split(";")]
    if len(values) == 1:
        return (_PALETTE if values[0] < 90 else _BRIGHT)[values[0] % 10]
    if values[1] == 2:
        return "#{:02X}{:02X}{:02X}".format(*values[2:])
    index = values[2]
    if index < 16:
        return (*_PALETTE, *_BRIGHT)[index]
    if index < 232:
        red, rest = divmod(index - 16, 36)
        return f"#{_CUBE[red]:02X}{_CUBE[rest // 6]:02X}{_CUBE[rest % 6]:02X}"
    return "#" + f"{8 + 10 * (index - 232):02X}" * 3


def _span(text: str, style: Style) -> str:
    if not text or style == PLAIN:
        return _escape(text)
    return f'<span style="{_css(style)}">{_escape(text)}</span>'


def _escape(text: str) -> str:
    return html.escape(clean(text), quote=False)

"""ANSI codes become inline-styled HTML, and never anything else."""

import html
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.ground import escapes
from monarch_nb.notebook.output.html import ansi

_SOME_CODES = st.sampled_from(
    ["\x1b[31m", "\x1b[0m", "\x1b[1;38;5;208m", "\x1b[2K", "\x1b[A", "\x1b]0;t\x07", "\x1b", "\x07"]
)


def _text_of(markup: str) -> str:
    return html.unescape(re.sub(r"</?span[^<>]*>", "", markup))


def test_markup() -> None:
    for text, markup in (
        ("plain", "plain"),
        ("a < b & c", "a &lt; b &amp; c"),
        ("\x1b[31mred\x1b[0m.", '<span style="color:#E75C58">red</span>.'),
        (
            "\x1b[1;91mx\x1b[22my",
            '<span style="color:#B22B31;font-weight:bold">x</span><span style="color:#B22B31">y</span>',
        ),
        ("\x1b[38;5;208mx", '<span style="color:#FF8700">x</span>'),
        ("\x1b[38;5;1mx", '<span style="color:#E75C58">x</span>'),
        ("\x1b[48;5;244mx", '<span style="background:#808080">x</span>'),
        ("\x1b[38;2;1;2;999mx", '<span style="color:#0102FF">x</span>'),
        ("\x1b[38:2:1:2:3mx", '<span style="color:#010203">x</span>'),
        ("\x1b[7;31mx", '<span style="color:var(--jp-layout-color0,#fff);background:#E75C58">x</span>'),
        ("\x1b[4;9mx\x1b[mx", '<span style="text-decoration:underline line-through">x</span>x'),
        ("\x1b[3;2mx", '<span style="opacity:.6;font-style:italic">x</span>'),
        ("\x1b[31;39;44;49mx", "x"),
        ("\x1b[38mx\x1b[38;5mx\x1b[99999999999mx\x1b[?25lx", "xxxx"),
        ("\x1b[2K\x1b[3Aup\x1b[10;5H", "up"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07\x1b(B", "link"),
        ("bell\x07 nul\x00 tab\t.", "bell nul tab\t."),
        ("\ud800", "\ufffd"),
    ):
        assert ansi.to_html(text) == markup


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(max_size=10), _SOME_CODES), max_size=12).map("".join))
def test_nothing_but_our_spans_and_no_character_lost(text: str) -> None:
    markup = ansi.to_html(text)
    assert _text_of(markup) == escapes.strip(text)
    assert re.sub(r'<span style="[^"<>]*">|</span>', "", markup).count("<") == 0
    assert markup.count("<span") == markup.count("</span>")


@settings(deadline=None)
@given(st.lists(st.text("0123456789;:?", max_size=12), max_size=5))
def test_a_style_is_rebuilt_from_its_parameters(codes: list[str]) -> None:
    style = ansi.PLAIN
    for parameters in codes:
        style = ansi.apply(style, parameters)
    rebuilt = ansi.apply(ansi.PLAIN, ansi.parameters_of(style)) if ansi.parameters_of(style) else ansi.PLAIN
    assert rebuilt == style

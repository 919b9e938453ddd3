"""Rows become HTML and text: complete, safe and small."""

import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.lib.pretty import pretty

from monarch_nb.client.connections.events import Display, Elided, Event, Notice, Result, Text
from monarch_nb.errors import RankFailure
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.render import LogOf, plain_lines, render
from unit.notebook.output.folds import fold_of, rendered

_PICTURE = {"image/png": "aWNvbg==\n", "text/plain": "<Figure size 640x480 with 1 Axes>"}


def _everyone(text: str, ranks: int = 8, stream: Any = "stdout") -> list[Event]:
    return [Text(rank, stream, text) for rank in range(ranks)]


def _text_of(markup: str) -> str:
    """What is left where styles and tags are stripped."""
    return html.unescape(re.sub(r"<[^>]*>", "", re.sub("</pre>|</div>", "\n", markup))).strip()


def _stored_bytes(bundle: dict[str, str]) -> int:
    return len(json.dumps(bundle))


class _Balance(HTMLParser):
    """Fails on tags that do not match."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(markup)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# ---- text ----


def test_stderr_is_marked_without_colour() -> None:
    bundle = rendered(fold_of(2, *_everyone("w\n", 2, "stderr"), *_everyone("o\n", 2)))
    assert bundle["text/plain"] == "[stderr:0-1] w\n[0-1] o"
    assert _text_of(bundle["text/html"]) == "[0-1]│w\n[0-1] o"
    assert 'title="stderr"' in bundle["text/html"]


def test_labels_of_scattered_ranks_are_short_in_html_and_whole_in_text() -> None:
    bundle = rendered(fold_of(64, *(Text(rank, "stdout", "even\n") for rank in range(0, 64, 2))))
    whole = "[" + ",".join(map(str, range(0, 64, 2))) + "]"
    assert bundle["text/plain"] == f"{whole} even"
    assert "[0,2,…,62]" in bundle["text/html"]
    assert f'title="{whole}"' in bundle["text/html"]


def test_nothing_is_nothing() -> None:
    assert rendered(fold_of(2)) == {}
    assert rendered(fold_of(2, Result(0, "ok", 0.1)), status="8 ranks") == {}
    assert rendered(fold_of(2), status="● running", status_alone=True)["text/plain"] == "● running"


def test_the_status_stands_below_the_output_and_not_in_its_text() -> None:
    bundle = rendered(fold_of(1, Text(0, "stdout", "x\n")), status="8 ranks · 12 s")
    assert bundle["text/plain"] == "[0] x"
    assert _text_of(bundle["text/html"]).endswith("8 ranks · 12 s")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["stdout", "stderr"]), st.text()), max_size=6))
def test_any_text_is_escaped(pieces: list[tuple[int, Any, str]]) -> None:
    bundle = rendered(fold_of(3, *(Text(*piece) for piece in pieces)))
    if bundle:
        _Balance(bundle["text/html"])
        allowed = r'<(span|pre|div)( style="[^"<>]*")?( title="[^"<>]*")?>|</(span|pre|div)>'
        assert "<" not in re.sub(allowed, "", bundle["text/html"])
        json.dumps(bundle).encode()
        "".join(bundle.values()).encode()


# ---- groups ----


def _mixed() -> Fold:
    fold = Fold(range(2))
    for rank in range(2):
        fold.add(Text(rank, "stdout", "both\n"))
        fold.add(Text(rank, "stderr", f"warning {rank}\n"))
        fold.add(Display(rank, "show", {"text/plain": f"<Figure {rank}>"}))
        fold.add(Text(rank, "stdout", f"own {rank}\n"))
    return fold


def test_groups() -> None:
    for group, lines in (
        (
            "order",
            "[0-1] both|[stderr:0] warning 0|[stderr:1] warning 1|[0] <Figure 0>|[1] <Figure 1>|[0] own 0|[1] own 1",
        ),
        (
            "rank",
            "|".join(f"[{r}] both|[stderr:{r}] warning {r}|[{r}] <Figure {r}>|[{r}] own {r}" for r in (0, 1)),
        ),
        (
            "type",
            "[0-1] both|[0] own 0|[1] own 1|[stderr:0] warning 0|[stderr:1] warning 1|[0] <Figure 0>|[1] <Figure 1>",
        ),
    ):
        plain = rendered(_mixed(), group=group)["text/plain"]
        assert [line.strip() for line in plain.splitlines()] == lines.split("|")


def test_by_rank_ranks_whose_whole_output_is_equal_are_shown_once() -> None:
    texts = ["both\n", "both\nown\n", "both\n"]
    fold = fold_of(3, *(Text(rank, "stdout", text) for rank, text in enumerate(texts)), Elided(1, "stdout", 5, 50))
    lines = [line.strip() for line in rendered(fold, group="rank")["text/plain"].splitlines()]
    assert lines == ["[0,2] both", "[1] both", "[1] own", "… 5 lines on rank 1 not shown; `%mesh logs -n 0` has them"]


# ---- displays and results ----


def test_a_figure() -> None:
    bundle = rendered(
        fold_of(4, Display(3, "show", _PICTURE, {"image/png": {"width": 320, "needs_background": "light"}}))
    )
    assert bundle["text/plain"] == "[3] <Figure size 640x480 with 1 Axes>"
    (image,) = re.findall("<img[^>]*>", bundle["text/html"])
    assert 'src="data:image/png;base64,aWNvbg=="' in image
    assert 'alt="&lt;Figure size 640x480 with 1 Axes&gt;"' in image
    assert 'width="320"' in image
    assert "background:#fff" in image
    _Balance(bundle["text/html"])


def test_other_displays() -> None:
    svg = rendered(fold_of(1, Display(0, "show", {"image/svg+xml": "<svg><script>1</script></svg>"})))
    assert "<svg" not in svg["text/html"]
    assert "data:image/svg+xml;base64," in svg["text/html"]
    assert svg["text/plain"] == "[0] <image/svg+xml>"
    table = rendered(fold_of(1, Display(0, "show", {"text/html": ["<b>", "x</b>"], "text/plain": "x\ny"})))
    assert "<b>x</b>" in table["text/html"]
    assert table["text/plain"] == "[0]\nx\ny"
    latex = rendered(fold_of(1, Display(0, "show", {"text/latex": "$x<y$", "text/plain": "x<y"})))
    assert "$x&lt;y$" in latex["text/html"]
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "IntSlider(value=3)"}
    assert rendered(fold_of(1, Display(0, "show", widget)))["text/plain"] == "[0] IntSlider(value=3)"


def _own(mime: str, content: Any) -> dict[str, Any]:
    return {mime: content, "text/plain": "<IPython.core.display.Something object>"}


_OWN = [
    _own("application/json", {"a": [1, None]}),
    _own("application/geo+json", {"type": "Point", "coordinates": [1, 2]}),
    _own("application/vnd.vega.v5+json", {"marks": []}),
    _own("application/vnd.vegalite.v5+json", {"mark": "bar"}) | {"text/html": "<div id='chart'></div>"},
    _own("application/vnd.plotly.v1+json", {"data": [], "layout": {}}) | {"image/png": "aWNvbg=="},
    _own("application/javascript", "element.append('x')"),
    _own("application/pdf", "JVBERi0="),
    {"text/html": "<b>large</b>" + " " * 2_000_000, "text/plain": "large"},
]


@pytest.mark.parametrize("data", _OWN, ids=[next(iter(data)) for data in _OWN])
def test_what_front_ends_draw_is_given_to_them_as_it_is_between_the_lines(data: dict[str, Any]) -> None:
    metadata = {next(iter(data)): {"expanded": True}}
    shows = [Display(rank, "show", data, metadata) for rank in range(2)]
    lines = [Text(rank, "stdout", text) for text in ("before\n", "after\n") for rank in range(2)]
    above, drawn, below = render(fold_of(2, *lines[:2], *shows, *lines[2:]))
    assert (drawn.data, drawn.metadata) == (data, metadata)
    assert _text_of(above.data["text/html"]).split("\n") == ["[0-1] before", "[0-1]"]
    assert below.data["text/plain"] == "[0-1] after"
    above, first, between, second = render(
        fold_of(2, *(Display(rank, "show", data | {"n": rank}) for rank in range(2)))
    )
    assert [_text_of(each.data["text/html"]) for each in (above, between)] == ["[0]", "[1]"], "different ones"
    assert (first.data, second.data) == (data | {"n": 0}, data | {"n": 1})
    values = [Result(rank, "ok", 0.1, data, metadata) for rank in range(2)]
    label, value = render(fold_of(2, *values))
    assert _text_of(label.data["text/html"]) == "Out[0-1]:"
    assert (value.data, value.metadata) == (data, metadata)
    for each in (above, below, label):
        _Balance(each.data["text/html"])


def test_what_finds_no_place_of_its_own_is_drawn_as_well_as_we_can() -> None:
    lines = [Text(0, "stdout", text) for text in ("first\n", "second\n")]
    json_of = [Display(0, "show", _own("application/json", [number])) for number in range(2)]
    fold = fold_of(1, json_of[0], lines[0], json_of[1], lines[1])
    for most, texts in (
        (1, ["[0] [0]\n[0] first\n[0] [1]\n[0] second"]),
        (2, ["[0] [0]\n[0] first\n[0] [1]\n[0] second", "…"]),
        (3, ["[0] [0]", "…", "[0] first\n[0] [1]\n[0] second"]),
        (4, ["[0] [0]", "…", "[0] first\n[0] [1]\n[0] second", "…"]),
        (5, ["[0] [0]", "…", "[0] first\n[0] [1]", "…", "[0] second"]),
    ):
        shown = render(fold, most=most)
        assert [
            each.data["text/plain"].replace("<IPython.core.display.Something object>", "…") for each in shown
        ] == texts
    status = render(fold_of(1, json_of[0]), status="running")
    assert [("running" in each.data.get("text/html", "")) for each in status] == [False, False, True]


def test_markdown_is_rendered_with_math_left_to_the_notebook() -> None:
    text = "## Loss\n\n*low* | `$HOME`, $a_1 *b* a_2$\n\n| rank | x<y |\n|---|---|\n| 0 | $$x \\\\ y<z$$ |\n"
    data = {"text/markdown": text, "text/plain": "<IPython.core.display.Markdown object>"}
    bundle = rendered(fold_of(2, *(Display(rank, "show", data) for rank in range(2))))
    assert bundle["text/html"].count("<h2>Loss</h2>") == 1, "folded"
    assert "<em>low</em> | <code>$HOME</code>, $a_1 *b* a_2$" in bundle["text/html"]
    assert "<td>$$x \\\\ y&lt;z$$</td>" in bundle["text/html"]
    assert bundle["text/plain"].startswith("[0-1]\n## Loss")
    _Balance(bundle["text/html"])


def test_results() -> None:
    values = ["1", "2", "1"]
    bundle = rendered(
        fold_of(3, *(Result(rank, "ok", 0.1, {"text/plain": value}) for rank, value in enumerate(values)))
    )
    assert bundle["text/plain"] == "Out[0,2]: 1\nOut[1]: 2"
    assert _text_of(bundle["text/html"]).split("\n") == ["Out[0,2]: 1", "  Out[1]: 2"]
    lines = rendered(fold_of(1, Result(0, "ok", 0.1, {"text/plain": "a\nb"})))
    assert lines["text/plain"] == "Out[0]:\na\nb"
    rich = rendered(fold_of(1, Result(0, "ok", 0.1, {"text/html": "<table></table>", "text/plain": "t"})))
    assert "<table></table>" in rich["text/html"]
    assert rich["text/plain"] == "Out[0]: t"


# ---- failures and notices ----


def _failed() -> Fold:
    failures = [
        RankFailure(
            rank, "node0", "error", "KeyError", "'x' <b>", "\x1b[31mTraceback\x1b[0m <b>\nKeyError", "train.py:41"
        )
        for rank in range(3)
    ]
    failures.append(RankFailure(3, "node1", "died", "SIGKILL", "killed", stderr_tail=("last words",), signal=9))
    return fold_of(4, *(Result(failure.rank, "error", 0.1, failure=failure) for failure in failures))


def test_failures() -> None:
    assert rendered(_failed()) == {}
    bundle = rendered(_failed(), failures=True)
    assert bundle["text/plain"].splitlines() == [
        "ranks 0-2: KeyError: 'x' <b> · train.py:41",
        "Traceback <b>",
        "KeyError",
        "rank 3: SIGKILL: killed",
        "    last words",
    ]
    assert "<b>" not in bundle["text/html"]
    assert 'color:#E75C58">Traceback' in bundle["text/html"]
    _Balance(bundle["text/html"])


def test_notices() -> None:
    bundle = rendered(fold_of(1, Notice("ranks 0-6 wait <here>: `%mesh interrupt` frees them", "k")))
    assert bundle["text/plain"] == "ranks 0-6 wait <here>: `%mesh interrupt` frees them"
    assert "wait &lt;here&gt;" in bundle["text/html"]
    assert ">%mesh interrupt</code>" in bundle["text/html"]


# ---- sizes ----


def _flood(line: str, lines: int = 1_500, ranks: int = 4, stream: Any = "stdout") -> Fold:
    fold = Fold(range(ranks))
    for start in range(0, lines, 100):
        for rank in range(ranks):
            text = "".join(line.format(n=n, rank=rank) + "\n" for n in range(start, start + 100))
            fold.add(Text(rank, stream, text), now_s=start / 1000)
    return fold


def test_whatever_the_flood_what_is_stored_stays_small() -> None:
    for line, stream in (
        ("line {n}", "stdout"),
        ("rank {rank} line {n}", "stderr"),
        ("{n} " + "x" * 3000, "stdout"),
        ('{n} <"&>"' * 30, "stderr"),
        ("{n} \x1b[31ma\x1b[32mb\x1b[1;33mc\x1b[0m" * 30, "stdout"),
        ("{n} ███ 日本語 🙂" * 20, "stderr"),
        ("{n}\t\\\\\\" * 40, "stdout"),
    ):
        bundle = rendered(_flood(line, stream=stream))
        assert _stored_bytes(bundle) < 200_000, line
        assert bundle["text/html"].count("not shown") == 1
        assert "0" in bundle["text/plain"].splitlines()[0]
        assert "1499" in bundle["text/plain"].splitlines()[-2 if "x" * 3000 in line else -1]
        _Balance(bundle["text/html"])


def test_the_count_of_what_is_not_shown_adds_up() -> None:
    bundle = rendered(_flood("line {n}" + "x" * 500, ranks=8))
    (elided,) = re.findall(r"… ([\d,]+) lines on ranks 0-7 not shown; `%mesh logs -n 0` has them", bundle["text/plain"])
    shown = bundle["text/plain"].count("[0-7] line")
    assert int(elided.replace(",", "")) + shown * 8 == 8 * 1_500
    assert 100 < shown < 1000


def test_the_newest_lines_of_every_rank_are_shown() -> None:
    fold = Fold(range(4))
    for rank in range(4):  # one after the other, so that rank 3 alone has more than there is room for
        text = "".join(f"line {n} of rank {rank} {'x' * 300}\n" for n in range(1_500))
        fold.add(Text(rank, "stdout", text), now_s=rank * 10)
    bundle = rendered(fold)
    assert _stored_bytes(bundle) < 200_000
    for rank in range(4):
        shown = [int(n) for n in re.findall(rf"\[{rank}\] line (\d+) of", bundle["text/plain"])]
        assert shown[-5:] == [1495, 1496, 1497, 1498, 1499]
        assert shown == sorted(shown)


def test_what_is_not_shown_is_told_by_rank_set() -> None:
    fold = fold_of(4, Elided(0, "stdout", 1_000_000, 1), *(Elided(rank, "stdout", 10, 1) for rank in (1, 2, 3)))
    assert rendered(fold)["text/plain"].strip() == (
        "… 1,000,000 lines on rank 0, 30 on ranks 1-3 not shown; `%mesh logs -n 0` has them"
    )
    part = fold_of(1, Elided(0, "stdout", 0, 5_000))
    assert "… 5,000 bytes on rank 0 not shown" in rendered(part)["text/plain"]


def test_many_figures_are_counted() -> None:
    fold = fold_of(1, *(Display(0, "show", {**_PICTURE, "image/png": str(count)}) for count in range(100)))
    bundle = rendered(fold)
    assert bundle["text/html"].count("<img") == 20
    assert "… 80 displays on rank 0 not shown\n" in bundle["text/plain"], "which no log has"
    large = fold_of(1, *(Display(0, "show", {**_PICTURE, "image/png": str(n) * 3_000_000}) for n in range(5)))
    assert (
        sum(len(each.data["text/html" if place % 2 == 0 else "image/png"]) for place, each in enumerate(render(large)))
        < 8_100_000
    )


def test_what_is_shortened_says_which_command_has_all_of_it() -> None:
    log = LogOf("mesh", 12, " --mesh eval")
    lines = rendered(fold_of(2, *_everyone("x" * 5_000 + "\n", 2)), log=log)
    assert lines["text/plain"].splitlines() == [
        "[0-1] " + "x" * 2_000 + "… (5,000 characters)",
        "… lines of more than 2,000 characters are cut: `%mesh logs --mesh eval --run 12 -n 0` has them whole",
    ]
    assert "are cut" not in rendered(fold_of(1, Text(0, "stdout", "x" * 2_000 + "\n")), log=log)["text/plain"]
    value = rendered(fold_of(1, Result(0, "ok", 0.1, {"text/plain": "v" * 30_000})), log=log)
    assert "… (10,000 characters not shown: `-o NAME` keeps all) …" in value["text/plain"]
    for container in (list(range(3_000)), {*range(3_000)}, [0, [*range(3_000)]], {"a": dict.fromkeys(range(3_000))}):
        value = rendered(fold_of(1, Result(0, "ok", 0.1, {"text/plain": pretty(container)})), log=log)
        assert value["text/plain"].endswith("\n… (more elements not shown: `-o NAME` keeps all) …")
    for container in (list(range(1_000)), [...], {1: ...}):
        value = rendered(fold_of(1, Result(0, "ok", 0.1, {"text/plain": pretty(container)})), log=log)
        assert "not shown" not in value["text/plain"]
    failure = RankFailure(0, "h", "error", "ValueError", "m" * 700, "t" * 13_000)
    failed = rendered(fold_of(1, Result(0, "error", 0.1, failure=failure)), log=log, failures=True)
    for left_out in (112, 1_000):
        assert f"({left_out} characters not shown" in failed["text/plain"].replace(",", "")
    assert failed["text/plain"].count(": `%mesh logs --mesh eval --run 12` shows all) …") == 2


def test_of_many_rich_results_some_are_drawn() -> None:
    rich = [Result(rank, "ok", 0.1, {"text/html": f"{rank}" * 500_000, "text/plain": "t"}) for rank in range(64)]
    assert len(rendered(fold_of(64, *rich))["text/html"]) < 8_100_000


def test_everything_large_at_once() -> None:
    fold = _flood("{rank} {n} " + "x" * 1000, ranks=8)
    for rank in range(8):
        failure = RankFailure(rank, "h", "error", "E", "m" * 100_000, f"{rank}\x1b[31m" + "t" * 200_000)
        fold.add(Result(rank, "error", 0.1, {"text/plain": f"{rank}" * 100_000}, failure))
    fold.add(Notice("n" * 100_000))
    assert _stored_bytes(rendered(fold, failures=True)) < 200_000


# ---- output that only grows ----


def test_lines_for_terminals_keep_colours_when_asked() -> None:
    fold = fold_of(2, *_everyone("\x1b[31mred\x1b[0m\n", 2))
    assert plain_lines(fold.rows(), fold.ranks) == "[0-1] red"
    assert plain_lines(fold.rows(), fold.ranks, colours=True) == "[0-1] \x1b[31mred\x1b[0m"


# ---- rows that stand for lines that differ ----


def test_what_must_not_be_overlooked_is_shown_when_there_is_no_room_for_all() -> None:
    fold = Fold(range(16))
    for step in range(900):
        for rank in range(16):
            loss = "nan" if (rank, step % 100) == (11, 50) else f"{7.8 + rank / 1000:.3f}"
            fold.add(Text(rank, "stdout", f"step: {step} loss: {loss} {'x' * 200}\n"))
    bundle = rendered(fold, log=LogOf("mesh", 12))
    assert "not shown" in bundle["text/plain"]
    assert _stored_bytes(bundle) < 200_000
    assert re.findall(r"step: (\d+) .*  \[11\]! loss: nan", bundle["text/plain"]) == [
        f"{each}50" for each in ["", *range(1, 9)]
    ]

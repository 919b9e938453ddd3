"""Curves drawn with characters, and what is drawn when nobody says."""

from __future__ import annotations

from monarch_nb.client.curves.pictures import ROWS, characters
from monarch_nb.client.curves.words import RunPictures, nothing_named, suggested
from monarch_nb.client.logs.metrics import Found, MetricInfo
from monarch_nb.ground import escapes
from monarch_nb.lines.pictures import Picture, Point

RISING = Picture("loss", "", "step", [0, 10], [0, 1], [], [], Point(0, 10, 1.0, 2), None, None, 2)
FALLING = Picture("loss", "", "step", [0, 10], [1, 0], [(5, 0.2, 0.8)], [(10, "nan")], None, None, None, 2)


def test_a_line_goes_where_its_numbers_do() -> None:
    title, *rows, axis, ticks, _, _, last = characters([RunPictures("run 3", [RISING])], width=49).splitlines()
    assert title.split() == ["loss", "run", "3"]
    assert len(rows) == ROWS
    firsts = [next(place for place, letter in enumerate(row) if letter > "\u2800") for row in rows]
    assert firsts == sorted(firsts, reverse=True)
    assert (firsts[-1], max(map(len, rows))) == (9, 49)
    assert rows[-1].split()[0] == "0┤" or rows[-1].startswith("      0 ┤")
    assert axis.count("┬") == len(ticks.split()) - 1
    assert ticks.split()[-2:] == ["10", "step"]
    assert last == "  loss: 1 at step 10 on rank 0"


def test_bands_and_what_is_no_number_are_marked() -> None:
    drawn = characters([RunPictures("run 3", [FALLING], ["half of it is read"])])
    assert "▼ nan or inf" in drawn
    assert "░" in drawn
    assert drawn.endswith("half of it is read")


def test_runs_over_each_other_have_colours_or_a_chart_each() -> None:
    runs = [RunPictures("run 1", [RISING]), RunPictures("run 2", [FALLING])]
    assert characters(runs).count("└") == 2
    coloured = characters(runs, colours=True)
    assert coloured.count("└") == 1
    assert "\x1b[34mrun 1\x1b[0m, \x1b[33mrun 2\x1b[0m" in coloured
    assert {"\x1b[34m", "\x1b[33m", "\x1b[2m"} <= {each[0] for each in escapes.ESCAPE.finditer(coloured)}


def test_no_width_and_no_curve_is_too_small() -> None:
    empty = Picture("loss", "", "step", [], [], [], [], None, None, None, 0)
    dot = Picture("loss", "", "step", [5], [5], [], [], None, None, None, 1)
    for width in (1, 24, 500):
        assert "nothing yet" in characters([RunPictures("run 3", [empty])], width=width)
        assert characters([RunPictures("run 3", [dot])], width=width).count("\u2800") == 0


def metric(name: str, count: int = 100) -> MetricInfo:
    return MetricInfo(name, "", count, 1.0, (0, 1))


def test_what_is_drawn_when_nobody_says() -> None:
    assert suggested([metric("step"), metric("tps"), metric("train/loss")]) == ["train/loss"]
    assert suggested([metric("step"), metric("parameters", 2), metric("tps")]) == ["tps"]
    assert suggested([metric("step")]) == []
    found = Found([metric("step"), metric("tps")], True, 0, True)
    assert nothing_named(found, 3) == "name what to draw: run 3 has tps"
    assert "no line of run 3 has a number" in nothing_named(Found([], True, 0, True), 3)

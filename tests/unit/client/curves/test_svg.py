"""The picture of curves: bounded, and well-formed."""

from __future__ import annotations

import math
from random import Random
from xml.etree import ElementTree

from monarch_nb.client.curves.pictures import svg, ticks
from monarch_nb.client.curves.plot import curves_json
from monarch_nb.client.curves.words import RunPictures, text
from monarch_nb.lines.pictures import Point, Told, pictures
from monarch_nb.lines.thinning import Curve


def told(name: str, unit: str = "", *, points: int = 1000, ranks: int = 3, x: str = "step") -> Told:
    curve = Curve()
    for rank in range(ranks):
        noise = Random(rank)
        ys = [math.exp(-at / points) + noise.random() for at in range(points)]
        if rank == 1:
            ys[points // 2] = math.nan
        curve.add(rank, map(float, range(points)), ys, 1)
    last = [Point(rank, *curve.last[rank]) for rank in curve.ranks]
    odd = [Point(rank, odd.x, math.nan, odd.count) for rank, odd in curve.odd.items()]
    band = {key: curve.band(key) for key in curve.changed}
    return Told(name, unit, x, curve.width, curve.ranks[0], band, points * ranks, last, odd, len(odd))


def test_a_picture_of_whatever_there_is_stays_small() -> None:
    names = [f"metric_{place}" for place in range(12)]
    runs = [RunPictures(f"run {run}", pictures(map(told, names), names)) for run in range(4)]
    picture = svg(runs)
    assert len(picture) < 120_000
    root = ElementTree.fromstring(picture)
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == 12
    assert len(ElementTree.tostring(ElementTree.fromstring(svg([])))) < 2000


def test_what_is_drawn_and_said() -> None:
    [picture] = pictures([told("loss <b>", points=100)], ["loss <b>"])
    run = RunPictures("run 3", [picture], ["90% & more"])
    drawn = svg([run])
    assert "loss &lt;b&gt;" in drawn
    assert "nan at step 50" in drawn
    assert "90% &amp; more" in drawn
    said = text([run])
    assert "loss <b>: nan first at step 50 on rank 1" in said
    assert " at step 99 on rank 0; last " in said
    [chart] = curves_json([run])["charts"]
    [line] = chart["lines"]
    assert line["xs"] == sorted(line["xs"])
    assert line["marks"] == [[50.0, "nan"]]


def test_units_that_can_be_compared_are_one_curve_and_others_are_not() -> None:
    first = told("dt", "ms", points=50)
    [both] = pictures([first, told("dt", "s", points=10)], ["dt"])
    assert both.unit == "ms"
    assert both.greatest is not None
    assert both.greatest.value > 100
    apart = pictures([first, told("dt", "GiB", points=10)], ["dt"])
    assert [picture.name for picture in apart] == ["dt", "dt (GiB)"]


def test_numbers_that_are_against_something_else_are_counted() -> None:
    [picture] = pictures([told("loss"), told("loss", points=10, ranks=2, x="line")], ["loss"])
    assert (picture.x, picture.left_out) == ("step", 20)


def test_ticks_are_round() -> None:
    assert ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert ticks(0, 0, 4) == []
    assert len(ticks(-1e300, 1e300, 4)) <= 9

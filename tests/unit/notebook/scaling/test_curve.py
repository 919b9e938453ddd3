"""The picture of a series."""

from __future__ import annotations

from xml.etree import ElementTree

from monarch_nb.client.scaling.report import Measured, Plan, Sample, report_of
from monarch_nb.notebook.scaling.curve import bars, curve

SVG = "{http://www.w3.org/2000/svg}"


def measured(*times_s: float) -> list[Measured]:
    return [Measured(2**power, 1, [Sample(time_s, 10.0)] * 2) for power, time_s in enumerate(times_s)]


def test_points_lie_in_the_picture() -> None:
    for asked in (Plan((1, 2, 4)), Plan((1, 2, 4), is_weak=True), Plan((1, 2, 4), per="a<b&c")):
        root = ElementTree.fromstring(curve(report_of(asked, measured(8.0, 4.0, 1.0))))
        width, height = (float(root.attrib[name]) for name in ("width", "height"))
        circles = list(root.iter(f"{SVG}circle"))
        assert len(circles) == 6
        assert all(0 < float(each.attrib["cx"]) < width and 0 < float(each.attrib["cy"]) < height for each in circles)
        texts = [text.text for text in root.iter(f"{SVG}text")]
        assert {"efficiency by ranks", f"{asked.unit or 'time'} by ranks", "1", "2", "4", "100 %"} <= set(texts)


def test_times_that_are_all_the_same() -> None:
    ElementTree.fromstring(curve(report_of(Plan((1, 2), is_weak=True), measured(1.0, 1.0))))


def test_there_is_no_curve_of_one_size_or_none() -> None:
    for rows in ([], measured(1.0)):
        of = report_of(Plan((1, 2)), rows)
        assert curve(of) == bars(of) == ""


def test_bars() -> None:
    assert bars(report_of(Plan((1, 2)), measured(4.0, 4.0))).splitlines() == [
        "efficiency",
        f"  1  {'█' * 20} 100 %",
        f"  2  {'█' * 10}{'░' * 10} 50 %",
    ]

"""The picture of a series."""

from __future__ import annotations

from xml.etree import ElementTree

from monarch_nb.client.meshes.scaling_report import Measured, Plan, report_of
from monarch_nb.notebook.scaling import bars, curve

SVG = "{http://www.w3.org/2000/svg}"


def measured(*times_s: float) -> list[Measured]:
    return [Measured(2**power, time_s, 10.0) for power, time_s in enumerate(times_s)]


def test_what_is_measured_is_drawn_beside_the_ideal() -> None:
    for asked in (Plan((1, 2, 4)), Plan((1, 2, 4), "a<b&c")):
        root = ElementTree.fromstring(curve(report_of(asked, measured(8.0, 4.0, 1.0))))
        lines = [path for path in root.iter(f"{SVG}path") if path.attrib.get("stroke-width") == "1.6"]
        assert len(lines) == 4
        texts = [text.text for text in root.iter(f"{SVG}text")]
        assert {"measured", "ideal", "efficiency (%)", asked.unit or "time (s)", "ranks", "200% · 100%"} <= set(texts)


def test_values_that_are_all_the_same() -> None:
    halved = [Measured(1, 2.0), Measured(2, 1.0)]
    ElementTree.fromstring(curve(report_of(Plan((1, 2)), halved)))


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

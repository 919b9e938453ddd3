"""Which packages `doctor` compares, and what it makes of clocks."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy
import pytest

from monarch_nb.client.doctor.doctor import _ahead_s, canonical, imported_packages, requirements


def test_what_is_imported_without_what_runs_the_notebook() -> None:
    packages = imported_packages()
    assert "numpy" in packages
    assert not {"ipykernel", "jupyter-client", "traitlets", "ipython", "torch", "monarch-nb", "pip"} & set(packages)
    assert packages == sorted(packages)


@pytest.mark.parametrize("how", ["module", "class", "instance"])
def test_what_the_notebook_itself_uses_is_compared_also_when_jupyter_needs_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import traitlets

    assert "traitlets" in requirements(["ipykernel"])
    notebook = types.ModuleType("__main__")
    uses = {"module": traitlets, "class": traitlets.HasTraits, "instance": traitlets.HasTraits()}
    vars(notebook)["used"] = uses[how]
    vars(notebook)["array"] = numpy.zeros(1)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    assert "traitlets" in imported_packages()


def test_of_a_shared_namespace_only_what_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("used", "unused"):
        facts = tmp_path / f"space_{part}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: space-{part}\nVersion: 1.0\n")
        (facts / "RECORD").write_text(f"space_of_two/{part}.py,,\n")
        (tmp_path / "space_of_two").mkdir(exist_ok=True)
        (tmp_path / "space_of_two" / f"{part}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    __import__("space_of_two.used")
    try:
        packages = imported_packages()
    finally:
        for name in ("space_of_two.used", "space_of_two"):
            del sys.modules[name]
    assert [name for name in packages if name.startswith("space")] == ["space-used"]


def test_requirements_are_followed_without_extras() -> None:
    found = requirements(["jupyter-server"])
    assert {"jupyter-server", "tornado", "traitlets"} <= found
    assert "pytest" not in found
    assert requirements(["no-such-distribution"]) == set()


def test_names_are_compared_as_pypi_does() -> None:
    assert canonical("Typing_Extensions") == canonical("typing.extensions") == "typing-extensions"


@pytest.mark.parametrize(
    ("clock_ahead_s", "way_there_s", "way_back_s", "at_least_s"),
    [(0.0, 0.01, 5.0, 0.0), (0.0, 5.0, 0.01, 0.0), (60.0, 5.0, 0.5, 59.5), (-60.0, 0.5, 5.0, -59.5)],
)
def test_what_comes_late_is_no_wrong_clock(
    clock_ahead_s: float, way_there_s: float, way_back_s: float, at_least_s: float
) -> None:
    assert _ahead_s(way_there_s + clock_ahead_s, clock_ahead_s - way_back_s) == at_least_s

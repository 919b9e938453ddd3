"""Which packages `doctor` compares, and what it makes of clocks."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import pytest

from monarch_nb.client.doctor import doctor
from monarch_nb.client.doctor.doctor import _ahead_s, imported_packages, requirements
from monarch_nb.errors import AccessDenied
from monarch_nb.proto import files_pb2


def test_what_is_imported_without_what_runs_the_notebook() -> None:
    packages = imported_packages()
    assert "numpy" in packages
    assert not {"ipykernel", "jupyter-client", "traitlets", "ipython", "torch", "monarch-nb", "pip"} & set(packages)
    assert packages == sorted(packages)


def test_what_the_notebook_itself_uses_is_compared_also_when_jupyter_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import traitlets

    assert "traitlets" in requirements(["ipykernel"])
    notebook = types.ModuleType("__main__")
    vars(notebook)["array"] = numpy.zeros(1)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    for used in (traitlets, traitlets.HasTraits, traitlets.HasTraits()):
        vars(notebook)["used"] = used
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


def test_what_comes_late_is_no_wrong_clock() -> None:
    for clock_ahead_s, way_there_s, way_back_s, at_least_s in (
        *((0.0, 0.01, 5.0, 0.0), (0.0, 5.0, 0.01, 0.0)),
        *((60.0, 5.0, 0.5, 59.5), (-60.0, 0.5, 5.0, -59.5)),
    ):
        assert _ahead_s(way_there_s + clock_ahead_s, clock_ahead_s - way_back_s) == at_least_s


class Reader:
    """A node of which somebody may know what everybody may."""

    name, identity = "n1", None

    async def unary(self, method: str, request: files_pb2.DescribeEnvironmentRequest, timeout_s: float) -> Any:
        assert method == "DescribeEnvironment"
        if request.python or request.directories:
            raise AccessDenied("dev on n1 is alice's", "alice", "dev")
        if not request.packages:
            raise AccessDenied("you are nobody")
        return files_pb2.DescribeEnvironmentReply(json=json.dumps(asdict(doctor.describe())))


@pytest.mark.parametrize(
    ("python", "directories", "unseen"),
    [
        ("/x/python", ["/data"], "/x/python with its torch and packages, the shared storage /data"),
        ("", ["/data"], "the shared storage /data"),
        ("", [], ""),
    ],
)
async def test_who_may_read_learns_the_rest_and_who_can_let_him(
    python: str, directories: list[str], unseen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "current_owner", lambda _: "bob")
    request = files_pb2.DescribeEnvironmentRequest(python=python, directories=directories, packages=["numpy"])
    report = await doctor._ask(Reader(), request, None, "")  # type: ignore[arg-type]
    helps = "; alice can let you (%mesh share dev --to bob --run)"
    assert (report.error, report.unseen, report.own_python) == ("", unseen and unseen + helps, bool(python))
    request.packages.clear()
    refused = await doctor._ask(Reader(), request, None, "")  # type: ignore[arg-type]
    assert refused.error == "you are nobody"

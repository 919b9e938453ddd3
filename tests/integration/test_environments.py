"""`doctor` and `pip` on a real pool."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb.cli import main
from monarch_nb.client.reservation import Reservation
from monarch_nb.provision import Node


@pytest.fixture
def home_of_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestDoctor:
    def test_one_environment_is_fine(self, dev: Reservation, home_of_notebook: Path) -> None:
        diagnosis = dev.doctor()
        differing = {difference.what for difference in diagnosis.differences}
        assert differing <= {"disk of the node's directory", "/dev/shm", "open files"}, "this machine may be small"
        fine = ", ".join(diagnosis.fine)
        assert "Python " in fine
        assert "torch 2." in fine
        assert "clocks" in fine
        assert "the notebook's directory seen by all" in fine
        assert diagnosis.notes == ("no storage that all nodes see: --shared DIR at reserve names it",)
        assert list(home_of_notebook.iterdir()) == [], "no token is left"

    def test_a_package_that_only_this_process_has(
        self, dev: Reservation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "only_here.py").touch()
        facts = tmp_path / "only_here-1.5.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: only-here\nVersion: 1.5\n")
        (facts / "RECORD").write_text("only_here.py,,\n")
        monkeypatch.syspath_prepend(tmp_path)
        __import__("only_here")
        try:
            diagnosis = dev.doctor()
        finally:
            del sys.modules["only_here"]
        (difference,) = [each for each in diagnosis.differences if each.what == "only-here"]
        assert (difference.here, difference.nodes) == ("1.5", (("none", ("node0", "node1")),))
        assert "%mesh pip install only-here==1.5" in str(diagnosis)
        assert "none on every node" in str(diagnosis)

    def test_a_python_that_can_not_describe_itself_is_named(self, dev: Reservation, tmp_path: Path) -> None:
        broken = tmp_path / "python"
        broken.write_text("#!/bin/sh\necho 'no such interpreter' >&2\nexit 3\n")
        broken.chmod(0o700)
        diagnosis = Reservation.doctor(_with_python(dev, str(broken)))
        (difference,) = diagnosis.differences
        assert difference.what == "no answer"
        assert f"{broken} can not describe itself: no such interpreter" in difference.nodes[0][0]

    def test_from_a_terminal(
        self, dev: Reservation, capsys: pytest.CaptureFixture[str], home_of_notebook: Path
    ) -> None:
        status = main(["doctor", "dev"])
        said = capsys.readouterr().out
        assert said.startswith("dev: 2 nodes × 4 procs\n")
        assert "fine: monarch_nb" in said
        assert status == (0 if "fine" in said.splitlines()[1] else 1)


def _with_python(reservation: Reservation, python: str) -> Reservation:
    again = monarch_nb.attach(reservation.name)
    again._python = python
    return again

"""The end of a program."""

from __future__ import annotations

import io
import sys

import pytest

from monarch_nb.worker.runs.script import exit_status


def test_a_text_is_told_although_standard_error_is_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert exit_status(SystemExit("nothing to do")) == 1
    assert capfd.readouterr().err == "nothing to do\n"

"""Processes that talk to engines: started when something is asked, ended by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monarch_nb.errors import PoolError
from monarch_nb.provision import helpers
from monarch_nb.provision.helpers import Helper

FIRST_ENDS = """
import os, pathlib, sys, time
first = pathlib.Path(sys.argv[1])
if first.exists():
    print('{"told": 1}', flush=True)
    sys.stdin.read()
else:
    first.touch()
    os.close(1)
    time.sleep(0.7)
"""
"""The first such process is ending, as nobody has asked for a while, when it is asked; its interpreter takes long."""


def test_one_that_is_ending_is_followed_by_another(tmp_path: Path) -> None:
    helper = Helper("Sky", lambda: [sys.executable, "-c", FIRST_ENDS, str(tmp_path / "first")])
    assert helper.call({}) == {"told": 1}
    helper._end()


def test_one_that_can_not_start_says_why() -> None:
    with pytest.raises(PoolError, match="the process that talks to Ray has ended with 3: ray is broken"):
        Helper("Ray", lambda: ["sh", "-c", "echo ray is broken >&2; exit 3"]).call({})


def test_one_that_does_not_end_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "END_S", 0.0)
    helper = Helper("Sky", lambda: [sys.executable, "-c", FIRST_ENDS, str(tmp_path / "first")])
    with pytest.raises(PoolError, match="the process that talks to Sky has ended with -9: it says nothing"):
        helper.call({})

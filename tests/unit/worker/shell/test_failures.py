"""What people get to see of errors."""

from __future__ import annotations

import pytest

from monarch_nb.worker.shell.failures import readable

LOST = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in …"""


def test_a_lost_gpu_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    first, second = str(readable(RuntimeError(LOST))).splitlines()
    assert first == (
        "CUDA error: device-side assert triggered; this process can not use its GPU any more: %mesh restart -t 3"
    )
    assert second.startswith("Search for")


def test_others_are_as_they_were() -> None:
    for error in (RuntimeError("CUDA error: out of memory"), RuntimeError("CUDA error: invalid"), ValueError(LOST)):
        assert str(readable(error)) == str(error)
    assert str(readable(RuntimeError(LOST), makes_another=False)) == LOST, "a script has ended anyway"

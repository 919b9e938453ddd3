"""Allocators that are still to be ended on hosts that were away."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.config import CONFIG_VARIABLE
from monarch_nb.errors import NodeUnreachable
from monarch_nb.provision.remote import preparing

OF_DEV, OF_OTHER = ("lab-1", "", "ssh-lab-dev"), ("lab-2", "", "ssh-lab-other")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What is ended; the host `away` can not be reached."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path))
    ended: list[tuple[str, str, str]] = []

    async def stop(*what: str) -> None:
        if what[0] == "away":
            raise NodeUnreachable("away")
        ended.append((what[0], what[1], what[2]))

    monkeypatch.setattr(preparing, "stop", stop)
    return ended


def test_what_a_pool_owes_ends_before_its_nodes_start_anew(stopped: list[tuple[str, str, str]]) -> None:
    """Else what was started is ended, later."""
    preparing.owe([OF_DEV, OF_OTHER, ("away", "", "ssh-lab-dev")])
    preparing.settle_on(["lab-1", "lab-2", "away"], "ssh-lab-dev")
    assert stopped == [OF_DEV]
    preparing.settle_on(["lab-1", "lab-2"], "ssh-lab-dev")
    assert stopped == [OF_DEV], "once"


def test_a_process_of_its_own_ends_what_other_pools_owe(
    stopped: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(preparing, "detach", lambda words, *_: begun.append(words))
    with (tmp_path / "log").open("wb") as log:
        preparing.owe([OF_DEV])
        preparing.settle_others("ssh-lab-dev", log)
        assert begun == [], "that is left to the job that starts there"
        preparing.owe([OF_OTHER])
        preparing.settle_others("ssh-lab-dev", log)
    [words] = begun
    assert words[1:] == ["-m", "monarch_nb.provision.remote.preparing", "ssh-lab-dev"]

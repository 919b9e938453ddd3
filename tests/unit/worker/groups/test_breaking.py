"""What a rank knows of its groups without asking anybody."""

from __future__ import annotations

import pytest

from monarch_nb.worker.groups import breaking, c10d


def test_nccl_does_not_notice_that_a_peer_has_died_so_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaking.is_torn(peer_died=True), "Gloo has all its connections"
    monkeypatch.setattr(c10d, "uses_nccl", lambda: True)
    assert breaking.is_torn(peer_died=True)
    assert not breaking.is_torn()

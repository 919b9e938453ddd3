"""What executes user code on a rank, while its groups are broken."""

from __future__ import annotations

import threading
from types import FrameType

import pytest

from monarch_nb.worker.control.interrupts import Activities, Activity
from monarch_nb.worker.groups import breaking, c10d


class Beginning(Activity):
    """Is looked at just as an endpoint begins on another thread."""

    others: Activities

    def frame(self) -> FrameType | None:
        self.others.begin(Activity(run_id="endpoint", thread=threading.get_ident()))
        return None

    def poke(self) -> None:
        self.frame()


@pytest.mark.parametrize("with_nccl", [False, True])
def test_groups_are_broken_although_an_endpoint_begins_meanwhile(
    with_nccl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[str] = []

    def break_groups(reason: str, *_: object, prepare: object, **__: object) -> bool:
        assert callable(prepare)
        prepare()
        broken.append(reason)
        return True

    monkeypatch.setattr(breaking, "break_groups", break_groups)
    monkeypatch.setattr(c10d, "uses_nccl", lambda: with_nccl)
    activities = Activities()
    first = Beginning(run_id="1", thread=threading.get_ident())
    first.others = activities
    activities.begin(first)
    activities.break_groups("aborted")
    assert broken == ["aborted"]

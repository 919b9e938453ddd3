"""How a save that ranks make by themselves is asked for."""

from __future__ import annotations

import pytest

from monarch_nb.proto.run_pb2 import ArmSaves
from monarch_nb.worker.autosaves import armed
from monarch_nb.worker.autosaves.agreement import Place, Request
from monarch_nb.worker.autosaves.keeper import Wanted
from monarch_nb.worker.saving.asked import SaveRequest


@pytest.mark.parametrize("is_last", [False, True])
def test_the_last_save_is_written_before_ranks_go_on(monkeypatch: pytest.MonkeyPatch, is_last: bool) -> None:
    asked: list[SaveRequest] = []
    monkeypatch.setattr(armed.entry, "save", lambda request, *_, **__: asked.append(request))
    how, request = ArmSaves(directory="/saves", background=True), Request("the end is near", is_last=is_last)
    wanted = Wanted(how, request, 1, Place(run=1, steps=3), optimizers=(), speaks=False)
    armed._save(wanted, 0, 1, armed._ToldNames(), for_script=False)
    [save] = asked
    assert save.background is not is_last

"""What is off with a torch that lacks a private name is said; everything else works."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from monarch_nb.worker.groups import forming
from monarch_nb.worker.torch_names import GROUPS, lacking, lacking_here


def test_this_torch_has_all_that_we_use() -> None:
    assert lacking_here() == {}


def test_a_torch_without_a_name_says_what_is_off(tmp_path: Path) -> None:
    ours = Path(torch.__file__).parent
    for file in ("distributed/distributed_c10d.py", "distributed/rendezvous.py", "utils/_pytree.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((ours / file).read_text().replace("_update_default_pg", "_set_default_pg"))
    (tmp_path / "utils/_python_dispatch.py").write_text("class TorchDispatchMode: ...")
    assert lacking(tmp_path, "2.99") == {
        GROUPS: f"torch 2.99 has no _update_default_pg: {GROUPS} are off",
        "memory histories": "torch 2.99 has no _record_memory_history: memory histories are off",
    }


def test_groups_stay_as_torch_makes_them_where_it_lacks_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forming, "lacking_here", lambda: {GROUPS: "torch 2.99 has no _world: … are off"})
    rendezvous: Any = None
    module = sys.modules["torch.distributed.distributed_c10d"]
    before = dict(vars(module))
    forming._patch(rendezvous, module)
    assert dict(vars(module)) == before
    assert capsys.readouterr().err == "torch 2.99 has no _world: … are off; a newer monarch_nb may know it\n"

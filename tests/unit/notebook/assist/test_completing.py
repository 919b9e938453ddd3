"""Tab and Shift+Tab in a shell, against a client made of plain objects (conftest.py)."""

from pathlib import Path
from typing import Any

import pytest

from unit.notebook.fakes import FakeClient, Notebook

# ---- Tab ----


def test_shift_tab(held: Notebook, client: FakeClient) -> None:
    def inspect(cell: str) -> Any:
        return held.shell.kernel.do_inspect(cell, len(cell), 0)

    cell = "%%mesh -t 2-3\n# ä\nx = model.step(1, "
    shown = {"text/plain": "Signature: model.step(x)\n\nOn rank 2."}
    assert inspect(cell) == {"status": "ok", "found": True, "data": shown, "metadata": {}}
    assert client.calls[-1] == ("inspect", "model.step")
    for other in (
        "model.step(",
        "%mesh model.step",
        "%%mesh model.step",
        "%%mesh\nunknown(",
        "%%mesh\n if 1:\nx",
        "%%mesh\n",
    ):
        assert inspect(other) == (other, len(other)), "the kernel's own"
    held.ok("%mesh on")
    assert inspect("model.step(")["found"]
    held.ok("%mesh release")
    assert inspect("model.step(") == ("model.step(", 11)


def test_tab(held: Notebook, client: FakeClient) -> None:
    held.ok("lr = 1")
    assert held.complete("%mesh rel") == ["%mesh release"]
    assert held.complete("%mesh release ") == ["%mesh release dev"]
    assert held.complete("%mesh reserve --pro") == ["%mesh reserve --procs"]
    assert held.complete("%mesh push l") == ["%mesh push lr"]
    offered = {word.split()[-1] for word in held.complete("%mesh push ")}
    assert not offered & {"In", "Out", "exit", "quit", "get_ipython", "open"}, "IPython's names are nothing to push"
    assert held.complete("%mesh pull loss") == ["%mesh pull losses", "%mesh pull loss_mask"]
    assert held.complete("%%mesh -t hosts=0,") == ["%%mesh -t hosts=0,hosts=", "%%mesh -t hosts=0,procs="]
    assert held.complete("%%mesh -t 0,") == [f"%%mesh -t 0,{rank}" for rank in range(4)]
    assert held.complete("x = 1\n%mesh release d") == ["%mesh release dev"]
    assert held.complete("%%mesh -o 'x\nlos") == ["losses", "loss_mask"], "whatever stands in its first line"
    assert held.complete("%%time\nlos") == []
    assert held.complete("%%mesh -t 2\nx = loss_") == ["x = loss_mask"]
    assert client.calls[-1] == ("complete", "x = loss_", 9, 2)
    held.ok("losses = 1")
    assert held.complete("%%mesh -o lo") == ["%%mesh -o losses"]
    held.ok("%%mesh\nx")
    held.ok("%%mesh\ny")
    assert held.complete("%mesh logs --run ") == ["%mesh logs --run 2", "%mesh logs --run 1"]
    assert held.complete("%mesh reserve d") == ["%mesh reserve dev"]
    assert held.complete("%mesh reserve dev --nodes ") == [], "nothing that IPython knows makes sense there"
    assert held.complete("%mesh logs -n l") == []
    held.ok("%mesh on -t 1")
    assert held.complete("los") == ["losses", "loss_mask"]
    assert client.calls[-1][-1] == 1
    assert "lr" in held.complete("%%local\nl")


def test_tab_offers_scripts(held: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train.py", "notes.txt", "ex/data.py", "ex/data.csv", "ex/__init__.py"):
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path / "here")
    assert held.complete("%mesh run ") == ["%mesh run ex/", "%mesh run train.py"]
    assert held.complete("%mesh run -i ex/d") == ["%mesh run -i ex/data.py"]
    assert held.complete("%mesh run -m ex.") == ["%mesh run -m ex.data"]
    assert held.complete("%mesh run --bes") == ["%mesh run --beside"]


def test_tab_without_a_mesh(notebook: Notebook) -> None:
    assert notebook.complete("%mesh att") == ["%mesh attach"]
    notebook.complete("%%mesh -t ")
    notebook.complete("%%mesh -t 99\nx")

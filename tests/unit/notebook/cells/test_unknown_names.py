"""A cell that uses a name which only the other side knows, in a shell, against a client made of plain objects."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from monarch_nb.errors import NodeUnreachable, RankFailure
from unit.notebook.fakes import FakeClient, FakeMesh, FakeRun, Notebook


def failing(notebook: Notebook, cell: str) -> str:
    """Run a cell that raises a NameError; return what else is shown."""
    assert type(notebook.error(cell)) is NameError
    return notebook.text()


def on_ranks(notebook: Notebook, client: FakeClient, name: str, cell: str = "", where: str = "Cell In[3]:1") -> str:
    """Run a cell that does not know a name on ranks; return the last line of what it raises."""
    message = f"name '{name}' is not defined"
    failures = [
        RankFailure(rank, "node0", "error", "NameError", message, rendered="Traceback …", where=where)
        for rank in range(4)
    ]
    client.on_submit = lambda run: run.finish(failures=failures)
    error = notebook.error(f"%%mesh\n{cell or name}")
    return str(error._render_traceback_()[-1])  # type: ignore[attr-defined]


def test_names_that_ranks_have_need_mesh_on_top_of_the_cell(notebook: Notebook) -> None:
    for name in ("rank", "world_size", "device", "dist"):
        assert (
            failing(notebook, f"x = 1\nprint({name})")
            == f"{name} is a variable of the ranks: put %%mesh at the top of the cell"
        )


def test_groups_are_made_on_ranks(held: Notebook) -> None:
    for said in ("environment variable RANK expected, but not set", "Default process group has not been initialized"):
        held.error(f"raise ValueError('{said}')")
        assert held.text() == "torch.distributed works on the ranks: put %%mesh at the top of the cell"
    held.error("raise ValueError('process')")
    assert held.text() == ""


def test_lines_of_mesh_are_the_kernels(held: Notebook, client: FakeClient) -> None:
    message = "Line magic function `%mesh` not found."
    failures = [RankFailure(0, "node0", "error", "UsageError", message, rendered="Traceback …", where="Cell In[3]:1")]
    client.on_submit = lambda run: run.finish(failures=failures)
    shown = str(held.error("%%mesh\n%mesh status")._render_traceback_()[-1])  # type: ignore[attr-defined]
    assert shown == "%mesh is a line for the kernel: put it into a cell without %%mesh"


def test_magics_of_ipyparallel_have_another_name_here(notebook: Notebook) -> None:
    for cell, here in (("%%px\nrank", "%%mesh runs"), ("%px rank", "%%mesh runs"), ("%autopx", "%mesh on sends")):
        assert "not found" in str(notebook.error(cell))
        assert notebook.text().startswith(here)
    assert "not found" in str(notebook.error("%%nope\nrank"))
    assert notebook.text() == ""


def test_variables_of_the_ranks_are_known_there(held: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMesh, "inspect", lambda self, name: ("Type: Net" if name == "model" else "", 0))
    assert failing(held, "[model for _ in range(2)]") == (
        "model is a variable of the ranks: put %%mesh at the top of the cell, or fetch it: model = %mesh pull model"
    )
    assert failing(held, "modle") == "", "nobody knows it"
    held.ok("%mesh detach")
    assert failing(held, "model") == "", "and nobody can be asked"


def test_what_ranks_can_not_be_asked_is_not_said(held: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise NodeUnreachable("node0 does not answer", "node0")

    monkeypatch.setattr(FakeMesh, "inspect", silent)
    assert failing(held, "model") == ""


def test_a_module_that_does_not_know_a_name_is_no_cell(held: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    held.shell.user_ns["train"] = eval("lambda: rank", {})
    assert failing(held, "train()") == ""


def test_a_variable_of_the_kernel_can_be_pushed(held: Notebook, client: FakeClient) -> None:
    held.ok("lr = 0.1\nimport math")
    assert on_ranks(held, client, "lr") == "lr is a variable of the kernel: %mesh push lr sends it to the ranks"
    assert on_ranks(held, client, "math") == "math is imported in the kernel alone: import it in a %%mesh cell, too"
    for name in ("nobody", "In"):
        assert "kernel" not in on_ranks(held, client, name)
    assert "kernel" not in on_ranks(held, client, "lr", "train()", where="train.py:7"), "its globals are others"


def test_a_module_that_ranks_lack_can_be_installed(
    held: Notebook, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.py").touch()
    of_ours = "ours is in this directory, where a script below does not look: %mesh run --env PYTHONPATH=."
    for message, last in (
        ("No module named 'ours'", of_ours),
        ("No module named 'einops'", "einops is not installed there: %mesh pip install einops"),
        ("No module named 'yaml'", "yaml is not installed there: %mesh pip install pyyaml"),
        ("No module named 'torch.nope'", "Traceback …"),
    ):
        missing = RankFailure(0, "node0", "error", "ModuleNotFoundError", message, "Traceback …", "Cell In[3]:1")
        failures = [replace(missing, rank=rank) for rank in range(4)]
        client.on_submit = partial(FakeRun.finish, failures=failures)
        error = held.error("%%mesh\nimport it")
        assert error._render_traceback_()[-1] == last  # type: ignore[attr-defined]


def test_a_variable_of_a_function_of_a_script_did_not_stay(
    held: Notebook, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("lr = 1\ndef main():\n    model = lr\n    print(len(str(other)))\nmain()\n")
    assert "train.py" not in on_ranks(held, client, "model"), "it has not run"
    client.on_submit = lambda run: run.finish()
    held.ok("%mesh run -i train.py")
    assert on_ranks(held, client, "model") == (
        "model is a variable of main() in train.py: let it be global there, or call main() in a cell and have it "
        "return model"
    )
    assert "train.py" not in on_ranks(held, client, "other"), "it only reads that"

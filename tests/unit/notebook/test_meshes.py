"""`--mesh NAME`: cells and commands choose a mesh of the reservation beside the main one."""

import pytest

from monarch_nb.shape import Extent
from unit.notebook.fakes import FakeClient, FakeMesh, Notebook, nothing


@pytest.fixture
def judges(held: Notebook, client: FakeClient) -> FakeMesh:
    """A mesh of four ranks, beside the four of "dev"."""
    dev = client.held["dev"]
    mesh = dev.meshes["judges"] = FakeMesh(client, dev, Extent({"hosts": 2, "gpus": 2}), name="judges")
    return mesh


def test_commands(held: Notebook, client: FakeClient, judges: FakeMesh) -> None:
    held.ok("%mesh restart --mesh judges -t 1")
    assert client.calls[-1] == ("restart", "judges", (1,))
    held.ok("%mesh pull x --mesh judges")
    assert client.calls[-1] == ("pull", (0, 1, 2, 3), "x")
    held.ok("%mesh run --mesh judges train.py --mesh 2x4")
    assert (client.runs[-1].mesh.name, client.runs[-1].title) == ("judges", "train.py --mesh 2x4")


def test_status(held: Notebook, client: FakeClient, judges: FakeMesh) -> None:
    assert "judges: 4 ranks more (%mesh status --mesh judges)" in held.ok("%mesh status")
    client.dead = {1}
    shown = held.ok("%mesh status --mesh judges")
    assert shown.startswith("dev/judges · 3 of 4 ranks alive")
    assert "%mesh restart --mesh judges -t 1 starts a fresh rank 1; other ranks keep their variables" in shown
    assert "main: 4 ranks more (%mesh status)" in shown


def test_on(held: Notebook, client: FakeClient, judges: FakeMesh) -> None:
    assert "every following cell runs on mesh dev/judges, ranks 0-3" in held.ok("%mesh on --mesh judges")
    assert held.ok("x = 1").startswith("on mesh dev/judges · 4 ranks")
    assert client.runs[-1].mesh.name == "judges"
    held.ok("%mesh off")
    held.ok("%mesh on")
    held.ok("x = 1")
    assert client.runs[-1].mesh.name == "main"


def test_attach_finds_what_runs_there(held: Notebook, client: FakeClient, judges: FakeMesh) -> None:
    client.on_submit = nothing
    held.ok("%%mesh --mesh judges --noblock\ntrain()")
    shown = held.ok("%mesh attach --noblock")
    assert "run 1 on judges, cell [" in shown
    assert "%mesh attach --mesh judges --run 1 shows all of it" in shown
    client.runs[-1].finish()
    assert "run 1 on judges" in held.ok("%mesh attach --mesh judges --run 1")
    assert "run 1 can not be shown here: %mesh logs --run 1 has" in str(held.error("%mesh attach --run 1"))


def test_unseen_runs_are_named_by_mesh(held: Notebook, client: FakeClient, judges: FakeMesh) -> None:
    main = client.held["dev"].mesh
    for mesh in (main, main, judges):
        mesh.submit("1", listener=lambda event: None, cell_number=0)
        client.runs[-1].notebook = "/other.ipynb"
    client.on_submit = nothing
    held.ok("%%mesh --noblock\ntrain()")
    shown = held.ok("%mesh attach --noblock")
    assert "runs 1-2 finished and nobody has seen them: %mesh attach --run N shows one" in shown
    assert "run 3 on judges (1) finished and nobody has seen it: %mesh attach --mesh judges --run 3 shows it" in shown

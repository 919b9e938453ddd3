"""What a notebook holds, and how its next kernel knows."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb import config
from monarch_nb.client.reservations.memory import Memory, choose, choose_unnamed, recall, remember
from monarch_nb.errors import UsageError
from monarch_nb.notebook import session as session_module
from monarch_nb.notebook.session import Session, notebook_path
from monarch_nb.trust.membership import make_pool
from unit.notebook.fakes import FakeClient


@dataclass
class Info:
    """As a ReservationInfo, as far as `choose` looks."""

    name: str
    notebook: str = ""
    created_at: float = 0.0
    held_by_me: bool = True
    directory: str = "/here"
    right: str = "own"

    @property
    def reservation_id(self) -> str:
        return f"id-{self.name}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(config.HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setenv(config.CONFIG_VARIABLE, str(tmp_path / "config"))
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


def test_notebook_path() -> None:
    assert notebook_path({}, {}) is None
    assert notebook_path({}, {"JPY_SESSION_NAME": "/a/b.ipynb"}) == "/a/b.ipynb"
    assert notebook_path({"__vsc_ipynb_file__": "/c.ipynb"}, {"JPY_SESSION_NAME": ""}) == "/c.ipynb"


def test_choose() -> None:
    def name(infos: list[Info], notebook: str, memory: Memory | None = None) -> str | None:
        found: Any = choose(infos, notebook, memory)  # type: ignore[arg-type]
        return found.name if found else None

    dev, other, alien = Info("dev", "/a", 1.0), Info("other", "/b", 2.0), Info("alien", "/a", 9.0, held_by_me=False)
    assert name([dev, other, alien], "/a") == "dev"
    assert name([dev], "/elsewhere") is None
    assert name([dev, Info("newer", "/a", 3.0)], "/a") == "newer"
    assert name([dev, other], "/a", Memory("/a", "id-other")) == "other"
    assert name([dev, other], "/a", Memory("/a", "id-gone")) == "dev"
    assert name([dev, other], "/a", Memory("/a", "")) is None
    shared = Info("shared", "/a", 9.0, held_by_me=False, right="read")
    assert name([dev, shared], "/a") == "dev"
    assert name([dev, shared], "/a", Memory("/a", "id-shared")) == "shared"
    shared.right = ""  # no longer
    assert name([shared], "/a", Memory("/a", "id-shared")) is None


def test_a_kernel_that_does_not_know_its_notebook_takes_nobodys_mesh(home: Path) -> None:

    def name(*infos: Info) -> str | None:
        found: Any = choose_unnamed(infos, "/here")  # type: ignore[type-var]
        return found.name if found else None

    headless = Info("headless")
    assert name() is None
    assert name(headless, Info("alien", held_by_me=False), Info("other", directory="/elsewhere")) == "headless"
    assert name(headless, Info("second")) is None
    assert name(Info("dev", "/here/train.ipynb")) is None
    remember(Memory("/here/train.ipynb", headless.reservation_id))
    assert name(headless) is None, "a notebook holds it"


def test_memory_is_kept(home: Path) -> None:
    assert recall(None) is None
    assert recall("/a.ipynb") is None
    remember(Memory("/a.ipynb", "id", "local"))
    assert recall("/a.ipynb") == Memory("/a.ipynb", "id", "local")
    remember(Memory("/a.ipynb", ""))
    assert recall("/a.ipynb") == Memory("/a.ipynb", "")
    for file in (home / "notebooks").iterdir():
        file.write_text("{broken")
    assert recall("/a.ipynb") is None


def test_what_a_notebook_held_is_not_forgotten_while_its_nodes_are_away(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pool("lab", "alice")
    remember(Memory("/a.ipynb", "id", "lab"))
    silent = ["n1", "n2"]
    monkeypatch.setattr("monarch_nb.notebook.session._silent_nodes", lambda pool: silent if pool == "lab" else [])
    said = "nothing attached: n1, n2 do not answer; %mesh attach tries again"
    assert Session(FakeClient(), "/a.ipynb").reattach() == said
    assert recall("/a.ipynb") == Memory("/a.ipynb", "id", "lab")
    silent.clear()
    assert Session(FakeClient(), "/a.ipynb").reattach() == ""
    assert recall("/a.ipynb") is None


def test_what_was_in_a_pool_that_was_ended_since_is_forgotten(home: Path) -> None:
    remember(Memory("/a.ipynb", "id", "mine"))
    session = Session(FakeClient(), "/a.ipynb")
    assert session.reattach() == ""
    assert session.pool is None
    assert recall("/a.ipynb") is None


@pytest.mark.parametrize(("job_of_pool", "after"), [(object(), None), (None, "lab")])
def test_the_pool_of_a_job_is_gone_with_it(
    monkeypatch: pytest.MonkeyPatch, job_of_pool: object, after: str | None
) -> None:
    monkeypatch.setattr(session_module, "job_of_pool", lambda _: job_of_pool)
    where = "--on slurm" if job_of_pool else "--pool lab"
    monkeypatch.setattr(session_module, "where_of", lambda _: where)
    client: Any = SimpleNamespace(list_reservations=lambda _: [])
    facts = {"id": "r", "name": "dev", "pool": "lab", "nodes": 1, "procs": 0, "gpus": 4}
    held: Any = SimpleNamespace(**facts, add_time_listener=lambda _: None, detach=lambda: None)
    session = Session(client)
    session.hold(held, "lab")
    assert session.pool == "lab"
    session.released()
    assert session.pool == after
    with pytest.raises(UsageError, match=f"^dev was released: type %mesh reserve dev --nodes 1 --gpus 4 {where} for a"):
        session.current()

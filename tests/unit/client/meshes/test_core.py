"""What a mesh knows of its reservation: what `%mesh replace` could do, and what all know when no node answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest

from monarch_nb.client.meshes import core
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.config import TrustPaths
from monarch_nb.provision.launchers import Job
from monarch_nb.shape import Extent

REPLACE = "%mesh replace puts a free node in its place"


class Node:
    """One of another machine, which does not answer."""

    def __init__(self, name: str) -> None:
        self.name, self.is_local, self.identity = name, False, None
        self.rests = 0
        self.since = " since 14:03:05"
        self.absence = f"{name} unreachable{self.since}"

    def rest(self) -> None:
        self.rests += 1


class World:
    """A mesh of two nodes, and the pool that they are of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members: list[Any] = [Node("n1"), Node("n2")]
        self.pool = SimpleNamespace(listed=list(self.members), silent=list[str]())
        self.jobs: dict[str, Job] = {}
        monkeypatch.setattr(core, "pool_object", {"lab": self.pool}.get)
        monkeypatch.setattr(core, "job_of_pool", self.jobs.get)
        monkeypatch.setattr(core, "post", lambda *_: None)
        monkeypatch.setattr(MeshCore, "_cores", WeakValueDictionary())
        self.core = MeshCore.get("a mesh", dict(enumerate(self.members)), Extent({"hosts": 2, "procs": 1}))
        self.belong_to(self.core.me)

    def belong_to(self, owner: str) -> None:
        held: Any = SimpleNamespace(id="an id", name="dev", owner=owner, pool="lab", procs=1, gpus=0)
        self.core.belongs_to(held)

    def add(self, name: str) -> None:
        self.pool.listed.append(Node(name))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_pool_without_other_nodes_has_nothing_to_put_in_a_place(world: World) -> None:
    assert world.core.replacement == ""
    world.add("n3")
    assert world.core.replacement == REPLACE
    world.belong_to("somebody else")
    assert world.core.replacement == "", "only who holds it can replace"
    world.belong_to(world.core.me)
    world.pool.silent.append("n3")
    assert world.core.replacement == "", "it does not answer, either"


def test_an_engine_is_asked_for_another(world: World) -> None:
    world.jobs["lab"] = Job("slurm", "7", "dev", "lab", 2, 0, 8, TrustPaths(core.__file__))  # type: ignore[arg-type]
    assert world.core.replacement == "%mesh replace asks slurm for another in its place"


def test_what_to_do_depends_on_who_answers(world: World) -> None:
    world.add("n3")
    session: Any = SimpleNamespace(there={0}, close=lambda: None)
    world.core._session = session
    assert world.core.way_on().endswith(f"; {REPLACE}")
    assert "%mesh replace" not in world.core.way_on("a job ended: %mesh replace dev asks for another"), "it is said"
    session.there.clear()
    assert "%mesh reserve dev --replace begins anew" in world.core.way_on()
    assert "%mesh replace" not in world.core.way_on()


def test_on_this_machine_each_node_says_itself_what_helps(world: World) -> None:
    for node in world.members:
        node.is_local = True
    assert world.core.way_on() == ""
    assert str(world.core.all_away()) == "n1 unreachable since 14:03:05; n2 unreachable since 14:03:05"


def test_what_goes_on_is_known_when_no_node_answers(world: World) -> None:
    run: Any = SimpleNamespace(name="run 2, cell [3]", submitted_at=0.0, done=False, number=2)
    world.core.runs["a"] = kept = type("Kept", (), vars(run))()
    said = str(world.core.all_away())
    assert said.startswith("'dev' is held, but n1 (since 14:03:05), n2 (since 14:03:05) do not answer: ")
    assert "its ranks go on (run 2, cell [3], sent at 1970-01-01 " in said
    kept.done = True
    assert "run 2" not in str(world.core.all_away())


def test_what_ends_with_its_reservation_is_over_for_whoever_has_met_it(world: World) -> None:
    has_met_none: Any = SimpleNamespace(_reservation=SimpleNamespace(id="an id"))
    Meshes.close(has_met_none)
    assert world.core.is_over


def test_what_is_over_needs_no_session_of_its_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process would ask for ever for nodes that were given back."""
    monkeypatch.setattr(core, "post", lambda function, *arguments: function(*arguments))
    world.core.close()
    assert [node.rests for node in world.members] == [1, 1]


def test_who_missed_that_nodes_took_places_learns_where_the_mesh_is_now(world: World) -> None:
    """A node may even have come back in another's place meanwhile."""
    first, second = world.members
    core = world.core
    core.dead.update({0: "killed", 1: "killed"})
    third: Any = Node("n3")
    session: Any = SimpleNamespace(be_over=lambda connections: told.append(dict(connections)))
    told: list[dict[int, Any]] = []
    core._session = session
    core.be_over({0: third, 1: second})
    assert core.connections == {0: third, 1: second}
    assert told == [{0: third, 1: second}]
    assert core.dead == {1: "killed"}, "its node is the same"
    assert first.rests == 1
    core.be_over({0: third})
    assert core.connections == {0: third, 1: second}, "nobody says where the other part is"

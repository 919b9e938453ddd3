"""What the panel is told of actors: on which ranks and meshes, what they do, why they failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from integration.kernels import Kernel
from integration.live import Gate, eventually
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.panel.live import Live
from monarch_nb.panel.shown.view import Json

SPAWN = """
import monarch_nb
from monarch_nb.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self):
        return 1

    @endpoint
    def wait(self):
        with open({gate!r}, 'rb', buffering=0) as gate:
            gate.read(1)

class Broken(Trainer):
    def __init__(self):
        raise ValueError("no model")

dev = monarch_nb.attach("dev")
trainers = dev.mesh.spawn("trainers", Trainer)
broken = dev.mesh.slice(hosts=1).spawn("broken", Broken)
beside = dev.spawn_procs({{"procs": 1}}, name="evaluators")
judges = beside.spawn("judges", Trainer)
judges.step.call().get()"""


class Watcher:
    """Looks at the view as somebody in front of the panel does."""

    def __init__(self) -> None:
        self._live = Live(pool_named(None), refresh_s=0.0)
        self.view: Json = {}

    def until(self, condition: Callable[[dict[str, Json]], Any]) -> Json:
        """Look until something holds for the actors, by name; return the reservation."""

        def holds() -> Any:
            self.view = call(self._live.fresh())
            return condition({actor["name"]: actor for actor in self.reservation["actors"]["shown"]})

        eventually(holds)
        return self.reservation

    @property
    def reservation(self) -> Json:
        (reservation,) = self.view["reservations"].values()
        return dict(reservation)


def doings(actor: Json) -> list[tuple[str, str, str]]:
    return [(doing["state"], doing["ranks"], doing["running"] or doing["failure"]) for doing in actor["doings"]]


def test_what_the_panel_is_told(kernel: Kernel, gate: Gate) -> None:
    watcher = Watcher()
    watcher.until(lambda actors: not actors)
    assert "ranks 0-1: 1" in kernel.run(SPAWN.format(gate=str(gate.path)))
    held = watcher.until(lambda actors: {"trainers", "broken", "judges"} == actors.keys())
    assert [mesh["name"] for mesh in held["meshes"]] == ["main", "evaluators"]
    assert [len(mesh["ranks"]) for mesh in held["meshes"]] == [4, 2]
    watcher.until(lambda actors: doings(actors["broken"]) == [("failed", "2-3", "ValueError: no model")])
    told = {actor["name"]: actor for actor in watcher.reservation["actors"]["shown"]}
    assert (told["judges"]["mesh"], told["judges"]["ranks"], told["judges"]["class"]) == (
        "evaluators",
        "0-1",
        "Trainer",
    )

    kernel.run("trainers.slice(hosts=0).wait.broadcast(); trainers.slice(hosts=0).step.broadcast()")
    held = watcher.until(
        lambda actors: (
            doings(actors["trainers"]) == [("running", "0-1", "wait"), ("idle", "2-3", "")]
            and actors["trainers"]["doings"][0]["waiting"] == 1
        )
    )
    assert [rank["state"] for rank in held["meshes"][0]["ranks"]] == ["running", "running", "idle", "idle"]
    gate.open(2)
    watcher.until(lambda actors: doings(actors["trainers"]) == [("idle", "0-3", "")])
    kernel.run("beside.stop().get(60)")
    held = watcher.until(lambda actors: "judges" not in actors)
    assert [mesh["name"] for mesh in held["meshes"]] == ["main"]

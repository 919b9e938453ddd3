"""What people and machines may do to each other, while every message takes as long as it likes; and what holds then."""

from __future__ import annotations

import random

from cluster import Cluster, Work
from monarch_nb import Reservation
from monarch_nb.errors import MonarchNbError

NODES = 3
STEPS = 12
LONG_S = 200.0
"""After it everything that is half made has been taken back."""


class Chaos:
    """A pool with two people and a random life. The same seed does the same.

    Raises:
        AssertionError: what is promised does not hold; its text begins with what was done.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._random = cluster, random.Random(seed)
        self._clients = {person: cluster.client(person) for person in ("ann", "bob")}
        self._begun: list[tuple[str, Work]] = []
        self.done: list[str] = []

    def play(self) -> None:
        """Do a number of things, then let all come to rest, and look."""
        steps = [self._reserve, self._cell, self._release, self._replace, self._kill_client, self._node, self._wait]
        try:
            for _ in range(STEPS):
                self._random.choices(steps, [4, 5, 2, 1, 1, 3, 3])[0]()
            self._rest()
        except (AssertionError, MonarchNbError) as error:
            raise AssertionError("\n".join([*self.done, str(error)])) from error

    # ---- what is done ----

    def _say(self, what: str) -> None:
        self.done.append(f"{self._cluster.loop.time() - 1000:8.2f} {what}")

    def _begin(self, what: str, person: str, function: object) -> None:
        self._say(f"{person} {what}")
        self._begun.append((f"{person} {what}", self._clients[person].does(function)))  # type: ignore[arg-type]
        if self._random.random() < 0.5:
            self._cluster.sleep(self._random.uniform(0, 3))

    def _person(self) -> str:
        return self._random.choice(list(self._clients))

    def _reserve(self) -> None:
        person, nodes = self._person(), self._random.randint(1, NODES)
        waits: bool | str = self._random.choice([False, "60"]) and "60s"
        client = self._clients[person]
        self._begin(f"reserves {nodes}", person, lambda: client.reserve(person, nodes=nodes, wait=waits))

    def _held(self, person: str) -> Reservation:
        return self._clients[person].attach(person)

    def _cell(self) -> None:
        """A cell is executed once by each of its ranks, or not at all; and what it says is its own."""
        person, number = self._person(), len(self.done)
        code = (
            f"done = globals().get('done', []) + [{number}]\nawait sleep({self._random.randint(0, 3)})\n{number}, done"
        )

        def run() -> None:
            for said, done in self._held(person).mesh.run(code).values:
                assert said == number, f"cell {number} of {person} has the result of {said}"
                assert done.count(number) == 1, f"cell {number} of {person} was executed {done.count(number)} times"

        self._begin(f"runs cell {number}", person, run)

    def _release(self) -> None:
        person = self._person()
        self._begin("releases", person, lambda: self._held(person).release())

    def _replace(self) -> None:
        person = self._person()
        self._begin("replaces", person, lambda: self._held(person).replace())

    def _kill_client(self) -> None:
        person = self._person()
        self._say(f"the client of {person} is killed")
        self._clients[person].kill()
        self._clients[person] = self._cluster.client(person)

    def _node(self) -> None:
        node = self._random.choice(self._cluster.nodes)
        if node.life.is_over:
            self._say(f"{node.name} starts")
            node.start()
        elif node.is_cut:
            self._say(f"{node.name} is plugged in")
            node.mend()
        elif self._random.random() < 0.5:
            self._say(f"{node.name} is cut off")
            node.cut()
        else:
            self._say(f"{node.name} is killed")
            node.kill()

    def _wait(self) -> None:
        self._cluster.sleep(self._random.uniform(0, 20))

    # ---- what holds in the end ----

    def _rest(self) -> None:
        for node in self._cluster.nodes:
            node.mend()
            if node.life.is_over:
                node.start()
        self._say("all nodes are back")
        self._cluster.sleep(LONG_S)
        for what, work in self._begun:
            if work.is_alive_process and not work.done:
                raise AssertionError(f"{what}: has not ended")
            if work.done and (error := work.error) and not isinstance(error, MonarchNbError):
                raise AssertionError(f"{what}: {error!r}") from error
        for person, client in self._clients.items():
            for name in client.list():
                if name == person:
                    held = client.attach(person)
                    infos = held.mesh.status()
                    if any(info.state != "idle" for info in infos):
                        held.mesh.restart()
                    assert held.mesh.run("rank").values == [info.rank for info in infos], (
                        f"{person} can not use all ranks"
                    )
                    held.release()
        self._cluster.sleep(60)
        for node in self._cluster.nodes:
            assert not node.node.state.leases, f"{node.name} still holds {list(node.node.state.leases)}"
            assert not node.alive, f"{node.name} still has {[rank.spec.rank for rank in node.alive]}"


def play(seed: int) -> None:
    """Play one seed."""
    with Cluster(NODES, 1, seed=seed, chaos=True) as cluster:
        Chaos(cluster, seed).play()

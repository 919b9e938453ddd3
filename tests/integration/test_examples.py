"""The examples of the Python reference: those in the docstrings of public names, executed on a real mesh."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import operator
import sys
from typing import Any

import cloudpickle
import pytest

import monarch_nb
import monarch_nb.actor
from monarch_nb.actor import Actor, Port, ProcMesh, endpoint
from monarch_nb.client.reservations.reservation import Reservation

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks have no tests to import

NEED_MORE = {
    "attach",
    "list_ended",
    "list_saves",
    "reserve",
    "load_ipython_extension",
    "unload_ipython_extension",
    "shutdown_context",
}
"""Their examples are of a notebook, of saves, of a reservation that begins or ends, or end this program's actors."""
NAMES = [
    (module, name)
    for module in (monarch_nb, monarch_nb.actor)
    for name in module.__all__
    if name not in NEED_MORE | {"__version__", "errors"} and (module, name) != (monarch_nb.actor, "Extent")
]
DIFFERS = {"list_everywhere", "list_reservations"}
"""What these show depends on chance, or on what else is held."""


class Counter(Actor):
    """What the examples spawn, under several names."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    @endpoint
    def add(self, n: int) -> int:
        self.count += n
        return self.count

    @endpoint
    def value(self) -> int:
        return self.count

    @endpoint
    def fail(self) -> None:
        raise ValueError("as the example wants")

    @endpoint
    def step(self, n: int) -> float:
        return n / 2

    @endpoint
    def produce(self, port: Port[int]) -> None:
        port.send(self.count)

    report = produce

    def evaluate(self) -> int:
        return self.count


@pytest.fixture(scope="module")
def processes(dev: Reservation) -> ProcMesh:
    """Processes beside the main mesh, of a shape of their own."""
    return dev.spawn_procs({"gpus": 4}, name="trainers")


@pytest.fixture
def namespace(dev: Reservation, processes: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that examples take for granted, with actors of their own."""
    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", monarch_nb.actor.unhandled_fault_hook)
    public = {name: getattr(monarch_nb.actor, name) for name in monarch_nb.actor.__all__}
    made = {
        "counters": dev.mesh.spawn("counters", Counter),
        "producer": dev.mesh.spawn("producer", Counter),
        "trainers": processes.spawn("trainers", Counter),
    }
    for actors in made.values():
        actors.initialized.get()  # else examples that interrupt a mesh interrupt this
    own = {"monarch_nb": monarch_nb, "asyncio": asyncio, "operator": operator, "Counter": Counter, "Registry": Counter}
    return {**public, **own, **made, "Extent": monarch_nb.Extent, "dev": dev, "mesh": dev.mesh, "__name__": __name__}


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module.__name__}.{name}" for module, name in NAMES])
def test_examples_run_as_they_stand(module: Any, name: str, namespace: dict[str, Any]) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(module, name)) or "")
    assert examples
    for example in examples:
        (statement, *others) = ast.parse(example.source).body
        assert not others
        if isinstance(statement, ast.Expr):
            value = eval(example.source.strip(), namespace)
            if example.want and name not in DIFFERS:
                assert repr(value) == example.want.strip()
        else:
            exec(example.source, namespace)

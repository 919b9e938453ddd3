"""What the engine of actors has around it in a notebook's kernel or a script: mail over the sessions with the nodes,
and rank processes of the reservations that this process uses."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from monarch_nb.actor.engine import process as engine
from monarch_nb.actor.engine.outside import Address, Execution, Runs
from monarch_nb.client.actors.calls import Callers, CallsTag
from monarch_nb.client.actors.holding import Holdings
from monarch_nb.client.actors.printing import Printing
from monarch_nb.client.actors.questions import Questions
from monarch_nb.client.connections.bridge import background_loop, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.mail import own_mailbox
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError

STOP_ACTORS_S = patience(1.0)
"""How long actors of this process have to clean up when it ends."""


class ClientOutside:
    """The surroundings of the actors, and the calls, of a client.

    Attributes:
        holdings: the reservations and meshes that it uses.
        callers: in whose name it calls.
    """

    python = ""

    def __init__(self) -> None:
        self.holdings = Holdings()
        self.callers = Callers(self.holdings, Printing(), lambda: engine.process().calls())
        self._connections: dict[str, Connection] = {}
        self._homes: dict[str, Address] = {}

    @property
    def questions(self) -> Questions:
        """What ranks ask of those who wait here."""
        return self.callers.questions

    def home(self, node: str) -> Address:
        """Return this process, as a node knows it; for any node, as the first one of its reservation does."""
        found = self._homes.get(node)
        if found is not None:
            return found
        at = node or self.holdings.reservation().meshes.addresses[0]
        self._connection(at)
        home = Address(at, own_mailbox())
        if node:
            self._homes[node] = home
        return home

    def send(
        self,
        node: str,
        processes: Sequence[str],
        pieces: list[bytes | memoryview],
        *,
        call: int = 0,
        answers: int = 0,
    ) -> None:
        """Send a message; see `ConnectionMail.send`."""
        if not processes:
            return
        try:
            self._connection(node).mail.send(processes, pieces, call=call, answers=answers)
        except MonarchNbError as error:
            engine.process().undelivered(call, processes, node, str(error), None)

    def _connection(self, node: str) -> Connection:
        """Return the connection to a node, whose mail is taken from now on."""
        connection = self._connections.get(node)
        if connection is None:
            connection = self._connections.setdefault(node, self.holdings.connection(node))
            post(connection.mail.open, engine.process())
        return connection

    def executing(self, execution: Execution) -> AbstractContextManager[None]:
        """What actors of this process print is this process's."""
        return contextlib.nullcontext()

    def interrupt(self, execution: Execution) -> None:
        """Cancel what is async; the rest of what actors of this process execute is waited for."""
        execution.interrupt()

    def spawn_procs(
        self, hosts: Sequence[str], per_host: Mapping[str, int], name: str, python: str
    ) -> concurrent.futures.Future[Sequence[Address]]:
        """Start rank processes in the reservation that has these nodes, beside its main mesh."""
        return asyncio.run_coroutine_threadsafe(self._spawn_procs(hosts, per_host, name, python), background_loop())

    async def _spawn_procs(
        self, hosts: Sequence[str], per_host: Mapping[str, int], name: str, python: str
    ) -> Sequence[Address]:
        reservation = await asyncio.to_thread(self.holdings.reservation_with, hosts)
        nodes = [host or reservation.meshes.addresses[0] for host in hosts]
        mesh = await reservation.meshes.spawn(nodes, per_host, name, python=python)
        self.holdings.add(mesh)
        return mesh.addresses

    def stop_procs(self, mesh_id: str) -> concurrent.futures.Future[None]:
        """End the rank processes of a mesh."""
        return asyncio.run_coroutine_threadsafe(self.holdings.stop(mesh_id), background_loop())

    def tag(self, mesh_ids: Collection[str], title: str) -> CallsTag:
        """Return in whose name is called now: the cell's that executes, or the script's."""
        return self.callers.tag(mesh_ids, title)

    def tell(self, text: str, runs: Runs) -> None:
        """Tell people, where what actors print is shown."""
        self.callers.who_called(runs).audience.tell(text)


_installed: list[ClientOutside] = []


def _end(outside: ClientOutside) -> None:
    """The process ends."""
    engine.process().close(STOP_ACTORS_S)
    with contextlib.suppress(MonarchNbError):  # a node that does not answer does not hold the end up
        outside.callers.end_all()
        outside.holdings.release_own()


def install() -> None:
    """Make this process a client of actors."""
    outside()


def outside() -> ClientOutside:
    """Return the surroundings of this process's actors, made when there are none."""
    if not _installed:
        made = ClientOutside()
        title = "the notebook" if "ipykernel" in sys.modules else "the program"
        engine.install(engine.Process(made, title))
        _installed.append(made)
        atexit.register(_end, made)
    return _installed[0]

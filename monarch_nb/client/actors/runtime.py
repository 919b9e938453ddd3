"""What the engine of actors has around it in a notebook's kernel or a script: mail over the sessions with the nodes,
and rank processes of the reservations that this process uses."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from monarch_nb.actor.engine import process as engine
from monarch_nb.actor.engine.outside import Address, Execution, Runs
from monarch_nb.client.actors.calls import Callers, CallsTag, Questions
from monarch_nb.client.connections.bridge import background_loop, call, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.mail import own_mailbox
from monarch_nb.client.debug.answering import SCREEN, Screen
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.pool import known_connections
from monarch_nb.client.presenting import held_by_notebook
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reservation import Reservation, in_use
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.client.runs.printed import PrintedLines
from monarch_nb.client.runs.run import Listener
from monarch_nb.config import gap, patience
from monarch_nb.errors import MonarchNbError, PoolError

OWN_IDLE_S = gap(600.0)
"""So long a reservation that was made for a program outlives one that was killed."""


class Holdings:
    """What this process uses."""

    def __init__(self) -> None:
        self._meshes: dict[str, Mesh | None] = {}
        self._own: Reservation | None = None

    def reservations(self) -> list[Reservation]:
        """Return those in use: the notebook's first, then the newest first."""
        preferred: Reservation | None = held_by_notebook()
        others = [one for one in reversed(in_use()) if one is not preferred]
        return [preferred, *others] if preferred is not None else others

    def reservation(self) -> Reservation:
        """Return the one that is meant when none is named: the notebook's, else the newest that this process uses, else
        one of this computer, which is made then and ends with the process."""
        found = self.reservations()
        if found:
            return found[0]
        self._own = reserve(f"this-host-{os.getpid()}", procs=1, idle=OWN_IDLE_S)
        return self._own

    def release_own(self) -> None:
        """Release the reservation that was made because none was held."""
        if self._own is not None:
            self._own.release()

    def reservation_with(self, hosts: Iterable[str]) -> Reservation:
        """Return the one that has these nodes.

        Raises:
            PoolError: none of this process has.
        """
        named = {host for host in hosts if host}
        if not named:
            return self.reservation()
        for one in self.reservations():
            if named <= set(one.meshes.addresses):
                return one
        raise PoolError("no reservation that this process uses has these nodes: monarch_nb.attach(NAME) uses one")

    def add(self, mesh: Mesh) -> None:
        """Know a mesh."""
        self._meshes[mesh.id] = mesh

    def mesh(self, mesh_id: str) -> Mesh | None:
        """Return a mesh by its id, looked for in the pool when it is new to this process; None when it is not there. It
        is in use from now on."""
        if mesh_id not in self._meshes and mesh_id != "client":
            self._meshes[mesh_id] = self._find(mesh_id)
        return self._meshes.get(mesh_id)

    def in_reach(self, mesh_ids: Collection[str]) -> frozenset[str]:
        """Return these meshes, of which it is known from now on that they have actors, and all others of their
        reservations of which that is known: their actors may know each other."""
        reach = set(mesh_ids)
        for one in self.reservations():
            if here := {mesh_id for mesh_id in mesh_ids if one.meshes.known(mesh_id)}:
                one.meshes.with_actors |= here
                reach |= one.meshes.with_actors
        return frozenset(reach)

    def _find(self, mesh_id: str) -> Mesh | None:
        for one in self.reservations():
            if found := one.meshes.known(mesh_id):
                return found
        try:
            for one in self.reservations():
                call(one.meshes.all())
                if found := one.meshes.known(mesh_id):
                    return found
            for info in list_reservations():
                if info.held_by_me:
                    other = attach(info.name)
                    call(other.meshes.all())
                    if found := other.meshes.known(mesh_id):
                        return found
        except MonarchNbError:  # nobody sees what is printed there, then
            pass
        return None

    async def stop(self, mesh_id: str) -> None:
        """End the rank processes of a mesh beside a main one. Nodes of other reservations do not hold that up."""
        self._meshes.pop(mesh_id, None)
        knowing = [one for one in self.reservations() if one.meshes.known(mesh_id)]
        for one in knowing or self.reservations():
            await one.meshes.stop(mesh_id)

    def connection(self, node: str) -> Connection:
        """Return the connection to a node."""
        return known_connections().get(node) or Connection(node.rpartition("/")[2] or node, node)


class Printing:
    """Prints what actors of ranks print: stdout to stdout, stderr to stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def listener(self, ranks: Iterable[int], mesh: str) -> Listener:
        """As Audience's."""
        return PrintedLines(self._lock, ranks, mesh="" if mesh == "main" else f"{mesh} ").on_event

    def finished(self, run: CallsRun) -> None:
        """A run was printed to its end."""
        run.collected()

    def screen(self) -> Screen:
        """Return the terminal."""
        return SCREEN

    def tell(self, text: str) -> None:
        """Tell people something."""
        with self._lock:
            sys.stderr.write(f"{text}\n")


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

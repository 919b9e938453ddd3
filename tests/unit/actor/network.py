"""Processes of a pool within one Python process: the engine is the real one, what carries messages is a thread."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import math
import queue
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from monarch_nb.actor.engine.process import Address, Execution, Process, Runs, Tag
from monarch_nb.actor.hosts import ProcMesh
from monarch_nb.proto.run_pb2 import Death

TIMEOUT_S = 60.0


@dataclass
class FakeTag(Tag):
    runs: Runs = field(default_factory=dict)
    interrupts: int = 0
    killed: str = ""

    def interrupt(self) -> None:
        self.interrupts += 1

    def aftermath(self) -> str:
        return self.killed


class Wire:
    """What a process has around it: its network."""

    questions = None
    python = ""

    def __init__(self, network: Network, address: Address | None) -> None:
        self.network, self.address = network, address
        self.told: list[str] = []
        self.told_runs: list[Runs] = []
        self.started: queue.SimpleQueue[Execution] = queue.SimpleQueue()
        self.sent = 0
        self.tag_given = FakeTag()

    def home(self, node: str) -> Address:
        return self.address or Address(node, "client/1")

    def send(
        self,
        node: str,
        processes: Sequence[str],
        pieces: list[bytes | memoryview],
        *,
        call: int = 0,
        answers: int = 0,
    ) -> None:
        body = b"".join(pieces)
        self.sent += 1
        self.network.carry(self.home(node), node, processes, body, call, answers)

    @contextlib.contextmanager
    def executing(self, execution: Execution) -> Iterator[None]:
        self.started.put(execution)
        yield

    def interrupt(self, execution: Execution) -> None:
        execution.interrupt()

    def spawn_procs(
        self, hosts: Sequence[str], per_host: Mapping[str, int], name: str, python: str
    ) -> concurrent.futures.Future[Sequence[Address]]:
        done: concurrent.futures.Future[Sequence[Address]] = concurrent.futures.Future()
        addresses = self.network.start(hosts, math.prod(per_host.values()))
        for address in addresses:
            self.network.wire(self.network.processes[address]).python = python
        done.set_result(addresses)
        return done

    def stop_procs(self, mesh_id: str) -> concurrent.futures.Future[None]:
        self.network.stopped.append(mesh_id)
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        done.set_result(None)
        return done

    def tag(self, mesh_ids: Collection[str], title: str) -> FakeTag:
        return self.tag_given

    def tell(self, text: str, runs: Runs) -> None:
        self.told.append(text)
        self.told_runs.append(runs)
        self.network.told.put(text)


class Network:
    """Nodes, with the processes on them, and one client."""

    def __init__(self) -> None:
        self.processes: dict[Address, Process] = {}
        self.dead: dict[Address, Death] = {}
        self.stopped: list[str] = []
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._due: set[tuple[Address, int, Address]] = set()
        self.client = Process(Wire(self, None), "the notebook")

    def start(self, hosts: Sequence[str], per_host: int) -> list[Address]:
        mesh = f"mesh{next(self._numbers)}"
        addresses = []
        for host in hosts:
            for _ in range(per_host):
                address = Address(host or "node0", f"{mesh}/{len(addresses)}")
                self.processes[address] = Process(Wire(self, address), f"rank {len(addresses)} of {mesh}")
                addresses.append(address)
        return addresses

    def mesh(self, **extent: int) -> ProcMesh:
        """Ranks on as many nodes as the dimension `hosts` has places."""
        hosts = extent.get("hosts", 1)
        addresses = self.start([f"node{n}" for n in range(hosts)], math.prod(extent.values()) // hosts)
        return ProcMesh.of("main", extent, addresses)

    def carry(self, sender: Address, node: str, processes: Sequence[str], body: bytes, call: int, answers: int) -> None:
        for name in processes:
            to = Address(node, name)
            with self._lock:
                if answers:
                    self._due.discard((to, answers, sender))
                death = self.dead.get(to)
                if call and death is None:
                    self._due.add((sender, call, to))
            process = self.client if name.startswith("client/") else self.processes.get(to)
            if process is not None and death is None:
                process.receive(sender, body, call=call, answers=answers)
            elif call:
                self._at(sender).undelivered(call, [name], node, f"{name} is dead", death)

    def kill(self, address: Address, signal: int = 9) -> None:
        """As a process dies: whoever waits for it is told."""
        with self._lock:
            death = self.dead[address] = Death(signal=signal)
            due = [each for each in self._due if each[2] == address]
            self._due.difference_update(due)
        for runner in list(self.processes[address]._actors.values()):
            runner.children.clear()  # nobody would hear it when it ends them
        for sender, call, to in due:
            self._at(sender).undelivered(call, [to.process], to.node, "it died", death)

    def release(self, mesh: ProcMesh) -> None:
        """As a mesh is released: whoever waits for its processes is told that they are gone."""
        with self._lock:
            due = [each for each in self._due if each[2] in mesh.places()]
            self._due.difference_update(due)
        for sender, call, to in due:
            self._at(sender).undelivered(call, [to.process], to.node, "its mesh was released", None)

    def _at(self, address: Address) -> Process:
        return self.client if address.process.startswith("client/") else self.processes[address]

    def wire(self, process: Process) -> Wire:
        assert isinstance(process.outside, Wire)
        return process.outside

    def ranks(self, mesh: ProcMesh) -> list[Process]:
        return [self.processes[address] for address in mesh.places()]

    def started(self, mesh: ProcMesh, endpoint: str) -> Execution:
        """Wait until the first rank of a mesh executes an endpoint; return that."""
        while (execution := self.wire(self.ranks(mesh)[0]).started.get(timeout=TIMEOUT_S)).endpoint != endpoint:
            pass
        return execution

    def close(self) -> None:
        for process in [self.client, *self.processes.values()]:
            process.close(TIMEOUT_S)

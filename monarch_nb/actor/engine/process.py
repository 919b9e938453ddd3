"""A process that has actors, or calls some: its mailbox, its actors and its calls."""

from __future__ import annotations

import importlib
import mmap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from monarch_nb import config
from monarch_nb.actor.engine.calls import Answer, Call, Calls, Ending, Gather, Lifetime
from monarch_nb.actor.engine.failing import WITHDRAWN, Failed, Faults, MeshFailure, Told, describe, died, gone, stopped
from monarch_nb.actor.engine.handles import Birth, Handle, Identity, Place, Places, PortAddress
from monarch_nb.actor.engine.mailbox import Early, Mailbox, Message, Port
from monarch_nb.actor.engine.messages import (
    ANSWER,
    ASK,
    FAILED,
    INVOKE,
    POST,
    POST_RAISED,
    RAISED,
    SPAWN,
    STOP,
    WATCH,
    Body,
    Pieces,
    Plain,
    Value,
    pack,
    unpack,
)
from monarch_nb.actor.engine.outside import (
    HERE,
    ActorState,
    Address,
    CallState,
    Execution,
    Outside,
    Runs,
    Tag,
)
from monarch_nb.actor.engine.runner import Runner, Step, current_home, current_step
from monarch_nb.errors import ActorError
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.proto.run_pb2 import Death
from monarch_nb.shape import Extent

__all__ = [
    "HERE",
    "ActorState",
    "Address",
    "CallState",
    "Execution",
    "Outside",
    "Process",
    "Runs",
    "Tag",
    "current",
    "executing",
    "install",
    "installed",
    "process",
]

_REMEMBERED = 10_000
"""So many actors that were stopped are known by why, which who calls them is told."""

_WITHDRAWN_RUNS = 64
"""So many runs that were interrupted are known: messages in their names may be on their way."""

Receiver = Callable[[int, Answer], object]
"""Called with the sender's rank, where it has one, and what came."""


class Process:
    """The engine of this process. All may be called from any thread.

    Args:
        outside: what it has around it.
        title: what actors that it calls call it, for people: "the notebook", "rank 3 of main".
    """

    def __init__(self, outside: Outside, title: str) -> None:
        self.outside, self.title = outside, title
        self.identity = Identity("root", None, "", 0, Extent({}), None)
        self.nothing: Value = Plain(((), {}))
        self._lock = threading.Lock()
        self.controllers: dict[str, Any] = {}
        self._calls = Calls()
        self._faults = Faults(outside)
        self._actors: dict[str, Runner] = {}
        self._newest: dict[tuple[str, str], Runner] = {}
        self._first: Runner | None = None  # that sets the process up
        self._stopped: dict[str, Failed] = {}
        self._early = Early(self._give_up)
        self._ports: dict[int, Receiver] = {}
        self._next_port = 1
        self._withdrawn: dict[str, None] = {}
        self._asked: Mailbox[Callable[[], object]] = Mailbox()
        self._asked_thread: threading.Thread | None = None

    def receive(self, sender: Address, body: Body, *, call: int, answers: int) -> None:
        """Take a message that arrived: it only queues it. Never raises.

        Args:
            sender: where an answer goes.
            body: the pieces that `Outside.send` was given, joined.
            call, answers: as given there.
        """
        try:
            head, value = unpack(self, body)
        except Exception as error:  # noqa: BLE001 -- of another version, or damaged
            if answers:
                self._answered(answers, sender, -1, Answer(FAILED, Plain(describe("error", error))))
            self.reply_to(sender, call, -1, FAILED, describe("error", error))
            return
        kind = head[0]
        if kind == INVOKE:
            self._invoke(sender, call, value, *head[1:])
        elif kind in (ANSWER, FAILED, RAISED):
            self._answered(answers, sender, head[1], Answer(kind, value))
        elif kind in (POST, POST_RAISED):
            if receiver := self._ports.get(head[1]):
                receiver(head[2], Answer(kind, value))
        elif kind == SPAWN:
            self._spawn_here(sender, call, value, head[1])
        elif kind == STOP:
            self._stop_here(sender, call, *head[1:])
        elif kind == WATCH:
            self._watched(sender, call, head[1])
        elif kind == ASK:
            self.aside(lambda: self._answer_question(sender, call, value))

    def _invoke(
        self,
        sender: Address,
        call: int,
        value: Value,
        uid: str,
        endpoint: str,
        place: Place | None,
        port: PortAddress | None,
        caller: str,
        runs: Runs,
    ) -> None:
        response = Port[Any](self, port) if port is not None else None
        message = Message(endpoint, place, value, sender, call, response, caller, runs)
        runner = self._actors.get(uid)
        if runner is None:
            self._invoke_unknown(uid, message)
        elif self._withdrawn and self._is_withdrawn(message):
            runner.refuse(message, WITHDRAWN)
        else:
            runner.put(message)

    def _invoke_unknown(self, uid: str, message: Message) -> None:
        """Take a message for an actor that is not here: it has ended, or is still to be spawned."""
        with self._lock:
            runner, failed = self._actors.get(uid), self._stopped.get(uid)
            if self._is_withdrawn(message):
                failed = WITHDRAWN
            elif runner is None and failed is None:
                self._early.put(uid, message)
                return
        if failed is not None:
            self._refuse(message, failed)
        elif runner is not None:
            runner.put(message)

    def _is_withdrawn(self, message: Message) -> bool:
        return any(each in self._withdrawn for each, *_ in message.runs.values())

    def _give_up(self, early: Sequence[Message]) -> None:
        for message in early:
            self._refuse(message, stopped("its process was restarted, or was never told to spawn it"))

    def _refuse(self, message: Message, failed: Failed) -> None:
        """Answer a message for an actor that is not here."""
        if message.port is not None:
            message.port.exception(self.error_of(message.endpoint, 0, Extent({}), failed))
        self.reply_to(message.sender, message.call, -1, FAILED, failed)

    def _answered(self, number: int, sender: Address, rank: int, answer: Answer) -> None:
        if rank < 0:  # the answering process did not know; a client has an address on each node
            ranks = self._calls.ranks_of(
                number, lambda place: place.process == sender.process or (self.is_here(place) and sender == HERE)
            )
            rank = ranks[0] if ranks else -1
        self._calls.answered(number, rank, answer)

    def undelivered(self, call: int, processes: Sequence[str], node: str, reason: str, death: Death | None) -> None:
        """Take note that processes will not answer a call: they died, were released, or never were.

        Args:
            reason: for people: "rank 3 died: killed by signal 9 (SIGKILL)".
            death: None for those that did not die by themselves. Actors there have ended, but not failed.
        """
        self._calls.undelivered(call, node, processes, gone(reason) if death is None else died(reason, death))

    def node_lost(self, node: str, reason: str) -> None:
        """Take note that nothing that was sent to a node is answered any more."""
        self._calls.node_lost(node, died(reason, None))

    def withdraw(self, run_id: str) -> None:
        """Answer at once what waits for actors of this process in the name of a run, and what comes in it from now on;
        with an empty id all that waits. From any thread; it does not wait."""
        if run_id:
            self._withdrawn[run_id] = None
            while len(self._withdrawn) > _WITHDRAWN_RUNS:
                self._withdrawn.pop(next(iter(self._withdrawn)), None)
        for message in self._early.withdraw(run_id):
            self.aside(partial(self._refuse, message, WITHDRAWN))
        for runner in list(self._actors.values()):
            for answer in runner.withdraw(run_id):
                self.aside(answer)

    def actors(self) -> list[ActorState]:
        """Return the actors of this process, but for one that has set it up."""
        return [runner.state() for runner in list(self._actors.values()) if not runner.has_set_up]

    def executions(self) -> list[Execution]:
        """Return what actors of this process execute now."""
        return [each for runner in list(self._actors.values()) for each in runner.executions()]

    def calls(self) -> list[CallState]:
        """Return the calls of this process that are not answered yet."""
        return self._calls.states()

    def instances(self) -> Mapping[str, object]:
        """Return the live Actor objects of this process by name, the newest of each name."""
        runners = [each for each in list(self._actors.values()) if not each.birth.is_first]
        return {each.birth.handle.name: each.instance for each in runners if each.instance is not None}

    def handles(self) -> list[Handle]:
        """Return the meshes of the actors of this process."""
        return [runner.birth.handle for runner in list(self._actors.values()) if not runner.birth.is_first]

    def close(self, timeout_s: float) -> None:
        """Stop all actors of this process, interrupt what they execute, and wait for them until the time is up."""
        self.stop_actors("its process ends", timeout_s)

    def stop_actors(self, reason: str, timeout_s: float) -> None:
        """As `close`; others can be spawned afterwards."""
        until_s = time.monotonic() + timeout_s
        runners = list(self._actors.values())
        for runner in runners:
            runner.stop(reason, HERE, 0)
        for runner in runners:
            runner.ended.wait(max(0.0, until_s - time.monotonic()))

    # What the public files call.

    def is_here(self, address: Address) -> bool:
        """Return whether an address is this process's."""
        return address == HERE or self.outside.home(address.node) == address

    def owner(self) -> Runner | None:
        """Return the actor of which the calling code is part."""
        step = current_step.get()
        return step.runner if step is not None and step.runner.process is self else None

    def who(self) -> str:
        """Return what the calling code is called, for people."""
        owner = self.owner()
        return owner.title if owner is not None else self.title

    def send(self, places: Places, head: tuple[Any, ...], value: Any, call: Call | None) -> None:
        """Send a message to all of some places. Raises whatever pickling it raises, before anything is sent."""
        groups = places.by_node()
        pieces = pack(self, next((node for node, _ in groups if node), ""), head, value)
        number = self._calls.add(call) if call is not None else 0
        for node, processes in groups:
            self._deliver(node, processes, pieces, number, 0)

    def _deliver(self, node: str, processes: Sequence[str], pieces: Pieces, call: int, answers: int) -> None:
        if len(processes) == 1 and self.is_here(Address(node, processes[0])):
            self.receive(HERE, pieces[0] if len(pieces) == 1 else b"".join(pieces), call=call, answers=answers)
            return
        home = self.outside.home(node)
        if home.node == node and home.process in processes:
            self.receive(HERE, pieces[0] if len(pieces) == 1 else b"".join(pieces), call=call, answers=answers)
            processes = [process for process in processes if process != home.process]
        self.outside.send(node, processes, pieces, call=call, answers=answers)

    def reply_to(self, address: Address, call: int, rank: int, kind: int, value: Any) -> None:
        """Answer a call, if there is one. Raises whatever pickling an ANSWER's value raises."""
        if call:
            pieces = pack(self, address.node, (kind, rank), value)
            self._deliver(address.node, (address.process,), pieces, 0, call)

    def post(self, target: PortAddress, kind: int, value: Any) -> None:
        """Send a value to a port. Raises whatever pickling it raises."""
        if target.answers:
            self.reply_to(target.address, target.number, target.rank, kind, value)
        else:
            pieces = pack(self, target.address.node, (kind, target.number, target.rank), value)
            self._deliver(target.address.node, (target.address.process,), pieces, 0, 0)

    def port_to(self, address: Address, call: int, rank: int) -> Port[Any]:
        """Return the port by which a call is answered; one into which all falls when nobody waits."""
        return Port(self, PortAddress(address, call, rank, True) if call else None)

    def open_port(self, receiver: Receiver) -> PortAddress:
        """Return where values are sent that `receiver` is then called with, as they arrive."""
        with self._lock:
            number = self._next_port
            self._next_port += 1
            self._ports[number] = receiver
        return PortAddress(HERE, number, 0, False)

    def close_port(self, number: int) -> None:
        """Drop what is sent there from now on."""
        self._ports.pop(number, None)

    def spawn(
        self,
        handle: Handle,
        value: Any,
        mesh: object,
        *,
        is_async: bool,
        runs: Runs,
        is_first: bool = False,
    ) -> None:
        """Have actors made, and watch them. Raises whatever pickling the class or its arguments raises.

        Args:
            value: the class, and its arguments by place and by name.
            mesh: what `MeshFailure.mesh` will be.
        """
        owner = self.owner()
        creator = owner.identity if owner is not None else self.identity
        root = owner.birth.root if owner is not None else HERE
        birth = Birth(handle, is_async, (HERE, owner.uid if owner else ""), creator, root, self.who(), runs, is_first)

        def ended(rank: int, failed: Failed | None) -> None:
            self._child_ended(owner, handle, mesh, creator, rank, failed)

        if owner is not None:
            owner.children[handle.uid] = handle
        self.send(handle.places, (SPAWN, birth), value, Lifetime(handle.name, handle.places, handle.extent, ended))

    def _spawn_here(self, sender: Address, call: int, value: Value, birth: Birth) -> None:
        handle = birth.handle
        rank = next(rank for rank, place in enumerate(handle.places) if self.is_here(place))
        key = _key(birth)
        with self._lock:
            old, first = self._newest.get(key), self._first
            if first is not None and birth.is_below(first.uid):  # it is part of the setting up
                first = None
            set_up = first.sets_up if first is not None else None
            runner = Runner(self, birth, rank, value, sender, call, old, set_up)
            for message in self._early.take(handle.uid):
                runner.put(message)
            self._newest[key] = self._actors[handle.uid] = runner
            if birth.is_first:
                self._first = runner
            if old is not None and old.is_noted:
                self._forget(old)
        if old is not None:
            old.stop(f"{birth.caller} spawned new actors under its name", HERE, 0)
        self._watch_owner(runner)
        runner.start()

    def _watch_owner(self, runner: Runner) -> None:
        """Have an actor end when the one that spawned it does, even without a word. Those of a program live on."""
        address, uid = runner.birth.owner
        if not uid or self.is_here(address):
            return

        def ended(_: int, failed: Failed | None) -> None:
            why = f" ({failed.text})" if failed is not None else ""
            runner.stop(f"{runner.birth.creator.title}, which spawned it, has ended{why}", HERE, 0)

        place = Places([address])
        runner.watch = Lifetime(f"{runner.birth.creator.title}", place, Extent({}), ended)
        self.send(place, (WATCH, uid), None, runner.watch)

    def _watched(self, sender: Address, call: int, uid: str) -> None:
        runner = self._actors.get(uid)
        if runner is None or not runner.tell_end(sender, call):
            self.reply_to(sender, call, 0, ANSWER, None)

    def _child_ended(
        self, owner: Runner | None, handle: Handle, mesh: object, creator: Identity, rank: int, failed: Failed | None
    ) -> None:
        if failed is None or (owner is None and failed.is_of_another(handle.name)):
            return
        failed = failed.of_rank(rank)
        actor = Identity(handle.name, handle.class_name, handle.uid, rank, handle.extent, creator)
        what = (failed.traceback or failed.text).rstrip("\n").replace("\n", "\n  ")
        host = f" on {failed.host}" if failed.host else ""
        event = f"Supervision event: actor {actor!r}{host} failed:\n  {what}"
        told = Told(failed.title or handle.name, failed.line, failed.traceback or failed.text, failed.runs)
        failure = MeshFailure(mesh, handle.uid, [rank], event, told)
        if owner is None:
            self.aside(lambda: self._faults.report(failure))
        elif owner.refuses is None:
            owner.supervise(failure)

    def stop(self, handle: Handle, places: Places, reason: str) -> Gather:
        """Have actors stopped; return the call."""
        call = Ending(f"{handle.name}.stop", places)
        self.send(places, (STOP, handle.uid, reason), None, call)
        return call

    def _stop_here(self, sender: Address, call: int, uid: str, reason: str) -> None:
        runner = self._actors.get(uid)
        if runner is None:
            self.reply_to(sender, call, -1, ANSWER, None)
        else:
            runner.stop(reason, sender, call)
            with self._lock:
                if runner.is_noted:
                    self._forget(runner)

    def stop_children(self, runner: Runner, timeout_s: float) -> None:
        """Stop what an actor has spawned, and wait for it until the time is up."""
        until_s = time.monotonic() + timeout_s
        children, runner.children = runner.children, {}
        calls = [
            self.stop(each, each.places, f"{runner.title}, which spawned it, has ended") for each in children.values()
        ]
        for call in calls:
            call.outcome.wait(max(0.0, until_s - time.monotonic()))

    def note_end(self, runner: Runner) -> bool:
        """Take note that an actor has ended; return whether it had failed. One that failed stays, to say why, until
        another takes its name."""
        failed = runner.refuses
        has_failed = failed is not None and failed.name != ""
        if runner.watch is not None:
            self._calls.drop(runner.watch.number)
        with self._lock:
            runner.is_noted = True
            if not has_failed or self._newest.get(_key(runner.birth)) is not runner:
                self._forget(runner)
        return has_failed

    def _forget(self, runner: Runner) -> None:
        """Drop an actor that has ended; why it does not answer stays known. With the lock held."""
        self._actors.pop(runner.uid, None)
        if runner.refuses is not None:
            self._stopped[runner.uid] = runner.refuses
            while len(self._stopped) > _REMEMBERED:
                del self._stopped[next(iter(self._stopped))]
        key = _key(runner.birth)
        if self._newest.get(key) is runner:
            del self._newest[key]

    @staticmethod
    def error_of(title: str, rank: int, extent: Extent, failed: Failed) -> ActorError:
        """Return the error that a port gets for a rank that failed."""
        what = f"Actor call {title} failed on rank {rank}."
        return ActorError(what, title, [failed.at(rank, extent)])

    def ask(self, places: Places, function: Callable[..., Any], *arguments: Any) -> Gather:
        """Have processes call a function of a module, beside their actors, one question after the other; return the
        call whose value is the list of their answers."""
        call = Gather(function.__name__, None, places, Extent({"procs": len(places)}), lambda values: values)
        self.send(places, (ASK,), (function, arguments), call)
        return call

    def _answer_question(self, sender: Address, call: int, value: Value) -> None:
        try:
            function, arguments = value.load()
            self.reply_to(sender, call, -1, ANSWER, function(*arguments))
        except Exception as error:  # noqa: BLE001 -- told to who asked
            self.reply_to(sender, call, -1, FAILED, describe("error", error))

    def aside(self, work: Callable[[], object]) -> None:
        """Call `work`, which never raises, on a thread beside the actors', after what was given before."""
        self._asked.put(work)
        with self._lock:
            if self._asked_thread is None:
                self._asked_thread = threading.Thread(target=self._work_aside, name="monarch-actor-aside", daemon=True)
                self._asked_thread.start()

    def _work_aside(self) -> None:
        current_home.set(self)
        while True:
            self._asked.get()()


def _key(birth: Birth) -> tuple[str, str]:
    """Return what an actor shares with those that it replaces: who spawns it, and its name."""
    return birth.handle.uid if birth.is_first else birth.owner[1], birth.handle.name


_installed: list[Process] = []
_installing = threading.Lock()


def install(process: Process) -> None:
    """Make `process` the engine of this process."""
    _installed[:] = [process]


def process() -> Process:
    """Return the engine of this process; that of a client is made when none is installed (`config.ACTOR_OUTSIDE`)."""
    if (found := current_home.get()) is not None:
        return found
    if not _installed:
        with _installing:
            if not _installed:
                module, _, name = config.ACTOR_OUTSIDE.partition(":")
                getattr(importlib.import_module(module), name)()
    return _installed[0]


def installed() -> Process | None:
    """Return the engine of this process, if there is one already."""
    return _installed[0] if _installed else None


def current() -> Step | None:
    """Return the message of which the calling code is part."""
    return current_step.get()


def executing() -> Execution | None:
    """Return what the calling code is part of, if an actor executes it."""
    step = current_step.get()
    return step.execution if step is not None else None


def deliver(envelope: Envelope, receiver: Process, content: Body | None = None) -> None:
    """Give the engine of a process what is in an envelope; it only queues that.

    Args:
        content: its body, when that was not in the envelope itself.
    """
    sender = Address(envelope.sender.node, envelope.sender.process)
    told = envelope.notice.undelivered
    if not envelope.HasField("notice"):
        body = envelope.body if content is None else content
        receiver.receive(sender, body, call=envelope.call, answers=envelope.answers)
    elif envelope.notice.HasField("node_lost"):
        receiver.node_lost(envelope.notice.node_lost.node, envelope.notice.node_lost.reason)
    else:
        death = told.death if told.HasField("death") else None
        receiver.undelivered(told.call, list(told.processes), sender.node, told.reason, death)


def map_and_remove(path: Path) -> mmap.mmap:
    """Map the file of large content, copied where it is written to; the file is gone from here on.

    Raises:
        OSError: it is not there.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    finally:
        path.unlink(missing_ok=True)

"""Where each envelope goes, who waits for whose answer, and who is told that it does not come. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from monarch_nb.allocator.mail import letters
from monarch_nb.allocator.mail.letters import Letter
from monarch_nb.proto.mail_pb2 import Address, Envelope, NodeLost, Notice, Undelivered
from monarch_nb.proto.run_pb2 import Death


class Call(NamedTuple):
    """A call, by who makes it. Numbers are the caller's."""

    node: str
    process: str
    number: int


class OpenCalls:
    """The calls that processes of this node have to answer, and those that they wait for from other nodes."""

    def __init__(self) -> None:
        self._due: dict[str, dict[Call, None]] = {}
        """By the process that is to answer."""
        self._away: dict[str, dict[Call, int]] = {}
        """By node: calls of processes of this node, and how many answers are to come from there."""

    def __len__(self) -> int:
        return sum(map(len, self._due.values())) + sum(map(len, self._away.values()))

    def delivered(self, process: str, envelope: Envelope) -> None:
        """A process of this node is to answer."""
        call = Call(envelope.sender.node, envelope.sender.process, envelope.call)
        self._due.setdefault(process, {})[call] = None

    def sent(self, envelope: Envelope) -> None:
        """Processes of another node are to answer one of this node."""
        call = Call(envelope.sender.node, envelope.sender.process, envelope.call)
        away = self._away.setdefault(envelope.node, {})
        away[call] = away.get(call, 0) + len(envelope.processes)

    def answered(self, envelope: Envelope) -> None:
        """An answer passes."""
        sender = envelope.sender
        for process in envelope.processes:
            call = Call(envelope.node, process, envelope.answers)
            if (due := self._due.get(sender.process)) is not None:
                due.pop(call, None)
            self._came(sender.node, call, 1)

    def refused(self, envelope: Envelope) -> None:
        """Another node says that some of its processes will not answer."""
        told = envelope.notice.undelivered
        for process in envelope.processes:
            self._came(envelope.sender.node, Call(envelope.node, process, told.call), len(told.processes))

    def _came(self, node: str, call: Call, answers: int) -> None:
        away = self._away.get(node)
        if away is None or call not in away:
            return
        away[call] -= answers
        if away[call] <= 0:
            del away[call]

    def ended(self, process: str) -> Iterable[Call]:
        """A process of this node is gone: return the calls that it does not answer, and forget its own."""
        for calls in self._away.values():
            for call in [call for call in calls if call.process == process]:
                del calls[call]
        return self._due.pop(process, {}).keys()

    def lost(self, node: str) -> set[str]:
        """Nothing comes from a node any more: return the processes of this one that wait for it."""
        return {call.process for call in self._away.pop(node, {})}


Put = Callable[[Letter], object]
"""Delivers a letter to one process, after those before it."""


class PostOffice:
    """The mail of a node.

    Args:
        node: its address.
        forward: called with (node, letter) for processes of another.
        why_missing: called with a process that has no box: returns None when it will have one soon, else what is said
            of it to who sends it something.
    """

    def __init__(
        self, node: str, forward: Callable[[str, Letter], None], why_missing: Callable[[str], Undelivered | None]
    ) -> None:
        self._here = Address(node=node)
        self._node, self._forward, self._why_missing = node, forward, why_missing
        self._boxes: dict[str, Put] = {}
        self._held: dict[str, list[Letter]] = {}
        """Letters for processes that are not there yet, or away."""
        self._calls = OpenCalls()

    @property
    def open_calls(self) -> int:
        """How many calls wait for answers."""
        return len(self._calls)

    # ---- letters ----

    def post(self, letter: Letter, *, from_node: bool = False) -> None:
        """Send a letter to where it goes.

        Args:
            from_node: another node sent it here: it is not passed on.
        """
        envelope = letter.envelope
        if envelope.answers:
            self._calls.answered(envelope)
        elif envelope.HasField("notice") and envelope.notice.HasField("undelivered"):
            self._calls.refused(envelope)
        if envelope.node != self._node:
            if from_node:
                self._refuse(envelope, envelope.processes, Undelivered(reason=f"{envelope.node} is another node"))
                return
            if envelope.call:
                self._calls.sent(envelope)
            self._forward(envelope.node, letter)
            return
        for process in envelope.processes:
            put = self._boxes.get(process) or self._hold(letter, process)
            if put is not None:
                if envelope.call:
                    self._calls.delivered(process, envelope)
                put(letter)

    def _hold(self, letter: Letter, process: str) -> Put | None:
        """Return what keeps letters for a process; None when it will not be there, which the sender is told."""
        if process not in self._held and (told := self._why_missing(process)) is not None:
            self._refuse(letter.envelope, [process], told)
            return None
        return self._held.setdefault(process, []).append

    def _refuse(self, envelope: Envelope, processes: Sequence[str], told: Undelivered) -> None:
        if not envelope.answers and not envelope.HasField("notice"):  # nobody waits to hear that
            told.call = envelope.call
            told.processes.extend(processes)
            self._tell(envelope.sender, told)

    def _tell(self, receiver: Address, told: Undelivered) -> None:
        self.post(letters.notice(self._here, receiver, Notice(undelivered=told)))

    def returned(self, envelope: Envelope, reason: str) -> None:
        """A letter can not be delivered, for no fault of its receivers."""
        told = Undelivered(call=envelope.call, reason=reason)
        self._refuse(envelope, envelope.processes, told)

    # ---- processes of this node ----

    def opened(self, process: str, put: Put) -> None:
        """A process is there; it gets what waited for it."""
        self._boxes[process] = put
        for letter in self._held.pop(process, ()):
            put(letter)

    def held(self, process: str) -> None:
        """Keep what comes for a process that is away."""
        self._boxes.pop(process, None)
        self._held[process] = []

    def ended(self, process: str, reason: str, death: Death | None = None) -> None:
        """A process is gone, and answers nobody any more. Those that wait for it are told.

        Args:
            reason: for people.
            death: how it ended, unless that was meant.
        """
        self._boxes.pop(process, None)
        for letter in self._held.pop(process, ()):
            if not letter.envelope.call:
                self._refuse(letter.envelope, [process], Undelivered(death=death, reason=reason))
        for call in self._calls.ended(process):
            told = Undelivered(call=call.number, processes=[process], death=death, reason=reason)
            self._tell(Address(node=call.node, process=call.process), told)

    def ended_all(self, prefix: str, reason: str) -> None:
        """The same of all processes whose names begin so."""
        for process in [process for process in (*self._boxes, *self._held) if process.startswith(prefix)]:
            self.ended(process, reason)

    # ---- other nodes ----

    def node_lost(self, node: str, reason: str) -> None:
        """What was sent to another node, and what it was to answer, may be lost. Those that wait are told."""
        for process in self._calls.lost(node):
            receiver = Address(node=self._node, process=process)
            lost = Notice(node_lost=NodeLost(node=node, reason=reason))
            self.post(letters.notice(self._here, receiver, lost))

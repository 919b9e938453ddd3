"""Who waits for whose answer, as far as messages pass this node. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from monarch_nb.proto.mail_pb2 import Envelope


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

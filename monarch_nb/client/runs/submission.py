"""How a run comes to its nodes: one of them gives it its number, and with that the others get it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from monarch_nb.branches.layout import earlier_run
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.listeners import RunListener
from monarch_nb.client.connections.tree import TreeConnection
from monarch_nb.client.pools.facts.held import current_owner
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.client.runs.nodes import RunNodes
from monarch_nb.config import gap
from monarch_nb.proto import allocator_pb2 as pb

PROCEED_AFTER_S = gap(2.0)


class SubmittedRun(RunListener, Protocol):
    """A run that is sent.

    Attributes:
        is_interrupted: it has been, and whoever gets it now is told so.
    """

    number: int
    is_interrupted: bool

    @property
    def mesh(self) -> HeldMesh: ...

    @property
    def done(self) -> bool: ...


class Submission:
    """A run on its way. Everything here runs on the background loop.

    Args:
        run: its messages come to it.
        nodes: those that it is for.
        describe: writes down what there is to say of it to all nodes.

    Attributes:
        numbered_by: the node that was asked for its number.
    """

    def __init__(self, run: SubmittedRun, nodes: RunNodes, describe: Callable[[], pb.Submit]) -> None:
        self._run, self._core, self._nodes = run, run.mesh.core, nodes
        by_node = dict(nodes.parts())
        self.numbered_by = first = self._core.first_node
        self._submits: dict[int, pb.Submit] = {}
        owner = current_owner(self._core.connections[first].identity)  # asks the system
        for node in {first, *by_node}:
            self._submits[node] = submit = describe()
            submit.owner = owner
            if self._core.tree is None:
                submit.ranks.extend(by_node.get(node, []))
        self._give_number(self._submits[first])

    def _give_number(self, submit: pb.Submit) -> None:
        submit.give_number, submit.newest = True, self._core.newest_number

    def begin(self) -> bool:
        """Send it to the node that gives it its number. Return whether it can be asked: since that node was chosen, one
        above it in the tree may have come back. Else the number is to come from elsewhere."""
        submit = self._submits[self.numbered_by]
        if self._core.tree is not None:
            self._core.tree.submit(self._run, submit, self.numbered_by)
            return self._core.tree.can_ask(self.numbered_by)
        self._core.connections[self.numbered_by].submit(self._run, submit)
        return True

    def is_sent_to(self, node: int) -> bool:
        """Whether a node has it."""
        return bool(self._run.number) or node == self.numbered_by or self._core.tree is not None

    def want_output(self) -> None:
        """Somebody listens now: also those that wait for its number are to send what is printed."""
        for submit in self._submits.values():
            submit.quiet = False

    def on_number(self, queued: pb.Queued) -> None:
        """It has its number: the others get it. A tree passes it on by itself."""
        if self._core.tree is not None:
            return
        for node, submit in self._submits.items():
            if node != self.numbered_by:
                submit.run.number = queued.number
                submit.after = earlier_run(queued.earlier, node)
                self._send(node, submit)

    def _send(self, node: int, submit: pb.Submit) -> None:
        connection = self._core.connections[node]
        connection.submit(self._run, submit)
        if self._run.is_interrupted:
            connection.cancel(self._run.run_id)

    async def proceed_later(self) -> None:
        """A run before this one may never reach a node because its client died half-way: do not wait for it."""
        if self._core.tree is None and len(self._submits) == 1:
            return  # a node alone waits for nothing that it does not have
        await asyncio.sleep(PROCEED_AFTER_S)
        if self._run.number and not self._run.done:
            for connection in self._nodes.connections():
                connection.send(proceed=pb.Proceed(mesh_id=self._run.mesh.id, run_id=self._run.run_id))

    def is_asked_in_vain(self, connection: Connection, up: bool) -> bool:
        """Whether the node that is to give it its number can not, now that another one answers, or does not."""
        if self._run.number:
            return False
        if self._core.tree is not None:  # also when one is back that will be above it
            return up or self._core.connections[self.numbered_by] is connection
        is_asked = self._core.connections.get(self.numbered_by) is connection
        return not up and is_asked and not self._submits[self.numbered_by].ranks

    async def number_elsewhere(self) -> None:
        """The node that is to give it its number does not answer, or can not be asked. If it runs nothing of it,
        nothing has begun: another one gives the number."""
        lost = self.numbered_by
        await self._core.choose_first()
        if self._core.tree is not None:
            await self._number_in_tree(self._core.tree)
            return
        if self._run.number or self._run.done or self._core.first_node == lost:
            return
        self._core.connections[lost].forget(self._run.run_id)
        unused, self.numbered_by = self._submits.pop(lost), self._core.first_node
        submit = self._submits.setdefault(self.numbered_by, unused)
        self._give_number(submit)
        self._send(self.numbered_by, submit)

    async def _number_in_tree(self, tree: TreeConnection) -> None:
        """As above, where the lost node may have passed the run on, which says no more than the others know."""
        asked = self.numbered_by
        if self._core.first_node == asked and self._core.is_node_up(asked):
            return  # it was asked again
        number = await self._core.number_of(self._run.run_id)
        if self._run.number or self._run.done:
            return
        if number:
            tree.numbered(self._run.run_id, number)
        elif self._core.is_node_up(asked) or asked not in self._core.by_node(self._run.ranks):
            self.numbered_by = self._core.first_node
            tree.number_by(self._run.run_id, self._core.first_node, self._core.newest_number)

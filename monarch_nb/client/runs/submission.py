"""How a run comes to its nodes: the first one gives it its number, and passes it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.listeners import RunListener
from monarch_nb.client.pools.held import current_owner
from monarch_nb.proto import allocator_pb2 as pb

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh


class SubmittedRun(RunListener, Protocol):
    """A run that is sent."""

    number: int

    @property
    def mesh(self) -> Mesh: ...

    @property
    def done(self) -> bool: ...


class Submission:
    """A run on its way. Everything here runs on the background loop.

    Attributes:
        numbered_by: the node that was asked for its number.
    """

    def __init__(self, run: SubmittedRun, submit: pb.Submit) -> None:
        self._run, self._core = run, run.mesh.core
        self.numbered_by = self._core.first_node
        submit.owner = current_owner(self._core.connections[self.numbered_by].identity)  # asks the system
        submit.give_number, submit.newest = True, self._core.newest_number
        self._submit = submit

    def begin(self) -> bool:
        """Send it to the node that gives it its number. Return whether it can be asked: since that node was chosen, one
        above it may have come back. Else the number is to come from elsewhere."""
        self._core.session.submit(self._run, self._submit, self.numbered_by)
        return self._core.session.can_ask(self.numbered_by)

    def is_asked_in_vain(self, connection: Connection, up: bool) -> bool:
        """Whether the node that is to give it its number can not, now that another one answers, or does not."""
        # Also when one is back that will be above it.
        return not self._run.number and (up or self._core.connections[self.numbered_by] is connection)

    async def number_elsewhere(self) -> None:
        """The node that is to give it its number does not answer, or can not be asked. It may have passed the run on:
        another one gives the number when no node that answers knows it, and the lost one runs nothing of it."""
        await self._core.choose_first()
        asked = self.numbered_by
        if self._core.first_node == asked and self._core.is_node_up(asked):
            return  # it was asked again
        number = await self._core.number_of(self._run.run_id)
        if self._run.number or self._run.done:
            return
        session = self._core.session
        if number:
            session.numbered(self._run.run_id, number)
        elif self._core.is_node_up(asked) or asked not in self._core.by_node(self._run.ranks):
            self.numbered_by = self._core.first_node
            session.number_by(self._run.run_id, self._core.first_node, self._core.newest_number)

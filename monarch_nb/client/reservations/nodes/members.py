"""The nodes of a reservation, as this process knows them: they are replaced, and there may be more or fewer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from weakref import WeakMethod

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.pools.facts.infos import shared_no_longer
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.reservations.attachment import Attachment
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.client.reservations.nodes.further import Asking
from monarch_nb.client.reservations.nodes.growing import Resized, grow, shrink, words
from monarch_nb.client.reservations.nodes.replacing import Replaced, replace
from monarch_nb.client.reservations.placing import copied_nodes
from monarch_nb.errors import MonarchNbError


class Members:
    """The nodes of a `Reservation`, which says what each change is. It follows when other clients change them.

    Args:
        held: what the nodes say of the reservation.
        meshes, files: hear of every change.

    Attributes:
        count: how many nodes there are.
        connections: to those that are known, by number.
        attachment: to the first of them.
    """

    def __init__(self, pool: Pool, held: HeldReservation, meshes: Meshes, files: SyncedFiles) -> None:
        self._pool, self._id, self._name = pool, held.facts.reservation_id, held.facts.name
        self._meshes, self._files = meshes, files
        self.count, self.connections, self._revision = held.facts.nodes, held.connections, held.revision
        on_change = WeakMethod(self._on_change)
        self.attachment = Attachment(self.connections, self._id, self._name, files.record, pool.note_end, on_change)

    async def held(self, *, memory: bool = False) -> HeldReservation:
        """Return what they say, as they say it. On the background loop."""
        held = await self._pool.held(self._id, self._name, memory=memory)
        if over := shared_no_longer(held.facts):
            raise over
        return held

    def replace(self, nodes: Sequence[str | int], asking: Asking, say: Progress) -> list[Replaced]:
        """Put free nodes in the places of some."""
        replaced, held = replace(self._pool, self._id, self._name, nodes, self._files.record, asking, say)
        call(self._move_to(held))
        return replaced

    def grow(self, nodes: int | str, into: str, mesh: str, asking: Asking, say: Progress) -> Resized:
        """Have more of them."""
        resized, held = grow(self._pool, self._id, self._name, nodes, into, mesh, self._files.record, asking, say)
        call(self._move_to(held))
        return resized

    def shrink(
        self, nodes: int | str | None, node: str | int | Sequence[str | int], into: str, say: Progress
    ) -> Resized:
        """Have fewer of them."""
        resized, held = shrink(self._pool, self._id, self._name, nodes, words(node), into, self._files.record, say)
        call(self._move_to(held))
        return resized

    def _on_change(self, revision: int) -> None:
        if revision > self._revision:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        with contextlib.suppress(MonarchNbError):  # it was released, or nobody answers just now
            await self._move_to(await self.held())

    async def _move_to(self, held: HeldReservation) -> None:
        """Know the nodes that have places of it now. On the background loop. Others see them when meshes and files
        know them."""
        if held.revision <= self._revision:
            return
        before, after = self.connections, held.connections
        was, now = set(before.values()), set(after.values())
        copied, had_copies = copied_nodes(held), self._files.connections.keys()
        for node, new in after.items():
            old = before.get(node)
            if old is not None and old not in now and new not in was:
                MeshCore.replace(self._id, old, new)
            if old is not new or (node in had_copies) != (node in copied):
                self._files.put_node(node, new, copied=node in copied)
        for node in before.keys() - after.keys():
            self._files.drop_node(node)
        self._meshes.move_to(held)
        self._revision, self.count, self.connections = held.revision, held.facts.nodes, after
        self.attachment.move_to(after)

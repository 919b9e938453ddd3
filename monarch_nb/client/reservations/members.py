"""The nodes of a reservation, and this client's part in it: while it is attached nothing is idle, and it is told when
the time is nearly up, and what other clients change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from weakref import WeakMethod

from monarch_nb.allocator.state.lease import released
from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.events import TIME_NOTICE, Notice
from monarch_nb.client.files.record import FilesRecord
from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.pools.infos import line_sentence, shared_no_longer, who_waits
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.presenting import served_notebook
from monarch_nb.client.reservations.changing import copied_nodes
from monarch_nb.client.reservations.growing import Resized, grow, shrink, words
from monarch_nb.client.reservations.jobs import Asking
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.client.reservations.replacing import Replaced, replace
from monarch_nb.client.runs.run import Run
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.times import duration, time_of_day

_log = logging.getLogger(__name__)

TimeListener = Callable[[str], None]


class Attachment:
    """What a Reservation object tells the reservation's first node, and hears from it.

    Args:
        connections: to the nodes, by node rank.
        files: hears what others say of the files.
        on_end: called when it was released, but where `ends_here`.
        on_members_changed: returns what is called when other nodes have places of it; None: nobody is left.
    """

    def __init__(
        self,
        connections: Mapping[int, Connection],
        reservation_id: str,
        name: str,
        files: FilesRecord,
        on_end: Callable[[pb.Ended], None],
        on_members_changed: Callable[[], Callable[[int], None] | None],
    ) -> None:
        self._reservation_id, self._name = reservation_id, name
        self._files, self._on_end, self._on_members_changed = files, on_end, on_members_changed
        self._ends_here = False
        self._connections: dict[int, Connection] = {}
        self._listeners: list[TimeListener] = []
        self._text = ""
        post(self.move_to, dict(connections))

    def move_to(self, connections: Mapping[int, Connection]) -> None:
        """These are the reservation's nodes. On the background loop."""
        before, self._connections = self._connections, dict(connections)
        for connection in before.values():
            connection.members_listeners.get(self._reservation_id, set()).discard(self)
        for connection in connections.values():
            connection.members_listeners.setdefault(self._reservation_id, set()).add(self)
        if before.get(0) is not connections.get(0):
            if 0 in before:
                before[0].detach(self._reservation_id, self)
            if 0 in connections:
                connections[0].attach(self._reservation_id, self)

    @property
    def notebook(self) -> str:
        """Path of the notebook that uses it; empty when there is none."""
        return served_notebook()

    def close(self) -> None:
        """Use the reservation no longer."""
        post(self.move_to, {})

    @contextlib.contextmanager
    def ends_here(self) -> Iterator[None]:
        """Whoever uses this object releases the reservation in the block: then its end is no news."""
        self._ends_here = True
        try:
            yield
        except BaseException:
            self._ends_here = False
            raise

    def on_members_changed(self, message: pb.MembersChanged) -> None:
        """A node says that others have places of the reservation."""
        if tell := self._on_members_changed():
            tell(message.revision)

    def add_listener(self, listener: TimeListener) -> None:
        """Call `listener` on the background thread with what is to be said about the time; at once if there is
        something."""
        post(self._add_listener, listener)

    def _add_listener(self, listener: TimeListener) -> None:
        self._listeners.append(listener)
        if self._text:
            self._tell(listener)

    def on_time_left(self, message: pb.TimeLeft) -> None:
        """The first node says how much time is left, or that none is."""
        if message.HasField("ended"):
            if self._ends_here:
                return
            self._on_end(message.ended)
            for core in MeshCore.of_reservation(self._reservation_id):
                core.is_over = True
        self._text = self._describe(message)
        for run in self._runs():
            if not run.done:
                run.emit(Notice(self._text, key=TIME_NOTICE))
        for listener in self._listeners:
            self._tell(listener)

    def _tell(self, listener: TimeListener) -> None:
        try:
            listener(self._text)
        except Exception:  # noqa: BLE001 (a listener's fault must not keep the others from hearing)
            _log.exception("a listener failed at %r", self._text)

    def on_line(self, message: pb.InLine) -> None:
        """The first node says who waits for such nodes: cells that go on say so."""
        for core in MeshCore.of_reservation(self._reservation_id):
            core.line_text = line_sentence(who_waits(message.waiting))
        for run in self._runs():
            run.tell_line()

    def on_files_changed(self, message: pb.FilesChanged) -> None:
        """The first node says what others have changed."""
        self._files.hear(message.files)

    def _runs(self) -> list[Run]:
        """Return those that this process follows, on all meshes; they begin on other threads."""
        references = [one for core in MeshCore.of_reservation(self._reservation_id) for one in core.runs.valuerefs()]
        return [run for reference in references if (run := reference()) is not None]

    def _describe(self, message: pb.TimeLeft) -> str:
        if message.HasField("ended"):
            return str(released(message.ended))
        if not message.nearly_up:
            return ""
        at = time_of_day(time.time() + message.left_s)
        limit = duration(message.time_s)
        return f"{self._name} will be released at {at}, when its time of {limit} is up: %mesh extend 1h adds to it"


@contextlib.contextmanager
def all_end_here(attachments: Iterable[Attachment]) -> Iterator[None]:
    """The reservation of all of these is released in the block, for this process wants another one."""
    with contextlib.ExitStack() as stack:
        for attachment in attachments:
            stack.enter_context(attachment.ends_here())
        yield


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

    def grow(self, nodes: int | str, mesh: str, asking: Asking, say: Progress) -> Resized:
        """Have more of them."""
        resized, held = grow(self._pool, self._id, self._name, nodes, mesh, self._files.record, asking, say)
        call(self._move_to(held))
        return resized

    def shrink(self, nodes: int | str | None, node: str | int | Sequence[str | int], say: Progress) -> Resized:
        """Have fewer of them."""
        resized, held = shrink(self._pool, self._id, self._name, nodes, words(node), self._files.record, say)
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

"""Bringing a change of a tree to many nodes: sent to one of them, passed on from node to node, until all have it.

Everything here runs on the background loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.local_tree import Report
from monarch_nb.config import patience
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable
from monarch_nb.files.content import BATCH_BYTES, Piece, pack
from monarch_nb.files.tree import printable
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.rpc.status import error_from_json

SYNC_TIMEOUT_S = patience(900.0)
INLINE_BYTES = 256 << 10
"""New content up to this size travels with the change itself."""
EXTRA_ROUNDS = 3

Read = Callable[[Iterable[pb.TreeEntry]], Iterator[Piece]]
"""Yields the content of files, each from its beginning."""


@dataclass
class Transfer:
    """What became of a change.

    Attributes:
        applied: by node. failed: why not, by node; one that has it now is in there no longer.
        sent_bytes: that left this process: content, compressed, and what was said about it.
        total_bytes, done_bytes: of content, for progress.
    """

    applied: dict[str, pb.TreeApplied] = field(default_factory=dict)
    failed: dict[str, MonarchNbError] = field(default_factory=dict)
    sent_bytes: int = 0
    total_bytes: int = 0
    done_bytes: int = 0


class Sender:
    """Sends one change.

    Args:
        reservation_id: whose workspaces.
        whole: returns the change as the whole list of entries, for nodes that have another base.
        read: gives the content of files.
        overwrite: also files that ranks changed.
        progress: called after each piece.
    """

    def __init__(
        self,
        reservation_id: str,
        whole: Callable[[], pb.TreeChange],
        read: Read,
        *,
        overwrite: bool = False,
        progress: Callable[[Transfer], None] = lambda _: None,
    ) -> None:
        self._reservation_id, self._whole, self._read = reservation_id, whole, read
        self._overwrite, self._progress = overwrite, progress
        self.transfer = Transfer()

    async def send(
        self, connections: Sequence[Connection], change: pb.TreeChange, new: Sequence[pb.TreeEntry]
    ) -> Transfer:
        """Bring `change` to all nodes.

        Args:
            new: files whose content no node can have yet; sent along when they are small.
        """
        content = [pack(list(self._read(new)))] if new else []
        work = [(list(connections), self._request(change, content))]
        for _ in range(2 + EXTRA_ROUNDS + len(connections)):
            if not work:
                break
            on_nodes, request = work.pop()
            work += await self._round(on_nodes, request)
        for name in (connection.name for connection in connections if connection.name not in self.transfer.applied):
            unfinished = FilesError(f"{name} does not get all the files that it needs: sync again", name)
            self.transfer.failed.setdefault(name, unfinished)
        return self.transfer

    def _request(self, change: pb.TreeChange, content: Sequence[pb.ContentBatch] = ()) -> pb.SyncTreeRequest:
        return pb.SyncTreeRequest(
            reservation_id=self._reservation_id, change=change, content=content, overwrite=self._overwrite
        )

    async def _round(
        self, connections: list[Connection], request: pb.SyncTreeRequest
    ) -> list[tuple[list[Connection], pb.SyncTreeRequest]]:
        """Ask nodes once, and send those what they lack; return what is still to be done."""
        lacking_base: list[Connection] = []
        lacking_content: list[Connection] = []
        missing: set[bytes] = set()
        for connection, node in self._became(connections, await self._ask(connections, request)):
            if node.HasField("missing"):
                lacking_content.append(connection)
                missing.update(node.missing.paths)
            else:
                lacking_base.append(connection)
        work = []
        if lacking_base:
            work.append((lacking_base, self._request(self._whole())))
        if lacking_content:
            again = await self._send_content(lacking_content, request.change, missing)
            if again:
                work.append((again, self._request(request.change)))
        return work

    def _became(
        self, connections: Iterable[Connection], answers: Iterable[pb.NodeSynced]
    ) -> Iterator[tuple[Connection, pb.NodeSynced]]:
        """Note what nodes answered; yield those that lack something."""
        by_name = {connection.name: connection for connection in connections}
        for node in answers:
            if node.HasField("applied"):
                self.transfer.applied[node.node_id] = node.applied
                self.transfer.failed.pop(node.node_id, None)
            elif node.HasField("error_json"):
                self.transfer.failed[node.node_id] = error_from_json(node.error_json)
            else:
                yield by_name[node.node_id], node

    async def _ask(self, connections: list[Connection], request: pb.SyncTreeRequest) -> list[pb.NodeSynced]:
        """Send to the first node that answers; it passes it on to the others."""
        for number, connection in enumerate(connections):
            del request.peers[:]
            request.peers.extend(_peers(connections[number + 1 :]))
            self.transfer.sent_bytes += request.ByteSize()
            try:
                reply: pb.SyncTreeReply = await connection.unary("SyncTree", request, SYNC_TIMEOUT_S)
            except NodeUnreachable as error:
                self.transfer.failed[connection.name] = error
            else:
                return list(reply.nodes)
        return []

    async def _send_content(
        self, connections: list[Connection], change: pb.TreeChange, missing: set[bytes]
    ) -> list[Connection]:
        """Stream content to nodes, which put it in place; return those to be asked again: they lack something still, or
        were lost on the way. The call finds out which of these are dead."""
        entries = [entry for entry in change.changed if entry.path in missing]
        first = pb.PutFilesRequest(
            reservation_id=self._reservation_id,
            mount=change.mount,
            version=change.version,
            peers=_peers(connections[1:]),
        )
        self.transfer.total_bytes = sum(entry.size_bytes for entry in entries)
        self.transfer.done_bytes = 0
        try:
            reply = await connections[0].send_stream("PutFiles", self._messages(first, entries), SYNC_TIMEOUT_S)
        except NodeUnreachable as error:
            self.transfer.failed[connections[0].name] = error
            return connections[1:]
        again = {connection.name for connection, _ in self._became(connections, reply.nodes)}
        again |= {name for name, error in self.transfer.failed.items() if isinstance(error, NodeUnreachable)}
        return [connection for connection in connections if connection.name in again]

    async def _messages(
        self, first: pb.PutFilesRequest, entries: Sequence[pb.TreeEntry]
    ) -> AsyncIterator[pb.PutFilesRequest]:
        """Yield the stream's messages; the next batch is read and compressed while the last one is sent."""
        yield first
        batches = _batches(self._read(entries))
        coming = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
        while (batch := await coming) is not None:
            coming = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
            yield (request := pb.PutFilesRequest(batch=batch))
            self.transfer.sent_bytes += request.ByteSize()
            self.transfer.done_bytes += sum(piece.size_bytes for piece in batch.pieces)
            self._progress(self.transfer)


def _batches(pieces: Iterable[Piece]) -> Iterator[pb.ContentBatch]:
    together: list[Piece] = []
    size_bytes = 0
    for piece in pieces:
        if together and size_bytes + len(piece.data) > BATCH_BYTES:
            yield pack(together)
            together, size_bytes = [], 0
        together.append(piece)
        size_bytes += len(piece.data)
    if together:
        yield pack(together)


def _peers(connections: Iterable[Connection]) -> list[pb.Peer]:
    return [pb.Peer(node_id=connection.name, address=connection.node_address) for connection in connections]


OnNodes = Mapping[str, tuple[str, ...]]
"""Paths, and the nodes that each of them is about."""


@dataclass(frozen=True)
class Given:
    """How many files a node got, and how many went there."""

    files: int = 0
    removed: int = 0

    def __add__(self, other: Given) -> Given:
        return Given(self.files + other.files, self.removed + other.removed)


@dataclass(frozen=True)
class SyncReport:
    """What a sync did.

    Attributes:
        files, removed: that a node got, and that went there; the most where nodes differ. size_bytes: of what went.
        sent_bytes: that left this process: content, compressed, and what was said about it; nodes pass it on to one
            another.
        nodes: how many got something or, if none did, have all of it already.
        given: those that got something, and what.
        missed: nodes that do not have all of it: they did not answer, or could not take it.
        seconds: it took.
        kept: files that ranks wrote or changed and that were left as they are, though there is another version here.
        left: the same of files that are here no longer: they stay as the ranks'.
        overwritten: files that ranks wrote or changed and that are gone: `overwrite` asked for it.
        restored: files that ranks had removed and that are back: `overwrite` asked for it.
        modules: whether Python files changed that ranks may have imported.
        local: by mount, what is not synced and why.
    """

    files: int = 0
    size_bytes: int = 0
    removed: int = 0
    sent_bytes: int = 0
    nodes: int = 0
    seconds: float = 0.0
    kept: OnNodes = field(default_factory=dict)
    left: OnNodes = field(default_factory=dict)
    overwritten: OnNodes = field(default_factory=dict)
    restored: OnNodes = field(default_factory=dict)
    given: Mapping[str, Given] = field(default_factory=dict)
    missed: tuple[str, ...] = ()
    modules: bool = False
    local: Mapping[str, Report] = field(default_factory=dict)

    @property
    def anything(self) -> bool:
        """Whether something changed on the nodes, or could not."""
        return bool(self.files or self.removed or self.kept or self.left)

    def __add__(self, other: SyncReport) -> SyncReport:
        nothing = Given()
        given = {
            node: self.given.get(node, nothing) + other.given.get(node, nothing)
            for node in {**self.given, **other.given}
        }
        most = _most(given.values())
        return replace(
            self,
            files=most.files,
            size_bytes=self.size_bytes + other.size_bytes,
            removed=most.removed,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            kept={**self.kept, **other.kept},
            left={**self.left, **other.left},
            overwritten={**self.overwritten, **other.overwritten},
            given=given,
            modules=self.modules or other.modules,
        )


@dataclass(frozen=True)
class Differences:
    """Where the copies are not what was put there.

    Attributes:
        changed: files that ranks wrote or changed. missing: files that ranks removed.
        theirs: files that ranks wrote and that came back from here: the same, but another version would not replace
            them.
        unanswered: nodes that could not say, and why.
    """

    changed: OnNodes = field(default_factory=dict)
    missing: OnNodes = field(default_factory=dict)
    theirs: OnNodes = field(default_factory=dict)
    unanswered: Mapping[str, MonarchNbError] = field(default_factory=dict)


@dataclass
class Pending:
    """What a sync would do.

    Attributes:
        files: with their sizes. removed: files that would go.
        unknown: nodes may have some of it: this process has not sent all of it to all of them.
        there: what ranks wrote stays, `overwrite` apart.
        local: by mount, what is not synced and why.
    """

    files: list[tuple[str, int]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unknown: bool = False
    there: Differences = field(default_factory=Differences)
    local: dict[str, Report] = field(default_factory=dict)


def report_of(change: pb.TreeChange, entries: Mapping[bytes, pb.TreeEntry], transfer: Transfer) -> SyncReport:
    """Return what became of one mount's change.

    Args:
        entries: of the tree as it is here now.
    """
    applied = transfer.applied
    files = [entry for entry in change.changed if entry.kind != pb.TreeEntry.KIND_DIRECTORY]
    given = {node: Given(one.written, one.removed) for node, one in applied.items() if one.written or one.removed}
    most = _most(given.values())
    kept = on_nodes(change.mount, {node: one.kept for node, one in applied.items()})
    here = {
        os.path.join(change.mount, printable(path)) for one in applied.values() for path in one.kept if path in entries
    }
    return SyncReport(
        files=most.files,
        size_bytes=transfer.total_bytes or sum(entry.size_bytes for entry in files if not change.whole),
        removed=most.removed,
        sent_bytes=transfer.sent_bytes,
        kept={path: nodes for path, nodes in kept.items() if path in here},
        left={path: nodes for path, nodes in kept.items() if path not in here},
        overwritten=on_nodes(change.mount, {node: one.overwritten for node, one in applied.items()}),
        given=given,
        modules=not change.whole and any(entry.path.endswith(b".py") for entry in files),
    )


def _most(given: Iterable[Given]) -> Given:
    """Return the most that a node got, and the most that went on one."""
    nodes = list(given)
    return Given(max((one.files for one in nodes), default=0), max((one.removed for one in nodes), default=0))


def on_nodes(mount: str, paths: Mapping[str, Iterable[bytes]]) -> dict[str, tuple[str, ...]]:
    """Return by path in the workspace the nodes that name it."""
    found: dict[str, tuple[str, ...]] = {}
    for node, named in paths.items():
        for path in named:
            name = os.path.join(mount, printable(path))
            found[name] = (*found.get(name, ()), node)
    return found


def differences(replies: Mapping[str, pb.WorkspaceReply | MonarchNbError]) -> Differences:
    """Return what nodes that looked say."""
    found: dict[str, dict[str, tuple[str, ...]]] = {"changed": {}, "missing": {}, "theirs": {}}
    mounts: dict[str, dict[str, pb.MountStatus]] = {}
    for node, reply in replies.items():
        for mount in reply.mounts if isinstance(reply, pb.WorkspaceReply) else ():
            mounts.setdefault(mount.mount, {})[node] = mount
    for name, by_node in mounts.items():
        for kind, paths in found.items():
            paths |= on_nodes(name, {node: getattr(mount, kind) for node, mount in by_node.items()})
    unanswered = {node: reply for node, reply in replies.items() if isinstance(reply, MonarchNbError)}
    return Differences(**found, unanswered=unanswered)

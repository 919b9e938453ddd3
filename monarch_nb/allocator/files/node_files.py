"""A node's files as clients and other nodes reach them: trees synced, chunks received and passed on, files read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from typing import TypeVar

from monarch_nb import config
from monarch_nb.allocator.files.relay import Branch, Relay
from monarch_nb.allocator.files.removal import Removal
from monarch_nb.allocator.files.workspace.pending import Pending
from monarch_nb.allocator.files.workspace.workspaces import Kept, Workspaces
from monarch_nb.config import cadence, patience
from monarch_nb.errors import FilesError, MonarchNbError
from monarch_nb.files.tree import printable
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.rpc.channel import OpenChannel
from monarch_nb.rpc.status import error_to_json

_log = logging.getLogger(__name__)

SMALL_CHANGE_ENTRIES = 20
"""A change of so few entries is staged at once; others in a thread, while the node goes on with everything else."""
CACHE_BYTES = 8 << 30
FINISH_S = patience(10.0)
"""How long a node that ends waits for changes that are under way."""
SETTLE_DELAY_S = cadence(0.2)
"""From putting files in place to tidying up: by then the run that they were sent for has begun."""

T = TypeVar("T")


class NodeFiles:
    """The workspaces of one node.

    Args:
        node_id: for messages.
        paths: where they lie.
        owner_of: whose a reservation is.
        open_channel, certificate: as of Relay.
    """

    def __init__(
        self,
        node_id: str,
        paths: config.NodePaths,
        owner_of: Callable[[str], str],
        open_channel: OpenChannel,
        certificate: Callable[[], object] = lambda: None,
    ) -> None:
        self.removal = Removal(paths.removed)
        later = self.removal.later
        self.workspaces = Workspaces(paths, node=node_id, cache_limit_bytes=CACHE_BYTES, later=later)
        self._node_id, self._paths = node_id, paths
        self.kept: dict[str, Kept] = {}
        """By reservation that was released: what its ranks wrote."""
        self.relay = Relay(node_id, owner_of, open_channel, certificate)
        self._settling: set[asyncio.Future[None]] = set()
        self._closing = asyncio.Event()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Finish what is under way, and close the connections to other nodes."""
        self._closing.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                for lock in list(self._locks.values()):
                    await lock.acquire()  # and keep it: what comes now comes too late
        self._closing.set()
        await asyncio.gather(*self._settling, return_exceptions=True)
        await self.relay.close()

    async def release(self, reservation_id: str, name: str) -> None:
        """Remove a workspace whose ranks have ended; what they wrote stays, and the log says where."""
        async with self._locks[reservation_id]:
            try:
                kept = await asyncio.to_thread(self.workspaces.release, reservation_id, name)
            except OSError as error:  # the rest of it goes when the node starts again
                _log.warning("the workspace of %s can not be removed: %s", name or reservation_id, error)
            else:
                if kept:
                    self.kept[reservation_id] = kept
                    told = "%s was released; %d files that its ranks wrote (%d bytes) are in %s"
                    _log.info(told, name or reservation_id, kept.files, kept.size_bytes, kept.directory)
        self._locks.pop(reservation_id, None)

    def remove_all(self, names: Mapping[str, str]) -> None:
        """After `close`: remove all files of the node, but for what ranks wrote, also of reservations that are held.

        Args:
            names: of the reservations, by id.
        """
        for reservation_id in self.workspaces.reservations():
            try:
                self.workspaces.release(reservation_id, names.get(reservation_id, ""))
            except OSError as error:
                _log.warning("files of ranks of %s can not be kept: %s", names.get(reservation_id), error)
        kept = self._paths.kept
        self.removal.finish()
        for path in self._paths.directory.iterdir():
            if path.is_dir() and path != kept:
                shutil.rmtree(path, ignore_errors=True)
            elif path != kept:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # unless something is kept
            self._paths.directory.rmdir()

    async def release_others(self, held: Container[str]) -> None:
        """Remove the workspaces of reservations that nobody holds: an allocator was killed while it released them."""
        for reservation_id in self.workspaces.reservations():
            if reservation_id not in held:
                await self.release(reservation_id, "")

    # ---- trees ----

    async def sync(self, request: pb.SyncTreeRequest, gone: asyncio.Event) -> pb.SyncTreeReply:
        """Apply a change here and on `request.peers`; return what every node says of it.

        Args:
            gone: set when nobody waits for it any more: what is not yet being put in place is not to be.
        """
        others = asyncio.ensure_future(self.relay.sync(request))
        try:
            here = pb.NodeSynced(node_id=self._node_id)
            async with self._locks[request.reservation_id]:
                try:
                    await self._sync_here(request, gone, here)
                except MonarchNbError as error:
                    here.error_json = error_to_json(error)
                except OSError as error:
                    here.error_json = error_to_json(self._failed(error))
            return pb.SyncTreeReply(nodes=[here, *([] if gone.is_set() else await others)])
        finally:
            others.cancel()

    async def _sync_here(self, request: pb.SyncTreeRequest, gone: asyncio.Event, answer: pb.NodeSynced) -> None:
        if gone.is_set():
            return
        change = request.change
        is_small = not request.pending and len(change.changed) + len(change.removed) <= SMALL_CHANGE_ENTRIES
        if request.pending:
            pending = self.workspaces.resume(request.reservation_id, change.mount, change.version)
        else:
            begin = lambda: self.workspaces.begin(request.reservation_id, change, request.overwrite)  # noqa: E731
            pending = await _work(is_small, begin)
        if pending is None:
            answer.needs_whole = True
            return
        for batch in request.chunks:
            pending.add(batch)
        if missing := await _work(is_small, pending.prepare):
            answer.missing = b"".join(missing)
            return
        if gone.is_set():
            return
        answer.applied.CopyFrom(await _work(is_small, pending.commit))
        self._settle_later(pending)

    def _settle_later(self, pending: Pending) -> None:
        task = asyncio.ensure_future(self._settle(pending))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, pending: Pending) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_DELAY_S):
                await self._closing.wait()
        await asyncio.to_thread(pending.settle)

    async def put_chunks(self, requests: AsyncIterator[pb.PutChunksRequest]) -> pb.PutChunksReply:
        """Receive the chunks of a change, and pass them on as they come."""
        stored = pb.NodeStored(node_id=self._node_id)
        branches: list[Branch] = []
        pending: Pending | None = None
        is_first = True
        try:
            async for request in requests:
                if is_first:
                    is_first = False
                    branches = self.relay.open_streams(request)
                    pending = self.workspaces.resume(request.reservation_id, request.mount, request.version)
                if not request.HasField("batch"):
                    continue
                stored.received_bytes += len(request.batch.data)
                passed = pb.PutChunksRequest(batch=request.batch)
                await asyncio.gather(self._store(pending, request.batch, stored), *(b.send(passed) for b in branches))
            others = await asyncio.gather(*(branch.finish() for branch in branches))
        except BaseException:
            for branch in branches:
                branch.cancel()
            raise
        return pb.PutChunksReply(nodes=[stored, *(node for part in others for node in part)])

    async def _store(self, pending: Pending | None, batch: pb.ChunkBatch, stored: pb.NodeStored) -> None:
        """Keep what is of use here; the nodes behind this one get theirs also when this one fails."""
        if pending is None or stored.error_json:
            return
        try:
            await asyncio.to_thread(pending.add, batch)
        except MonarchNbError as error:
            stored.error_json = error_to_json(error)
        except OSError as error:
            stored.error_json = error_to_json(self._failed(error))

    def _failed(self, error: OSError) -> MonarchNbError:
        path = os.fsencode(error.filename) if isinstance(error.filename, (str, bytes)) else b""
        where = f" ({self._shown(path)})" if path else ""
        return FilesError(f"{self._node_id}: {error.strerror}{where}; its files are as they were", self._node_id)

    def _shown(self, path: bytes) -> str:
        """Return a path as messages name it: one in a workspace as ranks know it."""
        inside = os.fsencode(self._paths.workspaces) + b"/"
        if path.startswith(inside):
            path = b"/".join(path.removeprefix(inside).split(b"/")[2:]) or b"."  # without RESERVATION/tree
        return printable(path)

    # ---- files back ----

    def list(self, directory: str, request: pb.ListFilesRequest) -> pb.ListFilesReply:
        """Return what lies at a path; relative ones start in `directory`, a rank's."""
        path = os.path.normpath(os.path.join(os.fsencode(directory), os.path.expanduser(request.path)))
        try:
            facts = os.lstat(path)
            if not stat.S_ISDIR(os.stat(path).st_mode):
                entry = _entry(os.path.basename(path), path, facts)
                return pb.ListFilesReply(directory=os.path.dirname(path), entries=[entry], is_file=True)
            entries = list(_walk(path, b"", request.recursive))
        except OSError as error:
            shown = self._shown(os.fsencode(error.filename or path))
            what = f"there is no {shown}" if isinstance(error, FileNotFoundError) else f"{shown}: {error.strerror}"
            raise FilesError(f"{self._node_id}: {what}", self._node_id) from error
        return pb.ListFilesReply(directory=path, entries=entries)

    async def read(self, path: bytes) -> AsyncIterator[pb.FilePiece]:
        """Yield a file's content."""
        try:
            descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise FilesError(f"{self._node_id}: {self._shown(path)} is not a file", self._node_id)
                while data := await asyncio.to_thread(os.read, descriptor, config.CHUNK_BYTES):
                    yield pb.FilePiece(data=data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise FilesError(f"{self._node_id}: {self._shown(path)}: {error.strerror}", self._node_id) from error


async def _work(is_small: bool, work: Callable[[], T]) -> T:
    return work() if is_small else await asyncio.to_thread(work)


def _walk(directory: bytes, below: bytes, recursive: bool) -> Iterator[pb.TreeEntry]:
    with os.scandir(directory) as found:
        names = sorted(found, key=lambda name: name.name)
    for name in names:
        path = os.path.join(below, name.name)
        try:
            yield _entry(path, name.path, name.stat(follow_symlinks=False))
        except FileNotFoundError:
            continue  # ranks write there
        if recursive and name.is_dir(follow_symlinks=False):
            yield from _walk(name.path, path, recursive)


def _entry(path: bytes, at: bytes, facts: os.stat_result) -> pb.TreeEntry:
    entry = pb.TreeEntry(path=path, mode=stat.S_IMODE(facts.st_mode) & 0o777, modified_ns=facts.st_mtime_ns)
    if stat.S_ISLNK(facts.st_mode):
        entry.kind, entry.target = pb.TreeEntry.KIND_SYMLINK, os.readlink(at)
    elif stat.S_ISDIR(facts.st_mode):
        entry.kind = pb.TreeEntry.KIND_DIRECTORY
    elif stat.S_ISREG(facts.st_mode):
        entry.kind, entry.size_bytes = pb.TreeEntry.KIND_FILE, facts.st_size
    return entry

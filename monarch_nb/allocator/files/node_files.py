"""A node's files as clients and other nodes reach them: trees synced, content received and passed on, files read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping

from monarch_nb import config
from monarch_nb.allocator.files.directories import Removal
from monarch_nb.allocator.files.pending import Pending
from monarch_nb.allocator.files.relay import Branch, Relay
from monarch_nb.allocator.files.workspaces import Workspaces
from monarch_nb.config import patience
from monarch_nb.errors import FilesError, MonarchNbError, UsageError
from monarch_nb.files.tree import printable
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.proto.allocator_pb2 import KeptFiles
from monarch_nb.rpc.channel import OpenChannel
from monarch_nb.rpc.status import error_to_json

_log = logging.getLogger(__name__)

SMALL_CHANGE_ENTRIES = 20
"""A change of so few entries is made at once; others in a thread, while the node goes on with everything else."""
FINISH_S = patience(10.0)
"""How long a node that ends waits for changes that are under way."""


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
        self.workspaces = Workspaces(paths, node=node_id, later=self.removal.later)
        self._node_id, self._paths = node_id, paths
        self.kept: dict[str, KeptFiles] = {}
        """By reservation that was released: what its ranks wrote."""
        self.relay = Relay(node_id, owner_of, open_channel, certificate)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Finish what is under way, and close the connections to other nodes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                for lock in list(self._locks.values()):
                    await lock.acquire()  # and keep it: what comes now comes too late
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

    def remove_all(self, names: Mapping[str, str], *, keep_logs: bool = False) -> None:
        """After `close`: remove all files of the node, but for what ranks wrote, also of reservations that are held.

        Args:
            names: of the reservations, by id.
            keep_logs: leave what meshes printed that have ended, for the node's next allocator.
        """
        for reservation_id in self.workspaces.reservations():
            try:
                self.workspaces.release(reservation_id, names.get(reservation_id, ""))
            except OSError as error:
                _log.warning("files of ranks of %s can not be kept: %s", names.get(reservation_id), error)
        stay = {self._paths.kept, *([self._paths.logs] if keep_logs else [])}
        self.removal.finish()
        for path in {*self._paths.directory.iterdir()} - stay:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
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
            change, content = request.change, request.content
            begin = lambda: self.workspaces.begin(request.reservation_id, change, request.overwrite)  # noqa: E731
            is_small = len(change.changed) + len(change.removed) <= SMALL_CHANGE_ENTRIES
            here = await self._sync_here(request.reservation_id, begin, content, gone, is_small=is_small)
            return pb.SyncTreeReply(nodes=[here, *([] if gone.is_set() else await others)])
        finally:
            others.cancel()

    async def _sync_here(
        self,
        reservation_id: str,
        begin: Callable[[], Pending | None],
        content: Iterable[pb.ContentBatch],
        gone: asyncio.Event,
        *,
        is_small: bool,
    ) -> pb.NodeSynced:
        """Begin a change or go on with it, and put it in place when nothing of it is missing."""

        def work() -> None:
            if gone.is_set():
                return
            if (pending := begin()) is None:
                answer.needs_whole = True
                return
            for batch in content:
                pending.add(batch)
            if missing := pending.missing():
                answer.missing.paths.extend(missing)
            elif not gone.is_set():
                answer.applied.CopyFrom(pending.commit())

        answer = pb.NodeSynced(node_id=self._node_id)
        async with self._locks[reservation_id]:
            try:
                if is_small:
                    work()
                else:
                    await asyncio.to_thread(work)
            except MonarchNbError as error:
                answer.error_json = error_to_json(error)
            except OSError as error:
                answer.error_json = error_to_json(self._failed(error))
        return answer

    async def put_files(self, requests: AsyncIterator[pb.PutFilesRequest]) -> pb.PutFilesReply:
        """Receive the content of a change, pass it on as it comes, and put it in place."""
        branches: list[Branch] = []
        pending: Pending | None = None
        failed: list[MonarchNbError] = []
        reservation_id, gone = "", asyncio.Event()

        def store(batch: pb.ContentBatch) -> None:
            """The nodes behind this one get theirs also when this one fails."""
            if pending and not failed:
                try:
                    pending.add(batch)
                except MonarchNbError as error:
                    failed.append(error)

        def resume() -> Pending | None:
            if failed:
                raise failed[0]
            return None if pending is None or pending.is_over else pending

        try:
            async for request in requests:
                if not reservation_id:
                    reservation_id = request.reservation_id
                    branches = self.relay.open_streams(request)
                    pending = self.workspaces.resume(reservation_id, request.mount, request.version)
                if request.HasField("batch"):
                    passed = pb.PutFilesRequest(batch=request.batch)
                    stored = asyncio.to_thread(store, request.batch)
                    await asyncio.gather(stored, *(branch.send(passed) for branch in branches))
            here = asyncio.shield(self._sync_here(reservation_id, resume, (), gone, is_small=False))
            answer, others = await asyncio.gather(here, asyncio.gather(*(branch.finish() for branch in branches)))
        except BaseException:
            gone.set()
            for branch in branches:
                branch.cancel()
            raise
        return pb.PutFilesReply(nodes=[answer, *(node for part in others for node in part)])

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


MAX_TOKEN_BYTES = 256


def handle(request: pb.SeeTokenRequest, *, shares_nothing: bool = False) -> str:
    """See, write or remove a token file; return why that can not be done, or an empty text. May block, as storage does.

    Args:
        shares_nothing: do not see what clients wrote.

    Raises:
        UsageError: a request that no client of ours makes.
    """
    token = request.token.encode()
    if not os.path.isabs(request.path) or "\0" in request.path or not 0 < len(token) <= MAX_TOKEN_BYTES:
        raise UsageError("a token file needs an absolute path and a short text")
    if shares_nothing and request.from_client:
        return "this node shares no files with clients"
    try:
        match request.action:
            case pb.SeeTokenRequest.ACTION_SEE:
                return "" if _holds(request.path, token) else "another file is there"
            case pb.SeeTokenRequest.ACTION_WRITE:
                with _opened(request.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                    os.write(file, token)
            case pb.SeeTokenRequest.ACTION_REMOVE if _holds(request.path, token):
                os.unlink(request.path)
            case pb.SeeTokenRequest.ACTION_REMOVE:
                return "another file is there"
            case _:
                raise UsageError(f"no such action on a token file: {request.action}")
        return ""
    except OSError as error:
        return error.strerror or str(error)


def _holds(path: str, token: bytes) -> bool:
    with _opened(path, os.O_RDONLY) as file:
        return stat.S_ISREG(os.fstat(file).st_mode) and os.read(file, MAX_TOKEN_BYTES + 1) == token


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    """A descriptor that is no link's and does not wait for the other end of a pipe."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)

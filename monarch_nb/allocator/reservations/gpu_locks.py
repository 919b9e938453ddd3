"""The GPUs that allocators of this machine lease, whosever they are: no two lease the same one.

Each lease of a GPU is a file in a directory that all users share, named after the GPU. Whoever may use the GPU by that
lease, the allocator and every rank, holds a lock on the file until it dies: so a GPU is nobody's as soon as nobody uses
it, and that of ranks whose allocator is dead stays theirs. The directory is sticky, and the file belongs to who leases:
others read who that is, but can neither change nor remove it.

This keeps people from taking each other's GPUs by accident. Whoever wants to can use a GPU without a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from monarch_nb import config
from monarch_nb.allocator.processes.processes import seconds_since_boot, user_name
from monarch_nb.allocator.state.state import Lease
from monarch_nb.config import cadence, patience
from monarch_nb.errors import CapacityError, PoolError
from monarch_nb.ground import escapes, file_locks
from monarch_nb.proto import allocator_pb2 as pb

_log = logging.getLogger(__name__)

TURN_WAIT_S = patience(2.0)
"""How long another allocator may choose its GPUs: it needs a millisecond, but may be stopped in the middle."""
_MAX_NOTE_BYTES = 4096
_MAX_NAME = 64
_LAST_S = 1e11
"""Far in the future: more is no time."""
_MODE = 0o1777
_LOCK_NAME = re.compile(r"[\w-]+\.[0-9a-f]{16}")
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class _Lock:
    """A GPU's lock that this allocator holds."""

    name: str
    file: int


class GpuLocks:
    """Locks of this machine's GPUs. Between choosing and taking GPUs it must be this allocator's `turn`.

    Args:
        node: directory of the node; no two allocators have the same.
        gpus: the node's.
    """

    def __init__(self, node: Path, gpus: Sequence[pb.Gpu]) -> None:
        self._node, self._gpus = node, gpus
        self._directory = config.gpu_locks_directory()
        self._held: dict[str, list[_Lock]] = {}

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Until the block ends, no other allocator takes a GPU.

        Raises:
            CapacityError: another one does not end its turn.
        """
        if not self._gpus:
            yield
            return
        with self._opened() as directory:
            deadline = time.monotonic() + TURN_WAIT_S
            while not _is_locked(directory):
                # Waited for like this because a thread that waits in flock() can not be ended.
                if time.monotonic() > deadline:
                    raise CapacityError(
                        f"another process keeps {self._directory} locked (fuser {self._directory} names it): until it "
                        "ends, no GPU of this machine can be leased"
                    )
                await asyncio.sleep(cadence(0.005))
            yield

    def tidy(self) -> None:
        """Remove what dead allocators of this user have left in the directory, when nobody holds it any more."""
        if not self._gpus:
            return
        with self._opened() as directory:
            for name in os.listdir(directory):
                if _is_left(directory, name):
                    os.unlink(name, dir_fd=directory)

    def held_by_others(self) -> dict[int, pb.GpuHolder]:
        """Return who holds GPUs of this node, by index: other allocators, or the ranks that they have left."""
        found: dict[int, pb.GpuHolder] = {}
        if not self._gpus:
            return found
        own = {lock.name for locks in self._held.values() for lock in locks}
        indices = {_file_safe(gpu.uuid): gpu.index for gpu in self._gpus if gpu.uuid}
        with self._opened() as directory:
            for name in os.listdir(directory):
                index = indices.get(name.partition(".")[0])
                if index is not None and name not in own and (holder := _holder(directory, name)):
                    found[index] = holder
        return found

    def take(self, reservation_id: str, lease: Lease) -> None:
        """Hold the locks of a lease's GPUs. One that was left by the allocator before this one is taken up again.

        Raises:
            PoolError: that can not be done; none of them is held.
        """
        if not lease.gpu_indices or not self._gpus:
            return
        locks = self._held.setdefault(reservation_id, [])
        try:
            with self._opened() as directory:
                for index in lease.gpu_indices:
                    name = self._name(index, reservation_id)
                    locks.append(_Lock(name, _make(directory, name)))
            self.note(reservation_id, lease)
        except OSError as error:
            self.release(reservation_id)
            raise PoolError(f"can not hold the locks of GPUs in {self._directory}: {error.strerror}") from error

    def note(self, reservation_id: str, lease: Lease) -> None:
        """Write down for others whose the GPUs of a lease are, and until when."""
        left_s = lease.limits.time_left_s(seconds_since_boot())
        note = {
            "owner": lease.request.owner[:_MAX_NAME],
            "reservation": lease.request.name[:_MAX_NAME],
            "until": 0 if left_s is None else round(time.time() + left_s),
            "pid": os.getpid(),
        }
        content = json.dumps(note).encode() + b"\n"
        for lock in self._held.get(reservation_id, ()):
            os.pwrite(lock.file, content, 0)
            os.ftruncate(lock.file, len(content))

    def files(self, reservation_id: str) -> list[str]:
        """Return the files on which every process of a reservation is to hold a lock."""
        return [str(self._directory / lock.name) for lock in self._held.get(reservation_id, ())]

    def release(self, reservation_id: str) -> None:
        """The processes of a reservation have ended: its GPUs are free."""
        locks = self._held.pop(reservation_id, [])
        if not locks:
            return
        with contextlib.suppress(PoolError), self._opened() as directory:
            for lock in locks:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(lock.name, dir_fd=directory)
        for lock in locks:
            os.close(lock.file)

    def freshen(self) -> None:
        """Cleaners of /tmp remove what nobody has touched for days."""
        for locks in self._held.values():
            for lock in locks:
                with contextlib.suppress(OSError):
                    os.utime(lock.file)

    def close(self, *, released: bool) -> None:
        """The allocator ends. Unless everything is released, its ranks go on and hold their GPUs."""
        for reservation_id in list(self._held):
            if released:
                self.release(reservation_id)
            else:
                for lock in self._held.pop(reservation_id):
                    os.close(lock.file)

    # ---- the directory ----

    def _name(self, index: int, reservation_id: str) -> str:
        [gpu] = [gpu for gpu in self._gpus if gpu.index == index]
        if not gpu.uuid:
            raise PoolError(f"GPU {index} has no UUID that the driver tells: monarch-nb status says more")
        lease = hashlib.sha256(f"{self._node}\0{reservation_id}".encode()).hexdigest()[:16]
        return f"{_file_safe(gpu.uuid)}.{lease}"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The directory, made and verified.

        Raises:
            PoolError: it can not be made, is a link, or is not open to all users.
        """
        try:
            with contextlib.suppress(FileExistsError):
                before = os.umask(0)  # in one step: another allocator may look at it at once
                try:
                    os.mkdir(self._directory, _MODE)
                finally:
                    os.umask(before)
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise PoolError(f"can not use {self._directory} ({error.strerror}), {self._why}") from error
        try:
            if stat.S_IMODE(os.fstat(directory).st_mode) & _MODE != _MODE:
                raise PoolError(f"{self._directory} is not open to all users (chmod 1777), {self._why}")
            yield directory
        finally:
            os.close(directory)

    @property
    def _why(self) -> str:
        return (
            "in which all users of this machine record the GPUs that they lease; make it so, choose another directory "
            f"for all users ({config.GPU_LOCKS_VARIABLE}), or start the node with --gpus none"
        )


def _file_safe(uuid: str) -> str:
    return re.sub(r"[^\w-]", "-", uuid, flags=re.ASCII)


def _is_left(directory: int, name: str) -> bool:
    """Whether a file is a lock of this user's that nobody holds."""
    try:
        file = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=directory)
    except OSError:
        return False
    try:
        facts = os.fstat(file)
        is_ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid()
        return is_ours and _LOCK_NAME.fullmatch(name) is not None and not file_locks.is_held(file)
    finally:
        os.close(file)


def _is_locked(directory: int) -> bool:
    """Lock the directory; return whether that was possible at once."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(directory: int, name: str) -> int:
    """Return an open file of ours whose lock is held."""
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o644, dir_fd=directory)
    except FileExistsError:
        file = os.open(name, os.O_RDWR | _FLAGS, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode) or os.fstat(file).st_uid != os.getuid():
            raise PermissionError(1, f"{name} is not ours")
        os.fchmod(file, 0o644)  # others are to read it, whatever the umask is
        file_locks.hold(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _holder(directory: int, name: str) -> pb.GpuHolder | None:
    """Return who holds the lock of a file, or None. What the file says was written by another user."""
    try:
        file = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return None
    except PermissionError:  # nobody's allocator makes such a file, but nobody can tell
        return pb.GpuHolder(owner="another user")
    except OSError:  # a link, a socket
        return None
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or not file_locks.is_held(file):
            return None
        return _noted(os.read(file, _MAX_NOTE_BYTES), user_name(facts.st_uid))
    finally:
        os.close(file)


def _line(text: str) -> str:
    return " ".join(escapes.strip(text).split())[:_MAX_NAME]


def _noted(content: bytes, user: str) -> pb.GpuHolder:
    """Return what a lock's file says, as far as it makes sense. Whose the file is, the kernel says.

    Example:
        >>> _noted(b'{"owner": "alice", "reservation": "dev", "until": 0}', "lab").owner
        'alice, user lab'
    """
    try:
        note = json.loads(content)
        owner, reservation = (_line(str(note[name])) for name in ("owner", "reservation"))
        until = float(note["until"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return pb.GpuHolder(owner=user)
    named = owner if owner == user else f"{owner}, user {user}"
    return pb.GpuHolder(owner=named, reservation=reservation, until=until if 0 < until < _LAST_S else 0)

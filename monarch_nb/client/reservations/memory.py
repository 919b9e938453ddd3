"""What notebooks hold: a small file for each remembers what was attached or detached last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from monarch_nb import config
from monarch_nb.allocator.processes.processes import identify
from monarch_nb.errors import PoolError

if TYPE_CHECKING:
    from monarch_nb.client.pools.infos import ReservationInfo


@dataclass(frozen=True, slots=True)
class Memory:
    """What a notebook last did: it held this reservation, or none when `reservation_id` is empty.

    Attributes:
        pid: of the kernel that did; with when it began, where that can be known, as pids are used again.
        fold, show: how its cells show output (`%mesh fold`, `%mesh show`); empty where nothing was said.
    """

    notebook: str
    reservation_id: str
    pool: str | None = None
    pid: int = 0
    began: str = ""
    fold: str = ""
    show: str = ""

    @property
    def is_current(self) -> bool:
        """Whether that kernel still runs."""
        return self.pid > 0 and _is_running(self.pid) and self.began == _began(self.pid)


def memory_of_this_kernel(
    notebook: str, reservation_id: str, pool: str | None = None, *, fold: str = "", show: str = ""
) -> Memory:
    """Return what this process does for a notebook."""
    return Memory(notebook, reservation_id, pool, os.getpid(), _began(os.getpid()), fold, show)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _began(pid: int) -> str:
    try:
        return str(identify(pid).start_ticks)
    except ProcessLookupError:  # or there is no /proc
        return ""


class Held(Protocol):
    """The part of a `ReservationInfo` that is looked at."""

    @property
    def reservation_id(self) -> str: ...
    @property
    def notebook(self) -> str: ...
    @property
    def created_at(self) -> float: ...
    @property
    def held_by_me(self) -> bool: ...
    @property
    def right(self) -> str: ...


H = TypeVar("H", bound=Held)


def choose_unnamed(infos: Sequence[ReservationInfo], directory: str) -> ReservationInfo | None:
    """Return the reservation that a kernel may take for that of its notebook, although nobody knows which notebook that
    is (a headless one, say): the only one in its directory that no other notebook made or holds."""
    taken = {memory.reservation_id for memory in Memories().read()}
    free = [
        info
        for info in infos
        if info.held_by_me and not info.notebook and info.reservation_id not in taken and info.directory == directory
    ]
    return free[0] if len(free) == 1 else None


def choose(infos: Sequence[H], notebook: str, memory: Memory | None) -> H | None:
    """Return the reservation that a notebook held, or used as long as it is shared; None when that can not be told."""
    mine = [info for info in infos if info.held_by_me]
    if memory is not None:
        for info in infos:
            if info.reservation_id == memory.reservation_id and info.right:
                return info
        if not memory.reservation_id:
            return None
    made_here = [info for info in mine if info.notebook == notebook]
    return max(made_here, key=lambda info: info.created_at, default=None)


def remember(memory: Memory) -> None:
    """Keep what a notebook holds, for its next kernel. A disk that refuses costs only that comfort."""
    try:
        path = _memory_file(memory.notebook)
        config.private_directory(path.parent)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(memory)))
        temporary.replace(path)
    except (OSError, PoolError):
        return


def forget(notebook: str) -> None:
    """Remember nothing of a notebook."""
    try:
        path = _memory_file(notebook)
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    except (OSError, PoolError):  # other notebooks are remembered there
        return


def recall(notebook: str | None) -> Memory | None:
    """Return what a notebook last held, or None when that is not known."""
    try:
        return None if notebook is None else _read(_memory_file(notebook))
    except PoolError:
        return None


class Memories:
    """What all notebooks last held; their files are read only when one of them has changed."""

    def __init__(self) -> None:
        self._changed_at = 0
        self._memories: list[Memory] = []

    def read(self) -> list[Memory]:
        """Return what is remembered now."""
        try:
            directory = _directory()
            changed_at = directory.stat().st_mtime_ns
            if changed_at != self._changed_at:
                self._memories = [memory for path in sorted(directory.glob("*.json")) if (memory := _read(path))]
                self._changed_at = changed_at
        except (OSError, PoolError):
            return []
        return self._memories


def _read(path: Path) -> Memory | None:
    try:
        return Memory(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _directory() -> Path:
    return config.home_directory() / "notebooks"


def _memory_file(notebook: str) -> Path:
    return _directory() / f"{hashlib.sha256(notebook.encode()).hexdigest()[:24]}.json"

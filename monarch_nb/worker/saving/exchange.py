"""What the ranks of a save or load tell each other, over the mesh's store.

No process group is used: those of the training may be broken, busy, or not there. Every wait ends: with what was waited
for, when a rank says that it failed, or when one has been silent for too long, which is then named. Ranks show that
they live while they take part: one that writes for minutes is not taken for one that died.

What is sent is signed with a secret that all ranks of a save have from who asked for it: the store would take it from
anybody who can reach its port, and plans are pickles.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from monarch_nb.config import cadence
from monarch_nb.errors import SaveError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.groups.rendezvous import Store
from monarch_nb.worker.groups.store import pause
from monarch_nb.worker.saving.asked import TIMEOUT_S

T = TypeVar("T")

_ROOT = "monarch_nb/saves"
_FIRST_PAUSE_S, _LAST_PAUSE_S = cadence(0.002), cadence(0.2)
"""Between two looks at the store. Its own waits see no interrupt, and torch prints a warning when one is over."""
_CONNECT = timedelta(seconds=20)
_BEAT_S = cadence(2.0)
_SIGNATURE_BYTES = 32


class Exchange:
    """One rank's side. The first of the ranks is the one that decides.

    All ranks call the same methods in the same order, each with a name of its own for the step.

    Args:
        ranks: of the save, by their numbers in the mesh; the same on all.
        rank: this one.
        secret: the same on all, new for each save, unknown to others.
        connect: makes a connection to the store; called again when it breaks.
        timeout_s: how long a rank may be silent.

    Attributes:
        name: of what is exchanged, the same on all ranks and new.

    Example:
        >>> alone = Exchange([0], 0, "secret", None)
        >>> alone.gather("size", b"1")
        [b'1']
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        secret: str,
        connect: Callable[[timedelta], Store] | None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.ranks, self.rank = tuple(ranks), rank
        self.position = self.ranks.index(rank)
        self._secret = hashlib.blake2b(secret.encode()).digest()
        self.name = hashlib.blake2b(self._secret, digest_size=6).hexdigest()
        self._keys = f"{_ROOT}/{self.name}"
        self._connect, self._timeout_s = connect, timeout_s
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beats: dict[int, tuple[int, float]] = {}
        self._beating: threading.Thread | None = None

    @property
    def is_first(self) -> bool:
        """Whether this rank decides."""
        return self.position == 0

    def gather(self, step: str, value: bytes) -> list[bytes] | None:
        """Give the first rank a value of each rank; return them there, in the order of the ranks, else None."""
        if len(self.ranks) == 1:
            return [value]
        if not self.is_first:
            self._put(f"{step}/{self.rank}", value)
            return None
        return [value, *(self._take(f"{step}/{rank}", rank) for rank in self.ranks[1:])]

    def scatter(self, step: str, values: Sequence[bytes] | None) -> bytes:
        """Give each rank its value of those that the first rank has, in the order of the ranks."""
        if values is not None:
            for rank, value in zip(self.ranks[1:], values[1:], strict=True):
                self._put(f"{step}/{rank}", value)
            return values[0]
        return self._take(f"{step}/{self.rank}", self.ranks[0])

    def share(self, step: str, value: bytes | None) -> bytes:
        """Give all ranks the value that the first one has."""
        if len(self.ranks) == 1:
            assert value is not None
            return value
        key = f"{step}/all"
        if value is not None:
            self._put(key, value)
            return value
        taken = self._wait(key, self.ranks[0])
        if self._do(lambda store: store.add(self._key(f"{step}/taken"), 1)) == len(self.ranks) - 1:
            for each in (key, f"{step}/taken"):
                self._forget(each)
        return taken

    def fail(self, reason: str) -> None:
        """Tell the other ranks that this one can not go on; they raise. Never raises."""
        if len(self.ranks) > 1 and not self._ended.is_set():
            try:
                self._put("failed", f"rank {self.rank}: {reason}".encode())
            except (SaveError, RuntimeError):
                pass  # nobody is there to be told: they see that this rank is silent

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Show the other ranks that this one lives, while the block is executed; tell them when it fails."""
        if len(self.ranks) > 1 and self._beating is None:
            self._beating = threading.Thread(target=self._beat, name="monarch_nb-save-beat", daemon=True)
            self._beating.start()
        try:
            yield
        except SaveError as error:
            if not error.of_others:
                self.fail(str(error))
            raise
        except BaseException as error:
            self.fail("interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}")
            raise

    def close(self) -> None:
        """This rank takes part no longer."""
        self._ended.set()
        if self._beating is not None:
            self._beating.join(_BEAT_S)
            try:
                self._forget(f"beat/{self.rank}")
            except (SaveError, RuntimeError):
                pass  # the store is gone, and the key with it
        with self._lock:
            self._store = None

    # ---- the store

    def _key(self, name: str) -> str:
        return f"{self._keys}/{name}"

    def _put(self, name: str, value: bytes) -> None:
        signed = self._signature(name, value) + value
        self._do(lambda store: store.set(self._key(name), signed))

    def _take(self, name: str, rank: int) -> bytes:
        value = self._wait(name, rank)
        self._forget(name)
        return value

    def _forget(self, name: str) -> None:
        self._do(lambda store: store.delete_key(self._key(name)))

    def _signature(self, name: str, value: bytes) -> bytes:
        return hmac.digest(self._secret, name.encode() + b"\0" + value, "sha256")

    def _read(self, name: str) -> bytes:
        signed = bytes(self._do(lambda store: store.get(self._key(name))))
        value = signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signed[:_SIGNATURE_BYTES], self._signature(name, value)):
            raise SaveError(f"what stands in the mesh's store under {name} is not of a rank of this save")
        return value

    def _wait(self, name: str, rank: int) -> bytes:
        """Wait for what a rank tells; Ctrl-C gets through between two calls."""
        self._beats.setdefault(rank, (-1, time.monotonic()))
        pause_s = _FIRST_PAUSE_S
        while not self._do(lambda store: store.check([self._key(name)])):
            pause(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            if pause_s == _LAST_PAUSE_S:
                self._check_failed()
                self._check_silent(rank)
        return self._read(name)

    def _check_failed(self) -> None:
        if self._do(lambda store: store.check([self._key("failed")])):
            raise SaveError(self._read("failed").decode(), of_others=True)

    def _check_silent(self, rank: int) -> None:
        """Raise if a rank has shown no sign of life for too long."""
        beat, now = self._beats_of(rank), time.monotonic()
        last, since = self._beats[rank]
        if beat != last:
            self._beats[rank] = beat, now
        elif now - since > self._timeout_s:
            before = {each: self._beats_of(each) for each in self.ranks if each not in (self.rank, rank)}
            self._ended.wait(2 * _BEAT_S)
            silent = [rank, *(each for each, beats in before.items() if self._beats_of(each) == beats)]
            raise SaveError(f"{name_ranks(sorted(silent))} did not answer for {self._timeout_s:g} s")

    def _beats_of(self, rank: int) -> int:
        return int(self._do(lambda store: store.add(self._key(f"beat/{rank}"), 0)))

    def _beat(self) -> None:
        while not self._ended.is_set():
            try:
                self._do(lambda store: store.add(self._key(f"beat/{self.rank}"), 1))
            except (SaveError, RuntimeError):
                return
            self._ended.wait(_BEAT_S)

    def _do(self, operation: Callable[[Store], T]) -> T:
        """Ask the store, again over another connection when one breaks: all operations may be done twice but for
        counting who has taken a value, after which only keys are left over."""
        last: BaseException | None = None
        for _ in range(3):
            try:
                with self._lock:
                    if self._store is None:
                        if self._connect is None:
                            raise SaveError("this mesh has no store")
                        self._store = self._connect(_CONNECT)
                    return operation(self._store)
            except RuntimeError as error:
                last, self._store = error, None
        raise SaveError(f"the mesh's store does not answer: {_first_line(last)}")


def _first_line(error: Any) -> str:
    return str(error).partition("\n")[0]

"""The buffers that this process owns, and what others ask of it, beside its actors (`Process.ask`)."""

from __future__ import annotations

import functools
import os
import pickle
import secrets
import threading
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

from monarch_nb.rdma.kernel import Mark, Place, copy
from monarch_nb.rdma.memory import Memory


class Gone(Exception):
    """This process does not have the buffer; the text says why."""


class Owner(Protocol):
    """An actor.

    Attributes:
        at_end: called when it has ended.
    """

    at_end: list[Callable[[], object]]


class _Kept:
    """A buffer of this process, until it is dropped.

    Attributes:
        siblings: the marks of all that the same actor made and that are there.
    """

    def __init__(self, memory: Memory, siblings: set[bytes]) -> None:
        self.memory, self.mark, self.lock = memory, Mark(), threading.Lock()
        self.siblings = siblings
        siblings.add(self.mark.text)
        self.is_dropped = False

    def drop(self) -> None:
        with self.lock:
            self.is_dropped = True
            self.mark.remove()
        self.siblings.discard(self.mark.text)


class _Owned:
    """All of a process.

    Attributes:
        life: differs from that of every other process, also of the one that had this address before.
    """

    def __init__(self) -> None:
        self.pid, self.life = os.getpid(), secrets.token_hex(8)
        self.kept: dict[bytes, _Kept] = {}
        self.of_actors: WeakKeyDictionary[Owner, set[bytes]] = WeakKeyDictionary()


_owned: list[_Owned] = []
_owning = threading.Lock()


def _own() -> _Owned:
    if not _owned or _owned[0].pid != os.getpid():  # a fork owns nothing
        with _owning:
            if not _owned or _owned[0].pid != os.getpid():
                _owned[:] = [_Owned()]
    return _owned[0]


def life() -> str:
    """Return what tells this process from those before it."""
    return _own().life


def keep(memory: Memory, owner: Owner | None) -> Place:
    """Own a buffer until it is dropped, or the actor that makes it has ended; return where it is."""
    own = _own()
    kept = _Kept(memory, _made_by(owner, own) if owner is not None else set())
    own.kept[kept.mark.text] = kept
    return kept.mark.place(memory.address)


def _made_by(owner: Owner, own: _Owned) -> set[bytes]:
    """Return the marks of what an actor made, which goes when it has ended."""
    with _owning:
        marks = own.of_actors.get(owner)
        if marks is None:
            marks = own.of_actors[owner] = set()
            owner.at_end.append(functools.partial(_drop_all, own.life, marks))
        return marks


def _drop_all(owner: str, marks: set[bytes]) -> None:
    for mark in list(marks):
        answer_drop(owner, mark)


def use(owner: str, key: bytes, what: Callable[[Memory], object]) -> None:
    """Call `what` with the memory of a buffer of this process, which stays until it returns.

    Args:
        owner: the life of the process that made it.
        key: its mark.

    Raises:
        Gone: it is not there any more.
    """
    if owner != life():
        raise Gone("its process was restarted, and does not have the buffer any more: make another one")
    kept = _own().kept.get(key)
    if kept is not None:
        with kept.lock:
            if not kept.is_dropped:
                what(kept.memory)
                return
    raise Gone("the buffer was dropped, or the actor that made it has ended: make another one")


# What others ask, by the names of these functions.


def answer_read(owner: str, key: bytes) -> pickle.PickleBuffer:
    """Return the bytes of a buffer. Raises Gone."""
    found: list[memoryview] = []
    use(owner, key, lambda memory: found.append(memory.read()))
    return pickle.PickleBuffer(found[0])


def answer_fetch(owner: str, key: bytes, source: Place, size_bytes: int) -> bool:
    """Fill a buffer from the memory of who asks; return whether that works here. Raises Gone."""
    done: list[bool] = []

    def fetch(memory: Memory) -> None:
        done.append(size_bytes <= memory.size_bytes and copy(source, memory.address, size_bytes))

    use(owner, key, fetch)
    return done[0]


def answer_write(owner: str, key: bytes, content: memoryview) -> None:
    """Fill a buffer. Raises Gone."""
    use(owner, key, lambda memory: memory.write(content))


def answer_drop(owner: str, key: bytes) -> None:
    """Let a buffer go; fine when it has gone."""
    kept = _own().kept.pop(key, None) if owner == life() else None
    if kept is not None:
        kept.drop()

"""What actors and their meshes are known by: data that travels."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from monarch_nb.actor.engine.messages import traveller
from monarch_nb.actor.engine.outside import HERE, Address, Runs
from monarch_nb.shape import Extent, Point, Region

_DIGITS = string.digits + string.ascii_letters

Groups = Sequence[tuple[str, Sequence[str]]]
"""Nodes, and receivers there."""


def new_uid(name: str) -> str:
    """Return a new identifier of a mesh of actors: its name, in small letters, and twelve random characters."""
    label = re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9_-]", "", name.lower()))[:63] or "nil"
    return f"{label}-{''.join(secrets.choice(_DIGITS) for _ in range(12))}"


class Places(Sequence[Address]):
    """Where the ranks of a mesh are. Pickled, it is as long as the mesh has nodes."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._addresses = tuple(addresses)
        self._by_node: Groups | None = None

    @overload
    def __getitem__(self, index: int) -> Address: ...
    @overload
    def __getitem__(self, index: slice) -> Places: ...
    def __getitem__(self, index: int | slice) -> Address | Places:
        return Places(self._addresses[index]) if isinstance(index, slice) else self._addresses[index]

    def __len__(self) -> int:
        return len(self._addresses)

    def __hash__(self) -> int:
        return hash(self._addresses)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self._addresses == other._addresses

    def part(self, ranks: Sequence[int]) -> Places:
        """Return those of some ranks."""
        return Places(self._addresses[rank] for rank in ranks)

    def by_node(self) -> Groups:
        """Return them node by node, in the order of the ranks."""
        if self._by_node is None:
            groups: dict[str, list[str]] = {}
            for address in self._addresses:
                groups.setdefault(address.node, []).append(address.process)
            self._by_node = [(node, tuple(processes)) for node, processes in groups.items()]
        return self._by_node

    @property
    def mesh_ids(self) -> frozenset[str]:
        """The meshes whose ranks these are."""
        return frozenset(address.mesh_id for address in self._addresses)

    def __reduce__(self) -> tuple[Any, ...]:
        spans: list[list[Any]] = []
        for address in map(abroad, self._addresses):
            prefix, _, number = address.process.rpartition("/")
            rank = int(number) if number.isdecimal() else None
            last = spans[-1] if spans else None
            if last and rank is not None and last[:2] == [address.node, prefix] and rank == last[2] + last[3]:
                last[3] += 1
            else:
                spans.append([address.node, prefix, number if rank is None else rank, 1])
        return _unpacked, (tuple(map(tuple, spans)),)


def _unpacked(spans: Iterable[tuple[str, str, int | str, int]]) -> Places:
    return Places(
        Address(node, f"{prefix}/{first + step}" if isinstance(first, int) else f"{prefix}/{first}".lstrip("/"))
        for node, prefix, first, count in spans
        for step in range(count)
    )


def abroad(address: Address) -> Address:
    """Return an address as it is known where the message goes that is pickled now."""
    goes = traveller()
    if address != HERE or goes is None or not goes[1]:
        return address
    return goes[0].outside.home(goes[1])


class PortAddress(NamedTuple):
    """Where values are sent.

    Attributes:
        address: of the process that receives them.
        number: of the port there, or of the call.
        rank: which rank of the call it answers.
        answers: whether it is a call's.
    """

    address: Address
    number: int
    rank: int
    answers: bool


@dataclass(frozen=True)
class Identity:
    """An actor, or a program's main one, for people.

    Attributes:
        name: as given; "root" for a program.
        rank, extent: its place in the mesh that it was spawned on.
        creator: who spawned it.
    """

    name: str
    class_name: str | None
    uid: str
    rank: int
    extent: Extent
    creator: Identity | None

    @property
    def point(self) -> Point:
        """Its place."""
        return Point(self.rank, self.extent)

    @property
    def title(self) -> str:
        """Its name and rank: "trainers[3]"."""
        return f"{self.name}[{self.rank}]" if self.extent.size > 1 else self.name

    def __repr__(self) -> str:
        if self.creator is None:
            return f"<{self.name}>"
        place = f"{self.point!r}" if self.extent else ""
        return f"{self.creator!r}.<{self.class_name} {self.name}{place}>"


@dataclass(frozen=True)
class Handle:
    """A mesh of actors.

    Attributes:
        uid: of the mesh; each process has at most one of its actors.
        name: as given.
        class_name: "__main__.Trainer".
        facts: what is to be known of the class without having it, pickled.
        places: of its actors.
        extent: its shape.
        procs: the name of the mesh of processes.
    """

    uid: str
    name: str
    class_name: str
    facts: bytes
    places: Places
    extent: Extent
    procs: str


@dataclass(frozen=True)
class Birth:
    """What is told of an actor before it is made.

    Attributes:
        handle: its mesh.
        is_async: whether it has a loop.
        owner: where its owner is, and its uid ("" for a program's main one).
        creator: that owner.
        root: the program.
        caller, runs: as of any message.
        is_first: it sets its process up, in the only call that it gets: the other actors there wait for that.
    """

    handle: Handle
    is_async: bool
    owner: tuple[Address, str]
    creator: Identity
    root: Address
    caller: str
    runs: Runs
    is_first: bool = False

    def is_below(self, uid: str) -> bool:
        """Whether an actor of that uid spawned it, or spawned who did."""
        creator: Identity | None = self.creator
        while creator is not None and creator.uid != uid:
            creator = creator.creator
        return creator is not None

    def __reduce__(self) -> tuple[Callable[..., Birth], tuple[Any, ...]]:
        owner = abroad(self.owner[0]), self.owner[1]
        rest = (self.creator, abroad(self.root), self.caller, self.runs, self.is_first)
        return Birth, (self.handle, self.is_async, owner, *rest)


Place = tuple[tuple[str, ...], int, tuple[int, ...], tuple[int, ...]]
"""A region as messages have it."""


def region_of(place: Place) -> Region:
    """Return the region of a message."""
    return Region(*place)

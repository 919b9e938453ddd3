"""What runs need of the mesh that they run on, and scripts of the reservation that holds it: little of either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.pools.infos import ReservationInfo
from monarch_nb.client.pools.ranks import MeshRanks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.shape import Extent


class Numbered(Protocol):
    """A run, or what is told of one."""

    @property
    def number(self) -> int: ...


class HeldMesh(Protocol):
    """A mesh, as runs on it know it.

    Attributes:
        ranks: those that are meant, of all that `core` knows.
    """

    id: str

    @property
    def ranks(self) -> tuple[int, ...]: ...

    @property
    def flag(self) -> str: ...

    @property
    def extent(self) -> Extent: ...

    @property
    def reservation(self) -> Holder: ...

    @property
    def core(self) -> MeshRanks: ...

    def logs(self, *, run: Numbered | int | None = None) -> Iterator[LogRecord]: ...


class Holder(Protocol):
    """A reservation, as its mesh and scripts know it.

    Attributes:
        spec: what its ranks were started with.
    """

    id: str
    name: str
    pool: str
    gpus: int
    spec: pb.SpawnRequest
    files: SyncedFiles

    @property
    def mesh(self) -> HeldMesh: ...

    def status(self, *, memory: bool = True) -> ReservationInfo: ...

"""The reservation of a mesh, as users have it from the mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Protocol, TypeVar

from monarch_nb.client.doctor.diagnosis import Diagnosis
from monarch_nb.client.doctor.environments import PipReport
from monarch_nb.client.files.fetch import FetchReport, FileInfo
from monarch_nb.client.files.fetch import Progress as FetchProgress
from monarch_nb.client.files.sync import Progress as SyncProgress
from monarch_nb.client.files.sync_report import SyncReport
from monarch_nb.client.pools.leasing.releasing import KeptFiles, ReleasedLater
from monarch_nb.client.runs.needs import HeldMesh, Holder
from monarch_nb.times import Duration

M_co = TypeVar("M_co", bound=HeldMesh, covariant=True)


class MeshHolder(Holder, Protocol[M_co]):
    """A `Reservation`, which says what each of these is. Stated here because a mesh lies below what holds it."""

    owner: str
    notebook: str
    procs: int
    shared: str

    @property
    def nodes(self) -> int: ...

    @property
    def is_mine(self) -> bool: ...

    @property
    def mesh(self) -> M_co: ...

    async def all_meshes(self) -> Sequence[M_co]: ...

    def extend(self, time: Duration, /) -> float: ...

    def add_time_listener(self, listener: Callable[[str], None]) -> None: ...

    def panel(self) -> Any: ...

    def sync(self, *, overwrite: bool = False, progress: SyncProgress | None = None) -> SyncReport: ...

    def list_files(self, path: str = ".", *, rank: int = 0) -> list[FileInfo]: ...

    def fetch(
        self,
        path: str,
        *,
        rank: int = 0,
        to: str | PathLike[str] | None = None,
        overwrite: bool = False,
        progress: FetchProgress | None = None,
    ) -> FetchReport: ...

    def doctor(self) -> Diagnosis: ...

    def pip(self, *arguments: str, run: Callable[[M_co, str], object] | None = None) -> PipReport: ...

    def detach(self) -> None: ...

    def release(self) -> list[KeptFiles | ReleasedLater]: ...

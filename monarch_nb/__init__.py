"""monarch_nb: the notebook-native control room for GPU clusters.

    %load_ext monarch_nb            in a notebook: %mesh and %%mesh
    import monarch_nb               in a script: the same as calls

Importing this imports neither torch nor grpc: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb.client.doctor.diagnosis import Diagnosis
    from monarch_nb.client.doctor.environments import PipReport
    from monarch_nb.client.files.fetch import FetchReport, FileInfo
    from monarch_nb.client.files.sync_report import SyncReport
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.infos import EndedReservation, RankInfo, ReservationInfo, RunInfo, StackReport
    from monarch_nb.client.reservations.reservation import Reservation, attach, list_ended, list_reservations, reserve
    from monarch_nb.client.runs.interrupt_report import InterruptReport
    from monarch_nb.client.runs.run import Run
    from monarch_nb.config import VERSION as __version__
    from monarch_nb.errors import (
        CapacityError,
        FilesError,
        MeshMismatch,
        MeshNotFound,
        MonarchNbError,
        NodeUnreachable,
        PickleError,
        PoolError,
        PreloadError,
        ProcessGroupAborted,
        RankDead,
        RankFailure,
        RankUnresponsive,
        ReservationConflict,
        ReservationExpired,
        ReservationNotFound,
        RunFailed,
        RunNotFound,
        SharedStorageError,
        SpawnError,
        TargetError,
        UsageError,
        VersionMismatch,
    )
    from monarch_nb.notebook import load_ipython_extension, unload_ipython_extension
    from monarch_nb.shape import Extent

__all__ = [
    "CapacityError",
    "Diagnosis",
    "EndedReservation",
    "Extent",
    "FetchReport",
    "FileInfo",
    "FilesError",
    "InterruptReport",
    "Mesh",
    "MeshMismatch",
    "MeshNotFound",
    "MonarchNbError",
    "NodeUnreachable",
    "PickleError",
    "PipReport",
    "PoolError",
    "PreloadError",
    "ProcessGroupAborted",
    "RankDead",
    "RankFailure",
    "RankInfo",
    "RankUnresponsive",
    "Reservation",
    "ReservationConflict",
    "ReservationExpired",
    "ReservationInfo",
    "ReservationNotFound",
    "Run",
    "RunFailed",
    "RunInfo",
    "RunNotFound",
    "SharedStorageError",
    "SpawnError",
    "StackReport",
    "SyncReport",
    "TargetError",
    "UsageError",
    "VersionMismatch",
    "__version__",
    "attach",
    "list_ended",
    "list_reservations",
    "load_ipython_extension",
    "reserve",
    "unload_ipython_extension",
]

_HOMES = {
    "monarch_nb.client.doctor.diagnosis": ("Diagnosis",),
    "monarch_nb.client.doctor.environments": ("PipReport",),
    "monarch_nb.client.files.fetch": ("FetchReport", "FileInfo"),
    "monarch_nb.client.pools.infos": ("EndedReservation", "RankInfo", "ReservationInfo", "RunInfo", "StackReport"),
    "monarch_nb.client.meshes.mesh": ("Mesh",),
    "monarch_nb.client.reservations.reservation": (
        "Reservation",
        "attach",
        "list_ended",
        "list_reservations",
        "reserve",
    ),
    "monarch_nb.client.runs.interrupt_report": ("InterruptReport",),
    "monarch_nb.client.runs.run": ("Run",),
    "monarch_nb.client.files.sync_report": ("SyncReport",),
    "monarch_nb.notebook": ("load_ipython_extension", "unload_ipython_extension"),
    "monarch_nb.shape": ("Extent",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives; errors live in monarch_nb.errors."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value = importlib.import_module("monarch_nb.config").VERSION
    else:
        value = getattr(importlib.import_module(_HOME_OF.get(name, "monarch_nb.errors")), name)
    globals()[name] = value
    return value


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Say where the built panel lies, for `jupyter-builder develop`."""
    return [{"src": "labextension", "dest": "monarch-nb"}]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

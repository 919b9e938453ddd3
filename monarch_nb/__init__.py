"""monarch_nb: the notebook-native control room for GPU clusters.

    %load_ext monarch_nb            in a notebook: %mesh and %%mesh
    import monarch_nb               in a script: the same as calls
    monarch_nb.errors               what they raise

Importing this imports neither torch nor grpc: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb import errors
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.lists import list_ended, list_everywhere, list_reservations
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.client.reservations.reserve import attach, reserve
    from monarch_nb.client.runs.run import Run
    from monarch_nb.client.saving.saves import list_saves
    from monarch_nb.config import VERSION as __version__
    from monarch_nb.errors import MonarchNbError
    from monarch_nb.notebook import load_ipython_extension, unload_ipython_extension
    from monarch_nb.shape import Extent

__all__ = [
    "Extent",
    "Mesh",
    "MonarchNbError",
    "Reservation",
    "Run",
    "__version__",
    "attach",
    "errors",
    "list_ended",
    "list_everywhere",
    "list_reservations",
    "list_saves",
    "load_ipython_extension",
    "reserve",
    "unload_ipython_extension",
]

_HOMES = {
    "monarch_nb.client.meshes.mesh": ("Mesh",),
    "monarch_nb.client.reservations.lists": ("list_ended", "list_everywhere", "list_reservations"),
    "monarch_nb.client.reservations.reservation": ("Reservation",),
    "monarch_nb.client.reservations.reserve": ("attach", "reserve"),
    "monarch_nb.client.runs.run": ("Run",),
    "monarch_nb.client.saving.saves": ("list_saves",),
    "monarch_nb.errors": ("MonarchNbError",),
    "monarch_nb.notebook": ("load_ipython_extension", "unload_ipython_extension"),
    "monarch_nb.shape": ("Extent",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_where_else(name)}")
    value: Any
    if name == "__version__":
        value = importlib.import_module("monarch_nb.config").VERSION
    elif name == "errors":
        value = importlib.import_module("monarch_nb.errors")
    else:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def _where_else(name: str) -> str:
    errors = importlib.import_module("monarch_nb.errors")
    return f"; it is monarch_nb.errors.{name}" if name[:1].isupper() and hasattr(errors, name) else ""


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Say where the built panel lies, for `jupyter-builder develop`."""
    return [{"src": "labextension", "dest": "monarch-nb"}]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

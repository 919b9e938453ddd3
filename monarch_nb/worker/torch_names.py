"""The private names of torch that we use, which a new version may change: by what is off without them."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

GROUPS = "interrupts of collectives, and groups that are made again in live ranks"
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    GROUPS: {
        "distributed/distributed_c10d.py": (
            *("_world", "pg_names", "pg_group_ranks", "pg_map", "pg_backend_config", "pg_to_tag", "tags_to_pg"),
            *("pg_coalesce_state", "group_count", "_update_default_pg", "_unregister_all_process_groups"),
            *("_new_process_group_helper", "_store_based_barrier"),
        ),
        "distributed/rendezvous.py": ("_rendezvous_handlers", "_create_c10d_store"),
    },
    "memory histories": {"cuda/memory.py": ("_record_memory_history",)},
    "watches of tensors": {"utils/_pytree.py": ("tree_leaves",), "utils/_python_dispatch.py": ("TorchDispatchMode",)},
}


def lacking(torch: Path, version: str) -> dict[str, str]:
    """Return what a torch lacks, by what is off therefore: as sentences. It reads torch's files, and imports nothing.

    Args:
        torch: the directory of the package. version: its.

    Example:
        >>> lacking(Path("/nowhere"), "2.99")["memory histories"]
        'torch 2.99 has no _record_memory_history: memory histories are off'
    """
    found = {}
    for ability, files in _NAMES.items():
        missing = [name for file, names in files.items() for name in _missing(torch / file, names)]
        if missing:
            found[ability] = f"torch {version} has no {', '.join(missing)}: {ability} are off"
    return found


@cache
def lacking_here() -> dict[str, str]:
    """Return what the torch that is imported lacks; read once, in the template, for all ranks that it forks."""
    torch: Any = sys.modules["torch"]
    return lacking(Path(torch.__file__).parent, torch.__version__)


def _missing(file: Path, names: tuple[str, ...]) -> list[str]:
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return [*names]
    return [name for name in names if not re.search(rf"\b{name}\b", text)]

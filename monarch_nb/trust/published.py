"""Where allocators tell of themselves: a file each, in a directory on a file system that nodes and users share.

It is written anew every ten seconds; one that is much older is stale. A stale node is not asked any more: for a host
that is away that would take seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HEARTBEAT_S = 10.0
STALE_S = 120.0
"""Much longer than a heartbeat: clocks of hosts may differ by minutes, and network file systems cache."""
SUFFIX = ".node.json"


@dataclass(frozen=True)
class Published:
    """What an allocator tells of itself.

    Attributes:
        address: `host:port`.
        version: of monarch_nb.
        gpus, procs: what it offers.
        heartbeat: when it was written, seconds since the epoch on the node's clock.
        age_s: how long ago, by this computer's clock.
    """

    node_id: str
    address: str
    version: str
    gpus: Sequence[str]
    procs: int
    heartbeat: float
    age_s: float = 0.0

    @property
    def is_stale(self) -> bool:
        """Whether nobody has written it for so long that its allocator must be dead, or its host away."""
        return self.age_s > STALE_S


def publish(directory: Path, node: Published) -> None:
    """Write a node's file, in one step.

    Raises:
        OSError: it can not be written.
    """
    directory.mkdir(exist_ok=True)  # and not what it is in: a job's pool may just be removed
    path = directory / f"{node.node_id}{SUFFIX}"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({**asdict(node), "heartbeat": time.time()}))
    partial.replace(path)


def withdraw(directory: Path, node_id: str) -> None:
    """Remove a node's file: it ends as it should."""
    (directory / f"{node_id}{SUFFIX}").unlink(missing_ok=True)


def published(directory: Path) -> list[Published]:
    """Return what is told in a directory, by name; files that are no such thing are passed over."""
    found = []
    now = time.time()
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            facts = json.loads(path.read_text())
            node = Published(**{**facts, "age_s": max(0.0, now - float(facts["heartbeat"]))})
        except (OSError, ValueError, TypeError, KeyError):
            continue  # it is being removed, or somebody else's
        found.append(node)
    return found

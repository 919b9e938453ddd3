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

from monarch_nb.config import cadence, gap

HEARTBEAT_S = cadence(10.0)
STALE_S = gap(120.0)
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


def publish(directory: Path, node: Published, *, beside: bool = False) -> None:
    """Write a node's file, in one step.

    Args:
        beside: not under its name alone: another node has that name (see `overwritten_by`).

    Raises:
        OSError: it can not be written.
    """
    directory.mkdir(exist_ok=True)  # and not what it is in: a job's pool may just be removed
    path = directory / f"{node.node_id}{f'@{node.address}' if beside else ''}{SUFFIX}"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({**asdict(node), "heartbeat": time.time()}))
    partial.replace(path)


def overwritten_by(directory: Path, node: Published) -> str:
    """Return the address of another node that has this one's name, if that has written its file over this one's since:
    empty when it has not."""
    try:
        address = json.loads((directory / f"{node.node_id}{SUFFIX}").read_text())["address"]
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    return "" if address == node.address else str(address)


def withdraw(directory: Path, node: Published) -> None:
    """Remove a node's files: it ends as it should."""
    if not overwritten_by(directory, node):
        (directory / f"{node.node_id}{SUFFIX}").unlink(missing_ok=True)
    (directory / f"{node.node_id}@{node.address}{SUFFIX}").unlink(missing_ok=True)


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

"""What the nodes of a pool of hosts said last: what they are called, and what this user holds there. It is kept in the
pool's directory on this computer, for a time when they do not answer."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

from monarch_nb.config import TrustPaths
from monarch_nb.errors import TrustError
from monarch_nb.trust.private_files import locked, read_private, write_private


@dataclass(frozen=True)
class Heard:
    """What a node said last.

    Attributes:
        name: of the node.
        node_address: where other nodes reach it.
        held: the names of this user's reservations on it.
    """

    name: str
    node_address: str
    held: tuple[str, ...] = ()


def read_heard(paths: TrustPaths) -> dict[str, Heard]:
    """Return what nodes said last, by the addresses at which they are reached from here; nothing when the file is not
    there or can not be read."""
    try:
        facts = json.loads(read_private(paths.last_heard))
        return {address: Heard(**{**one, "held": tuple(one["held"])}) for address, one in facts.items()}
    except (FileNotFoundError, TrustError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def note_heard(paths: TrustPaths, heard: Mapping[str, Heard], silent: Collection[str]) -> None:
    """Keep what nodes have just said, and what those said earlier that are silent now.

    Args:
        heard: by address.
        silent: the addresses of the others that the pool has; what is known of any more nodes is forgotten.

    Raises:
        OSError: the pool's directory is not there (any more). TrustError: the file can not be written.
    """
    before = read_heard(paths)
    if _merged(before, heard, silent) == before:
        return
    with locked(paths.directory):
        now = _merged(read_heard(paths), heard, silent)
        facts = {address: asdict(one) for address, one in now.items()}
        write_private(paths.last_heard, json.dumps(facts, indent=2).encode() + b"\n")


def _merged(before: Mapping[str, Heard], heard: Mapping[str, Heard], silent: Collection[str]) -> dict[str, Heard]:
    return {**{address: before[address] for address in silent if address in before}, **heard}

"""Whether a reservation that is held already is what somebody asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from monarch_nb import config
from monarch_nb.allocator.supervision.pythons import python_identity
from monarch_nb.client.files.project import holds_home
from monarch_nb.client.pools.facts.amounts import ANY, Amounts
from monarch_nb.client.pools.facts.choosing import Shape
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.errors import ReservationConflict
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.warden.users_file import memory_text


@dataclass(frozen=True)
class Asked:
    """What somebody says of a reservation when he reserves. What he leaves to defaults is None, and never a conflict:
    another kernel, with another python, is to find it again.

    Attributes:
        environment: None takes the asking process's value; whether this is still the ranks' is not looked at.
        directory: where ranks are to start, absolute. files: the project's root, "" for none.
    """

    shape: Shape
    python: str | None = None
    environment: Mapping[str, str | None] | None = None
    preload: Sequence[str] | None = None
    directory: str | None = None
    files: str | None = None
    shared: str | None = None
    amounts: Amounts = ANY


def check_same(held: HeldReservation, asked: Asked) -> None:
    """Make sure that a reservation is what is asked for; of one that is not complete only its shape is known.

    Raises:
        ReservationConflict: it is another one; the message says what it is, and names the ways out.
    """
    differences = [] if held.shape == asked.shape else [f"with {held.shape}"]
    if held.complete:
        differences += _differences(held, asked)
        if len(differences) == 1:
            differences[0] += _way_there(held.shape, asked.shape, held.facts.name)
    if differences:
        raise ReservationConflict(
            f"{held.facts.name!r} is already held {', '.join(differences)}; --replace releases it first (its ranks and "
            "their variables are lost), or choose another name"
        )


def _way_there(held: Shape, asked: Shape, name: str) -> str:
    """Return what makes a reservation have as many nodes as are asked for, where that is what differs."""
    if held == asked or replace(held, nodes=asked.nodes) != asked:
        return ""
    return f" (%mesh {'grow' if asked.nodes > held.nodes else 'shrink'} {name} --nodes {asked.nodes} changes that)"


def shared_storage(held: HeldReservation) -> str:
    """Return the storage that all nodes of a reservation see, or an empty text."""
    return _main(held).environment.get(config.SHARED_VARIABLE, "")


def _main(held: HeldReservation) -> pb.SpawnRequest:
    return held.main.spec if held.main is not None else pb.SpawnRequest()


def _differences(held: HeldReservation, asked: Asked) -> Iterator[str]:
    spec = _main(held)
    if asked.python and python_identity(asked.python) != python_identity(spec.python):
        yield f"with --python {spec.python}"
    if asked.preload is not None and list(asked.preload) != list(spec.preload):
        yield " ".join(["with", *(f"--preload {name}" for name in spec.preload)]) if spec.preload else "without preload"
    for name, value in (asked.environment or {}).items():  # values may be secrets
        if name not in spec.environment:
            if value is not None or name in os.environ:
                yield f"without --env {name}"
        elif value not in (None, spec.environment[name]):
            yield f"with another --env {name}"
    if asked.directory is not None and (start := start_directory(spec)) not in ("", os.path.normpath(asked.directory)):
        yield f"with ranks that start in {start}"
    in_home = not spec.root and asked.files and holds_home(Path(asked.files))  # never copied whole
    if asked.files not in (None, spec.root) and not in_home:
        yield f"with the files of {spec.root}" if spec.root else "without files"
    if asked.shared and asked.shared != (has := shared_storage(held)):
        yield f"with --shared {has}" if has else "without --shared"
    facts, amounts = held.facts, asked.amounts
    if amounts.memory_bytes and amounts.memory_bytes != facts.memory_bytes:
        yield f"with --memory {memory_text(facts.memory_bytes)}" if facts.memory_bytes else "without --memory"
    if amounts.cpus and amounts.cpus != facts.cpus:
        yield f"with --cpus {facts.cpus:g}" if facts.cpus else "without --cpus"


def start_directory(spec: pb.SpawnRequest) -> str:
    """Return where ranks start, on the computer of whoever reserved; an empty text where that is not known."""
    if not spec.in_workspace:
        return os.path.normpath(spec.directory)
    return os.path.normpath(os.path.join(spec.root, spec.directory)) if spec.root else ""

"""Saves of nodes that have no common storage: parts come to this computer, and go to nodes again.

Each node writes its part into a directory of its own, which is removed in the end. Here the parts become one save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monarch_nb.client.saving.asking import SavingMesh
from monarch_nb.errors import MonarchNbError, SaveError
from monarch_nb.worker.saving import places
from monarch_nb.worker.saving.asked import SaveReport
from monarch_nb.worker.saving.manifest import Manifest, damaged, prune

_FILE = "_monarch_nb_file"
_PLACES = "__import__('monarch_nb.worker.saving.places').worker.saving.places"


@contextmanager
def on_nodes(mesh: SavingMesh) -> Iterator[str]:
    """A path that is a directory of its own on each node, once somebody makes it; it is removed in the end."""
    scratch = f"/tmp/monarch-nb-save-{secrets.token_hex(8)}"
    try:
        yield scratch
    finally:
        with contextlib.suppress(MonarchNbError):  # a node is gone, and its files with it
            mesh.one_per_node.run(f"__import__('shutil').rmtree({scratch!r}, True)", want_value=False, sync=False)


def bring(mesh: SavingMesh, scratch: str, directory: Path, keep: int, report: SaveReport) -> SaveReport:
    """Bring the parts of a save here, look whether they are whole, and name the save.

    Raises:
        SaveError: a part did not come as it was written.
        FilesError, NodeUnreachable: as of any fetch.
    """
    hidden = places.begin(directory, secrets.token_hex(6), mesh.id)
    try:
        for node, ranks in mesh.core.by_node(mesh.ranks).items():
            part = hidden / f"node{node}"
            mesh.reservation.fetch(scratch, rank=ranks[0], to=part)
            for file in part.iterdir():
                file.chmod(0o600)
                _sync(file)
                file.rename(hidden / file.name)
            part.rmdir()
        if said := damaged(hidden, Manifest.read(hidden)):
            raise SaveError(f"the save did not come whole: {'; '.join(said)}")
        place = places.commit(hidden)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    removed = prune(directory, keep, by_hand=True)
    return dataclasses.replace(report, path=str(place), removed=tuple(map(str, removed)))


def take(mesh: SavingMesh, scratch: str, save: Path) -> None:
    """Put the files of a save here into a directory on each node."""
    nodes = mesh.one_per_node
    nodes.run(f"{_PLACES}.begin_part(__import__('pathlib').Path({scratch!r}))", want_value=False, sync=False)
    for file in sorted(each for each in save.iterdir() if each.is_file()):
        nodes.push({_FILE: file.read_bytes()})
        path = os.path.join(scratch, file.name)
        nodes.run(f"{_PLACES}.put({path!r}, globals().pop({_FILE!r}))", want_value=False, sync=False)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

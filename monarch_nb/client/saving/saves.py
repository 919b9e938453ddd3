"""What a mesh does with saves: it makes them, loads them, tells which there are, and brings them to this computer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.client.saving.asking import Progress, ask, ask_first, directory_of_saves, names_of, note_directory
from monarch_nb.errors import MonarchNbError, SaveError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.sizes import size
from monarch_nb.worker.saving.asked import (
    KEPT_SAVES,
    LoadReport,
    LoadRequest,
    NamedPart,
    Origin,
    SaveReport,
    SaveRequest,
    near,
)
from monarch_nb.worker.saving.manifest import Manifest, begin, commit, damage, find, found, prune

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation

_FILE = "_monarch_nb_file"
_PLACES = "__import__('monarch_nb.worker.saving.manifest').worker.saving.manifest"


@contextmanager
def on_nodes(mesh: Mesh) -> Iterator[str]:
    """A path that is a directory of its own on each node, once somebody makes it; it is removed in the end."""
    scratch = f"/tmp/monarch-nb-save-{secrets.token_hex(8)}"
    try:
        yield scratch
    finally:
        with contextlib.suppress(MonarchNbError):  # a node is gone, and its files with it
            mesh.one_per_node.run(f"__import__('shutil').rmtree({scratch!r}, True)", want_value=False, sync=False)


def bring_here(mesh: Mesh, scratch: str, directory: Path, keep: int, report: SaveReport) -> SaveReport:
    """Bring the parts of a save here, look whether they are whole, and name the save.

    Raises:
        SaveError: a part did not come as it was written.
        FilesError, NodeUnreachable: as of any fetch.
    """
    hidden = begin(directory, secrets.token_hex(6), mesh.id)
    try:
        for node, ranks in mesh.core.by_node(mesh.ranks).items():
            part = hidden / f"node{node}"
            mesh.reservation.fetch(scratch, rank=ranks[0], to=part)
            for file in part.iterdir():
                file.chmod(0o600)
                _sync(file)
                file.rename(hidden / file.name)
            part.rmdir()
        if damaged := damage(hidden, Manifest.read(hidden)):
            said = "; ".join(f"{name} {why}" for name, why in damaged.items())
            raise SaveError(f"the save did not come whole: {said}")
        place = commit(hidden)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    removed = prune(directory, keep, by_hand=True)
    return dataclasses.replace(report, path=str(place), removed=tuple(map(str, removed)))


def take(mesh: Mesh, scratch: str, save: Path) -> None:
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


DEFAULT_DIRECTORY = "checkpoints"

SAVES_HEADERS = ("save", "when", "of", "ranks", "size", "names")


@dataclass(frozen=True, repr=False)
class SaveInfo:
    """A save that there is.

    Attributes:
        path: of it, on the ranks. saved_at: seconds since the epoch. ranks: how many saved. size_bytes: of its files.
        origin: whose it is. parts: what it has, by name.
    """

    path: str
    saved_at: float
    ranks: int
    size_bytes: int
    origin: Origin
    parts: tuple[NamedPart, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it has."""
        return tuple(part.name for part in self.parts)

    @property
    def when(self) -> str:
        """When it was saved, for people."""
        return datetime.fromtimestamp(self.saved_at).strftime("%Y-%m-%d %H:%M:%S")

    @property
    def way_back(self) -> str:
        """What people type to load it, from where the notebook is."""
        path = near(self.path)
        if actors := self.origin.actors:
            return f"monarch_nb.attach({self.origin.reservation!r}).actors[{actors!r}].load({path!r})"
        return f"%mesh load {path}"

    def row(self) -> tuple[str, ...]:
        """Return what a table says of it, below SAVES_HEADERS."""
        run = f"run {self.origin.run}" if self.origin.run else ""
        step = f"step {self.origin.step:,}" if self.origin.step else ""
        cell = f"In[{self.origin.cell}]" if self.origin.cell else ""
        actors = f"actors {self.origin.actors}" if self.origin.actors else ""
        of = ", ".join(filter(None, [self.origin.reservation, actors, run, step, cell, self.origin.reason]))
        return (near(self.path), self.when, of, str(self.ranks), size(self.size_bytes), ", ".join(self.names))

    def __repr__(self) -> str:
        ranks = counted(self.ranks, "rank")
        return f"{near(self.path)}: {self.when}, {ranks}, {size(self.size_bytes)}: {', '.join(self.names)}"


class SaveInfos(list[SaveInfo]):
    """The saves of a directory, newest first. Printed, they are a table."""

    def __repr__(self) -> str:
        rows = [SAVES_HEADERS, *(info.row() for info in self)] if self else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines) or "no saves"


def save(
    mesh: Mesh,
    directory: str | os.PathLike[str],
    names: Iterable[str] = (),
    *,
    keep: int = KEPT_SAVES,
    background: bool = False,
    bring: bool = False,
    strict: bool = False,
    actors: str = "",
    cell_number: int = 0,
    progress: Progress | None = None,
) -> SaveReport:
    """Save what the ranks hold under names: models, optimizers and whatever else has `state_dict` and
    `load_state_dict`; tensors; plain values and containers of these; random states.

    The save is a new directory in `directory`, an ordinary checkpoint of torch.distributed.checkpoint. It appears
    when it is whole. What is equal on all ranks is written once, shared out over the ranks. No process group is
    used.

    Args:
        directory: a relative one is the notebook's own where the nodes see it, else one of the shared storage.
        names: only these names, or this one. By default all of the cells' names that can be saved.
        keep: how many of the newest saves in `directory` stay.
        background: return when the state is copied in memory; ranks write while the next cells run.
        bring: each node writes its own files, which are brought to `directory` on this computer: for nodes that
            have no common storage.
        strict: refuse where only some ranks have a name. By default these save it, and the report says so.
        actors: the name of actors on these ranks, whose attributes are saved in place of the cells' names.
        cell_number: of the notebook's cell, to be told by `saves`.
        progress: called with the bytes that the first rank has written, and those that it writes in all.

    Returns:
        What was saved, and what was not and why. Printed, it is lines for people.

    Raises:
        SaveError: a name can not be saved, or a rank could not write; earlier saves are whole. Or ranks are busy.
        UsageError: the nodes have no such directory that outlives the reservation.
        RunFailed, RankDead, NodeUnreachable: as for `run`.

    Example:
        >>> mesh.save("checkpoints/a", ["model", "optimizer", "step"])  # doctest: +SKIP
        saved model, optimizer, step of 4 ranks: 1.5 GB in 3.1 s, in checkpoints/a/0001
    """
    if bring and background:
        raise UsageError("what is saved in the background can not be brought here: it is not there yet")
    origin = Origin(mesh.reservation.name, mesh.name, cell=cell_number, actors=actors)

    def save_in(place: str, *, scattered: bool) -> SaveReport:
        request = SaveRequest(place, names_of(names), keep, background, scattered, origin, strict=strict)
        facts = dataclasses.asdict(request)
        return SaveReport.from_facts(ask(mesh, "save", facts, actor=actors, cell_number=cell_number, progress=progress))

    if not bring:
        report = save_in(place := directory_of_saves(mesh.reservation, directory), scattered=False)
        note_directory(place)
        return report
    with on_nodes(mesh) as scratch:
        report = save_in(scratch, scattered=True)
        note_directory(str(here(directory)))
        return bring_here(mesh, scratch, here(directory), keep, report)


def load(
    mesh: Mesh,
    directory: str | os.PathLike[str],
    names: Iterable[str] = (),
    *,
    strict: bool = False,
    bring: bool = False,
    actors: str = "",
    cell_number: int = 0,
) -> LoadReport:
    """Load a save into the objects of the same names, on as many ranks as there are now.

    First all ranks look whether everything fits. If something is missing, or has another shape or type, it is named
    and nothing has changed.

    Args:
        directory: of a save, or of saves, of which the newest is loaded.
        names: only these names, or this one. By default all that were saved.
        bring: the save is on this computer, and the nodes do not see it: they get a copy for the time.
        actors: the name of actors on these ranks, into whose attributes it is loaded.
        strict: also refuse when something would be left out, or when a name is not in the save.

    Returns:
        What was loaded, and what was not and why.

    Raises:
        SaveError: something does not fit, or the save is damaged, or ranks are busy.
        RunFailed, RankDead, NodeUnreachable: as for `run`.

    Example:
        >>> mesh.load("checkpoints/a")  # doctest: +SKIP
        loaded model, step into 2 ranks, saved by 4 ranks: 3.0 GB in 2.0 s, from checkpoints/a/0001
    """

    def load_from(place: str) -> LoadReport:
        request = dataclasses.asdict(LoadRequest(place, names_of(names), strict))
        return LoadReport.from_facts(ask(mesh, "load", request, actor=actors, cell_number=cell_number))

    if not bring:
        return load_from(directory_of_saves(mesh.reservation, directory))
    path = find(here(directory))
    with on_nodes(mesh) as scratch:
        take(mesh, scratch, path)
        return dataclasses.replace(load_from(scratch), path=str(path))


def saves(mesh: Mesh, directory: str | os.PathLike[str] = DEFAULT_DIRECTORY) -> SaveInfos:
    """Return the saves in a directory and in its directories, newest first.

    Args:
        directory: as for `save`. If this computer does not see it, the first rank looks when it is free.

    Example:
        >>> mesh.saves("checkpoints")[0].names  # doctest: +SKIP
        ('model', 'optimizer', 'step')
    """
    path = str(here(directory))
    if not os.path.isdir(path):
        path = directory_of_saves(mesh.reservation, directory)
    if os.path.isdir(path):
        return list_saves(path)
    return SaveInfos(_info(place, summary) for place, summary in ask_first(mesh, f"listed({path!r})"))


def list_saves(directory: str | os.PathLike[str] = DEFAULT_DIRECTORY) -> SaveInfos:
    """Return the saves in a directory of this computer and in its directories, newest first. No reservation is needed.

    Args:
        directory: a relative one begins where this process is.

    Raises:
        UsageError: this computer sees no such directory.

    Example:
        >>> monarch_nb.list_saves("checkpoints")  # doctest: +SKIP
        save                when                 of          ranks  size    names
        checkpoints/a/0002  2026-11-26 21:40:12  dev, run 7  4      1.5 GB  model, optimizer, step
    """
    path = here(directory)
    if not path.is_dir():
        raise UsageError(
            f"this computer sees no directory {path}: name another, or attach to a reservation whose ranks see it"
        )
    return SaveInfos(_info(str(place), manifest.summary()) for place, manifest in found(path))


def here(directory: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a directory on this computer."""
    return Path(os.path.abspath(os.path.expanduser(directory)))


def last_save(reservation: Reservation, name: str, directory: str) -> SaveInfo | None:
    """Return the newest save that a reservation of a name has left in a directory; None if this computer sees none."""
    try:
        path = Path(directory_of_saves(reservation, directory))
    except UsageError:
        path = here(directory)  # what was brought
    infos = list_saves(path) if path.is_dir() else []
    return next((info for info in infos if info.origin.reservation == name), None)


def _info(path: str, summary: Any) -> SaveInfo:
    return SaveInfo(
        path,
        summary["saved_at"],
        summary["ranks"],
        summary["size_bytes"],
        Origin.from_facts(summary["origin"]),
        tuple(NamedPart.from_facts(part) for part in summary["parts"]),
    )

"""What this kernel holds: its reservation, and how a new kernel of the same notebook finds it again.

A notebook is known by its path. The reservation remembers the notebook that made it; what was attached or detached
since is remembered as well (see monarch_nb.client.reservations.memory).
"""

from __future__ import annotations

import builtins
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import reserve_line
from monarch_nb.client.presenting import served_notebook
from monarch_nb.client.reservations.memory import (
    Memory,
    choose,
    choose_unnamed,
    forget,
    memory_of_this_kernel,
    recall,
    remember,
)
from monarch_nb.config import MAIN_MESH, patience
from monarch_nb.errors import MonarchNbError, ReservationNotFound, ReservationReleased, RunNotFound, UsageError
from monarch_nb.ground.code_names import mesh_flag, run_name
from monarch_nb.ground.rank_sets import counted, format_ranks, listed
from monarch_nb.lines.templates import checked_fold, default_fold
from monarch_nb.notebook.syntax.command_line import is_name
from monarch_nb.provision.jobs import job_of_pool, trouble, where_of
from monarch_nb.provision.known import is_known
from monarch_nb.shape import parse_targets

if TYPE_CHECKING:
    from monarch_nb.client.meshes.core import MeshCore
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.infos import EndedReservation, ReservationInfo, RunInfo
    from monarch_nb.client.reservations.lists import Holdings
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.client.runs.run import Run
    from monarch_nb.lines.templates import FoldBy


class KernelNames:
    """Leaves `dev` and `mesh` among the kernel's variables, after `%mesh reserve dev`. A variable of the user's stays
    as it is, but for a handle of what has ended.

    Args:
        namespace: the kernel's variables.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._left: dict[str, Any] = {}

    def leave(self, held: Reservation) -> str:
        """Leave a reservation and its main mesh; return a line about variables of the user's that have their names."""
        taken = []
        values: dict[str, Any] = {held.name: held, "mesh": held.mesh}
        for name, value in values.items():
            if not is_name(name) or hasattr(builtins, name):
                continue
            there: Any = self._namespace.get(name)
            is_handle = type(there) in map(type, values.values())
            if name not in self._namespace or self._is_ours(name) or (is_handle and _has_ended(there)):
                self._namespace[name] = self._left[name] = value
            elif type(there) is not type(value) or there.id != value.id:
                taken.append(name)
        if not taken:
            return ""
        stay = "your variable {} stays" if len(taken) == 1 else "your variables {} stay"
        return f"{stay.format(listed(taken))} as before: monarch_nb.attach({held.full_name!r}) is the reservation"

    def take_away(self) -> None:
        """Take away what is still there."""
        for name in filter(self._is_ours, list(self._left)):
            del self._namespace[name]
        self._left.clear()

    def _is_ours(self, name: str) -> bool:
        return name in self._namespace and name in self._left and self._namespace[name] is self._left[name]


def _has_ended(handle: Any) -> bool:
    """Return whether a Reservation, or that of a Mesh, was released by this process or is known to have ended."""
    core: MeshCore = getattr(handle, "mesh", handle).core
    return core.is_over


T = TypeVar("T")


@dataclass(frozen=True)
class ResumePlan:
    """What `%mesh reserve --resume` said of nodes that the engine takes back.

    Attributes:
        reserve: asks for the same nodes again; `progress` is told what goes on meanwhile.
        directory: of the saves.
        tags: of the cells that are run before the newest save is loaded.
    """

    reserve: Callable[..., Reservation]
    directory: str
    tags: tuple[str, ...]


REATTACH_TIMEOUT_S = patience(5.0)
"""How long `%load_ext` may look for what the notebook held."""
_SEEN = 1000
_NOTHING_YET = "this notebook holds no mesh yet: type %mesh reserve dev --nodes 1 --procs 4 (or --gpus N)"
_MAX_NAMES = 3


class Client(Protocol):
    """The part of the package `monarch_nb` that a session calls."""

    reserve: Callable[..., Reservation]
    attach: Callable[..., Reservation]
    list_reservations: Callable[..., list[ReservationInfo]]
    list_everywhere: Callable[..., Holdings]
    list_ended: Callable[..., list[EndedReservation]]


class Session:
    """What a kernel holds.

    Attributes:
        notebook: the notebook's path, if it can be known.
        reservation: the current one, or None.
        runs: runs that go on and that this kernel follows, by id.
        seen: ids of the newest runs that this kernel has shown to the end (allocators learn that a moment later), or
            has named as finished unseen.
        fold, show: how its cells show output (`%mesh fold`, `%mesh show`); None and "" where nothing was said.
        resume: how a cell goes on whose nodes the engine took back; None: it does not.
        show_time: shows below the last cell that the time of the reservation is nearly up, or was; False if it can not.

    Args:
        leave_names: leaves what is held among the kernel's variables; returns what is to be said of variables of the
            user's that have its names.
    """

    def __init__(
        self, client: Client, notebook: str | None = None, leave_names: Callable[[Reservation], str] = lambda _: ""
    ) -> None:
        self.client = client
        self.notebook = notebook
        self._leave_names, self._not_left = leave_names, ""
        self._said_of_names: set[str] = set()
        self.reservation: Reservation | None = None
        self.pool: str | None = None
        self.runs: dict[str, Run] = {}
        self.seen: deque[str] = deque(maxlen=_SEEN)
        self.show_time: Callable[[str], bool] = lambda _: False
        self.reattached_in: int | None = None
        """The execution count of the cell whose `%load_ext` said what it is attached to."""
        self.fold: FoldBy | None = None
        self.show = ""
        self.resume: ResumePlan | None = None
        self._unsaid, self._is_job, self._where = "", False, ""
        self._absence, self._released, self._released_at = _NOTHING_YET, "", 0.0

    @property
    def last_name(self) -> str:
        """The name of the current reservation, else of the one that this notebook held last and that has ended; empty
        where nothing is left of it."""
        return self.reservation.name if self.reservation is not None else self._released

    @property
    def directory(self) -> str:
        """The notebook's directory: the kernel's where the notebook is not known."""
        from monarch_nb.client.reservations.taking import working_directory

        return working_directory(None, self.notebook)

    def hold(self, reservation: Reservation, pool: str | None = None) -> None:
        """Make `reservation` the current one, for later kernels of this notebook too. One whose nodes came as a job
        is in a pool that nobody has named."""
        self._is_job = job_of_pool(reservation.pool) is not None
        if self._is_job:
            pool = reservation.pool
        if self.reservation is not None and self.reservation is not reservation:
            self.reservation.detach()
        if self.reservation is not reservation:
            self.resume = None
            memory = recall(self.notebook)
            same = memory if memory is not None and memory.reservation_id == reservation.id else None
            self.fold, self.show = (checked_fold(same.fold), same.show) if same else (None, "")
        self.reservation, self.pool = reservation, pool
        self._where = where_of(reservation.pool)  # which is not known any more when a job has ended
        self._not_left = self._leave_names(reservation)
        reservation.add_time_listener(lambda text: self._on_time(reservation.id, text))
        self._remember()

    def look(self, *, fold: FoldBy | Literal["default"] | None = None, show: str | None = None) -> None:
        """Change how cells show output from now on, also those of later kernels of this notebook.

        Args:
            fold: in what lines of one row may differ; None to leave it as it is.
            show: whose output is shown, as `-t` takes it; "all" for everybody's, None to leave it as it is.
        """
        if fold is not None:
            self.fold = None if fold == "default" else fold
        if show is not None:
            self.show = "" if show == "all" else show
        self._remember()

    def _remember(self) -> None:
        if self.notebook and self.reservation is not None:
            fold = self.fold or ""
            remember(memory_of_this_kernel(self.notebook, self.reservation.id, self.pool, fold=fold, show=self.show))

    def detach(self) -> None:
        """Hold nothing any more, also in later kernels of this notebook; the reservation goes on."""
        self._let_go()
        self._absence, self._released = _NOTHING_YET, ""
        if self.notebook:
            remember(memory_of_this_kernel(self.notebook, ""))

    def released(self) -> None:
        """The current reservation is gone; so is the pool of one whose nodes came as a job."""
        if (gone := self.reservation) is not None:
            self._released = "" if self._is_job else gone.name  # whose nodes have what it printed
            self._released_at = time.time()
            anew = reserve_line(gone.name, Shape(gone.nodes, gone.procs, gone.gpus), self._where)
            self._absence = f"{gone.name} was released: type {anew} for a new one"
        self._let_go()
        if self._is_job:
            self.pool, self._is_job = None, False
        if self.notebook:
            forget(self.notebook)

    def _on_time(self, reservation_id: str, text: str) -> None:
        if self.reservation is not None and self.reservation.id == reservation_id:
            self._unsaid = "" if self.show_time(text) else text

    def take_unsaid(self) -> str:
        """Return what is to be said about the time of the reservation and could not be shown below a cell."""
        text, self._unsaid = self._unsaid, ""
        return text

    def take_not_left(self) -> str:
        """Return what is to be said of variables of the user's that have the names of what is held, the first time."""
        text = "" if self._not_left in self._said_of_names else self._not_left
        self._said_of_names.add(text)
        return text

    @property
    def has_ended(self) -> bool:
        """Whether the current reservation is known to have ended: what is unsaid is that."""
        return self.reservation is not None and self.reservation.mesh.core.is_over

    def end_is_said(self, name: str) -> None:
        """The command that runs says itself that a reservation has ended: then it is not said once more."""
        if self.has_ended and self.reservation is not None and self.reservation.name == name:
            self._unsaid = ""

    def _let_go(self) -> None:
        if self.reservation is not None:
            self.reservation.detach()
        self.reservation, self._unsaid, self.resume = None, "", None
        self.runs.clear()

    def current(self) -> Reservation:
        """Return the current reservation.

        Raises:
            UsageError: there is none; the message says what to type.
        """
        if self.reservation is None and self._is_held_anew():
            raise UsageError(f"{self._released} was released, and is held anew: %mesh attach {self._released} uses it")
        if self.reservation is None:
            raise UsageError(f"{self._absence},\nor %mesh attach NAME for one that is held (%mesh list shows them)")
        return self.reservation

    def _is_held_anew(self) -> bool:
        """Whether there is another of that name now: another notebook has reserved it."""
        with suppress(MonarchNbError):  # its pool is gone, or does not answer
            return bool(self._released) and self._released in self.names()
        return False

    def mesh(self, targets: str | None = None, name: str | None = None, *, of: Reservation | None = None) -> Mesh:
        """Return a mesh of a reservation (by default the current one), the main one if none is named, or its part that
        `targets` names.

        Raises:
            UsageError: nothing is held.
            NoSuchMesh: it has no mesh of that name.
            TargetError: the targets can not be read, or name ranks that it does not have.
        """
        held = of or self.current()
        mesh = held.mesh if name in (None, MAIN_MESH) else held.meshes[name]
        return mesh if targets is None else mesh.select(parse_targets(targets, mesh.extent))

    def mesh_that_printed(
        self, targets: str | None = None, name: str | None = None, *, of: Reservation | None = None
    ) -> Mesh:
        """Return the same mesh for what its ranks printed.

        Raises:
            ReservationReleased: this notebook has released it; besides as `mesh`.
        """
        if self._released and self.reservation is None and of is None:
            raise ReservationReleased(self._absence, self._released, ended_at=self._released_at)
        return self.mesh(targets, name, of=of)

    def folds_by(self, ranks: int) -> FoldBy:
        """Return in what lines of one row may differ: as `%mesh fold` says, else the project, else by so many ranks."""
        from monarch_nb.client.files.project import find_root, read_settings

        project = read_settings(find_root(Path(self.directory)))
        return self.fold or project.fold or default_fold(ranks)

    def shown_ranks(self, mesh: Mesh, show: str | None = None) -> tuple[int, ...] | None:
        """Return the ranks whose output is shown, of those of a run; None for all, also where the run has none of them.

        Args:
            show: as `-t` takes it; None for what `%mesh show` says.

        Raises:
            TargetError: it can not be read, or names ranks that the mesh does not have.
        """
        show = show or self.show
        if show in ("", "all"):
            return None
        chosen = frozenset(parse_targets(show, mesh.extent))
        return tuple(rank for rank in mesh.ranks if rank in chosen) or None

    def open_runs(self, mesh: Mesh | None = None) -> list[RunInfo]:
        """Return the runs of a mesh, or of all, that go on or that nobody has seen, of each mesh oldest first."""
        return _open_runs([mesh] if mesh else self.current().meshes.now(), self.seen)

    def run_numbered(self, number: int, mesh_name: str | None = None) -> RunInfo:
        """Return a run of a mesh, also one that was shown to the end.

        Raises:
            RunNotFound: no such run is remembered.
        """
        mesh = self.mesh(name=mesh_name)
        for info in mesh.past_runs():
            if info.number == number:
                return info
        logs = f"%mesh logs{mesh.flag} --run {number}"
        raise RunNotFound(f"run {number} can not be shown here: {logs} has what it printed, if it ran")

    def last_cell(self, mesh: Mesh | None = None) -> RunInfo | None:
        """Return the newest run of a cell of this notebook, on a mesh or any, also one that was shown to the end."""
        past = [info for one in ([mesh] if mesh else self.current().meshes.now()) for info in one.past_runs()]
        runs = [info for info in past if info.cell_number and is_own(info, self.notebook)]
        return max(runs, key=lambda info: info.submitted_at, default=None)

    def finished(self, run: Run) -> None:
        """A run was shown to the end."""
        self.seen.append(run.id)
        self.runs.pop(run.id, None)
        run.collected()

    def names(self, pool: str | None = None) -> list[str]:
        """Return the names of the owner's reservations in a pool; None for the one that was used last."""
        return sorted(info.name for info in self.client.list_reservations(pool or self.pool) if info.held_by_me)

    def attach(self, name: str | None, pool: str | None = None) -> Reservation:
        """Make a reservation the current one: `name`, else this notebook's, else the only one that the owner holds.

        Args:
            pool: that it is in; None for the one that was used last.

        Raises:
            ReservationNotFound: there is none, or several and no way to choose; the message lists them.
        """
        if name is None and self.reservation is not None and pool is None:
            name = self.reservation.full_name
        pool = pool or self.pool
        if name is None:
            infos = self.client.list_reservations(pool)
            mine = [info for info in infos if info.held_by_me]
            found = self._choose(infos, recall(self.notebook)) or (mine[0] if len(mine) == 1 else None)
            if found is None:
                raise ReservationNotFound(_nothing_to_attach(mine))
            name = found.full_name
        reservation = self.client.attach(name, pool=pool)
        self.hold(reservation, pool)
        return reservation

    def what_became(self, before: Reservation) -> str:
        """Return what to say of the reservation that was the current one: that it stays held, or how it has ended."""
        with suppress(MonarchNbError):  # its pool is gone, or does not answer
            for ended in self.client.list_ended(before.pool):
                if ended.reservation_id == before.id:
                    self._unsaid = ""
                    return f"{ended}, and %mesh logs {before.full_name} shows what it printed"
        return f"{before.full_name} stays held: %mesh attach {before.full_name} goes back"

    def reattach(self) -> str:
        """Find what this notebook held before its kernel was restarted; never fails, never takes long.

        Returns:
            One line to show, or an empty text when there is nothing to say.
        """
        try:
            memory = recall(self.notebook)
            if memory and memory.pool and not is_known(memory.pool):  # it was ended since, with what was held in it
                forget(memory.notebook)
                memory = None
            self.pool = memory.pool if memory else None
            infos = self.client.list_reservations  # imports gRPC, whose time is not the pool's
            reservation, line = bounded(lambda: self._find(infos(self.pool), memory), REATTACH_TIMEOUT_S)
        except TimeoutError:
            return "the pool does not answer yet: %mesh attach tries again"
        except MonarchNbError as error:
            return f"nothing attached: {error}"
        if reservation is not None:
            self.hold(reservation, self.pool)
        return line

    def _find(self, infos: list[ReservationInfo], memory: Memory | None) -> tuple[Reservation | None, str]:
        found = self._choose(infos, memory)
        if found is None and memory is not None and memory.reservation_id and (said := trouble(self.pool or "")):
            return None, f"nothing attached: {said}"
        if found is None and memory is not None and memory.reservation_id and (silent := _silent_nodes(self.pool)):
            do = "does" if len(silent) == 1 else "do"
            return None, f"nothing attached: {listed(silent)} {do} not answer; %mesh attach tries again"
        if found is None:
            if memory is not None and memory.reservation_id:
                forget(memory.notebook)
                for ended in self.client.list_ended(self.pool):
                    if ended.reservation_id == memory.reservation_id:
                        anew = f"%mesh reserve {ended.reserve}"
                        self._released, self._released_at = ended.name, ended.ended_at
                        self._absence = f"{ended}: type {anew} for a new one"
                        return None, f"{ended}: {anew} takes nodes again"
            return None, _held_line(sorted(info.name for info in infos if info.held_by_me))
        reservation = self.client.attach(found.full_name, pool=self.pool)
        followed, others = divided(_open_runs(reservation.meshes.now(), self.seen), self.notebook)
        return reservation, attached_line(reservation, followed, others)

    def _choose(self, infos: Sequence[ReservationInfo], memory: Memory | None) -> ReservationInfo | None:
        return choose(infos, self.notebook, memory) if self.notebook else choose_unnamed(infos, os.getcwd())


def _silent_nodes(pool: str | None) -> list[str]:
    """Return the nodes of a pool that did not answer when all were asked last."""
    from monarch_nb.client.pools.pool import pool_named

    return pool_named(pool).silent


def notebook_path(namespace: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the path of the notebook that this kernel serves: as Jupyter says it, or as VS Code does."""
    for path in (environment.get("JPY_SESSION_NAME"), namespace.get("__vsc_ipynb_file__")):
        if isinstance(path, str) and path:
            return os.path.abspath(path)
    return None


def divided(runs: Sequence[RunInfo], notebook: str | None) -> tuple[list[RunInfo], list[RunInfo]]:
    """Return the open runs that `%mesh attach` shows: what goes on, and what has finished of this notebook (else the
    newest); and those that it only names: what scripts and other notebooks left, which may be a lot."""
    followed = [info for info in runs if not info.done or is_own(info, notebook)] or list(runs[-1:])
    return followed, [info for info in runs if info not in followed]


def is_own(info: RunInfo, notebook: str | None) -> bool:
    """Whether a run comes from a notebook; from one of those whose path nobody knows if this is one."""
    return info.notebook == notebook if notebook else not info.notebook and bool(info.cell_number)


def unseen_line(runs: Sequence[RunInfo]) -> str:
    """Return what to say of finished runs that nobody has seen, a line for each mesh.

    Example:
        runs 18-33 finished and nobody has seen them: %mesh attach --run N shows one
    """
    by_mesh: dict[str, list[RunInfo]] = {}
    for info in runs:
        by_mesh.setdefault(info.mesh, []).append(info)
    return "\n".join(_unseen_on(mesh, of_mesh) for mesh, of_mesh in by_mesh.items())


def _unseen_on(mesh: str, runs: Sequence[RunInfo]) -> str:
    shows = f"%mesh attach{mesh_flag(mesh)} --run"
    if len(runs) == 1:
        return f"{runs[0]} finished and nobody has seen it: {shows} {runs[0].number} shows it"
    numbers = format_ranks(info.number for info in runs) + (f" on {mesh}" if mesh else "")
    return f"runs {numbers} finished and nobody has seen them: {shows} N shows one"


def attached_line(reservation: Reservation, runs: Sequence[RunInfo] = (), others: Sequence[RunInfo] = ()) -> str:
    """Return one calm line that says what is alive.

    Args:
        runs: those that `%mesh attach` shows; it names them.
        others: those that it only names.

    Example:
        attached to dev: 2 nodes × 4 procs, 8 ranks alive, run 46, cell [7] still running: %mesh attach follows it,
        %mesh interrupt stops it
    """
    main, *beside = reservation.meshes.now()
    ranks = main.status()
    alive = sum(rank.is_alive for rank in ranks)
    count = counted(alive, "rank") if alive == len(ranks) else f"{alive} of {len(ranks)} ranks"
    line = f"attached to {called(reservation)}: {shape(reservation)}, {count} alive"
    if beside:
        line += f", and beside {main.name} {', '.join(mesh.name for mesh in beside)}"
        ranks = [*ranks, *(rank for mesh in beside for rank in mesh.status())]
    if away := sorted({rank.absence for rank in ranks if rank.state == "unreachable"}):
        line = "; ".join([line, *away])
    if going := [run for run in runs if not run.done]:
        them = "it" if len(going) == 1 else "them"
        stops = f", %mesh interrupt stops {them}" if reservation.is_mine else ""
        line = f"{line}, {_names(going)} still running: %mesh attach follows {them}{stops}"
    elif runs:
        line = f"{line}, {_names(runs)} finished meanwhile: %mesh attach shows {'it' if len(runs) == 1 else 'them'}"
    if others and not going:
        line = f"{line}; {unseen_line(others)}"
    return "\n".join([line, *other_notebooks(reservation.status(memory=False))])


def other_notebooks(held: ReservationInfo) -> list[str]:
    """Return a line about the other notebooks that use a reservation now, if some do."""
    others = [path for path in held.attached if path != served_notebook()]
    if not others:
        return []
    names, use = listed([os.path.basename(path) for path in others]), "uses" if len(others) == 1 else "use"
    return [f"{names} {use} {held.name}, too: cells wait for each other, and variables are shared"]


def called(reservation: Reservation) -> str:
    """Return "dev", or "dev of alice" when she shares it with us."""
    return reservation.name if reservation.is_mine else f"{reservation.name} of {reservation.owner}"


def mesh_called(mesh: Mesh) -> str:
    """Return "dev", or "dev/judges" of a mesh beside the main one."""
    return f"{mesh.reservation.name}/{mesh.name}" if mesh.flag else mesh.reservation.name


def shape(held: Reservation | ReservationInfo) -> str:
    """Return "2 nodes × 4 procs"."""
    per_node = counted(held.gpus or held.procs, "gpu" if held.gpus else "proc")
    return f"{counted(held.nodes, 'node')} × {per_node}"


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """Return what `call` returns, or raise what it raises, within `timeout_s`.

    Raises:
        TimeoutError: it takes longer; it goes on in its thread and its outcome is dropped.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, name="monarch_nb reattach", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return results[0]


def _open_runs(meshes: Iterable[Mesh], seen: Container[str]) -> list[RunInfo]:
    runs = [info for mesh in meshes for info in mesh.runs()]
    return [info for info in runs if not info.done or not (info.collected or info.run_id in seen)]


def _names(runs: Sequence[RunInfo]) -> str:
    if len(runs) > _MAX_NAMES and not any(run.mesh for run in runs):
        return f"runs {format_ranks(run.number for run in runs)}"
    return "; ".join(run_name(run.number, run.cell_number, owner=run.owner, mesh=run.mesh) for run in runs)


def _held_line(names: Sequence[str]) -> str:
    if not names:
        return ""
    one = f"{names[0]} uses it" if len(names) == 1 else "NAME uses one of them"
    return f"you hold {', '.join(names)}: %mesh attach {one} here"


def _nothing_to_attach(mine: Sequence[ReservationInfo]) -> str:
    if not mine:
        return "you hold no reservation: %mesh reserve NAME --nodes 1 --procs 4 makes one"
    names = ", ".join(sorted(info.name for info in mine))
    return f"you hold {names}: say which, as in %mesh attach {mine[0].name}"

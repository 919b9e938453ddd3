"""Meshes: named sets of live ranks, and parts of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb.actor.engine.outside import Address
from monarch_nb.actor.hosts import ProcMesh
from monarch_nb.client.comparing.compares import diff
from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.instruments.asked import Instruments, checked, packed
from monarch_nb.client.instruments.flames import flames_of
from monarch_nb.client.instruments.memory import memory, memory_of
from monarch_nb.client.instruments.profiles import found_in, memory_history_of, profile_of
from monarch_nb.client.instruments.top import top
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.interrupt import Part, interrupt_parts
from monarch_nb.client.meshes.looking import (
    attach_run,
    check_nodes,
    complete,
    inspect,
    past_runs,
    restart,
    running,
    runs,
    stacks,
    status,
    unfinished,
    where,
)
from monarch_nb.client.meshes.printed import log_batches, logs, metrics, numbers, plot
from monarch_nb.client.meshes.scaling import end_groups, scale
from monarch_nb.client.meshes.scripts import run_program, run_script, start_script, submit_script
from monarch_nb.client.presenting import panel_of
from monarch_nb.client.runs.calls_run import CallsRun, this_client
from monarch_nb.client.runs.interrupting import InterruptReport
from monarch_nb.client.runs.packing import pack_variables
from monarch_nb.client.runs.results import policy
from monarch_nb.client.runs.run import Listener, OnError, Run
from monarch_nb.client.saving.autosaves import autosave, autosave_off, autosave_status, save_now
from monarch_nb.client.saving.saves import load, save, saves
from monarch_nb.config import MAIN_MESH, OnBreakpoint
from monarch_nb.errors import MonarchNbError, RunFailed, TargetError
from monarch_nb.ground.code_names import mesh_flag
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2
from monarch_nb.shape import Extent

if TYPE_CHECKING:
    from monarch_nb.client.reservations.reservation import Reservation

TITLE_CHARACTERS = 60
_TEXT = re.compile(r"""^(['"]{1,3})([^'"]+)\1?$""")


class Mesh:
    """A named set of live ranks, or a part of one. `Reservation.mesh` is the main one.

    Attributes:
        id, name: of the mesh.
        reservation: the reservation that it belongs to.

    Example:
        >>> mesh = dev.mesh  # doctest: +SKIP
        >>> mesh.extent.size, mesh.select([0, 5]).ranks  # doctest: +SKIP
        (8, (0, 5))
        >>> mesh.slice(hosts=0).run("rank").values  # doctest: +SKIP
        [0, 1, 2, 3]
        >>> judges = mesh.procs.spawn("judges", Counter)  # doctest: +SKIP
        >>> run = mesh.submit("import time; time.sleep(60)")  # doctest: +SKIP
        >>> print(mesh.runs()[0], mesh.stacks())  # doctest: +SKIP
        >>> print(mesh.interrupt())  # doctest: +SKIP
        >>> mesh.select([7]).restart()  # doctest: +SKIP
        >>> [info.state for info in mesh.status()]  # doctest: +SKIP
        ['idle', 'idle', 'idle', 'idle', 'idle', 'idle', 'idle', 'idle']
        >>> mesh.past_runs()[-1].title  # doctest: +SKIP
        'import time; time.sleep(60)'
        >>> mesh.end_groups()  # or dist.destroy_process_group() on all ranks  # doctest: +SKIP
    """

    def __init__(
        self,
        mesh_id: str,
        name: str,
        extent: Extent,
        reservation: Reservation,
        connections: dict[int, Connection],
        dead: Mapping[int, str] | None = None,
    ) -> None:
        self.id, self.name, self.reservation = mesh_id, name, reservation
        self._part: tuple[int, ...] | None = None
        self.core = MeshCore.get(mesh_id, connections, extent)
        self.core.belongs_to(reservation)
        if dead is not None:
            self.core.dead = dict(dead)

    @property
    def extent(self) -> Extent:
        """The labelled shape of the whole mesh, such as `{"hosts": 2, "procs": 4}`. A part has that shape too."""
        return self.core.extent

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of this mesh or part, in order."""
        return self.core.ranks if self._part is None else self._part

    def __repr__(self) -> str:
        part = "" if len(self.ranks) == self.extent.size else f", {name_ranks(self.ranks)}"
        return f"<Mesh {self.reservation.name}/{self.name}: {self.extent}{part}>"

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def flag(self) -> str:
        """The flag that chooses it on a line of `%mesh`, after a blank: " --mesh judges". Empty for the main mesh."""
        return mesh_flag("" if self.name == MAIN_MESH else self.name)

    def panel(self) -> Any:
        """Return its live panel for the output of a notebook's cell: ranks, runs, logs, restart and release.

        Raises:
            UsageError: this is no notebook, or the notebook has not loaded the extension.

        Example:
            >>> mesh.panel()  # the last line of a cell  # doctest: +SKIP
        """
        return panel_of(self)

    # ---- parts ----

    def slice(self, **dimensions: int | slice) -> Mesh:
        """Return the part with the given coordinates.

        Args:
            dimensions: for each dimension a coordinate or a slice; a dimension that you do not name is taken whole.

        Raises:
            TargetError: the mesh has no such dimension or coordinate.

        Example:
            >>> mesh.slice(hosts=0, procs=slice(0, 2)).ranks  # doctest: +SKIP
            (0, 1)
        """
        return self.select(self.extent.ranks(**dimensions))

    def select(self, ranks: int | Iterable[int]) -> Mesh:
        """Return the part of exactly these ranks.

        Args:
            ranks: a rank, or several.

        Raises:
            TargetError: a rank is not in this mesh, or there is none.
        """
        chosen = (ranks,) if isinstance(ranks, int) else tuple(sorted(set(ranks)))
        if missing := [rank for rank in chosen if rank not in self.ranks]:
            raise TargetError(f"{name_ranks(missing)} not in {self!r}")
        if not chosen:
            raise TargetError(f"no rank chosen of {self!r}: name one at least, as in -t 0")
        part = copy.copy(self)
        part._part = chosen
        return part

    @property
    def one_per_node(self) -> Mesh:
        """The part of its first rank on each node, for work that each node does once."""
        return self.select(ranks[0] for ranks in self.core.by_node(self.ranks).values())

    # ---- runs ----

    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        on_error: OnError = "free",
        cell_number: int = 0,
        want_value: bool = True,
        sync: bool = True,
        on_breakpoint: OnBreakpoint | None = None,
        instruments: Instruments | None = None,
        listener: Listener | None = None,
    ) -> Run:
        """Run code on the ranks and wait until all have finished. Ctrl-C interrupts the ranks; they keep their memory.

        Args:
            code: Python, as in a cell: IPython's magics and top-level `await` work.
            timeout_s: stop waiting after this time; the run goes on.
            on_error: what becomes of the other ranks when a rank fails. "free" frees them once all of them have waited
                some seconds for it in a collective, which it can never join; else they finish. "wait" lets them wait.
                "abort" interrupts them half a second later, whatever they do.
            cell_number: tracebacks show it as `Cell In[…]`. Without it they show `Run …`, the number of the run.
            want_value: bring the values of the last expression back.
            sync: first copy changed files to nodes that have copies of your files.
            on_breakpoint: what `breakpoint()` does on a rank: "stop" (`monarch-nb debug` and `%mesh debug` answer),
                "go-on" or "error". By default it stops if this process has a keyboard.
            instruments: what looks inside meanwhile: options by name (docs/inside.md).
            listener: called with the run's events on a background thread.

        Returns:
            The finished run. `run.values` has one value per rank.

        Raises:
            RunFailed: the code failed on some ranks.
            RankDead: a rank of this mesh is dead, and nothing was run.
            NodeUnreachable: a node of this mesh does not answer.
            TimeoutError: the run goes on after `timeout_s`.
            FilesError: a node could not take the changed files.

        Example:
            >>> mesh.run("x = rank * 2\\nx").values  # doctest: +SKIP
            [0, 2, 4, 6]
        """
        if sync:
            self._sync()
        with at_waits():  # who presses Ctrl-C from here on interrupts the ranks
            run = self.submit(
                code,
                on_error=on_error,
                cell_number=cell_number,
                want_value=want_value,
                sync=False,
                on_breakpoint=on_breakpoint,
                instruments=instruments,
                listener=listener,
            )
            is_done = run.join(timeout_s)
        return run.ended(is_done, timeout_s)

    def submit(
        self,
        code: str,
        *,
        on_error: OnError = "free",
        cell_number: int = 0,
        want_value: bool = True,
        sync: bool = True,
        on_breakpoint: OnBreakpoint | None = None,
        own_world: bool = False,
        instruments: Instruments | None = None,
        listener: Listener | None = None,
        secret: Mapping[str, Any] | None = None,
    ) -> Run:
        """Like `run`, but return at once.

        Args:
            own_world: while the code runs, these ranks alone are the world, and begin without process groups.
            secret: what the ranks are told beside the code, which tracebacks show.

        Example:
            >>> run = mesh.submit("train()")  # doctest: +SKIP
            >>> run.result(timeout_s=60)  # doctest: +SKIP
        """
        if sync:
            self._sync()
        cell = run_pb2.Cell(code=code, cell_number=cell_number, want_value=want_value)
        ranks = self.ranks if len(self.ranks) < self.extent.size else ()
        spec = run_pb2.RunSpec(cell=cell, ranks=ranks, tree=self.reservation.files.tree(), own_world=own_world)
        spec.on_breakpoint = policy(on_breakpoint)
        spec.instruments.update(packed(checked(instruments, self.ranks)))
        spec.secret = json.dumps(secret) if secret else ""
        return self._start(spec, _title(code), on_error, listener)

    # ---- actors ----

    @property
    def addresses(self) -> list[Address]:
        """The addresses at which its ranks take messages."""
        nodes = self.core.connections
        return [
            Address(nodes[rank // self.core.ranks_per_node].node_address, f"{self.id}/{rank}") for rank in self.ranks
        ]

    @property
    def procs(self) -> ProcMesh:
        """Its ranks as a monarch_nb.actor.ProcMesh, in which you spawn actors. A slice keeps the shape of the mesh. Any
        other part is a row, as in `{"ranks": 3}`."""
        return ProcMesh.of(self.name, self.extent.part_of(self.ranks), self.addresses)

    def spawn(self, name: str, Class: type[Any], *arguments: Any, **named: Any) -> Any:
        """Make an actor on each rank, without waiting for it.

        Actors that this program spawned here under the same name end first. Actors end with the mesh, not with this
        kernel.

        Args:
            name: of the actors, by which `reservation.actors[name]` finds them again.
            Class: a subclass of monarch_nb.actor.Actor. arguments, named: those of its `__init__`.

        Returns:
            The actors: a monarch_nb.actor.ActorMesh with the endpoints of the class.

        Raises:
            TypeError: the arguments are wrong, or one can not be pickled. Nothing was sent.
            ValueError: the class is no Actor, or mixes sync and async endpoints.

        Example:
            >>> trainers = mesh.spawn("trainers", Trainer, lr=3e-4)  # doctest: +SKIP
            >>> losses = trainers.step.call(10).get()  # doctest: +SKIP
        """
        return self.procs.spawn(name, Class, *arguments, **named)

    def open_calls(self, title: str, *, cell_number: int = 0, listener: Listener | None = None) -> CallsRun:
        """Open a run of calls on all living ranks of the mesh. Its output is what actors print in its name. The caller
        ends it (`CallsRun.end`).

        Args:
            title: the first call, for people.
        """
        alive = [rank for rank in range(self.extent.size) if rank not in self.core.dead]
        run_id = uuid.uuid4().hex
        calls = run_pb2.Calls(cell_number=cell_number, client=this_client())
        run = CallsRun(self, run_id, alive, title, cell_number=cell_number, listener=listener)
        self.core.add(run)
        post(run.submit, run_pb2.RunSpec(run_id=run_id, calls=calls))
        return run

    # ---- runs, from within ----

    def _sync(self, *, alive: bool = True) -> None:
        files = self.reservation.files
        if files.copies:
            if alive:
                self._check_alive()
            else:
                self._check_nodes()
            files.sync(partial(self.core.node_names, self.ranks))

    def _start(
        self, spec: run_pb2.RunSpec, title: str, on_error: OnError = "free", listener: Listener | None = None
    ) -> Run:
        self._check_alive()
        spec.run_id = uuid.uuid4().hex
        run = self.core.runs[spec.run_id] = Run(
            self,
            spec.run_id,
            self.ranks,
            title,
            on_error=on_error,
            cell_number=spec.cell.cell_number,
            listener=listener,
        )
        run.has_own_world = spec.own_world
        post(run.submit, spec)
        return run

    def _check_nodes(self) -> None:
        if not self.core.is_up(self.ranks):
            check_nodes(self)

    def _check_alive(self) -> None:
        self._check_nodes()
        if not self.core.dead or self.core.dead.keys().isdisjoint(self.ranks):
            return
        call(self.core.status())  # somebody else may have restarted it
        if dead := [rank for rank in self.ranks if rank in self.core.dead]:
            raise self.core.death_of(dead, self._alive(), self.flag)

    def push(self, variables: Mapping[str, Any]) -> None:
        """Set variables on every rank. One copy travels to each node, and the node's ranks share large arrays.

        Args:
            variables: the values, by name.

        Raises:
            PickleError: a value can not be pickled. The message names it.
            RunFailed: a value could not be unpickled on some ranks.

        Example:
            >>> mesh.push({"lr": 3e-4})  # doctest: +SKIP
        """
        self._check_alive()
        pieces = pack_variables(dict(variables))
        blob = uuid.uuid4().hex
        call(self._put(blob, pieces))
        spec = run_pb2.RunSpec(push=run_pb2.Push(blob=blob))
        self._finish_quietly(spec, f"push {', '.join(variables)}")

    async def _put(self, blob: str, pieces: list[bytes | memoryview]) -> None:
        nodes = [self.core.connection_of(ranks[0]) for ranks in self.core.by_node(self.ranks).values()]
        await asyncio.gather(*(node.put_blob(self.id, blob, pieces) for node in nodes))

    def pull(self, expression: str) -> list[Any]:
        """Return the value of an expression on every rank.

        Args:
            expression: a variable's name, or any expression.

        Returns:
            The values, by rank.

        Raises:
            RunFailed: it can not be evaluated on some ranks. `run.values` of the error has the other values.
            PickleError: a value can not be pickled. The message names it, and `run.kept_values` has the other values.

        Example:
            >>> mesh.pull("rank * 2")  # doctest: +SKIP
            [0, 2, 4, 6]
        """
        spec = run_pb2.RunSpec(pull=run_pb2.Pull(expression=expression))
        return self._finish_quietly(spec, f"pull {expression}")

    def _finish_quietly(self, spec: run_pb2.RunSpec, title: str) -> list[Any]:
        spec.on_breakpoint = policy("go-on")
        with at_waits():
            run = self._start(spec, title)
            run.join()
        try:
            return run.result()
        except RunFailed as failed:
            failed.is_held = False  # the message says it all: it was one expression, and no code of a cell
            raise

    def interrupt(self, kill_stuck: bool = False) -> InterruptReport:
        """Interrupt the runs on these ranks, whoever submitted them, and drop the runs that wait for these ranks.

        Ranks keep their memory. Runs that you submit from now on are not touched. Actors on these ranks are interrupted
        too, and their waiting messages are dropped. Monarch's own actors go on. On the whole main mesh, all meshes of
        the reservation are interrupted. On a mesh that somebody shares with you, only your own runs are interrupted.

        Args:
            kill_stuck: kill and restart the ranks that did not stop at the last interrupt.

        Returns:
            The ranks of each stopped run, and the dropped runs; `str` of it is the text of `%mesh interrupt`.
        """
        is_ours = self.reservation.owner == self.core.me
        parts = [Part(self.core, self.ranks, list(self.running()), self.name, is_ours=is_ours)]
        if self.name == MAIN_MESH and len(self.ranks) == self.extent.size:
            with contextlib.suppress(MonarchNbError):  # a node does not answer: then its meshes do not, either
                beside = [each for each in call(self.reservation.all_meshes()) if each.id != self.id]
                parts += [
                    Part(one.core, one.ranks, list(one.running()), one.name, f" of {one.name}", is_ours)
                    for one in beside
                ]
        return interrupt_parts(parts, kill_stuck=kill_stuck)

    def _alive(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.core.dead]

    # ---- each in the file of its subject ----

    running = running
    unfinished = unfinished
    runs = runs
    past_runs = past_runs
    attach_run = attach_run

    restart = restart
    status = status
    where = where
    stacks = stacks
    complete = complete
    inspect = inspect

    run_script = run_script
    run_program = run_program
    submit_script = submit_script
    start_script = start_script

    scale = scale
    end_groups = end_groups

    logs = logs
    log_batches = log_batches
    metrics = metrics
    plot = plot
    numbers = numbers

    diff = diff
    top = top
    flames_of = flames_of
    profile_of = profile_of
    found_in = found_in
    memory_history_of = memory_history_of
    memory = memory
    memory_of = memory_of

    save = save
    load = load
    saves = saves
    autosave = autosave
    autosave_off = autosave_off
    autosave_status = autosave_status
    save_now = save_now


def _title(code: str) -> str:
    """Return what a run of some code is called: its first line, or what stands in the text that it begins with.

    Example:
        >>> _title("# later\\nx = 3"), _title("'save checkpoints/a'\\nsave()")
        ('x = 3', 'save checkpoints/a')
    """
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.strip().startswith("#")]
    first = lines[0] if lines else ""
    first = _TEXT.sub(r"\2", first)
    return first if len(first) <= TITLE_CHARACTERS else first[: TITLE_CHARACTERS - 1] + "…"

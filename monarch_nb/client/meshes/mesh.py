"""Meshes: named sets of live ranks, and parts of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from monarch_nb.actor.engine.outside import Address
from monarch_nb.actor.hosts import ProcMesh
from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes import looking, past
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.holder import MeshHolder
from monarch_nb.client.meshes.interrupt import Part, interrupt_parts
from monarch_nb.client.meshes.printed import Printed
from monarch_nb.client.meshes.scales import Scales
from monarch_nb.client.pools.infos import RankInfo, RunInfo, StackReport, run_infos
from monarch_nb.client.presenting import panel_of
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.client.runs.interrupt_report import InterruptReport
from monarch_nb.client.runs.packing import pack_variables
from monarch_nb.client.runs.run import Listener, OnError, Run
from monarch_nb.client.runs.stops import policy
from monarch_nb.client.scripts.finding import as_in_copies, check_ranks, find_on_nodes
from monarch_nb.client.scripts.script import Script, check_script
from monarch_nb.client.scripts.script_run import ScriptRun, host_store
from monarch_nb.config import MAIN_MESH, OnBreakpoint
from monarch_nb.errors import MonarchNbError, TargetError
from monarch_nb.ground.code_names import mesh_flag
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.shape import Extent

TITLE_CHARACTERS = 60


class Mesh(Scales, Printed):
    """A named set of live ranks, or a part of one.

    Attributes:
        id, name: of the mesh.
        reservation: what it belongs to.

    Example:
        >>> mesh = dev.mesh  # doctest: +SKIP
        >>> mesh.slice(hosts=0).run("rank").values  # doctest: +SKIP
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        mesh_id: str,
        name: str,
        extent: Extent,
        reservation: MeshHolder[Mesh],
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
        """Its labelled shape, e.g. `{"hosts": 2, "procs": 4}`, also for a part of it."""
        return self.core.extent

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that this object stands for."""
        return self.core.ranks if self._part is None else self._part

    def __repr__(self) -> str:
        part = "" if len(self.ranks) == self.extent.size else f", {name_ranks(self.ranks)}"
        return f"<Mesh {self.reservation.name}/{self.name}: {self.extent}{part}>"

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def flag(self) -> str:
        """What chooses it on a line of `%mesh`, after a blank: " --mesh judges"; empty for the main mesh."""
        return mesh_flag("" if self.name == MAIN_MESH else self.name)

    def panel(self) -> Any:
        """Return its live panel, for the output of a notebook's cell: ranks, what they run, logs, restart, release.

        Raises:
            UsageError: this is no notebook, or one without the extension.
        """
        return panel_of(self)

    # ---- parts ----

    def slice(self, **dimensions: int | slice) -> Mesh:
        """Return the part with the given coordinates, e.g. `mesh.slice(hosts=0, procs=slice(0, 2))`."""
        return self.select(self.extent.ranks(**dimensions))

    def select(self, ranks: int | Iterable[int]) -> Mesh:
        """Return the part of exactly these ranks (or this one).

        Raises:
            TargetError: a rank that is not in this mesh, or none at all.
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
        """Its first rank on each node: where what a node is to do once is done."""
        return self.select(ranks[0] for ranks in self.core.by_node(self.ranks).values())

    # ---- runs ----

    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        on_error: OnError = "wait",
        cell_number: int = 0,
        want_value: bool = True,
        sync: bool = True,
        on_breakpoint: OnBreakpoint | None = None,
        listener: Listener | None = None,
    ) -> Run:
        """Run code on the ranks and wait until all have finished. Ctrl-C interrupts the ranks and keeps their memory.

        Args:
            timeout_s: give up waiting after this time; the run goes on.
            on_error: "abort" interrupts the other ranks, whatever they do, half a second after one has failed.
            cell_number: shown in tracebacks as `Cell In[…]`; without one it is `Run …`, the run's number.
            want_value: bring the last expression's values back.
            sync: first bring files that changed to nodes that have copies of them.
            on_breakpoint: what `breakpoint()` does there: "stop" (`monarch-nb debug` and `%mesh debug` answer), "go-on"
                or "error"; it stops if nothing is said and this process has a keyboard.
            listener: called with the run's events on a background thread.

        Returns:
            The finished run; `run.values` is a list by rank.

        Raises:
            RunFailed: it failed on some ranks.
            RankDead: a rank of this mesh is dead.
            NodeUnreachable: a node of it does not answer.
            TimeoutError: it goes on after `timeout_s`.
            FilesError: a node could not take the files that changed.

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
                listener=listener,
            )
            is_done = run.join(timeout_s)
        return _ended(run, is_done, timeout_s)

    def submit(
        self,
        code: str,
        *,
        on_error: OnError = "wait",
        cell_number: int = 0,
        want_value: bool = True,
        sync: bool = True,
        on_breakpoint: OnBreakpoint | None = None,
        own_world: bool = False,
        listener: Listener | None = None,
    ) -> Run:
        """As `run`, but return at once. `own_world`: while it runs, these ranks alone are the world, without groups."""
        if sync:
            self._sync()
        cell = run_pb2.Cell(code=code, cell_number=cell_number, want_value=want_value)
        ranks = self.ranks if len(self.ranks) < self.extent.size else ()
        spec = run_pb2.RunSpec(cell=cell, ranks=ranks, tree=self.reservation.files.tree(), own_world=own_world)
        spec.on_breakpoint = policy(on_breakpoint)
        return self._start(spec, _title(code), on_error, listener)

    # ---- scripts ----

    def run_script(
        self,
        path: str,
        *arguments: str,
        module: bool = False,
        executable: bool = False,
        in_place: bool = False,
        beside: bool = False,
        max_restarts: int = 0,
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        sync: bool = True,
        listener: Listener | None = None,
    ) -> Run:
        """Run a program on the ranks as torchrun would, and wait until all have finished. Ctrl-C interrupts it.

        Each rank of it is a process of its own, forked for it beside the live rank and ended with it, children too. So
        nothing of one script reaches the next, or the live ranks; a dead live rank does not matter. It runs as
        `__main__`, in torchrun's environment: the ranks of this object are its world.

        Args:
            path: a file, relative to the ranks' directory; with `module` a module's name, with `executable` a command.
            arguments: the program's.
            module: run a module, as `python -m`. executable: run a command that is no Python file.
            in_place: run it in the live ranks, in the namespace of the cells; what it leaves stays.
            beside: do not wait for other scripts on the same ranks, nor let them wait for this one.
            max_restarts: when a rank fails, how often all are started again, with TORCHELASTIC_RESTART_COUNT set. Only
                while this process lives.
            environment: added to the processes'.
            timeout_s: give up waiting after this time; it goes on.
            sync: first bring files that changed to nodes that have copies of them.
            listener: called with the run's events on a background thread.

        Returns:
            The finished run; `run.values` are the exit statuses by rank: 0. Those of a run that failed are
            `run.kept_values`, None for processes that were killed.

        Raises:
            UsageError: there is no such script on the nodes, or what was said makes no sense; nothing has begun.
            RunFailed: a rank raised, exited with another code than 0, or was killed. The others were ended then.
            NodeUnreachable, TimeoutError, FilesError: as `run`.

        Example:
            >>> mesh.run_script("train.py", "--lr", "3e-4").values  # doctest: +SKIP
            [0, 0, 0, 0]
        """
        script = Script(
            path, arguments, module, executable, in_place, beside, max_restarts, environment=environment or {}
        )
        return self.run_program(script, timeout_s=timeout_s, sync=sync, listener=listener)

    def run_program(
        self, script: Script, *, timeout_s: float | None = None, sync: bool = True, listener: Listener | None = None
    ) -> Run:
        """As `run_script`, with the script in one piece."""
        if sync:
            self._sync(alive=script.in_place)
        with at_waits():
            run = self.start_script(script, sync=False, listener=listener)
            is_done = run.join(timeout_s)
        return _ended(run, is_done, timeout_s)

    def submit_script(
        self,
        path: str,
        *arguments: str,
        module: bool = False,
        executable: bool = False,
        in_place: bool = False,
        beside: bool = False,
        max_restarts: int = 0,
        environment: Mapping[str, str] | None = None,
        sync: bool = True,
        listener: Listener | None = None,
    ) -> Run:
        """As `run_script`, but return at once. With `max_restarts` the run stands for all attempts."""
        script = Script(
            path, arguments, module, executable, in_place, beside, max_restarts, environment=environment or {}
        )
        return self.start_script(script, sync=sync, listener=listener)

    def start_script(
        self,
        script: Script,
        *,
        cell_number: int = 0,
        sync: bool = True,
        on_breakpoint: OnBreakpoint | None = None,
        listener: Listener | None = None,
    ) -> Run:
        """As `submit_script`, with the script in one piece and the number of the cell that it is run by."""
        check_script(script)
        if not script.in_place:
            check_ranks(self)
        if sync:
            self._sync(alive=script.in_place)
        self._check_nodes()
        script = as_in_copies(script, self)
        if script.is_file:
            call(find_on_nodes(self, script))
        if script.in_place:
            cell = run_pb2.Cell(code=script.as_cell(), cell_number=cell_number)
            tree = self.reservation.files.tree()
            spec = run_pb2.RunSpec(cell=cell, tree=tree, on_breakpoint=policy(on_breakpoint))
            return self._start(spec, script.title, "abort", listener)
        run_id = uuid.uuid4().hex
        store = call(host_store(self, run_id, only_port=script.shell))
        run = ScriptRun(
            self, run_id, script, self.core.add, on_error="abort", cell_number=cell_number, listener=listener
        )
        self.core.add(run)
        spec = run.spec(store)
        spec.on_breakpoint = policy(on_breakpoint)
        post(run.submit, spec)
        return run

    # ---- actors ----

    @property
    def addresses(self) -> list[Address]:
        """Where its ranks take messages."""
        nodes = self.core.connections
        return [
            Address(nodes[rank // self.core.ranks_per_node].node_address, f"{self.id}/{rank}") for rank in self.ranks
        ]

    @property
    def procs(self) -> ProcMesh:
        """Its ranks as processes into which actors are spawned: in the shape of the mesh, where this part of it is a
        slice, else in a row, `{"ranks": 3}`."""
        return ProcMesh.of(self.name, self.extent.part_of(self.ranks), self.addresses)

    def spawn(self, name: str, Class: type[Any], *arguments: Any, **named: Any) -> Any:
        """Make an actor on each rank, without waiting for it. Actors that this program spawned here under the same name
        end first; they end with the mesh, not with this kernel.

        Args:
            name: by which they are found again: `reservation.actors[name]`.
            Class: a monarch_nb.actor.Actor. arguments, named: for its `__init__`.

        Returns:
            The actors: a monarch_nb.actor.ActorMesh with the endpoints of the class.

        Raises:
            TypeError: wrong arguments, or one that can not be pickled: nothing was sent.
            ValueError: no Actor, or one whose endpoints do not go together.

        Example:
            >>> trainers = mesh.spawn("trainers", Trainer, lr=3e-4)  # doctest: +SKIP
            >>> losses = trainers.step.call(10).get()  # doctest: +SKIP
        """
        return self.procs.spawn(name, Class, *arguments, **named)

    def open_calls(self, title: str, *, cell_number: int = 0, listener: Listener | None = None) -> CallsRun:
        """Open a run of calls on all living ranks of the mesh: what actors print in its name is its output. Who opens
        it ends it (`CallsRun.end`).

        Args:
            title: the first call, for people.
        """
        alive = [rank for rank in range(self.extent.size) if rank not in self.core.dead]
        run_id = uuid.uuid4().hex
        calls = run_pb2.Calls(cell_number=cell_number)
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
        self, spec: run_pb2.RunSpec, title: str, on_error: OnError = "wait", listener: Listener | None = None
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
            looking.check_nodes(self.core, self.ranks, self.reservation.pool)

    def _check_alive(self) -> None:
        self._check_nodes()
        if not self.core.dead or self.core.dead.keys().isdisjoint(self.ranks):
            return
        call(self.core.status())  # somebody else may have restarted it
        if dead := [rank for rank in self.ranks if rank in self.core.dead]:
            raise self.core.death_of(dead, self._alive(), self.flag)

    def push(self, variables: Mapping[str, Any]) -> None:
        """Set variables on every rank; one copy per node travels, and large arrays are shared by its ranks.

        Raises:
            PickleError: a value can not be pickled; the message names it.
            RunFailed: it could not be unpickled on some ranks.
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
        """Return the value of an expression (a variable's name, say) on every rank, by rank.

        Raises:
            RunFailed: it can not be evaluated on some ranks; the error's `run.values` has the others.
            PickleError: a value can not be pickled; the message names it, and `run.kept_values` has the others.
        """
        spec = run_pb2.RunSpec(pull=run_pb2.Pull(expression=expression))
        return self._finish_quietly(spec, f"pull {expression}")

    def _finish_quietly(self, spec: run_pb2.RunSpec, title: str) -> list[Any]:
        spec.on_breakpoint = policy("go-on")
        with at_waits():
            run = self._start(spec, title)
            run.join()
        return run.result()

    def interrupt(self, kill_stuck: bool = False) -> InterruptReport:
        """Interrupt what runs on these ranks, whoever submitted it, and drop what waits for them without starting it.
        Nothing in memory is lost; what is submitted from now on is not touched. Actors that live here are
        interrupted in whatever they execute, and what waits for them is dropped. The whole main mesh stands for the
        reservation: the meshes beside it are interrupted, too. On a mesh that somebody shares with us our own runs are
        interrupted, and nothing else.

        Args:
            kill_stuck: kill and restart the ranks that did not stop at the interrupt before this one.
        """
        is_ours = self.reservation.owner == self.core.me
        parts = [Part(self.core, self.ranks, list(self.running()), is_ours=is_ours)]
        if self.name == MAIN_MESH and len(self.ranks) == self.core.ranks_per_node * len(self.core.connections):
            with contextlib.suppress(MonarchNbError):  # a node does not answer: then its meshes do not, either
                beside = [each for each in call(self.reservation.all_meshes()) if each.id != self.id]
                parts += [Part(one.core, one.ranks, list(one.running()), f" of {one.name}", is_ours) for one in beside]
        return interrupt_parts(parts, kill_stuck=kill_stuck)

    def running(self) -> Iterator[Run]:
        """Yield the runs that go on on these ranks or wait for them, whoever submitted them."""
        under_way = self.core.under_way()
        told = [info for info in self.runs() if not info.done]
        runs = [
            past.known(self.core, info.run_id) or past.follow(self, self.core, info)
            for info in told
            if self._touches(info)
        ]
        yield from runs
        yield from (run for run in under_way if self._touches(run) and not run.done and run not in runs)

    def _touches(self, run: Run | RunInfo) -> bool:
        return not set(run.ranks).isdisjoint(self.ranks)

    def runs(self) -> list[RunInfo]:
        """Return the runs that are unfinished or whose results nobody has collected, oldest first."""
        return [info for info in self._run_infos() if not (info.done and info.collected)]

    def past_runs(self, tracebacks_of: int = 0) -> list[RunInfo]:
        """Return the newest few hundred runs, also those that are over, oldest first, each with what failed.

        Args:
            tracebacks_of: the number of the run whose failures come with their tracebacks.
        """
        return self._run_infos(pb.PastRuns(mesh_id=self.id, tracebacks_of=tracebacks_of))

    def _run_infos(self, past_runs: pb.PastRuns | None = None) -> list[RunInfo]:
        told = call(self.core.status(past_runs=past_runs))
        return run_infos(((connection.name, mesh) for connection, mesh in told), self.core.me)

    def attach_run(self, run_id: str, *, from_start: bool = False, listener: Listener | None = None) -> Run:
        """Follow a run that another client submitted; one that this process follows already is returned as it is.

        Args:
            from_start: send all its output again, not only what no client has shown; also that of a run which is over
                and was shown to its end.
            listener: called with the run's events on a background thread.

        Raises:
            RunNotFound: there is no such run.
        """
        infos = self.past_runs() if from_start else self.runs()
        return past.attach_run(self, self.core, infos, run_id, from_start=from_start, listener=listener)

    # ---- ranks ----

    def restart(self, ranks: int | Iterable[int] | None = None) -> None:
        """Replace ranks (all of this object's by default) by fresh ones under the same coordinates.

        Their variables and imports are lost. The others keep theirs; their process groups are aborted, so that an
        `init_process_group()` by all forms a new one. Returns when the new ranks are ready.
        """
        chosen = self.ranks if ranks is None else self.select(ranks).ranks
        looking.restart(self.core, chosen, self.reservation.pool)

    def status(self) -> list[RankInfo]:
        """Return what the allocators know of the ranks, and what an engine says of a job whose nodes do not answer."""
        return looking.statuses(self.core, self.ranks, self.reservation.pool)

    def where(self) -> dict[int, run_pb2.Where]:
        """Return where each rank's main thread is; ranks that do not answer are missing."""
        return call(self.core.where(self.ranks))

    def stacks(self) -> StackReport:
        """Return every rank's Python stack, also while C code holds the interpreter, or why there is none."""
        return looking.stacks(self.core, self.ranks, self.reservation.pool)

    def complete(self, code: str, cursor: int, rank: int | None = None) -> tuple[list[str], int]:
        """Return completions of live names on a rank, and where in the code the completed word begins."""
        alive = self._alive()
        if not alive:
            return [], cursor
        return looking.complete(self.core, alive[0] if rank is None else rank, code, cursor)

    def inspect(self, name: str) -> tuple[str, int]:
        """Return what the first rank that lives knows of a live name (with dots), and that rank: the name's signature,
        documentation and type; empty when there is no such name there."""
        if alive := self._alive():
            return looking.inspect(self.core, alive[0], name), alive[0]
        return "", self.ranks[0]

    def _alive(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.core.dead]


def _ended(run: Run, is_done: bool, timeout_s: float | None) -> Run:
    if not is_done:
        raise run.timed_out(timeout_s or 0)
    if not run.is_collected:
        run.collected()
    run.raise_failures()
    return run


def _title(code: str) -> str:
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.strip().startswith("#")]
    first = lines[0] if lines else ""
    return first if len(first) <= TITLE_CHARACTERS else first[: TITLE_CHARACTERS - 1] + "…"

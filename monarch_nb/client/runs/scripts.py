"""Scripts: programs that run on a mesh's ranks as torchrun would start them, each rank in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.client.connections import events
from monarch_nb.client.connections.connection import SPAWN_TIMEOUT_S
from monarch_nb.client.files.fetch import list_files
from monarch_nb.client.pools.conflicts import start_directory
from monarch_nb.client.runs.run import ABORT_AFTER_S, STOP_WAIT_S, Run
from monarch_nb.client.runs.values import RunValues
from monarch_nb.errors import FilesError, MonarchNbError, ProcessGroupAborted, UsageError
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh


@dataclass(frozen=True)
class Script:
    """A program and how it is to be run.

    Attributes:
        path: a file, relative to `directory`; with `module` a module's name, with `executable` a command.
        arguments: the program's.
        module: as `python -m`. executable: as torchrun's `--no-python`.
        in_place: in the live ranks, in the namespace of the cells, as IPython's `%run -i`; what it leaves stays.
        beside: do not wait for other scripts on the same ranks, nor let them wait for this one.
        max_restarts: when a rank fails, how often all are started again.
        environment: added to the processes'.
        directory: where it runs, on nodes that see it; empty for where the live ranks started.
    """

    path: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    executable: bool = False
    in_place: bool = False
    beside: bool = False
    max_restarts: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""

    @property
    def title(self) -> str:
        """The command line: `train.py --lr 3e-4`."""
        return shlex.join([*(["-m"] if self.module else []), self.path, *self.arguments])

    @property
    def is_file(self) -> bool:
        """Whether `path` is that of a Python file."""
        return not (self.module or self.executable)

    @property
    def place(self) -> str:
        """Where nodes look for the file."""
        return self.path if self.path.startswith("~") else os.path.join(self.directory, self.path)

    def as_cell(self) -> str:
        """Return the cell that runs it in place."""
        options = "-i -m" if self.module else "-G -i"  # -G: arguments are no patterns
        return f"%run {options} {shlex.join([self.path, *self.arguments])}"

    def spec(self, store: pb.HostStoreReply, attempt: int, cell_number: int) -> run_pb2.Script:
        """Return what the ranks are told."""
        return run_pb2.Script(
            path=self.path,
            arguments=self.arguments,
            module=self.module,
            executable=self.executable,
            beside=self.beside,
            store_host=store.host,
            store_port=store.port,
            attempt=attempt,
            max_restarts=self.max_restarts,
            environment=self.environment,
            cell_number=cell_number,
            directory=self.directory,
        )


def check_script(script: Script) -> None:
    """Raise UsageError for what makes no sense whatever the mesh."""
    if not script.path:
        raise UsageError("no script is named")
    if script.module and script.executable:
        raise UsageError("a module is run by Python: -m and --no-python exclude each other")
    if script.max_restarts < 0:
        raise UsageError(f"max_restarts is {script.max_restarts}: it counts restarts")
    if script.in_place:
        excluded = {"--no-python": script.executable, "--beside": script.beside, "--max-restarts": script.max_restarts}
        if names := [name for name, is_asked in excluded.items() if is_asked]:
            raise UsageError(f"-i runs it in the live ranks: {' and '.join(names)} can not be had with it")
        if script.environment:
            raise UsageError("-i runs it in the live ranks, which have their environment already")
    if script.is_file and script.path.endswith(".ipynb"):
        raise UsageError(
            f"{script.path} is a notebook: open it and attach (%mesh attach), or make a script of it "
            f"(jupyter nbconvert --to script {shlex.quote(script.path)})"
        )


def check_ranks(mesh: Mesh) -> None:
    """Raise UsageError unless a mesh has equally many ranks on each node, as torchrun's worlds do."""
    numbers = {node: len(ranks) for node, ranks in mesh.core.by_node(mesh.ranks).items()}
    if len(set(numbers.values())) > 1:
        each = ", ".join(f"{counted(number, 'rank')} on node {node}" for node, number in numbers.items())
        raise UsageError(f"a script needs equally many ranks on each node, and {name_ranks(mesh.ranks)} are {each}")


def as_in_copies(script: Script, mesh: Mesh) -> Script:
    """Return the script with a path that holds in copies of the project, too: no absolute one does."""
    files = mesh.reservation.files
    if not (script.is_file and files.copies and Path(script.path).is_relative_to(files.root)):
        return script
    return replace(script, path=os.path.relpath(script.path, start_directory(mesh.reservation.spec)))


async def find_on_nodes(mesh: Mesh, script: Script) -> None:
    """Look for a script on the nodes of a mesh.

    Raises:
        UsageError: it is not there, or is a directory, on some of them.
    """
    path = script.place

    async def problem_on(rank: int) -> tuple[str, str]:
        connection = mesh.core.connection_of(rank)
        try:
            reply = await list_files(connection, mesh.reservation.id, rank, path)
        except FilesError as error:
            beside = await _names_in(mesh, rank, os.path.dirname(path))
            close = difflib.get_close_matches(os.path.basename(path), beside, n=1, cutoff=0.75)
            told = str(error).removeprefix(f"{connection.name}: ")
            return told + (f"; did you mean {close[0]}?" if close else ""), connection.name
        if reply.is_file:
            return "", connection.name
        is_package = any(entry.path == b"__main__.py" for entry in reply.entries)
        name = script.path.removeprefix("./").strip("/").replace("/", ".")
        hint = f": -m {name} runs it" if is_package else ""
        return f"{script.path} is a directory{hint}", connection.name

    by_node = mesh.core.by_node(mesh.ranks).values()
    names: dict[str, list[str]] = {}
    for problem, name in await asyncio.gather(*(problem_on(ranks[0]) for ranks in by_node)):
        if problem:
            names.setdefault(problem, []).append(name)
    if names:
        raise UsageError("; ".join(f"{', '.join(nodes)}: {problem}" for problem, nodes in names.items()))


async def _names_in(mesh: Mesh, rank: int, directory: str) -> list[str]:
    with contextlib.suppress(FilesError):
        reply = await list_files(mesh.core.connection_of(rank), mesh.reservation.id, rank, directory)
        return [os.fsdecode(entry.path) for entry in reply.entries]
    return []


async def nodes_see(mesh: Mesh, directory: str) -> bool:
    """Return whether a directory of this computer is there on all nodes of a mesh."""
    by_node = mesh.core.by_node(mesh.ranks).values()
    lists = (
        list_files(mesh.core.connection_of(ranks[0]), mesh.reservation.id, ranks[0], directory) for ranks in by_node
    )
    try:
        return not any(reply.is_file for reply in await asyncio.gather(*lists))
    except FilesError:
        return False


async def host_store(mesh: Mesh, run_id: str) -> pb.HostStoreReply:
    """Host a store for a run on the first of its nodes; it is there until the run is collected."""
    spec = mesh.reservation.spec
    request = pb.HostStoreRequest(
        reservation_id=mesh.reservation.id, mesh_id=run_id, python=spec.python, preload=spec.preload
    )
    first = mesh.core.connection_of(mesh.ranks[0])
    reply: pb.HostStoreReply = await first.unary("HostStore", request, SPAWN_TIMEOUT_S)
    return reply


class ScriptRun(Run):
    """A script that this process has started; while it may be started again, its results are those of the last attempt,
    and its `id` and `number` are the newest attempt's."""

    def __init__(self, mesh: Mesh, run_id: str, script: Script, **options: Any) -> None:
        super().__init__(mesh, run_id, mesh.ranks, script.title, **options)
        self.is_script = True
        self._script, self._attempt = script, 0
        self._held: list[events.Result] = []

    @property
    def _has_attempts(self) -> bool:
        return self._attempt < self._script.max_restarts and not self._interrupting

    def spec(self, store: pb.HostStoreReply) -> run_pb2.RunSpec:
        """Return what the ranks are told of this attempt."""
        script = self._script.spec(store, self._attempt, self.cell_number)
        return run_pb2.RunSpec(run_id=self.id, script=script, tree=self.mesh.reservation.files.tree())

    # ---- on the background loop ----

    def submit(self, spec: run_pb2.RunSpec) -> None:
        """As a run's; output is labelled by the mesh's ranks, so it is said which of the script's these are."""
        count = len(self.ranks)
        if self.ranks != tuple(range(count)) and not self._attempt:
            own = "is the script's rank 0" if count == 1 else f"are the script's ranks 0-{count - 1}"
            self.emit(events.Notice(f"{name_ranks(self.ranks)} of the mesh {own}", key="world"))
        super().submit(spec)

    def emit(self, event: events.Event) -> None:
        """Tell every listener; results only when no other attempt follows, and with what can be said at the end."""
        if isinstance(event, events.Result) and (self._script.max_restarts or _is_torn(event)):
            self._held.append(event)
        else:
            super().emit(event)

    def _finish(self) -> None:
        if self.done:
            return
        if self._has_attempts and self._failed_ranks() and self._refusal is None:
            self._spawn(self._start_again())
        else:
            for result in self._held:
                super().emit(self._explained(result))
            super()._finish()

    def _explained(self, result: events.Result) -> events.Result:
        """Name the ranks that had come to their end when this one lost its group, unless a failure is the cause."""
        ended = [rank for rank, other in self.results.items() if other.outcome == "ok"]
        if _is_torn(result) and ended and all(failure.is_consequence for failure in self.failures):
            assert result.failure is not None
            message = f"{result.failure.message}; {name_ranks(ended)} had ended (exit code 0)"
            result = replace(result, failure=replace(result.failure, message=message, rendered=""))
            self.results[result.rank] = result
        return result

    async def _start_again(self) -> None:
        """All have ended because one has failed: begin anew, with processes, a store and a number of their own."""
        failed = min(self.failures, key=lambda failure: failure.is_consequence)
        old, new = self.id, uuid.uuid4().hex
        try:
            store = await host_store(self.mesh, new)
        except MonarchNbError as error:
            self._refusal = error
        if self._refusal is not None or self._interrupting:
            self._script = replace(self._script, max_restarts=self._attempt)
            self._finish()
            return
        attempt = f"attempt {self._attempt + 2} of {self._script.max_restarts + 1}"
        for text in self._decoder.rest():
            super().emit(text)
        super().emit(events.Restart(f"rank {failed.rank} {failed.line}: starting all again, {attempt}"))
        super().emit(events.Notice("", key="abort"))
        self._tell_collected()
        for connection in self._connections():
            connection.forget(old)
        self._attempt += 1
        self.id = self.run_id = new
        self.number = 0
        self.results.clear()
        self._held.clear()
        self._values = RunValues()
        self._completing = self._is_aborting = self._is_collected = False
        self.mesh.core.runs[new] = self
        self.submit(self.spec(store))

    async def _abort_others(self) -> None:
        """A rank has failed: the others end, as torchrun's do."""
        attempt = self._attempt
        await asyncio.sleep(ABORT_AFTER_S)
        if self._interrupting or attempt != self._attempt or not (left := self._left()):
            return
        self._say_aborted(left)
        self._cancel_left()
        await asyncio.sleep(STOP_WAIT_S)
        if attempt == self._attempt and (left := self._left()):
            await self.mesh.core.kill_script(self.id, left)


def _is_torn(result: events.Result) -> bool:
    """Return whether a rank failed because its process group was broken."""
    return result.failure is not None and result.failure.name == ProcessGroupAborted.__name__

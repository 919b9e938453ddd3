"""A script: a program that runs on a mesh's ranks as torchrun would start it, each rank in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
import re
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.client.connections import events
from monarch_nb.client.connections.connection import SPAWN_TIMEOUT_S
from monarch_nb.client.files.fetch import list_files
from monarch_nb.client.pools.held import start_directory
from monarch_nb.client.runs.interrupting import STOP_WAIT_S
from monarch_nb.client.runs.results import RunValues
from monarch_nb.client.runs.run import ABORT_AFTER_S, Run
from monarch_nb.config import GRPC_VARIABLES, HANDLES_S
from monarch_nb.errors import FilesError, MonarchNbError, ProcessGroupAborted, UsageError
from monarch_nb.ground.rank_sets import MOST_NAMED, counted, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

_OF_A_RANK = re.compile(
    r"(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_|GROUP_)?WORLD_SIZE|ROLE_(RANK|WORLD_SIZE|NAME)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|PET_\w+"
    r"|CUDA_VISIBLE_DEVICES|(SLURM|PMI|PMIX|OMPI)_\w+|(MONARCH_NB|JPY)_\w+|_"
)
"""The ranks have their own, and torchrun reads PET_ variables itself."""
_OF_A_MACHINE = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|HOST|HOSTNAME|MAIL|TMPDIR|TEMP|TMP|DISPLAY|LANG|LANGUAGE|VIRTUAL_ENV"
    r"|PYTHONHOME|PYTHONEXECUTABLE|(TERM|COLORTERM|TMUX|SSH|XDG|DBUS|LC|LD|DYLD|CONDA|PYENV|KUBERNETES|VSCODE|__CF"
    r"|BASH_FUNC)(_.*)?"
)
"""What is so on one machine, or in one session: on other hosts it would be wrong."""


def passed_on(environment: Mapping[str, str], *, to_other_hosts: bool) -> dict[str, str]:
    """Return the variables of a terminal that a script has, too.

    Args:
        to_other_hosts: some of its ranks are not on this machine.

    Example:
        >>> passed_on({"LR": "1", "RANK": "0", "PATH": "/opt/homebrew/bin"}, to_other_hosts=True)
        {'LR': '1'}
    """
    left_out = [_OF_A_RANK, *([_OF_A_MACHINE] if to_other_hosts else [])]
    return {
        name: value
        for name, value in environment.items()
        if not any(pattern.fullmatch(name) for pattern in left_out)
        and GRPC_VARIABLES.get(name) != value
        and _can_be_sent(name + value)
    }


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return True


@dataclass(frozen=True)
class Script:
    """A program and how it is to be run.

    Attributes:
        path: a file, or a directory or a zip file with a `__main__.py`, relative to `directory`; with `module` a
            module's name, with `executable` a command, with `shell` a line for the shell.
        arguments: the program's.
        module: as `python -m`. executable: as torchrun's `--no-python`.
        in_place: in the live ranks, in the namespace of the cells, as IPython's `%run -i`; what it leaves stays.
        beside: do not wait for other scripts on the same ranks, nor let them wait for this one.
        max_restarts: when a rank fails, how often all are started again.
        environment: added to the processes'.
        shell: the first rank of each node runs it, told of nodes instead of ranks.
        directory: where it runs, on nodes that see it; empty for where the live ranks started.
        instruments: what looks inside meanwhile, with its options, as ranks are told of them.
        umask: the processes'; None for that of the ranks.
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
    shell: bool = False
    instruments: Mapping[str, str] = field(default_factory=dict)
    umask: int | None = None

    @property
    def title(self) -> str:
        """The command line: `train.py --lr 3e-4`."""
        if self.shell:
            return self.path
        line = shlex.join([*(["-m"] if self.module else []), self.path, *self.arguments])
        return line.encode("utf-8", "backslashreplace").decode()

    @property
    def is_file(self) -> bool:
        """Whether `path` is that of a Python file, or of a directory that Python runs."""
        return not (self.module or self.executable or self.shell)

    @property
    def place(self) -> str:
        """Where nodes look for the file."""
        return self.path if self.path.startswith("~") else os.path.join(self.directory, self.path)


_FEW_SCRIPTS = 6


def check_script(script: Script) -> None:
    """Raise UsageError for what makes no sense whatever the mesh."""
    if not script.path.strip():
        raise UsageError("no command is given" if script.shell else "no script is named")
    if script.module and script.executable:
        raise UsageError("a module is run by Python: -m and --no-python exclude each other")
    for argument in script.arguments:
        try:
            argument.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise UsageError(f"{argument!r} can be no argument: it has half of a character") from None
    if script.max_restarts < 0:
        raise UsageError(f"max_restarts is {script.max_restarts}: it counts restarts")
    if script.in_place:
        excluded = {"--no-python": script.executable, "--beside": script.beside, "--max-restarts": script.max_restarts}
        if names := [name for name, is_asked in excluded.items() if is_asked]:
            raise UsageError(f"-i runs it in the live ranks: {' and '.join(names)} can not be had with it")
        if script.environment:
            raise UsageError(
                "-i runs it in the live ranks, which have their environment already: leave out -i, or give --env to "
                "%mesh reserve"
            )
    if script.instruments and (script.executable or script.shell):
        raise UsageError(
            f"instruments such as --profile and --watch look into a program of Python; {script.path} need not be one"
        )
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
        UsageError: it is not there, or is a directory without a `__main__.py`, on some of them.
    """
    path = script.place

    async def problem_on(rank: int) -> tuple[str, str]:
        connection = mesh.core.connection_of(rank)
        try:
            reply = await list_files(connection, mesh.reservation.id, rank, path)
        except FilesError as error:
            beside = await _names_in(mesh, rank, os.path.dirname(path))
            told = str(error).removeprefix(f"{connection.name}: ")
            return f"{told}{_near(os.path.basename(path), beside)}", connection.name
        if reply.is_file:
            return "", connection.name
        if any(entry.path in (b"__main__.py", b"__main__.pyc") for entry in reply.entries):
            return "", connection.name
        return f"{script.path} is a directory without a __main__.py", connection.name

    by_node = mesh.core.by_node(mesh.ranks).values()
    names: dict[str, list[str]] = {}
    for problem, name in await asyncio.gather(*(problem_on(ranks[0]) for ranks in by_node)):
        if problem:
            names.setdefault(problem, []).append(name)
    if names:
        raise UsageError("; ".join(f"{', '.join(nodes)}: {problem}" for problem, nodes in names.items()))


def _near(name: str, beside: Sequence[str]) -> str:
    """Return what to say of the files beside one that is not there: the nearest, else the scripts, if they are few."""
    scripts = sorted(each for each in beside if each.endswith(".py"))
    if close := difflib.get_close_matches(
        name.removesuffix(".py"), [each.removesuffix(".py") for each in scripts], n=1
    ):
        return f"; did you mean {close[0]}.py?"
    if close := difflib.get_close_matches(name, beside, n=1):
        return f"; did you mean {close[0]}?"
    there = "there is" if len(scripts) == 1 else "there are"
    return f"; {there} {', '.join(scripts)}" if 0 < len(scripts) <= _FEW_SCRIPTS else ""


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


def called(script: Script) -> run_pb2.Script:
    """Return what ranks are told of the program itself."""
    arguments = [each.encode("utf-8", "surrogateescape") for each in script.arguments]
    return run_pb2.Script(path=script.path, arguments=arguments, module=script.module, executable=script.executable)


async def host_store(mesh: Mesh, run_id: str, *, only_port: bool = False) -> pb.HostStoreReply:
    """Host a store for a run on the first of its nodes; it is there until the run is collected.

    Args:
        only_port: find a port for it instead.
    """
    spec = mesh.reservation.spec
    request = pb.HostStoreRequest(
        reservation_id=mesh.reservation.id,
        mesh_id=run_id,
        python=spec.python,
        preload=spec.preload,
        only_port=only_port,
    )
    first = mesh.core.connection_of(mesh.ranks[0])
    reply: pb.HostStoreReply = await first.unary("HostStore", request, SPAWN_TIMEOUT_S)
    return reply


class ScriptRun(Run):
    """A script that this process has started; while it may be started again, its results are those of the last attempt,
    and its `id` and `number` are the newest attempt's.

    Args:
        on_attempt: called on the background thread when it goes on under another id.
        options: a run's.
    """

    def __init__(
        self,
        mesh: Mesh,
        run_id: str,
        script: Script,
        on_attempt: Callable[[ScriptRun], object],
        **options: Any,
    ) -> None:
        super().__init__(mesh, run_id, mesh.ranks, script.title, **options)
        self.is_script, self.is_of_nodes = True, script.shell
        self._script, self._attempt, self._on_attempt = script, 0, on_attempt
        self._is_to_end = False
        self._held: list[events.Result] = []

    @property
    def _has_attempts(self) -> bool:
        return self._attempt < self._script.max_restarts and not (self.is_interrupted or self._is_to_end)

    def spec(self, store: pb.HostStoreReply) -> run_pb2.RunSpec:
        """Return what the ranks are told of this attempt."""
        script = self._script
        told = run_pb2.Script(
            beside=script.beside,
            store_host=store.host,
            store_port=store.port,
            attempt=self._attempt,
            max_restarts=script.max_restarts,
            environment=script.environment,
            cell_number=self.cell_number,
            directory=script.directory,
            shell=script.shell,
            umask=script.umask,
        )
        told.MergeFrom(called(script))
        tree = self.mesh.reservation.files.tree()
        return run_pb2.RunSpec(run_id=self.id, script=told, tree=tree, instruments=script.instruments)

    # ---- on the background loop ----

    def submit(self, spec: run_pb2.RunSpec) -> None:
        """As a run's; output is labelled by the mesh's ranks, so it is said which of the script's these are."""
        count = len(self.ranks)
        if self._script.shell:
            if count > 1:
                self.emit(events.Notice(self._names_of_nodes(), key="world"))
        elif self.ranks != tuple(range(count)) and not self._attempt:
            own = "is the script's rank 0" if count == 1 else f"are the script's ranks 0-{count - 1}"
            self.emit(events.Notice(f"{name_ranks(self.ranks)} of the mesh {own}", key="world"))
        super().submit(spec)

    def _names_of_nodes(self) -> str:
        named = [f"[{rank}] {self._nodes.name_of(rank)}" for rank in self.ranks]
        shown = named if len(named) <= MOST_NAMED else [*named[:MOST_NAMED], "…"]
        return f"once on each of {len(named)} nodes: {', '.join(shown)}"

    def emit(self, event: events.Event) -> None:
        """Tell every listener; results only when no other attempt follows, and with what can be said at the end."""
        if isinstance(event, events.Result) and (self._script.max_restarts or _is_torn(event)):
            self._held.append(event)
        else:
            super().emit(event)

    def _finish(self) -> None:
        if self.done:
            return
        if self._has_attempts and self._failed_ranks() and self.refusal is None:
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
            self.refusal = error
        if self.refusal is not None or self.is_interrupted or self._is_to_end:
            self._script = replace(self._script, max_restarts=self._attempt)
            self._finish()
            return
        attempt = f"attempt {self._attempt + 2} of {self._script.max_restarts + 1}"
        for text in self._decoder.rest():
            super().emit(text)
        which = f"rank {failed.rank}{self.mesh.core.where_of([failed.rank])}"
        super().emit(events.Restart(f"{which} {failed.line}: starting all again, {attempt}"))
        super().emit(events.Notice("", key="abort"))
        self._tell_collected()
        self._nodes.session.forget(old)
        self._attempt += 1
        self.id = self.run_id = new
        self.number = 0
        self.results.clear()
        self._held.clear()
        self._values = RunValues()
        self.is_completing = self._is_aborting = self.is_collected = False
        self._on_attempt(self)
        self.submit(self.spec(store))

    async def send_sigterm(self) -> None:
        """Send its processes SIGTERM, as torchrun hands it on, and kill those that have not ended in time."""
        self._is_to_end = True
        self._nodes.session.send_sigterm(self.id)
        self._spawn(self._kill_late())

    async def _kill_late(self) -> None:
        await asyncio.sleep(HANDLES_S)
        if left := self.left():
            await self.mesh.core.kill_script(self.id, left)

    async def _abort_others(self) -> None:
        """A rank has failed: the others end, as torchrun's do."""
        attempt = self._attempt
        await asyncio.sleep(ABORT_AFTER_S)
        if self.is_interrupted or self._is_to_end or attempt != self._attempt or not (left := self.left()):
            return
        self._say_aborted(left)
        self._cancel_left()
        await asyncio.sleep(STOP_WAIT_S)
        if attempt == self._attempt and (stuck := (await self._freeing.look()).stuck):
            await self.mesh.core.kill_script(self.id, stuck)
        await asyncio.sleep(HANDLES_S - STOP_WAIT_S)
        if attempt == self._attempt and (left := self.left()):
            await self.mesh.core.kill_script(self.id, left)


def _is_torn(result: events.Result) -> bool:
    """Return whether a rank failed because its process group was broken."""
    return result.failure is not None and result.failure.name == ProcessGroupAborted.__name__

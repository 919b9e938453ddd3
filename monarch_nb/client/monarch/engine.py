"""Monarch in this process: a client of worker loops, whose calls are made in the name of the cell that makes them, and
which says in a cell that waits for long what goes on meanwhile.

What of Monarch is private is used here alone, and as little as possible of it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monarch_nb.actor.endpoints import declared
from monarch_nb.actor.engine.process import process
from monarch_nb.client import presenting
from monarch_nb.client.presenting import calling_cell
from monarch_nb.client.runs.calls_run import this_client
from monarch_nb.config import MONARCH_CALLER_VARIABLE, MONARCH_CLIENT_VARIABLE, cadence, patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.interrupting import at_awaits
from monarch_nb.worker.monarch.loop import TLS_VARIABLES

if TYPE_CHECKING:
    from monarch_nb.client.monarch.workers import AttachedMesh

AFTER_S = cadence(3.0)
"""As of our own actors: who waits for so long wants to know why."""
LONGEST_S = cadence(24.0)
"""So often it is asked again at least."""
NOTICE = "waits"


@dataclass(eq=False)
class _Wait:
    """One that goes on. `told`: something was said of it. It is asked of at `due_s`, and `pause_s` later again."""

    cell: presenting.CallingCell
    due_s: float = field(default_factory=lambda: time.monotonic() + AFTER_S)
    pause_s: float = field(default_factory=lambda: AFTER_S)
    asked: bool = False
    told: bool = False


class Waits:
    """Looks after the cells of this process that wait. Scripts are left alone.

    Args:
        said: asks what goes on, and returns it for people; empty when that is not known.
    """

    def __init__(self, said: Callable[[], str]) -> None:
        self._said = said
        self._changed = threading.Condition()
        self._waits: list[_Wait] = []
        self._is_watched = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In the block it is waited. Short waits cost next to nothing: they wake nobody."""
        cell = presenting.calling_cell()
        if cell is None:
            yield
            return
        wait = _Wait(cell)
        with self._changed:
            self._waits.append(wait)
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="monarch_nb waits", daemon=True).start()
        try:
            yield
        finally:
            with self._changed:
                self._waits.remove(wait)
                if wait.asked:  # the watch may rest for longer than the next wait is to
                    self._changed.notify()
                if wait.told:
                    cell.tell("", NOTICE)

    def _watch(self) -> None:
        while (wait := self._next()) is not None:
            self._tell(wait, self._said())

    def _next(self) -> _Wait | None:
        """Return the oldest wait when it is to be asked what goes on; None, and the watch is over: nobody waits."""
        with self._changed:
            while self._waits:
                oldest = self._waits[0]
                left_s = oldest.due_s - time.monotonic()
                if left_s <= 0:
                    oldest.asked = True
                    return oldest
                self._changed.wait(left_s)
            self._is_watched = False
        return None

    def _tell(self, wait: _Wait, text: str) -> None:
        with self._changed:
            if wait in self._waits and (text or wait.told):
                wait.cell.tell(text, NOTICE)
                wait.told = True
            wait.due_s, wait.pause_s = time.monotonic() + wait.pause_s, min(2 * wait.pause_s, LONGEST_S)


EXTRA = "pip install 'monarch-nb[monarch]'"
TRUST_ALL = "trust_all_connections"
PROCESS_MODULE = "monarch_nb.worker.monarch.process"
STOP_S = patience(3.0)
FLUSH_S = cadence(0.3)
"""As Monarch's own, for what was not sent yet."""
_CALLS = ("call", "call_one", "choose", "broadcast", "stream", "rref")

_gateways: list[str] = []
"""The worker through which this process is attached, where that is over a network."""
_meshes: dict[str, AttachedMesh] = {}
"""Meshes with workers that this process is attached to, by id."""
_attached: list[tuple[Any, AttachedMesh]] = []
"""HostMeshes that this process has, and the meshes with their workers."""
_called: set[str] = set()
"""What this process has called: "trainers.step"."""


def load() -> Any:
    """Return `monarch.actor`.

    Raises:
        UsageError: torchmonarch is not installed here.
    """
    try:
        return importlib.import_module("monarch.actor")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "monarch":
            raise
        raise UsageError(f"torchmonarch is not installed here ({sys.executable}): {EXTRA}") from None


def version() -> str:
    """Return that of torchmonarch here."""
    return importlib.metadata.version("torchmonarch")


def join(gateway: str, certificates: Mapping[str, str]) -> None:
    """Have what this process sends and gets go through one worker, encrypted: nodes need not reach this machine.

    Raises:
        UsageError: Monarch runs in this process already, without that worker.
    """
    if _gateways == [gateway]:
        return
    directory = tempfile.mkdtemp(prefix="monarch-nb-")  # for this user alone
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for kind, variable in TLS_VARIABLES.items():
        path = os.path.join(directory, f"{kind}.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(certificates[kind])
        os.environ[variable] = path
    importlib.import_module("monarch._rust_bindings.monarch_hyperactor.config").reload_config_from_env()
    try:
        load().attach(gateway)
    except RuntimeError as error:
        raise UsageError(
            "Monarch runs in this process already, and not through these nodes. Restart the kernel, and call "
            f"monarch() before anything else of Monarch's ({error})"
        ) from None
    _gateways[:] = [gateway]


def attach(workers: Sequence[str], name: str, python: str, mesh: AttachedMesh) -> Any:
    """Return the HostMesh of some workers, in their order.

    Args:
        name: of the hosts, in Monarch's errors.
        python: of the nodes, for the processes that are started there.
        mesh: that the workers are of.
    """
    actor = load()
    hosts = actor.attach_to_workers(ca=TRUST_ALL, workers=list(workers), name=name)
    if python:
        hosts = _with_our_processes(hosts, python)
    if not _attached:
        actor.context()  # Monarch's own end comes after this one
        atexit.register(_end)
    _attached.append((hosts, mesh))
    return hosts


def is_shut_down(hosts: Any) -> bool:
    """Return whether `shutdown()` of hosts has ended their loops."""
    return hosts._inner_host_mesh is None


def after_shutdown(hosts: Any, do: Callable[[], None]) -> None:
    """Have something done whenever `shutdown()` of hosts has ended their loops, before that returns."""
    shut_down = hosts.shutdown

    async def shutdown() -> None:
        await shut_down()
        await asyncio.to_thread(do)

    returning = importlib.import_module("monarch._src.actor.returns_future").returns_future
    hosts.shutdown = returning(functools.wraps(shut_down)(shutdown))


def _with_our_processes(hosts: Any, python: str) -> Any:
    """Return the same hosts, whose processes print where ours do: as `HostMesh.with_python_executable`."""
    bindings = "monarch._rust_bindings.monarch_hyperactor"
    command = importlib.import_module(f"{bindings}.host_mesh").BootstrapCommand(
        python, None, ["-m", PROCESS_MODULE], _whose_processes()
    )
    attached = hosts._hy_host_mesh

    async def with_bootstrap() -> Any:
        return (await attached).with_bootstrap(command)

    task = importlib.import_module(f"{bindings}.pytokio").PythonTask.from_coroutine(with_bootstrap()).spawn()
    return type(hosts)(task, hosts.region, hosts.stream_logs, hosts.is_fake_in_process, hosts._code_sync_proc_mesh)


def _whose_processes() -> dict[str, str]:
    """Return what tells processes in whose runs they print, and to end with this one, where they can see it."""
    caller = {MONARCH_CALLER_VARIABLE: this_client()}
    try:
        return caller | {MONARCH_CLIENT_VARIABLE: f"{os.getpid()}:{os.stat('/proc/self/ns/pid').st_ino}"}
    except OSError:  # no Linux: Monarch misses us after a minute
        return caller


def _end() -> None:
    """This process ends: so does what it has started, also where nobody sees that. So does Monarch in it, which shows a
    traceback by itself when that takes more than a second."""
    for hosts, mesh in _attached:
        if not mesh.is_over():  # else nobody answers
            with contextlib.suppress(Exception):
                hosts.stop().get(STOP_S)
    with contextlib.suppress(Exception):
        load().shutdown_context(host_timeout=FLUSH_S).get(STOP_S)


def call_in_cells(mesh_id: str, attached: AttachedMesh) -> None:
    """From now on what this process calls of Monarch's actors is called in the name of the cell that does, on the mesh
    that has the workers."""
    _patch()
    for over in [known for known, each in _meshes.items() if each.is_over()]:
        del _meshes[over]
    _meshes[mesh_id] = attached


@functools.cache
def _patch() -> None:
    actor_mesh = importlib.import_module("monarch._src.actor.actor_mesh")
    proc_mesh = importlib.import_module("monarch._src.actor.proc_mesh")
    future = importlib.import_module("monarch._src.actor.future")
    supervision = importlib.import_module("monarch._src.actor.supervision")
    make, spawn = actor_mesh.ActorMesh._endpoint, proc_mesh.ProcMesh.spawn
    get, awaits = future.Future.get, future.Future.__await__

    @functools.wraps(make)
    def endpoint(self: Any, name: Any, *arguments: Any) -> Any:
        return _Endpoint(make(self, name, *arguments), f"{self._mesh_name}.{name.name}")

    @functools.wraps(spawn)
    def spawn_in_cell(self: Any, name: str, kind: Any, *arguments: Any, **options: Any) -> Any:
        for each in declared(kind):
            raise UsageError(
                f"{kind.__qualname__}.{each} is an endpoint of monarch_nb.actor: from monarch.actor import endpoint"
            )
        if not kind.__module__.startswith("monarch."):  # Monarch spawns some of its own beside
            _tag(f"{name}.__init__")
        return spawn(self, name, kind, *arguments, **options)

    @functools.wraps(get)
    def get_and_explain(self: Any, timeout: float | None = None) -> Any:
        __tracebackhide__ = True
        try:
            with _no_loop(), _waits.waiting():
                return get(self, timeout)
        except KeyboardInterrupt:
            if said := _said(lambda each: each.said_of_running()):
                tell(said)
            raise
        except Exception as error:
            if said := _said(lambda each: each.said_of_dead()):
                error.add_note(said)
            raise

    @functools.wraps(awaits)
    def await_and_explain(self: Any) -> Generator[Any, Any, Any]:
        loop = asyncio._get_running_loop()
        waiting = awaits(self)
        return waiting if loop is None else _interruptible(loop, waiting)

    actor_mesh.ActorMesh._endpoint = endpoint
    proc_mesh.ProcMesh.spawn = spawn_in_cell
    future.Future.get, future.Future.__await__ = get_and_explain, await_and_explain
    actor = load()
    if actor.unhandled_fault_hook is supervision.unhandled_fault_hook:
        actor.unhandled_fault_hook = _tell_fault  # Monarch's own ends this process, a kernel with all that it holds


def _interruptible(loop: asyncio.AbstractEventLoop, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await so that ■ ends it at once, also where nothing else wakes the loop, and say then what goes on."""
    with _waits.waiting(), at_awaits(loop) as presses:
        try:
            return (yield from waiting)
        except asyncio.CancelledError:
            if presses is not None and presses.count and (said := _said(lambda each: each.said_of_running())):
                tell(said)
            raise


@contextlib.contextmanager
def _no_loop() -> Iterator[None]:
    """Wait as outside of the loop that runs a notebook's cells: it stands still meanwhile, as in any cell that waits.
    Monarch would say so at every call."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


class _Endpoint:
    """An endpoint of Monarch's. Before a message is sent, the cell has a run on the nodes."""

    def __init__(self, endpoint: Any, title: str) -> None:
        self._endpoint, self._title = endpoint, title
        for name in _CALLS:
            setattr(self, name, self._named(getattr(endpoint, name)))

    def _named(self, send: Callable[..., Any]) -> Callable[..., Any]:
        title = self._title

        @functools.wraps(send)
        def named(*arguments: Any, **options: Any) -> Any:
            _tag(title)
            return send(*arguments, **options)

        return named

    def _send(self, *arguments: Any, **options: Any) -> Any:
        _tag(self._title)
        return self._endpoint._send(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)


def _tag(title: str) -> None:
    _called.add(title)
    if mesh_ids := frozenset(mesh_id for mesh_id, attached in _meshes.items() if not attached.is_over()):
        process().outside.tag(mesh_ids, title).left()
    else:  # all have ended: Monarch itself notices that after a minute
        _tell_deaths()


def _known() -> list[AttachedMesh]:
    """Return the meshes with workers; those that have ended when there are no others."""
    return [each for each in _meshes.values() if not each.is_over()] or list(_meshes.values())


def _said(of: Callable[[AttachedMesh], str]) -> str:
    """Return what is to be said of the meshes with workers. What can not be learnt is missing."""
    lines = []
    for each in _known():
        with contextlib.suppress(MonarchNbError):
            lines.append(of(each))
    return "\n".join(filter(None, dict.fromkeys(lines)))


def _tell_deaths() -> bool:
    """Tell of workers that have died or were stopped, where it was not told yet; return whether there are such."""
    lines = dict.fromkeys(line for each in _known() for line in each.deaths())
    for line in lines:
        tell(line)
    return bool(lines)


def _said_of_waiting() -> str:
    """Return what goes on while a cell waits."""
    return "" if _tell_deaths() else _said(lambda each: each.said_of_waiting(_called))


def _tell_fault(failure: Any) -> None:
    """A failure of actors that nobody waits for: it is shown, and ends nothing."""
    tell("\n".join(filter(None, (failure.report(), _said(lambda each: each.said_of_dead())))))


def tell(text: str) -> None:
    """Show people something: in the cell that executes or has last, else on stderr."""
    if (cell := calling_cell()) is not None:
        cell.tell(text)
    else:
        sys.stderr.write(f"{text}\n")


_waits = Waits(_said_of_waiting)

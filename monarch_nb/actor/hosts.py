"""Hosts, their processes, and how actors come into these."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import glob
import inspect
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NoReturn, Self

from monarch_nb.actor.actor_mesh import ActorMesh
from monarch_nb.actor.endpoints import (
    Actor,
    Parameters,
    WrongArguments,
    check_travelling,
    endpoint,
    facts_of,
    is_async_class,
)
from monarch_nb.actor.engine.calls import Outcome
from monarch_nb.actor.engine.failing import NAME as BOOTSTRAP
from monarch_nb.actor.engine.handles import Handle, Places, new_uid
from monarch_nb.actor.engine.outside import HERE, Address
from monarch_nb.actor.engine.process import process
from monarch_nb.actor.future import Future, future_of
from monarch_nb.actor.left_out import missing_method
from monarch_nb.actor.value_mesh import MeshTrait
from monarch_nb.config import patience
from monarch_nb.errors import UsageError
from monarch_nb.shape import Extent, Region


class Bootstrap(Actor):
    """Calls a function, before there are other actors in its process. What that spawns is this actor's, and lives on.

    Args:
        function: takes nothing; what it returns is dropped.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    @endpoint
    def run(self) -> None:
        """Call it."""
        result = self._function()
        if inspect.iscoroutine(result):  # of a lambda, which does not look as if it were async
            asyncio.run(result)


class AsyncBootstrap(Actor):
    """The same for an async function, which has a loop then.

    Args:
        function: as Bootstrap's.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    @endpoint
    async def run(self) -> None:
        """Call it."""
        await self._function()


def bootstrap_class(function: Callable[[], Any]) -> type[Actor]:
    """Return the class of the actors that call a function."""
    return AsyncBootstrap if inspect.iscoroutinefunction(function) else Bootstrap


def sets_up(class_name: str) -> bool:
    """Return whether actors of a class set processes up."""
    return class_name in {f"{kind.__module__}.{kind.__qualname__}" for kind in (Bootstrap, AsyncBootstrap)}


_UNNAMED = "anon"
_STOP_S = patience(10.0)
"""How long actors of processes that are stopped may take to clean up."""


class Procs:
    """The processes behind a mesh and its slices.

    Args:
        name: as given.
        extent: of all of them.
        places: their addresses, or who starts them.
        is_owned: whether they end when the mesh is stopped.
        python: their interpreter; "" for that of their reservation.

    Attributes:
        set_up: the call of their bootstrap, where this process has made it: known when their addresses are.
    """

    def __init__(self, name: str, extent: Extent, places: Places | Outcome, is_owned: bool, python: str = "") -> None:
        self.name, self.extent, self.is_owned, self.python = name, extent, is_owned, python
        self.is_stopped = False
        self.set_up: Future[Any] | None = None
        self._places = places

    def outcome(self) -> Outcome:
        """Return what is resolved when they are there."""
        if isinstance(self._places, Outcome):
            return self._places
        outcome = Outcome(lambda places: places)
        outcome.resolve(self._places)
        return outcome

    def places(self) -> Places:
        """Return their addresses, once they are there. Raises why they could not be started."""
        if isinstance(self._places, Outcome):
            self._places.wait()
            self._places = self._places.value()
        return self._places  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        return Procs, (self.name, self.extent, self.places(), self.is_owned, self.python)


class ProcMesh(MeshTrait):
    """A mesh of processes, in which you spawn actors. `spawn_procs` returns it.

    Example:
        >>> evaluators = dev.spawn_procs({"gpus": 2}, name="evaluators")
        >>> judges = evaluators.spawn("judges", Counter, 0)
        >>> evaluators.initialized.get(), evaluators.sizes, evaluators.size("gpus")
        (True, {'hosts': 2, 'gpus': 2}, 2)
        >>> evaluators.rename(gpus="tp").extent.labels, evaluators.flatten("rank").extent.labels
        (['hosts', 'tp'], ['rank'])
        >>> helpers = evaluators.slice(hosts=0, gpus=0).host_mesh.spawn_procs({"procs": 1})
        >>> evaluators.stop().get()
    """

    def __init__(self, procs: Procs, region: Region) -> None:
        self._procs, self._view = procs, region

    @classmethod
    def of(cls, name: str, extent: Mapping[str, int], addresses: Sequence[Address]) -> ProcMesh:
        """Return the mesh of processes that are there already, in row-major order."""
        shape = Extent(dict(extent))
        return cls(Procs(name, shape, Places(addresses), False), shape.region)

    @classmethod
    def starting(
        cls,
        name: str,
        extent: Extent,
        started: concurrent.futures.Future[Sequence[Address]],
        bootstrap: Callable[[], Any] | None = None,
        python: str = "",
    ) -> ProcMesh:
        """Return the mesh of processes that are being started, and that end when it is stopped.

        Args:
            started: their addresses.
            bootstrap: called in each before there are actors.
            python: as Procs'.
        """
        places = Outcome(_places_of)
        if bootstrap is None:
            started.add_done_callback(places.resolve)
            return cls(Procs(name, extent, places, True, python), extent.region)
        kind = bootstrap_class(bootstrap)
        check_travelling(kind.__qualname__, (bootstrap,), {})
        process().outside.tag((), BOOTSTRAP).left()
        procs = Procs(name, extent, places, True, python)
        here = contextvars.copy_context()

        def begin() -> None:
            there: concurrent.futures.Future[Sequence[Address]] = concurrent.futures.Future()
            try:
                addresses = started.result()
                mesh = cls(Procs(name, extent, Places(addresses), False), extent.region)
                procs.set_up = mesh._spawn(BOOTSTRAP, kind, (bootstrap,), {}, is_first=True).run.call()
                there.set_result(addresses)
            except BaseException as error:  # noqa: BLE001 -- for who uses the processes
                there.set_exception(error)
            places.resolve(there)

        # Before anybody knows where they are: no other actor comes first. The thread waits for what may take seconds.
        threading.Thread(target=here.run, args=[begin], name="monarch_nb bootstrap", daemon=True).start()
        return cls(procs, extent.region)

    def _region(self) -> Region:
        return self._view

    def _with_region(self, region: Region) -> Self:
        return type(self)(self._procs, region)

    def places(self) -> Places:
        """Wait until its processes have started, and return their addresses. It raises why they could not start."""
        return self._procs.places().part(self._view.ranks())

    def spawn(self, name: str, Class: type[Any], *args: Any, **kwargs: Any) -> Any:
        """Make an actor in each process, without waiting for it. If `__init__` raises, the first call fails with that.

        Actors that the caller spawned here under the same name end first.

        Args:
            name: of the actors.
            Class: a subclass of Actor. args, kwargs: the arguments of its `__init__`.

        Returns:
            The ActorMesh, in the shape of this mesh.

        Raises:
            TypeError: the arguments of `__init__` are wrong, or one can not be pickled. Nothing was sent.
            ValueError: the class is no Actor, has endpoints of torchmonarch's, or mixes sync and async endpoints.
            RuntimeError: this mesh was stopped.
        """
        return self._spawn(name, Class, args, kwargs)

    def _spawn(
        self, name: str, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_first: bool = False
    ) -> ActorMesh:
        if self._procs.is_stopped:
            raise RuntimeError("`ProcMesh` has already been stopped")
        _check_class(kind)
        is_async, facts = is_async_class(kind), facts_of(kind)
        for each in facts.endpoints:
            if hasattr(ActorMesh, each):
                raise ValueError(
                    f"ActorMesh has an attribute that collides with an endpoint name: attribute={each}, "
                    f"ActorMesh.{each}={getattr(ActorMesh, each)}, endpoint={kind.__qualname__}.{each}"
                )
        if kind.__init__ is not object.__init__:
            Parameters.of(kind.__init__, 1).check(args, kwargs, kind.__qualname__)
        elif args or kwargs:
            raise WrongArguments(f"{kind.__qualname__}(): too many positional arguments: it has no __init__")
        class_name = f"{kind.__module__}.{kind.__qualname__}"
        extent = self._view.extent
        handle = Handle(new_uid(name), name, class_name, facts.packed(), self.places(), extent, self._procs.name)
        mesh, here = ActorMesh(handle, extent.region), process()
        tag = here.outside.tag(handle.places.mesh_ids, f"{name}.__init__")
        try:
            here.spawn(handle, (kind, args, kwargs), mesh, is_async=is_async, runs=tag.runs, is_first=is_first)
        except Exception:
            check_travelling(kind.__qualname__, args, kwargs)
            raise
        tag.left()
        return mesh

    @property
    def initialized(self) -> Future[bool]:
        """A future that is resolved with True when the processes have started and their bootstrap has returned. It
        raises the exception of the bootstrap."""
        ready = Outcome(lambda awaited: awaited.value() is not None)
        future, started = future_of(ready), self._procs.outcome()

        def are_there() -> None:
            awaited = started
            if (set_up := self._procs.set_up) is not None:
                future._call, awaited = set_up._call, set_up._outcome
            awaited.when_resolved(lambda: ready.resolve(awaited))

        started.when_resolved(are_there)
        return future

    @property
    def host_mesh(self) -> HostMesh:
        """The host of a single process. Processes that you start there have the same Python."""
        if len(self) != 1:
            raise NotImplementedError("`ProcMesh.host_mesh` is not yet supported for non-singleton proc meshes.")
        node = self.places()[0].node or process().outside.home("").node
        return HostMesh([node], Extent({}).region, self._procs.python)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stop all actors of these processes, as `stop` of the actors does. End the processes if `spawn_procs` made the
        mesh.

        Returns:
            A future that is resolved when that is done.
        """
        places = self.places()
        self._procs.is_stopped = True
        stopped = process().ask(places, _stop_actors, reason)
        done = Outcome(_result)
        outside = process().outside
        mesh_ids = places.mesh_ids if self._procs.is_owned and len(self) == self._procs.extent.size else ()

        def end() -> None:
            endings = [outside.stop_procs(mesh_id) for mesh_id in mesh_ids]
            if not endings:
                done.resolve(None)
            for ending in endings:
                ending.add_done_callback(done.resolve)

        stopped.outcome.when_resolved(end)
        return future_of(done)

    async def logging_option(self, *_: Any, **__: Any) -> None:
        """As in Monarch, without effect: the output of ranks is always in the calling cell and in the logs."""

    def __await__(self) -> Generator[Any, None, Self]:
        """Return itself: in Monarch's first releases one awaited a mesh."""
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._procs.is_stopped:
            await self.stop()

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_method("ProcMesh", name)

    def __repr__(self) -> str:
        name = f"{self._procs.name}: " if self._procs.name != _UNNAMED else ""
        return f"<ProcMesh {name}{self._view.extent}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcMesh, (self._procs, self._view)


def _result(done: concurrent.futures.Future[None] | None) -> None:
    if done is not None:
        done.result()


def _stop_actors(reason: str) -> None:
    process().stop_actors(reason, _STOP_S)


class HostMesh(MeshTrait):
    """A mesh of hosts, on which you start processes. `Reservation.hosts` and `this_host()` return it.

    Example:
        >>> helpers = dev.hosts.spawn_procs({"procs": 2})  # two processes on each node, beside the mesh
        >>> helpers.stop().get()
    """

    def __init__(self, hosts: Sequence[str], region: Region, python: str = "") -> None:
        self._hosts, self._view, self._python = list(hosts), region, python

    @classmethod
    def of(cls, extent: Mapping[str, int], nodes: Sequence[str]) -> HostMesh:
        """Return the mesh of nodes (the addresses of their allocators), in row-major order."""
        return cls(nodes, Extent(dict(extent)).region)

    def _region(self) -> Region:
        return self._view

    def _with_region(self, region: Region) -> Self:
        return type(self)(self._hosts, region, self._python)

    def with_python_executable(self, python_executable: str | os.PathLike[str]) -> HostMesh:
        """Return the same hosts with another Python for the processes that you start there. Processes that these start
        on `this_host()` have it, too.

        Args:
            python_executable: its path on the hosts. It needs the packages that ranks need (IPython, protobuf, …), and
                those that the reservation preloads (torch). It finds this monarch_nb by itself.

        Raises:
            UsageError: the path is empty. If the path is wrong on the hosts, the first use of the processes raises a
                SpawnError.

        Example:
            >>> procs = this_host().with_python_executable("/envs/eval/bin/python").spawn_procs({"gpus": 2})
        """
        path = os.fspath(python_executable)
        if not path:
            raise UsageError("with_python_executable takes the path of a Python on the hosts, not an empty one")
        return HostMesh(self._hosts, self._view, path)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: Any = None,
    ) -> ProcMesh:
        """Start processes on each host, without waiting for them.

        Args:
            per_host: the shape of the processes on each host, as in `{"gpus": 8}`; by default one process.
            bootstrap: called in each process before there are actors; may be async.
            name: for people.
            proc_bind, bootstrap_command: not supported.

        Returns:
            The ProcMesh. Its dimensions are those of the hosts, then those of `per_host`.

        Raises:
            ValueError: the hosts have such a dimension already, or a size is less than 1.
            UsageError: you gave `proc_bind` or `bootstrap_command`. The message says what to use instead.
        """
        if proc_bind is not None or bootstrap_command is not None:
            raise UsageError(
                "spawn_procs has no proc_bind and no bootstrap_command: processes are forked from the node's template; "
                "bind or set up each with bootstrap=, a function that is called in it before there are actors"
            )
        sizes = dict(per_host or {})
        if overlap := [label for label in sizes if label in self._view.labels]:
            raise ValueError(f"per_host labels {overlap} overlap with host labels {self._view.labels}")
        if any(size < 1 for size in sizes.values()):
            raise ValueError(f"per_host {sizes}: each dimension has a size of 1 or more")
        extent = Extent({**self._view.extent, **sizes})
        hosts = [self._hosts[rank] for rank in self._view.ranks()]
        started = process().outside.spawn_procs(hosts, sizes, name or _UNNAMED, self._python)
        return ProcMesh.starting(name or _UNNAMED, extent, started, bootstrap, self._python)

    @property
    def initialized(self) -> Future[bool]:
        """A future that is resolved with True, because the hosts are there."""
        outcome = Outcome(lambda _: True)
        outcome.resolve(None)
        return future_of(outcome)

    def __await__(self) -> Generator[Any, None, Self]:
        """Return itself: in Monarch's first releases one awaited a mesh."""
        yield from ()
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_method("HostMesh", name)

    def __repr__(self) -> str:
        python = f" with {self._python}" if self._python else ""
        return f"<HostMesh {self._view.extent if self._view.extent else '1 host'}{python}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._hosts, self._view, self._python)


def _places_of(started: concurrent.futures.Future[Sequence[Address]]) -> Places:
    return Places(started.result())


def spawn_procs_here(hosts: Sequence[str], per_host: Mapping[str, int], name: str, python: str) -> list[Address]:
    """Start processes, in the program; return their addresses."""
    return list(process().outside.spawn_procs(hosts, per_host, name, python).result())


def stop_procs_here(mesh_id: str) -> None:
    """End the processes of a mesh, in the program."""
    process().outside.stop_procs(mesh_id).result()


def this_host() -> HostMesh:
    """Return the host of the calling code, as a HostMesh without dimensions.

    Example:
        >>> procs = this_host().spawn_procs({"gpus": 2})
        >>> procs.stop().get()
    """
    return this_proc().host_mesh


def this_proc() -> ProcMesh:
    """Return the process of the calling code, as a ProcMesh without dimensions.

    Example:
        >>> here = this_proc().spawn("here", Counter, 0)  # in this very process
        >>> here.add.call_one(1).get()
    """
    return ProcMesh(Procs("local", Extent({}), Places([HERE]), False, process().outside.python), Extent({}).region)


def proc_mesh_of(handle: Handle) -> ProcMesh:
    """Return the processes of a mesh of actors."""
    procs = Procs(handle.procs, handle.extent, handle.places, False, process().outside.python)
    return ProcMesh(procs, handle.extent.region)


def proc_mesh(
    *,
    gpus: int | None = None,
    hosts: int = 1,
    env: Mapping[str, str] | None = None,
    setup: Callable[[], Any] | None = None,
) -> ProcMesh:
    """Start processes on this host, as in Monarch's first releases.

    Args:
        gpus: how many processes; by default as many as the host has GPUs, or one.
        hosts: must be 1.
        env: environment variables for the processes.
        setup: called in each process before there are actors.

    Returns:
        The ProcMesh, of shape `{"hosts": 1, "gpus": gpus}`.

    Raises:
        UsageError: `hosts` is not 1.

    Example:
        >>> procs = proc_mesh(gpus=2, env={"OMP_NUM_THREADS": "1"})
        >>> procs.spawn("counters", Counter, 0).add.call(1).get()
        >>> procs.stop().get()
    """
    if hosts != 1:
        raise UsageError("proc_mesh is for this host: reserve others with monarch_nb.reserve(name, nodes=2, gpus=8)")
    count = gpus if gpus is not None else len(glob.glob("/dev/nvidia[0-9]*")) or 1
    bootstrap = functools.partial(_set_up, dict(env or {}), setup) if env or setup else None
    return this_host().spawn_procs({"hosts": 1, "gpus": count}, bootstrap)


def local_proc_mesh(*, gpus: int | None = None, hosts: int = 1) -> ProcMesh:
    """Like `proc_mesh`. Here too, each is a process of its own.

    Example:
        >>> procs = local_proc_mesh(gpus=2)
        >>> procs.stop().get()
    """
    return proc_mesh(gpus=gpus, hosts=hosts)


def _set_up(environment: Mapping[str, str], setup: Callable[[], Any] | None) -> Any:
    os.environ.update(environment)
    return setup() if setup is not None else None


def find_actors(procs: ProcMesh) -> Future[dict[str, ActorMesh]]:
    """Return the meshes of actors that live in some processes, by name: the newest of each name."""
    asked = process().ask(procs.places(), _handles)
    found = Outcome(lambda answers: {name: mesh for each in answers.value() for name, mesh in each.items()})
    asked.outcome.when_resolved(lambda: found.resolve(asked.outcome))
    return future_of(found, asked)


def _handles() -> dict[str, ActorMesh]:
    return {each.name: ActorMesh(each, each.extent.region) for each in process().handles()}


def get_or_spawn_controller(name: str, Class: type[Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Return the program's only actor of that name. The first call makes it, in the process of the program.

    Args:
        name: of the actor.
        Class: a subclass of Actor. args, kwargs: the arguments of its `__init__`, for the first call.

    Returns:
        A future of the ActorMesh, which has one rank. It raises when the actor has failed.

    Example:
        >>> registry = get_or_spawn_controller("registry", Registry).get()
    """
    here = process()
    owner = here.owner()
    asked = here.ask(Places([owner.birth.root if owner is not None else HERE]), _controller, name, Class, args, kwargs)
    found = Outcome(lambda answers: answers.value()[0])
    asked.outcome.when_resolved(lambda: found.resolve(asked.outcome))
    return future_of(found, asked)


def _controller(name: str, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorMesh:
    here = process()
    found: ActorMesh | None = here.controllers.get(name)
    if found is None:
        found = here.controllers[name] = this_proc()._spawn(name, kind, args, kwargs)
    failure = next((each.failure for each in here.actors() if each.uid == found._handle.uid), "it was stopped")
    if failure:
        raise ValueError(f"Failure on {name}: {failure}")
    return found


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End the actors of this process. Actors that it spawned elsewhere live on, until their mesh is stopped or
    released.

    Args:
        host_timeout: the longest wait for actors to clean up, in seconds; by default 10.

    Returns:
        A future that is resolved already.

    Raises:
        ValueError: the timeout is negative.

    Example:
        >>> shutdown_context().get()
    """
    if host_timeout is not None and not host_timeout >= 0:
        raise ValueError(f"invalid timeout {host_timeout}: expected a non-negative number of seconds")
    with contextlib.suppress(RuntimeError):
        process().close(_STOP_S if host_timeout is None else host_timeout)
    outcome = Outcome(lambda _: None)
    outcome.resolve(None)
    return future_of(outcome)


def _check_class(kind: Any) -> None:
    """Raise ValueError unless the class is one of our actors, with our endpoints."""
    if not (isinstance(kind, type) and issubclass(kind, Actor)):
        what = kind if isinstance(kind, type) else type(kind)
        is_monarch = any(_is_of_monarch(base) for base in what.__mro__)
        theirs = ": this is an Actor of torchmonarch's, which dev.monarch().spawn_procs().spawn() takes"
        raise ValueError(f"{what} must subclass monarch_nb.actor.Actor to spawn it here{theirs if is_monarch else ''}")
    for name in dir(kind):
        if _is_of_monarch(type(inspect.getattr_static(kind, name, None))):
            raise ValueError(
                f"{kind.__qualname__}.{name} is an endpoint of torchmonarch's: from monarch_nb.actor import endpoint"
            )


def _is_of_monarch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "monarch"

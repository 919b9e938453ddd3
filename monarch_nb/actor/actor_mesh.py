"""Meshes of actors, and the ways to call their endpoints."""

from __future__ import annotations

import random
import reprlib
from collections.abc import Generator
from typing import Any, NoReturn, Self

from monarch_nb.actor.endpoints import ClassFacts, Parameters, WrongArguments, check_travelling, unpacked
from monarch_nb.actor.engine.calls import Call, Gather, Stream
from monarch_nb.actor.engine.handles import Handle, Place, Places, PortAddress
from monarch_nb.actor.engine.mailbox import Port
from monarch_nb.actor.engine.messages import INVOKE
from monarch_nb.actor.engine.process import Process, Tag, process
from monarch_nb.actor.future import Future, Futures, future_of
from monarch_nb.actor.value_mesh import MeshTrait, ValueMesh
from monarch_nb.shape import Extent, Region


class ActorMesh(MeshTrait):
    """A mesh of actors. `spawn` returns it.

    Every endpoint of the actors' class is an attribute of the mesh. You can pass the mesh to endpoints as an argument.

    Example:
        >>> counters = mesh.spawn("counters", Counter, 0)
        >>> counters.slice(hosts=0).add.call(1).get()
        >>> counters.stop().get()
    """

    def __init__(self, handle: Handle, region: Region) -> None:
        self._handle, self._view = handle, region
        self._targets: Targets | None = None

    def _region(self) -> Region:
        return self._view

    def _with_region(self, region: Region) -> Self:
        return type(self)(self._handle, region)

    @property
    def _facts(self) -> ClassFacts:
        return unpacked(self._handle.facts)

    def _find_targets(self) -> Targets:
        if self._targets is None:
            self._targets = Targets(self._handle, self._view)
        return self._targets

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        facts = self._facts
        if name in facts.endpoints:
            found: Any = ActorEndpoint(self._find_targets(), name, facts.endpoints[name])
            self.__dict__[name] = found
            return found
        there = f"{facts.text} has {', '.join(facts.endpoints) or 'none'}"
        raise AttributeError(f"{self!r} has no endpoint {name!r}: {there}{self._way_to(name)}")

    def _way_to(self, name: str) -> str:
        """Return what has a method that people look for here; empty when nothing has it."""
        if name not in ("save", "load"):
            return ""
        held = f"monarch_nb.attach(NAME).actors[{self._handle.name!r}]"
        return f". {held}.{name}(DIRECTORY) {name}s what the attributes of the actors hold: NAME is the reservation's"

    @property
    def initialized(self) -> Future[None]:
        """A future that is resolved when all actors were made. It raises the exception of an `__init__`."""
        targets = self._find_targets()
        call = Gather(f"{self._handle.name}.__init__", None, targets.places, targets.extent, lambda _: None)
        targets.send(process(), "", targets.place, ((), {}), call, None)
        return future_of(call.outcome, call)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stop the actors. What they execute is interrupted, as by Ctrl-C, and each actor runs its `__cleanup__`.
        Waiting and later calls fail with a SupervisionError.

        Args:
            reason: a text for these errors.

        Returns:
            A future that is resolved when all actors have ended.
        """
        call = process().stop(self._handle, self._find_targets().places, reason)
        return future_of(call.outcome, call)

    def __await__(self) -> Generator[Any, None, Self]:
        """Return itself: in Monarch's first releases one awaited a spawn."""
        yield from ()
        return self

    def __repr__(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self._view.extent.items())
        return f"ActorMesh({self._handle.name!r}, class={self._facts.text}, shape={{{sizes}}})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorMesh, (self._handle, self._view)


class Targets:
    """Actors of a mesh that are called together, with what all their calls have in common."""

    def __init__(self, handle: Handle, region: Region) -> None:
        self.handle, self.region, self.extent = handle, region, region.extent
        self.places = handle.places if region == handle.extent.region else handle.places.part(region.ranks())
        self.mesh_ids = self.places.mesh_ids
        is_whole = region == handle.extent.region
        self.place: Place | None = None
        if not is_whole:
            self.place = region.labels, region.offset, region.sizes, region.strides

    def send(
        self,
        process: Process,
        key: str,
        place: Place | None,
        value: Any,
        call: Call | None,
        port: PortAddress | None,
        *,
        tag: Tag | None = None,
        places: Places | None = None,
    ) -> None:
        """Send a call of an endpoint. Raises whatever pickling the arguments raises, before anything is sent."""
        owner = process.owner()
        if owner is not None and call is not None and owner.uid == self.handle.uid:
            region = self.region if place is None else Region(*place)
            if (rank := region.index_of(owner.rank)) is not None:
                call.waits_for_itself = owner.uid, rank
        caller = owner.title if owner is not None else process.title
        head = (INVOKE, self.handle.uid, key, place, port, caller, tag.runs if tag is not None else {})
        try:
            process.send(places or self.places, head, value, call)
        except Exception:
            check_travelling(f"{self.handle.name}.{key}", *value)
            raise


class ActorEndpoint:
    """An endpoint of the actors of a mesh."""

    def __init__(self, targets: Targets, name: str, parameters: Parameters) -> None:
        self._targets, self._name, self._parameters = targets, name, parameters
        self._title = f"{targets.handle.name}.{name}"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        given = ", ".join(
            [*map(reprlib.repr, args), *(f"{name}={reprlib.repr(each)}" for name, each in kwargs.items())]
        )
        raise WrongArguments(f"{self._title} is an endpoint: use {self._title}.call({given}), which returns a Future")

    def call(self, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """Call it on all ranks; the result has one value per rank, in the shape of the mesh.

        Raises:
            TypeError: wrong arguments, or one that can not be pickled: nothing was sent.
        """
        return self._gather(args, kwargs, lambda values: ValueMesh(self._targets.extent, values))

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on the only rank.

        Raises:
            ValueError: there are several.
            TypeError: as `call`.
        """
        if len(self._targets.places) != 1:
            raise ValueError(f"call_one requires exactly 1 actor, but mesh has {len(self._targets.places)}")
        return self._gather(args, kwargs, _only)

    def choose(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on one rank that is chosen by chance. Raises as `call`."""
        self._check(args, kwargs)
        current, tag = self._begin()
        places, place = self._choice()
        call = Gather(self._title, tag, places, Extent({}), _only)
        self._targets.send(current, self._name, place, (args, kwargs), call, None, tag=tag, places=places)
        return future_of(call.outcome, call)

    def stream(self, *args: Any, **kwargs: Any) -> Futures[Any]:
        """Call it on all ranks; return an iterator over one future for each, resolved in the order in which ranks
        answer; `async for` gets the results themselves. Raises as `call`."""
        self._check(args, kwargs)
        current, tag = self._begin()
        call = Stream(self._title, tag, self._targets.places, self._targets.extent)
        self._targets.send(current, self._name, self._targets.place, (args, kwargs), call, None, tag=tag)
        return Futures(future_of(outcome, call) for outcome in call.outcomes)

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Call it on all ranks and expect no response: where it raises, the actor has failed, and who spawned it is
        told. Raises as `call`."""
        self._check(args, kwargs)
        current, tag = self._begin()
        self._targets.send(current, self._name, self._targets.place, (args, kwargs), None, None, tag=tag)
        tag.left()

    def send_to(self, port: Port[Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any], *, chosen: bool) -> None:
        """Call it on all ranks, or on one that is chosen by chance, and have them respond to a port. Raises as
        `call`."""
        self._check(args, kwargs)
        current, tag = self._begin()
        places, place = self._choice() if chosen else (self._targets.places, self._targets.place)
        target = port.target_at(places[0].node) if port is not None else None
        self._targets.send(current, self._name, place, (args, kwargs), None, target, tag=tag, places=places)
        tag.left()

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        handle = self._targets.handle
        self._parameters.check(args, kwargs, f"{handle.class_name.rpartition('.')[2]}.{self._name}")

    def _begin(self) -> tuple[Process, Tag]:
        current = process()
        return current, current.outside.tag(self._targets.mesh_ids, self._title)

    def _choice(self) -> tuple[Places, Place]:
        rank = random.randrange(len(self._targets.places))
        return self._targets.places.part([rank]), ((), self._targets.region.ranks()[rank], (), ())

    def _gather(self, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Future[Any]:
        self._check(args, kwargs)
        current, tag = self._begin()
        call = Gather(self._title, tag, self._targets.places, self._targets.extent, value)
        self._targets.send(current, self._name, self._targets.place, (args, kwargs), call, None, tag=tag)
        return future_of(call.outcome, call)

    def __repr__(self) -> str:
        return f"<endpoint {self._title} of {self._targets.extent!r}>"


def _only(values: list[Any]) -> Any:
    return values[0]

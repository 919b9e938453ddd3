"""What code that an actor executes can know of itself."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_nb.actor.engine.handles import Identity
from monarch_nb.actor.engine.outside import HERE
from monarch_nb.actor.engine.process import current, process
from monarch_nb.actor.engine.runner import Runner
from monarch_nb.actor.hosts import ProcMesh, proc_mesh_of, this_proc
from monarch_nb.shape import Point


@dataclass(frozen=True)
class ActorId:
    """The identifier of an actor.

    Attributes:
        actor_name: the identifier of its mesh: "trainers-Xb4…".
        label: the name in it: "trainers".
        uid: the same as `actor_name`.
        proc_id: the identifier of its process.
    """

    actor_name: str
    label: str
    uid: str
    proc_id: str

    def __str__(self) -> str:
        return f"{self.actor_name}.{self.proc_id}"


class ActorInstance:
    """An actor, or a program (`root`), as it sees itself."""

    def __init__(self, identity: Identity, runner: Runner | None) -> None:
        self._identity, self._runner = identity, runner

    @property
    def rank(self) -> Point:
        """Its place in the mesh that it was spawned on."""
        return self._identity.point

    @property
    def name(self) -> str:
        """The name that `spawn` got; "root" for a program."""
        return self._identity.name

    @property
    def class_name(self) -> str | None:
        """The name of its class, as in "__main__.Trainer"; None for a program."""
        return self._identity.class_name

    @property
    def creator(self) -> ActorInstance | None:
        """The actor or program that spawned it."""
        creator = self._identity.creator
        return ActorInstance(creator, None) if creator is not None else None

    @property
    def actor_id(self) -> ActorId:
        """Its identifier."""
        name = self._identity.uid or "client"
        return ActorId(name, name.rpartition("-")[0] or name, name, self.proc_id)

    @property
    def proc_id(self) -> str:
        """The identifier of its process."""
        if self._runner is None:
            return "local"
        place = self._runner.birth.handle.places[self._runner.rank]
        return place.process if place != HERE else "local"

    @property
    def proc(self) -> ProcMesh:
        """Its process."""
        return this_proc()

    @property
    def proc_mesh(self) -> ProcMesh:
        """The mesh of processes that it was spawned on."""
        return this_proc() if self._runner is None else proc_mesh_of(self._runner.birth.handle)

    def stop(self, reason: str | None = None) -> None:
        """End the actor after the message that it executes now."""
        self._own("stop").stop(reason or "it stopped itself", HERE, 0)

    def abort(self, reason: str | None = None) -> None:
        """Let the actor fail after the message that it executes now. The actor that spawned it is told."""
        self._own("abort").abort(f"actor explicitly aborted due to: {reason or 'no reason was given'}")

    kill = abort

    def _own(self, what: str) -> Runner:
        if self._runner is None:
            raise RuntimeError(f"only an actor can {what} itself: {self!r} is none of this process")
        return self._runner

    def __repr__(self) -> str:
        return repr(self._identity)


@dataclass(frozen=True)
class Context:
    """Where code runs. `context()` returns it.

    Attributes:
        message_rank: the place of this actor in the mesh that was called, which may be a slice.
        actor_instance: the actor, or the program.

    Example:
        >>> context().actor_instance.name  # in an endpoint: as given to `spawn`
        'root'
    """

    message_rank: Point
    actor_instance: ActorInstance


def context() -> Context:
    """Return the Context of the calling code, which runs in an actor that executes a message, or in a program.

    Example:
        >>> context().message_rank.rank  # of a program
        0
    """
    step = current()
    if step is None:
        identity = process().identity
        return Context(identity.point, ActorInstance(identity, None))
    if step.facts is None:
        step.facts = Context(step.point, ActorInstance(step.runner.identity, step.runner))
    found: Context = step.facts
    return found


def current_rank() -> Point:
    """Return the place of this actor in the mesh that was called, as a Point. It has a number, `rank`, and coordinates.

    Example:
        >>> class Placed(Actor):
        ...     @endpoint
        ...     def place(self):
        ...         return current_rank()["hosts"], current_rank().rank
        >>> places = mesh.spawn("placed", Placed).place.call().get()
    """
    return context().message_rank


def current_size() -> dict[str, int]:
    """Return the sizes of the mesh that was called, by dimension.

    Example:
        >>> class Sized(Actor):
        ...     @endpoint
        ...     def procs(self):
        ...         return current_size()["procs"]
        >>> sizes = mesh.spawn("sized", Sized).procs.call().get()
    """
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """Return the identifier of this actor, as text.

    Example:
        >>> class Named(Actor):
        ...     @endpoint
        ...     def name(self):
        ...         return current_actor_name()
        >>> names = mesh.spawn("named", Named).name.call().get()
    """
    return str(context().actor_instance.actor_id)

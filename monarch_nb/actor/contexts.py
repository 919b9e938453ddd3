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
    """An actor's identifier.

    Attributes:
        actor_name: "trainers-Xb4…", of the mesh.
        label: "trainers".
        uid: as actor_name.
        proc_id: of its process.
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
        """As given to `spawn`; "root" for a program."""
        return self._identity.name

    @property
    def class_name(self) -> str | None:
        """As "__main__.Trainer"; None for a program."""
        return self._identity.class_name

    @property
    def creator(self) -> ActorInstance | None:
        """Who spawned it."""
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
        """End it after what it executes now."""
        self._own("stop").stop(reason or "it stopped itself", HERE, 0)

    def abort(self, reason: str | None = None) -> None:
        """Let it fail, after what it executes now; who spawned it is told."""
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
    """Where code runs.

    Attributes:
        message_rank: the place of this actor in the mesh that was called: a slice, perhaps.
        actor_instance: the actor.

    Example:
        >>> context().actor_instance.name  # in an endpoint: as given to `spawn`
        'root'
    """

    message_rank: Point
    actor_instance: ActorInstance


def context() -> Context:
    """Return where the calling code runs: in an actor that executes a message, or in a program.

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
    """Return the place of this actor in the mesh that was called.

    Example:
        >>> class Placed(Actor):
        ...     @endpoint
        ...     def place(self):
        ...         return current_rank()["hosts"], current_rank().rank
        >>> places = mesh.spawn("placed", Placed).place.call().get()
    """
    return context().message_rank


def current_size() -> dict[str, int]:
    """Return the sizes of the mesh that was called.

    Example:
        >>> class Sized(Actor):
        ...     @endpoint
        ...     def procs(self):
        ...         return current_size()["procs"]
        >>> sizes = mesh.spawn("sized", Sized).procs.call().get()
    """
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """Return the identifier of this actor.

    Example:
        >>> class Named(Actor):
        ...     @endpoint
        ...     def name(self):
        ...         return current_actor_name()
        >>> names = mesh.spawn("named", Named).name.call().get()
    """
    return str(context().actor_instance.actor_id)

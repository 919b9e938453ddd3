"""Endpoints: methods of actors that others call."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import pickle
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

from monarch_nb.actor.engine.mailbox import Declared
from monarch_nb.actor.future import Future
from monarch_nb.actor.value_mesh import MeshTrait
from monarch_nb.ground import pickling
from monarch_nb.ground.callers import end_at_caller
from monarch_nb.shape import Region


class WrongArguments(TypeError):
    """A TypeError, which a notebook shows without the way through this package. Elsewhere it looks like any other."""

    __module__, __qualname__ = "builtins", "TypeError"

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeError, self.args

    def _render_traceback_(self, *_: Any) -> list[str]:
        end_at_caller(self.__traceback__)
        return [f"\x1b[31mTypeError\x1b[39m: {self}"]


def check_travelling(title: str, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Tell which argument it is that can not be pickled, if it is one.

    Args:
        title: what is called: "trainers.step".
        values, named: the arguments.

    Raises:
        TypeError: it is one.
    """
    by_place = ((f"argument {number}", value) for number, value in enumerate(values, 1))
    for name, value in itertools.chain(by_place, ((f"argument {name!r}", value) for name, value in named.items())):
        try:
            pickling.dumps(value, protocol=5, buffer_callback=lambda _: None)
        except Exception as problem:
            raise WrongArguments(
                f"{title}: {name}, {reprlib.repr(value)}, can not be pickled, so it can not be sent to ranks: {problem}"
            ) from problem


class Endpoint(Protocol):
    """An endpoint of a mesh of actors: an attribute of the ActorMesh. Its methods are Monarch's adverbs.

    Example:
        >>> counters.add.call(1).get()  # all, and a value per rank
        >>> counters.slice(hosts=0, procs=0).add.call_one(1).get()  # the only one
        >>> counters.add.broadcast(1)  # all, waiting for nothing
        >>> counters.add.choose(1).get()  # a random one
        >>> for future in counters.value.stream():  # all, in the order in which values come
        ...     print(future.get())
    """

    def call(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on all ranks. The result of the future is a ValueMesh."""

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on the only rank of the mesh. The result of the future is the value."""

    def choose(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on a random rank. The result of the future is the value."""

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on all ranks. Return an iterator over one future per rank, in the order in which results come."""

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Call it on all ranks, and wait for no response."""


def endpoint(
    method: Any = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Make a method of an Actor an endpoint, which others can call. Use it as a decorator.

    Args:
        method: a `def` or `async def`. All endpoints of a class must be of one kind.
        explicit_response_port: the method gets a Port as its first argument, and responds by it. Its return value is
            ignored.
        propagate, instrument: for distributed tensors and tracing in Monarch; without effect here.

    Example:
        >>> class Trainer(Actor):
        ...     @endpoint
        ...     def step(self, batch): ...
        ...
        ...     @endpoint(explicit_response_port=True)
        ...     def predict(self, port, x): ...  # port.send(result), also later, from another thread
    """
    if method is None:
        return functools.partial(
            endpoint, propagate=propagate, explicit_response_port=explicit_response_port, instrument=instrument
        )
    return Declared(method, explicit_response_port, False)


def concurrent_endpoint(
    method: Any = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Make an `async def` method an endpoint whose calls run side by side: each call is a task, and the actor takes
    other messages meanwhile.

    Args:
        method, propagate, explicit_response_port, instrument: as for `endpoint`.

    Raises:
        ValueError: the method is no `async def`, or is an endpoint already.

    Example:
        >>> class Server(Actor):
        ...     @concurrent_endpoint
        ...     async def wait(self, seconds):
        ...         await asyncio.sleep(seconds)
        ...         return seconds
    """
    if method is None:
        return functools.partial(
            concurrent_endpoint,
            propagate=propagate,
            explicit_response_port=explicit_response_port,
            instrument=instrument,
        )
    if isinstance(method, Declared):
        raise ValueError("concurrent_endpoint can not wrap a method that is an endpoint already")
    if not inspect.iscoroutinefunction(method):
        raise ValueError("concurrent_endpoint can only wrap async endpoints")
    return Declared(method, explicit_response_port, True)


class _Some:
    """A default value that is not known here."""

    def __repr__(self) -> str:
        return "…"


_SOME = _Some()


@dataclass(frozen=True)
class Parameters:
    """The signature of a method as its callers see it, without annotations and default values: it travels.

    Attributes:
        parameters: name, kind, and whether there is a default.
    """

    parameters: Sequence[tuple[str, int, bool]]

    @staticmethod
    def of(function: Callable[..., Any], left_out: int) -> Parameters:
        """Return those of a function, without its first ones."""
        all_of_them = list(inspect.signature(function).parameters.values())
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        while left_out and all_of_them and all_of_them[0].kind in positional:
            del all_of_them[0]
            left_out -= 1
        return Parameters(tuple((each.name, int(each.kind), each.default is not each.empty) for each in all_of_them))

    @functools.cached_property
    def _positional(self) -> tuple[int, int]:
        """How many arguments by place are right for sure, when there are none by name: from, to."""
        is_simple = all(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for _, kind, _ in self.parameters)
        needed = sum(not has_default for _, _, has_default in self.parameters)
        return (needed, len(self.parameters)) if is_simple else (1, 0)

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.Signature(
            [
                inspect.Parameter(name, inspect._ParameterKind(kind), default=_SOME if has else inspect.Parameter.empty)
                for name, kind, has in self.parameters
            ]
        )

    def check(self, values: Sequence[Any], named: Mapping[str, Any], title: str) -> None:
        """Raise TypeError unless a method takes these arguments.

        Args:
            title: the method, for people: "Trainer.step".
        """
        least, most = self._positional
        if named or not least <= len(values) <= most:
            try:
                self._signature.bind(*values, **named)
            except TypeError as error:
                raise WrongArguments(f"{title}{self._signature}: {error}") from None


@dataclass(frozen=True)
class ClassFacts:
    """What callers have to know of an actor's class, also those that do not have it.

    Attributes:
        text: as `str` of it.
        endpoints: their parameters, by name.
    """

    text: str
    endpoints: Mapping[str, Parameters]

    def packed(self) -> bytes:
        """Return it as one piece of data."""
        return pickle.dumps((self.text, {name: each.parameters for name, each in self.endpoints.items()}), 5)


@functools.lru_cache(maxsize=1000)
def unpacked(facts: bytes) -> ClassFacts:
    """Return the facts of a class that came with a mesh."""
    text, endpoints = pickle.loads(facts)
    return ClassFacts(text, {name: Parameters(parameters) for name, parameters in endpoints.items()})


def declared(kind: type) -> dict[str, Declared]:
    """Return the endpoints of a class, also those that it inherits."""
    found = {name: inspect.getattr_static(kind, name, None) for name in dir(kind)}
    return {name: each for name, each in found.items() if isinstance(each, Declared)}


def facts_of(kind: type) -> ClassFacts:
    """Return the facts of a class."""
    endpoints = {name: Parameters.of(each.method, 1 + each.is_explicit) for name, each in declared(kind).items()}
    return ClassFacts(str(kind), endpoints)


_ASYNC_HOOKS = ("__cleanup__", "__supervise__", "_handle_undeliverable_message")


def is_async_class(kind: type) -> bool:
    """Return whether the actors of a class have an event loop: unless all of their endpoints are `def`.

    Raises:
        ValueError: it mixes both kinds, or its hooks are not of the kind of its endpoints.
    """
    kinds = {name: inspect.iscoroutinefunction(each.method) for name, each in declared(kind).items()}
    sync = [name for name, is_async in kinds.items() if not is_async]
    if sync and len(sync) < len(kinds):
        raise ValueError(
            f"{kind} mixes both async and sync endpoints. Make all of them `async def`, or all `def`: a sync one "
            "holds up the event loop on which the async ones run, for ever if it waits for one of them. "
            f"sync: {sync} async: {[name for name in kinds if name not in sync]}"
        )
    for name in _ASYNC_HOOKS:
        hook = getattr(kind, name, None)
        if sync and inspect.iscoroutinefunction(hook):
            raise ValueError(f"{kind} has sync endpoints, so that its {name} can not be async")
        if kinds and not sync and name == "__cleanup__" and hook is not None and not inspect.iscoroutinefunction(hook):
            raise ValueError(f"{kind} has async endpoints, so that its {name} must be async")
    return not sync


class Actor(MeshTrait):
    """The base class of actors. An actor lives in a rank, and answers calls of its endpoints one after the other, on a
    thread of its own.

    A subclass may define two hooks:

    - `__supervise__(self, failure)` is called when a mesh that the actor spawned has failed. Return True when you have
      handled the failure.
    - `__cleanup__(self, exception)` is called when the actor ends.

    Example:
        >>> class Counter(Actor):
        ...     def __init__(self, value):
        ...         self.value = value
        ...
        ...     @endpoint
        ...     def add(self, n):
        ...         self.value += n
        ...         return self.value
        >>> counters = mesh.spawn("counters", Counter, 0)
        >>> counters.add.call(1).get()
    """

    @functools.cached_property
    def logger(self) -> logging.Logger:
        """A logger with the name of the class, at level DEBUG."""
        logger = logging.getLogger(type(self).__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    def _region(self) -> Region:
        self._is_no_mesh()

    def _with_region(self, region: Region) -> Self:
        self._is_no_mesh()

    def _is_no_mesh(self) -> NoReturn:
        raise NotImplementedError(
            "actor implementations are not meshes, but we can't convince the typechecker of it: spawn the actor, and "
            "use what `spawn` returns"
        )

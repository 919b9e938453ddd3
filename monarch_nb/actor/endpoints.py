"""Endpoints: methods of actors that others call."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from monarch_nb.actor.arguments import WrongArguments
from monarch_nb.actor.engine.methods import Declared
from monarch_nb.actor.future import Future


class EndpointProperty(Declared):
    """What the class itself has under the name of an endpoint; meshes of its actors have what can be called."""

    def __repr__(self) -> str:
        return f"<endpoint {self.method.__qualname__}>"


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
    return EndpointProperty(method, explicit_response_port, False)


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
    return EndpointProperty(method, explicit_response_port, True)


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
        methods: the parameters of other methods.
    """

    text: str
    endpoints: Mapping[str, Parameters]
    methods: Mapping[str, Parameters]

    def packed(self) -> bytes:
        """Return it as one piece of data."""
        endpoints = {name: each.parameters for name, each in self.endpoints.items()}
        return pickle.dumps((self.text, endpoints, {name: each.parameters for name, each in self.methods.items()}), 5)


@functools.lru_cache(maxsize=1000)
def unpacked(facts: bytes) -> ClassFacts:
    """Return the facts of a class that came with a mesh."""
    text, endpoints, methods = pickle.loads(facts)
    return ClassFacts(
        text,
        {name: Parameters(parameters) for name, parameters in endpoints.items()},
        {name: Parameters(parameters) for name, parameters in methods.items()},
    )


def declared(kind: type) -> dict[str, Declared]:
    """Return the endpoints of a class, also those that it inherits."""
    found = {name: inspect.getattr_static(kind, name, None) for name in dir(kind)}
    return {name: each for name, each in found.items() if isinstance(each, Declared)}


def facts_of(kind: type) -> ClassFacts:
    """Return the facts of a class."""
    endpoints = {name: Parameters.of(each.method, 1 + each.is_explicit) for name, each in declared(kind).items()}
    methods = {}
    for name in dir(kind):
        found = inspect.getattr_static(kind, name, None)
        if not name.startswith("__") and inspect.isfunction(found):
            methods[name] = Parameters.of(found, 1)
    return ClassFacts(str(kind), endpoints, methods)


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

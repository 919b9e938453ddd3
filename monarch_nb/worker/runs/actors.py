"""What `actors` is in a cell: the actors of this rank, alive."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class LiveActors(Mapping[str, Any]):
    """The Actor objects of this rank by name, the newest of each name.

    Args:
        instances: returns them.

    Example:
        >>> actors["trainers"].model  # doctest: +SKIP
    """

    def __init__(self, instances: Callable[[], Mapping[str, object]]) -> None:
        self._instances = instances

    def __getitem__(self, name: str) -> Any:
        instances = self._instances()
        if name not in instances:
            raise NoSuchActor(name, sorted(instances))
        return instances[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._instances())

    def __len__(self) -> int:
        return len(self._instances())

    def __repr__(self) -> str:
        instances = self._instances()
        if not instances:
            return "no actors on this rank"
        return "\n".join(f"{name}: {type(instance).__qualname__}" for name, instance in instances.items())


class NoSuchActor(KeyError):
    """A rank has no actor of a name.

    Args:
        name: the name.
        known: the names that there are.
    """

    def __init__(self, name: object, known: list[str]) -> None:
        super().__init__(name)
        self._known = known

    def __str__(self) -> str:
        if not self._known:
            return f"this rank has no actors, so none is called {self.args[0]!r}: spawn it first"
        return f"this rank has no actor {self.args[0]!r}: its actors are {', '.join(self._known)}"

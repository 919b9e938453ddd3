"""Values that travel between a notebook and a rank as packed pickles (see monarch_nb.ground.frames)."""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from monarch_nb.config import INLINE_VALUE_BYTES
from monarch_nb.files.pieces import write_pieces
from monarch_nb.ground import pickling
from monarch_nb.ground.frames import pack_pickle, unpack_pickle
from monarch_nb.ground.printing import encodable
from monarch_nb.proto.run_pb2 import RankResult


def store_value(result: RankResult, value: Any, directory: str) -> None:
    """Pickle `value` into `result`: inline when it is small, else as a blob in `directory`. Why it can not be
    pickled or stored is noted in `result.value_error`."""
    try:
        pieces = pack_pickle(value, pickling.dumps)
    except Exception as error:  # noqa: BLE001 -- pickling runs the __reduce__ of any class, which may raise anything
        result.value_error = explain_unpicklable(value, error)
        return
    if sum(memoryview(piece).nbytes for piece in pieces) <= INLINE_VALUE_BYTES:
        result.value_inline = b"".join(pieces)
        return
    name = f"{result.run_id}-{result.rank}.value"
    try:
        write_blob(Path(directory, name), pieces)
        result.value_blob = name
    except OSError as error:
        result.value_error = f"can not store the result: {error.strerror}"


def load_variables(path: Path) -> dict[str, Any]:
    """Return the variables of a pushed blob; arrays and tensors are views of the mapped file, copied where written to.

    So all ranks of a node share one copy of a large array. The map lives as long as an array in it.
    """
    with open(path, "rb") as file:
        variables = unpack_pickle(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    if not isinstance(variables, dict):
        raise TypeError(f"a push must hold a dict, not {_describe(variables)}")
    return variables


def write_blob(path: Path, pieces: list[bytes | memoryview]) -> None:
    """Write a blob; it appears under its name only when it is whole.

    Raises:
        OSError: it can not be written; nothing is left behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    write_pieces(partial, pieces)
    partial.rename(path)


def explain_unpicklable(value: Any, error: BaseException) -> str:
    """Return why `value` can not be pickled, naming the innermost item at fault.

    Example:
        >>> explain_unpicklable({"a": 1, "b": (n for n in [])}, TypeError("cannot pickle 'generator' object"))
        "can not pickle the result['b'], a generator: TypeError: cannot pickle 'generator' object"
    """
    name, culprit = "the result", value
    while (item := next(_unpicklable_items(culprit), None)) is not None:
        key, culprit = item
        name += f"[{key!r}]"
    return encodable(f"can not pickle {name}, {_describe(culprit)}: {type(error).__name__}: {error}")


def _unpicklable_items(value: Any) -> Iterator[tuple[Any, Any]]:
    if type(value) is dict:
        items = list(value.items())
    elif type(value) in (list, tuple):
        items = list(enumerate(value))
    else:
        return
    for key, item in items:
        try:
            cloudpickle.dumps(item)
        except Exception:  # noqa: BLE001 -- whatever its __reduce__ raises
            yield key, item


def _describe(value: Any) -> str:
    name = type(value).__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


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

"""Which instruments a run has, and what they found.

An instrument is a class in monarch_nb/worker/instruments. `RunSpec.instruments` names those of a run, each with its
options. It is made and begun before the run's code, and ended after it, also when the code failed or was interrupted.
What it found is kept here until the client asks for it. A script's process ends: it leaves files.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from monarch_nb.config import found_blob
from monarch_nb.errors import UsageError
from monarch_nb.proto.run_pb2 import RunSpec
from monarch_nb.worker.runs import values
from monarch_nb.worker.user_code import UserCode

INSTRUMENTS: dict[str, str] = {
    "python-profile": "monarch_nb.worker.instruments.python_profile:PythonProfile",
    "memory-history": "monarch_nb.worker.instruments.torch_profile:MemoryHistory",
    "torch-profile": "monarch_nb.worker.instruments.torch_profile:TorchProfile",
    "watch": "monarch_nb.worker.instruments.watch:Watch",
}
"""Where the class of each instrument is, as "module:Class". It is imported by the first run that has it."""
_KEPT_RUNS = 8
_KEPT_FILES = 8

_found: dict[str, dict[str, Any]] = {}


class Running(NamedTuple):
    """A run that has instruments.

    Attributes:
        spec: what the rank was told of it.
        rank: this rank's number in the mesh; a script may know another one.
        user_code: knows the user's frames.
    """

    spec: RunSpec
    rank: int
    user_code: UserCode


_running: list[Running] = []


def running() -> Running:
    """Return the run that has instruments now: their own, where they ask for it."""
    return _running[-1]


class Instrument(Protocol):
    """What is switched on for one run. Its class takes the options of the run as keyword arguments."""

    def begin(self) -> None:
        """Switch it on. What this raises, the run raises: its code is not executed."""

    def end(self) -> Any:
        """Switch it off; return what it found: plain data, or `Later`."""


class Later:
    """What an instrument found, where it takes long to put together: that is done when somebody asks for it, so that
    the run can end. It may take much memory: it is kept until the next run with instruments begins.

    Args:
        find: returns plain data.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self.find = find


def of_run(spec: RunSpec, rank: int, user_code: UserCode) -> AbstractContextManager[None]:
    """Have the instruments of a run, if there are any, switched on while a block executes its code. The arguments are
    those of `Running`."""
    return _switched_on(Running(spec, rank, user_code)) if spec.instruments else nullcontext()


@contextmanager
def _switched_on(run: Running) -> Iterator[None]:
    _drop_later()
    with ExitStack() as stack:
        _running.append(run)
        stack.callback(_running.pop)
        for name, options in run.spec.instruments.items():
            instrument = _class_of(name)(**json.loads(options or "{}"))
            stack.callback(_end, run.spec.run_id, name, instrument)
            instrument.begin()
        yield


def is_chosen(ranks: Sequence[int] | None) -> bool:
    """Return whether this rank is one of `ranks`; by default, whether it is the first rank of the run on its node. For
    an instrument that looks at some ranks only."""
    rank, per_node = running().rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks is not None:
        return rank in ranks
    if running().spec.HasField("script"):
        return os.environ.get("LOCAL_RANK") == "0"
    ranks_of_run = running().spec.ranks or range(rank)
    return not any(other // per_node == rank // per_node and other < rank for other in ranks_of_run)


def found(run_id: str, name: str) -> bytes:
    """Return what an instrument found in a run, packed; None, packed, when it never began. It is kept no longer."""
    return _packed(_found.get(run_id, {}).pop(name, None))


def leave_found(run_id: str, rank: int, directory: str) -> None:
    """Write what instruments found in a script, whose process ends now, where the client reads it (`found_blob`).
    Only the files of the newest scripts stay.

    Raises:
        OSError: it can not be written.
    """
    folder = Path(directory)
    for name, told in _found.pop(run_id, {}).items():
        values.write_blob(folder / found_blob(run_id, rank, name), [_packed(told)])
    files = sorted(folder.glob(found_blob("*", rank, "*")), key=lambda path: path.stat().st_mtime)
    for path in files[:-_KEPT_FILES]:
        path.unlink(missing_ok=True)


def _packed(told: Any) -> bytes:
    return zlib.compress(pickle.dumps(told.find() if isinstance(told, Later) else told), 1)


def _drop_later() -> None:
    for kept in _found.values():
        for name in [name for name, told in kept.items() if isinstance(told, Later)]:
            del kept[name]


def _end(run_id: str, name: str, instrument: Instrument) -> None:
    kept = _found.setdefault(run_id, {})
    while len(_found) > _KEPT_RUNS:
        del _found[next(iter(_found))]
    kept[name] = instrument.end()


def _class_of(name: str) -> type[Instrument]:
    if name not in INSTRUMENTS:
        raise UsageError(f"there is no instrument {name!r}: there are {', '.join(INSTRUMENTS)}")
    module, _, attribute = INSTRUMENTS[name].partition(":")
    return cast("type[Instrument]", getattr(importlib.import_module(module), attribute))

"""Which instruments a run has, and what they found.

An instrument is a class in monarch_nb/worker/instruments. `RunSpec.instruments` names those of a run, each with its
options. It is made and begun before the run's code, and ended after it, also when the code failed or was interrupted.
What it found is kept here until the client asks for it.
"""

from __future__ import annotations

import importlib
import json
import pickle
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, cast

INSTRUMENTS: dict[str, str] = {
    "watch": "monarch_nb.worker.instruments.watch:Watch",
    "deterministic": "monarch_nb.worker.instruments.deterministic:Deterministic",
}
"""Where the class of each instrument is, as "module:Class". It is imported by the first run that has it."""
_KEPT_RUNS = 8

_found: dict[str, dict[str, Any]] = {}
_numbers: list[int] = []


def running_number() -> int:
    """Return the number of the run that has instruments now; 0 when none has."""
    return _numbers[-1] if _numbers else 0


class Instrument(Protocol):
    """What is switched on for one run. Its class takes the options of the run as keyword arguments."""

    def begin(self) -> None:
        """Switch it on. What this raises, the run raises: its code is not executed."""

    def end(self) -> Any:
        """Switch it off; return what it found: plain data."""


@contextmanager
def switched_on(run_id: str, number: int, instruments: Mapping[str, str]) -> Iterator[None]:
    """Have instruments switched on while the block is executed.

    Args:
        run_id, number: of the run whose code the block executes.
        instruments: options by name, as JSON.
    """
    with ExitStack() as stack:
        _numbers.append(number)
        stack.callback(_numbers.pop)
        for name, options in instruments.items():
            instrument = _class_of(name)(**json.loads(options or "{}"))
            stack.callback(_end, run_id, name, instrument)
            instrument.begin()
        yield


def found(run_id: str, name: str) -> bytes:
    """Return what an instrument found in a run, packed; None, packed, when it never began. It is kept no longer."""
    return zlib.compress(pickle.dumps(_found.get(run_id, {}).pop(name, None)), 1)


def _end(run_id: str, name: str, instrument: Instrument) -> None:
    kept = _found.setdefault(run_id, {})
    while len(_found) > _KEPT_RUNS:
        del _found[next(iter(_found))]
    kept[name] = instrument.end()


def _class_of(name: str) -> type[Instrument]:
    module, _, attribute = INSTRUMENTS[name].partition(":")
    return cast("type[Instrument]", getattr(importlib.import_module(module), attribute))

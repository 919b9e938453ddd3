"""What a rank held when an allocation failed: noted while the frames of the code that failed still hold it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from monarch_nb.worker.memory.held import Held

WITHIN_S = 1.0
"""The failure is told no later than that."""
_CLASSES = frozenset(("OutOfMemoryError", "MemoryError", "_ArrayMemoryError"))
_WORDS = ("CUDA out of memory", "HIP out of memory", "DefaultCPUAllocator: can't allocate memory")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_ASKED = re.compile(rf"(?:[Tt]ried to|Unable to) allocate ([\d.]+) ({'|'.join(_UNITS)})")
_OURS = frozenset(("monarch_nb", "IPython"))

_last: tuple[str, dict[str, Any]] | None = None


def is_out_of_memory(name: str, message: str) -> bool:
    """Return whether an error says that an allocation failed.

    Args:
        name: of its class.

    Example:
        >>> is_out_of_memory("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …")
        True
    """
    return name in _CLASSES or any(words in message for words in _WORDS)


def asked_bytes(message: str) -> int:
    """Return how much was asked for in an allocation that failed; 0 where its error does not say that.

    Example:
        >>> asked_bytes("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has …") / 2**30
        20.0
        >>> asked_bytes("… DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12")
        4096
    """
    found = _ASKED.search(message)
    return int(float(found[1]) * 1024 ** _UNITS.index(found[2])) if found else 0


def note(
    error: BaseException, namespace: Mapping[str, Any], run_id: str, figures: Callable[[], dict[str, Any]]
) -> None:
    """Keep what the namespace and the frames of an error hold, if an allocation has failed.

    Args:
        figures: returns how much memory is in use.
    """
    global _last
    with contextlib.suppress(Exception):  # there may be no memory for this, either: the error is what matters
        if not is_out_of_memory(type(error).__name__, str(error)):
            return
        held = Held(within_s=WITHIN_S).look(namespace)
        for function, variables in _frames(error.__traceback__, namespace):
            held.look(variables, f"{function}(): ")
        _last = (run_id, figures() | {"held": tuple(held.found())})


def take(run_id: str) -> dict[str, Any] | None:
    """Return what was noted in a run, once."""
    global _last
    noted, _last = _last, None
    return noted[1] if noted is not None and noted[0] == run_id else None


def _frames(trace: TracebackType | None, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    while trace is not None:
        frame = trace.tb_frame
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OURS and frame.f_locals is not namespace:
            yield frame.f_code.co_qualname, frame.f_locals
        trace = trace.tb_next

"""What the client asks a rank about its memory. Answers are bytes: see monarch_nb/worker/comparing/answers.py."""

from __future__ import annotations

import gc
import pickle
import types
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch_nb.worker.memory import failures, gpus
from monarch_nb.worker.memory.figures import kilobytes
from monarch_nb.worker.memory.held import Held

_NONE: Mapping[str, Any] = types.MappingProxyType({})


def now(names: Mapping[str, Any], local_names: Mapping[str, Any] = _NONE, *, release: bool = False) -> bytes:
    """Answer with the figures, and with the largest tensors that namespaces hold. What only garbage holds goes first:
    it would look like a leak.

    Args:
        local_names: at a breakpoint in a function: these hide others.
        release: give the memory of the GPU back before that in which no tensors are.
    """
    gc.collect()
    released = {"released": gpus.release()} if release else {}
    hidden = {name: value for name, value in names.items() if local_names.get(name, value) is not value}
    held = Held().look({**names, **local_names}).look(hidden, of="global ")
    return _packed(figures() | released | {"held": tuple(held.found())})


def at_failure(run_id: str) -> bytes:
    """Answer with what was held when an allocation failed in a run; None if none did. It is kept no longer."""
    return _packed(failures.take(run_id))


def figures() -> dict[str, Any]:
    """Return how much memory this process uses, and how much of its GPU."""
    gpu = gpus.figures()
    return {
        "pss": kilobytes(_read("/proc/self/smaps_rollup"), "Pss"),
        "greatest_rss": kilobytes(_read("/proc/self/status"), "VmHWM"),
        "gpu": None if gpu is None else tuple(gpu),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _packed(answer: Any) -> bytes:
    return zlib.compress(pickle.dumps(answer), 1)

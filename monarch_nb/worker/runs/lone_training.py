"""Noticing that this rank trains a model without any process group: if several do, they were meant to train one.

A rank can not know what the others do. It tells clients which model it trains, and they say it when models are alike.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from monarch_nb.proto.run_pb2 import Display
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.imports import after_import
from monarch_nb.worker.shell import streams

_STEPS = 2
"""How many steps of a run make training of it; nothing is looked at after them."""


@dataclass
class _Run:
    lone_steps: int = 0
    is_settled: bool = False


_runs: WeakKeyDictionary[streams.RunOutput, _Run] = WeakKeyDictionary()
"""By where they print: endpoints on other threads belong to other runs."""


def install() -> None:
    """Look at optimizers' steps, once there are optimizers."""
    after_import("torch.optim.optimizer", _watch)


def begin_run() -> None:
    """Another run of the main thread begins; its output may be that of the run before."""
    _runs.pop(streams.newest_output(), None)


def _watch(module: Any) -> None:
    torch = module.torch  # it may be in the middle of its own import: what is in it is looked up later

    def after_step(optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        output = streams.current_output()
        run = _runs.get(output) or _runs.setdefault(output, _Run())
        if run.is_settled:
            return
        if c10d.default_group() is not None or os.environ.get("WORLD_SIZE", "1") == "1":
            run.is_settled = True
            return
        run.lone_steps += 1
        if run.lone_steps >= _STEPS:
            run.is_settled = True
            told = Display(content_json=json.dumps(_signature(optimizer)), kind=Display.KIND_TRAINS_ALONE)
            output.display(told)

    module.register_optimizer_step_post_hook(after_step)


def _signature(optimizer: Any) -> str:
    """Return what is equal for ranks that train alike. The shapes alone are equal in a search for hyperparameters."""
    shapes = [[tuple(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]
    facts = repr((type(optimizer).__qualname__, optimizer.defaults, shapes))
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()

"""`--deterministic`: a run computes as one before it did, and leaves a digest of each step; `--compare-with` finds the
first that is another."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from monarch_nb.errors import UsageError
from monarch_nb.worker.digests import digest
from monarch_nb.worker.instruments.finite import local
from monarch_nb.worker.instruments.losses import Losses
from monarch_nb.worker.instruments.steps import Steps
from monarch_nb.worker.runs import instruments

KEPT_RUNS = 4
MOST_DIGESTS = 200_000
"""Of one run; later steps are not compared, and that is said."""
_SHORT_DIGEST = 8
"""So many characters tell two ranks' apart."""
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_DETERMINISTIC_WORKSPACE = ":4096:8"
START, LOSS, GRADIENT, PARAMETER = "start", "loss", "gradient", "parameter"


@dataclass
class Record:
    """What a run computed.

    Attributes:
        seed: it began with.
        steps: of each step the digests, by what they are of: ("gradient", "layers.0.weight"). Parameters before the
            first step are in step 0.
        done: how many steps it did. kept: how many digests there are.
    """

    seed: int
    steps: dict[int, dict[tuple[str, str], str]] = field(default_factory=dict)
    done: int = 0
    kept: int = 0

    def add(self, step: int, kind: str, name: str, value: Any) -> None:
        """Note one tensor of a step, unless there are too many."""
        if self.kept < MOST_DIGESTS:
            self.kept += 1
            self.steps.setdefault(step, {})[kind, name] = digest(local(value.detach()))


_records: dict[int, Record] = {}
"""Of this rank's last runs, by number, the one that was asked for or made last at the end."""


def recorded() -> list[int]:
    """Return the numbers of the runs that have a record on this rank."""
    return list(_records)


def history(path: str, contents: str) -> tuple[int, str, dict[int, str]] | None:
    """Return what is recorded of a parameter that has changed no more since: the run, its name there, and a digest
    after each step, with the one before the first step as step 0. None where nothing is.

    Args:
        path: what it is called now: "model.module.layers.0.weight" may be "layers.0.weight" in the record.
        contents: its digest.
    """
    for number, record in reversed(_records.items()):
        last = record.steps.get(max(record.steps, default=0), {})
        for kind, name in last:
            if kind == PARAMETER and last[kind, name] == contents and f".{path}".endswith(f".{name}"):
                of_step = {
                    step: (digests.get((PARAMETER, name)) or digests.get((START, name), ""))[:_SHORT_DIGEST]
                    for step, digests in sorted(record.steps.items())
                }
                return number, name, of_step
    return None


class Deterministic:
    """Sets what makes torch compute alike each time, seeds all random generators, and takes digests of each step. At
    the end all settings and generators are as they were.

    Args:
        seed: the same on all ranks; None for that of the run to compare with, or 0.
        compare_with: the number of a run that was deterministic, too; 0 for none.
    """

    def __init__(self, seed: int | None = None, compare_with: int = 0) -> None:
        self._compare_with = compare_with
        before = _records.get(self._compare_with)
        self._seed = seed if seed is not None else before.seed if before is not None else 0
        self._steps = Steps(self._before_step, self._after_step)
        self._losses = Losses(self._before_backward)
        self._record = Record(self._seed)
        self._notes: list[str] = []
        self._has_begun = False
        self._undo = ExitStack()

    def begin(self) -> None:
        """Set all.

        Raises:
            UsageError: the other run has left no record here.
        """
        if self._compare_with and self._compare_with not in _records:
            raise UsageError(
                f"run {self._compare_with} has left no record on this rank: run a cell with --deterministic first; "
                f"ranks keep the last {KEPT_RUNS}, until they are restarted"
            )
        self._has_begun = True
        self._notes = set_deterministic(self._undo, self._seed)
        self._steps.begin()
        self._losses.begin()

    def end(self) -> dict[str, Any] | None:
        """Restore all, keep the record, and return how it compares; None when it never began."""
        if not self._has_begun:
            return None
        self._losses.end()
        self._steps.end()
        self._undo.close()
        self._record.done = self._steps.done
        before = _records.pop(self._compare_with, None) if self._compare_with else None
        if before is not None:
            _records[self._compare_with] = before  # the newest again: it is asked for
            if before.seed != self._seed:
                self._notes.append(f"seed {self._seed}, run {self._compare_with} had seed {before.seed}")
        _records[instruments.running_number()] = self._record
        while len(_records) > KEPT_RUNS:
            del _records[next(iter(_records))]
        return {
            "seed": self._seed,
            "steps": self._record.done,
            "steps_before": before.done if before is not None else 0,
            "compared_with": self._compare_with,
            "recorded_steps": len([step for step in self._record.steps if step]),
            "notes": self._notes,
            "parted": parting(before, self._record) if before is not None else "",
        }

    def _before_backward(self, losses: list[Any]) -> None:
        for place, loss in enumerate(losses):
            name = f"{len(self._record.steps.get(self._steps.done + 1, {}))}.{place}"
            self._record.add(self._steps.done + 1, LOSS, name, loss)

    def _before_step(self, optimizer: Any, parameters: list[Any], has_closure: bool) -> None:
        names = self._steps.names(optimizer)
        if self._steps.done == 0:
            for each in parameters:
                self._record.add(0, START, names[id(each)], each)
        if not has_closure:
            self._add_gradients(self._steps.done + 1, names, parameters)

    def _add_gradients(self, step: int, names: Mapping[int, str], parameters: list[Any]) -> None:
        for each in parameters:
            if each.grad is not None:
                self._record.add(step, GRADIENT, names[id(each)], _dense(each.grad))

    def _after_step(self, optimizer: Any, parameters: list[Any], has_closure: bool) -> None:
        names = self._steps.names(optimizer)
        if has_closure:  # it has computed the gradients
            self._add_gradients(max(self._steps.done, 1), names, parameters)
        for each in parameters:
            self._record.add(max(self._steps.done, 1), PARAMETER, names[id(each)], each)


def parting(before: Record, now: Record) -> str:
    """Return where two runs begin to differ: "first in step 3: the gradients of 2 of 14 parameters: layers.0.weight,
    layers.0.bias"; empty when they do not, as far as both went."""
    done_by_both = min(before.done, now.done)
    for step in sorted(before.steps.keys() & now.steps.keys()):
        ours, theirs = now.steps[step], before.steps[step]
        for kind in (START, LOSS, GRADIENT, PARAMETER):
            here, there = _of_kind(ours, kind), _of_kind(theirs, kind)
            names = here | there if step <= done_by_both else here.keys() & there.keys()  # one was interrupted in it
            others = [name for name in names if here.get(name) != there.get(name)]
            if others:
                return _told(step, kind, others, len(here | there))
    return ""


def _of_kind(digests: Mapping[tuple[str, str], str], kind: str) -> dict[str, str]:
    return {name: value for (of, name), value in digests.items() if of == kind}


def _told(step: int, kind: str, names: list[str], many: int) -> str:
    if kind == LOSS:
        return f"first in step {step}: the loss"
    named = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    count = f"{len(names)} of {many} parameters"
    if kind == START:
        return f"from the start: {count} begin with other values: {named}"
    if kind == GRADIENT:
        return f"first in step {step}: the gradients of {count}: {named}"
    return f"first after step {step}: {count}: {named}"


def set_deterministic(undo: ExitStack, seed: int) -> list[str]:
    """Set all that makes a run compute as the one before; `undo` restores it. Return what can not be set any more."""
    notes = []
    undo.callback(random.setstate, random.getstate())
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        undo.callback(numpy.random.set_state, numpy.random.get_state())
        numpy.random.seed(seed % (1 << 32))
    torch = _torch()
    if torch is None:
        return ["torch is not installed: only Python's and numpy's generators were seeded"]
    if torch.cuda.is_available() and torch.cuda.is_initialized() and os.environ.get(_WORKSPACE) is None:
        notes.append(
            f"CUDA was initialised before {_WORKSPACE} was set, so matrix products may differ: "
            f"%mesh restart --env {_WORKSPACE}={_DETERMINISTIC_WORKSPACE}"
        )
    undo.callback(_set_variable, os.environ.get(_WORKSPACE))
    os.environ.setdefault(_WORKSPACE, _DETERMINISTIC_WORKSPACE)
    cudnn = torch.backends.cudnn
    undo.callback(_set_cudnn, cudnn, cudnn.deterministic, cudnn.benchmark)
    _set_cudnn(cudnn, True, False)
    was_on, warned_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    undo.callback(torch.use_deterministic_algorithms, was_on, warn_only=warned_only)
    torch.use_deterministic_algorithms(True)
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        undo.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    torch.manual_seed(seed)
    return notes


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _set_cudnn(cudnn: Any, deterministic: bool, benchmark: bool) -> None:
    cudnn.deterministic, cudnn.benchmark = deterministic, benchmark


def _set_variable(value: str | None) -> None:
    if value is None:
        os.environ.pop(_WORKSPACE, None)
    else:
        os.environ[_WORKSPACE] = value


def _dense(gradient: Any) -> Any:
    return gradient.to_dense() if gradient.is_sparse else gradient

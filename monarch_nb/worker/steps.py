"""What counts as one step of a training, and noticing it.

A step is what an optimizer's `step()` does. Gradient accumulation calls it at its boundary only, and a GradScaler that
skips a step does not call it. With several optimizers a step is one round of all of them: see StepCounter.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

from monarch_nb.proto.run_pb2 import Display
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.imports import after_import
from monarch_nb.worker.shell import streams

_PATIENCE = 16
"""A round is looked for anew when so many calls, and four times the first round, have completed none."""


class StepCounter:
    """Tells which calls of optimizers' `step()` complete a step of one run. Pure: equal calls give equal steps, so all
    ranks that execute the same loop count alike.

    - One optimizer: each of its calls completes a step.
    - Several (a GAN's): a round begins when the first optimizer of the run is called after another one. A step is
      complete at the call that ended the first round: with `d.step(); g.step()` it is g's, and with five calls of d
      before each of g's it is g's too. Where the last one is called several times in a row, its last call counts.
    - While the first round goes on, each call of the newest optimizer counts. So phases that follow each other (first
      one model, then another) are counted as well.

    Example:
        >>> counter = StepCounter()
        >>> [counter.completes(name) for name in "dgdgdg"]
        [True, True, False, True, False, True]
    """

    def __init__(self) -> None:
        self._learn()

    def _learn(self) -> None:
        self._first: Hashable | None = None
        self._last: Hashable | None = None
        self._before: Hashable | None = None
        self._is_learnt = False
        self._calls, self._in_row, self._needed, self._unfinished = 0, 0, 1, 0
        self._known: set[Hashable] = set()

    def completes(self, optimizer: Hashable) -> bool:
        """Note a call of an optimizer's `step()`; return whether it completes a step of the training."""
        if self._is_learnt and self._unfinished > max(_PATIENCE, 4 * self._calls):
            self._learn()  # the loop has changed
        if not self._is_learnt:
            return self._completes_in_first_round(optimizer)
        self._unfinished += 1
        self._in_row = self._in_row + 1 if optimizer == self._before else 1
        self._before = optimizer
        if optimizer != self._last or self._in_row % self._needed:
            return False
        self._unfinished = 0
        return True

    def _completes_in_first_round(self, optimizer: Hashable) -> bool:
        if self._first is None:
            self._first = self._last = optimizer
        elif optimizer == self._first and self._before != optimizer:
            self._is_learnt, self._last, self._needed = True, self._before, self._in_row
            self._in_row, self._unfinished, self._before = 1, 1, optimizer
            return False
        elif optimizer not in self._known:
            self._last = optimizer
        self._known.add(optimizer)
        self._calls += 1
        self._in_row = self._in_row + 1 if optimizer == self._before else 1
        self._before = optimizer
        return optimizer == self._last


class OptimizerNames:
    """Numbers optimizers in the order in which they are met: ids are used again, and differently on each rank."""

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._next = 0

    def of(self, optimizer: Any) -> int:
        """Return the number of an optimizer."""
        number = self._numbers.get(optimizer)
        if number is None:
            number = self._numbers[optimizer] = self._next
            self._next += 1
        return number


Notice = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]
"""Is told of an optimizer and what its step is called with: it first, by place and by name."""


class StepHook:
    """Notices each `step()` of optimizers, from `begin` to `end`. One inside `torch.compile` is not seen.

    Args:
        before, after: called on the thread that calls it, before it and when it has returned.
        ready: called once there are optimizers.
    """

    def __init__(self, before: Notice, after: Notice, ready: Callable[[], object] = lambda: None) -> None:
        self._before, self._after, self._ready = before, after, ready
        self._handles: list[Any] = []
        self._is_on = False

    def begin(self) -> None:
        """Notice them from now on, once there are optimizers."""
        self._is_on = True
        after_import("torch.optim.optimizer", self._register)

    def end(self) -> None:
        """Notice no more."""
        self._is_on = False
        while self._handles:
            self._handles.pop().remove()

    def _register(self, module: Any) -> None:
        if self._is_on:
            self._ready()
            torch = module.torch  # it may be in the middle of its own import: what is in it is looked up later
            self._handles = [
                module.register_optimizer_step_pre_hook(_unless_compiling(torch, self._before)),
                module.register_optimizer_step_post_hook(_unless_compiling(torch, self._after)),
            ]


def _unless_compiling(torch: Any, notice: Notice) -> Notice:
    def noticed(optimizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        __tracebackhide__ = True
        if not torch.compiler.is_compiling():
            notice(optimizer, arguments, options)

    return noticed


class Watch:
    """Notices steps, and the moment between two of them.

    A loop goes on after `optimizer.step()`: the schedule steps, counters count. What is saved before that does not
    belong together. So a step ends where the next one begins: when the thread that made it calls a module that trains,
    or the schedule of a pipeline, or else the next optimizer.

    Args:
        stepped: called with each optimizer whose `step()` has returned.
    """

    _to_call: ClassVar[WeakSet[Watch]] = WeakSet()
    """Those with something to call between two steps."""
    _sees_schedules: ClassVar[bool] = False

    def __init__(self, stepped: Callable[[Any], object]) -> None:
        self._stepped = stepped
        self._hook = StepHook(lambda *_: self._go_on(), lambda optimizer, *_: self._stepped(optimizer))
        self._thread = threading.main_thread().ident
        self._between: Callable[[], None] | None = None
        self._forward: Any = None

    def begin(self) -> None:
        """Notice them from now on, once there are optimizers."""
        self._hook.begin()

    def end(self) -> None:
        """Notice no more, and call nothing."""
        self.call_off()
        self._hook.end()

    def call_between(self, function: Callable[[], None]) -> None:
        """Call something once, between this step of this thread and the next; what was to be called is no longer."""
        self.call_off()
        self._between, self._thread = function, threading.get_ident()
        self._to_call.add(self)
        if not Watch._sees_schedules:
            Watch._sees_schedules = True
            after_import("torch.distributed.pipelining.schedules", _hook_schedules)
        torch = sys.modules["torch"]

        def before_forward(module: Any, _: Any) -> None:
            if module.training and torch.is_grad_enabled():  # else the loop looks how good the model is
                self._go_on()

        self._forward = torch.nn.modules.module.register_module_forward_pre_hook(before_forward)

    def call_off(self) -> None:
        """Call nothing."""
        self._between = None
        self._to_call.discard(self)
        if self._forward is not None:
            self._forward.remove()
            self._forward = None

    def _go_on(self) -> None:
        function = self._between
        if function is not None and threading.get_ident() == self._thread:
            self.call_off()
            function()

    @classmethod
    def go_on(cls) -> None:
        """A step ends here for all that have something to call."""
        for watch in list(cls._to_call):
            watch._go_on()


def _hook_schedules(schedules: Any) -> None:
    """A stage of a pipeline calls its module when the stage before has sent something. That one may hold already: all
    stages hold before their schedules instead."""
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        kind.step = _going_on(kind.step)


def _going_on(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def going_on(*arguments: Any, **named: Any) -> Any:
        if sys.modules["torch"].is_grad_enabled():
            Watch.go_on()
        return step(*arguments, **named)

    return going_on


# ---- a model that trains without any process group

_STEPS = 2
"""How many steps of a run make training of it; nothing is looked at after them."""


@dataclass
class _Run:
    lone_steps: int = 0
    is_settled: bool = False


_runs: WeakKeyDictionary[streams.RunOutput, _Run] = WeakKeyDictionary()
"""By where they print: endpoints on other threads belong to other runs."""


def begin_run() -> None:
    """Another run of the main thread begins; its output may be that of the run before."""
    _runs.pop(streams.newest_output(), None)


def _note_lone_step(optimizer: Any, *_: Any) -> None:
    """Tell clients which model this rank trains without any process group: if several do, they were meant to train one.
    A rank can not know what the others do. Clients say it when models are alike."""
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
        output.display(Display(content_json=json.dumps(_signature(optimizer)), kind=Display.KIND_TRAINS_ALONE))


lone_training = StepHook(lambda *_: None, _note_lone_step)
"""Looks at optimizers' steps, in the template and in all ranks that it forks."""


def _signature(optimizer: Any) -> str:
    """Return what is equal for ranks that train alike. The shapes alone are equal in a search for hyperparameters."""
    shapes = [[tuple(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]
    facts = repr((type(optimizer).__qualname__, optimizer.defaults, shapes))
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()

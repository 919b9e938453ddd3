"""What counts as one step of a training, and noticing it.

A step is what an optimizer's `step()` does. Gradient accumulation calls it at its boundary only, and a GradScaler that
skips a step does not call it. With several optimizers a step is one round of all of them: see StepCounter.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

from monarch_nb.worker.imports import after_import

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


class Watch:
    """Notices steps, and the moment between two of them.

    A loop goes on after `optimizer.step()`: the schedule steps, counters count. What is saved before that does not
    belong together. So a step ends where the next one begins: when the thread that made it calls a module that trains,
    or the schedule of a pipeline, or else the next optimizer.

    Args:
        stepped: called with each optimizer whose `step()` has returned. A step inside `torch.compile` is not seen.
    """

    _to_call: ClassVar[WeakSet[Watch]] = WeakSet()
    """Those with something to call between two steps."""
    _sees_schedules: ClassVar[bool] = False

    def __init__(self, stepped: Callable[[Any], None]) -> None:
        self._stepped = stepped
        self._thread = threading.main_thread().ident
        self._between: Callable[[], None] | None = None
        self._forward: Any = None
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Notice them from now on, once there are optimizers."""
        after_import("torch.optim.optimizer", self._hook)

    def end(self) -> None:
        """Notice no more, and call nothing."""
        self.call_off()
        for handle in self._handles:
            handle.remove()
        self._handles = []

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

    def _hook(self, module: Any) -> None:
        torch = module.torch  # it may be in the middle of its own import

        def after_step(optimizer: Any, *_: Any) -> None:
            if not torch.compiler.is_compiling():
                self._stepped(optimizer)

        def before_step(*_: Any) -> None:
            if self._between is not None and not torch.compiler.is_compiling():
                self._go_on()

        self._handles.append(module.register_optimizer_step_post_hook(after_step))
        self._handles.append(module.register_optimizer_step_pre_hook(before_step))

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

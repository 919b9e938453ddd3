"""The steps of a run's optimizers: what is called before and after each, and what their parameters are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb.worker.autosaves.steps import OptimizerNames, StepCounter
from monarch_nb.worker.imports import after_import
from monarch_nb.worker.instruments.batches import Batches

Notice = Callable[[Any, list[Any], bool], None]


class Steps:
    """Notices steps from `begin` to `end`. Those in `torch.compile` are not seen.

    Args:
        before, after: called with each optimizer, its parameters, and whether its step has a closure, before and after
            its step. A closure computes the gradients within the step.

    Attributes:
        done: how many steps the training has done, as StepCounter counts.
        batches: what modules were called with.
    """

    def __init__(self, before: Notice, after: Notice) -> None:
        self._before, self._after = before, after
        self._counter, self._names = StepCounter(), OptimizerNames()
        self._hooks: list[Any] = []
        self._is_on = False
        self.done = 0
        self.batches = Batches()

    def begin(self) -> None:
        """Notice them from now on, once there are optimizers."""
        self._is_on = True
        after_import("torch.optim.optimizer", self._hook)

    def end(self) -> None:
        """Notice none."""
        self._is_on = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.batches.end()

    def names(self, optimizer: Any) -> dict[int, str]:
        """Return names for the parameters of an optimizer, by id: of their module, their own, or where they are."""
        names = {}
        for number, group in enumerate(optimizer.param_groups):
            own = group.get("param_names")
            for place, each in enumerate(group["params"]):
                names[id(each)] = own[place] if own else f"param_groups[{number}]['params'][{place}]"
        return names | self.batches.names()

    def _hook(self, module: Any) -> None:
        if not self._is_on:
            return
        self._torch = module.torch
        self.batches.begin()
        self._hooks.append(module.register_optimizer_step_pre_hook(self._before_step))
        self._hooks.append(module.register_optimizer_step_post_hook(self._after_step))

    def _before_step(self, optimizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        __tracebackhide__ = True
        if not self._torch.compiler.is_compiling():
            self._before(optimizer, _parameters(optimizer), _has_closure(arguments, options))

    def _after_step(self, optimizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        __tracebackhide__ = True
        if self._torch.compiler.is_compiling():
            return
        self.batches.stepped()
        self.done += self._counter.completes(self._names.of(optimizer))
        self._after(optimizer, _parameters(optimizer), _has_closure(arguments, options))


def _has_closure(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether a step was called with a closure; the first argument is the optimizer."""
    return any(map(callable, [*arguments[1:2], options.get("closure")]))


def _parameters(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]

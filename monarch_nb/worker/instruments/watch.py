"""`--watch nan`: a training stops at its first gradient, loss or parameter that is not finite."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from monarch_nb.errors import NotFinite
from monarch_nb.worker.debug import debugger
from monarch_nb.worker.imports import after_import
from monarch_nb.worker.instruments.batches import Batches, not_finite
from monarch_nb.worker.steps import OptimizerNames, StepCounter, StepHook

_MAX_NAMED = 3


class Watch:
    """Looks at each step of the run's optimizers until something is not finite. There the rank stops as at a
    `breakpoint()`, or fails where nobody can answer; then it is over.

    A step that a GradScaler leaves out is no fault: it looks for infinities itself, and tries again with a smaller
    scale.

    Args:
        what: is looked at: "grad", before each step; "param", after it; "loss", before the backward pass.
    """

    def __init__(self, what: Sequence[str] = ("grad",)) -> None:
        self._what = frozenset(what)
        self._losses = Losses(self._before_backward)
        self._batches = Batches()
        self._hook = StepHook(self._before_step, self._after_step, self._batches.begin)
        self._counter, self._names, self._steps = StepCounter(), OptimizerNames(), 0
        self._found = ""
        self._looked_at = self._last_looked_at = self._backward_passes = 0
        self._last_losses: list[Any] = []

    def begin(self) -> None:
        """Look from now on, once there are optimizers."""
        self._hook.begin()
        self._losses.begin()

    def end(self) -> dict[str, Any]:
        """Look no longer; return how many steps and backward passes there were, in how many steps there was something
        to look at, at what, and what was found."""
        self._hook.end()
        self._batches.end()
        self._losses.end()
        self._last_losses = []
        return {
            "steps": self._steps,
            "backward_passes": self._backward_passes,
            "looked_at": min(self._looked_at, self._steps),
            "what": sorted(self._what),
            "found": self._found,
        }

    # ---- in the user's training ----

    def _before_backward(self, losses: list[Any]) -> None:
        __tracebackhide__ = True
        if self._found:
            return
        self._backward_passes += 1
        self._last_losses = [each.detach() for each in losses]
        if "loss" not in self._what:
            return
        step = self._steps + 1
        self._looks_at(step)
        value = _bad_value(losses)
        if value is not None:
            self._stop(f"the loss of step {step} is {value}; {self._batches.origin([], is_loss_finite=False)}")

    def _before_step(self, optimizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        __tracebackhide__ = True
        if not _has_closure(arguments, options) and not _is_left_out(optimizer):
            self._look_at_gradients(optimizer, self._steps + 1)

    def _look_at_gradients(self, optimizer: Any, step: int) -> None:
        __tracebackhide__ = True
        parameters = _parameters(optimizer)
        gradients = [each.grad for each in parameters]
        many = sum(each is not None for each in gradients)
        if self._found or "grad" not in self._what or not many:
            return
        self._looks_at(step)
        bad = [parameters[place] for place in not_finite(gradients)]
        if bad:
            found = f"the gradients of {len(bad)} of {many} parameters are not finite in step {step}"
            self._stop(f"{found}: {self._named(bad, optimizer)}; {self._origin(bad)}")

    def _origin(self, bad: list[Any]) -> str:
        """Return where the gradients of parameters have stopped being finite, as far as this rank knows."""
        value = _bad_value(self._last_losses)
        known = bool(self._last_losses) and not any(map(_may_be_scaled, self._last_losses))
        is_finite = False if value is not None else True if known else None
        origin = self._batches.origin(bad, is_loss_finite=is_finite)
        return origin if value is None else f"the loss is {value} here; {origin}"

    def _after_step(self, optimizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        __tracebackhide__ = True
        self._batches.stepped()
        self._steps += self._counter.completes(self._names.of(optimizer))
        step, parameters = max(self._steps, 1), _parameters(optimizer)
        if _has_closure(arguments, options):  # it has computed the gradients
            self._look_at_gradients(optimizer, step)
        self._last_losses = []
        if self._found or "param" not in self._what:
            return
        self._looks_at(step)
        bad = [parameters[place] for place in not_finite(parameters)]
        if bad:
            many = f"{len(bad)} of {len(parameters)} parameters"
            finite = "; their gradients are finite: the step has made them so" if "grad" in self._what else ""
            named = self._named(bad, optimizer)
            self._stop(f"{many} are not finite after step {self._steps}: {named}{finite}")

    def _looks_at(self, step: int) -> None:
        self._looked_at += step != self._last_looked_at
        self._last_looked_at = step

    def _named(self, parameters: list[Any], optimizer: Any) -> str:
        names = {}  # of their module, their own, or where they are
        for number, group in enumerate(optimizer.param_groups):
            own = group.get("param_names")
            for place, each in enumerate(group["params"]):
                names[id(each)] = own[place] if own else f"param_groups[{number}]['params'][{place}]"
        names |= self._batches.names()
        told = [names[id(each)] for each in parameters[:_MAX_NAMED]]
        return ", ".join([*told, *(["…"] if len(parameters) > _MAX_NAMED else [])])

    def _stop(self, found: str) -> None:
        """Say what was found, and stop at the user's line that led here.

        Raises:
            NotFinite: nobody can answer there.
        """
        __tracebackhide__ = True
        self._found = found
        self._last_losses = []
        self._losses.end()
        self._batches.end()
        if not debugger.can_stop():
            raise NotFinite(found)
        sys.stderr.write(f"--watch: {found}\n")
        debugger.stop_at_users_line(found)


def _is_left_out(optimizer: Any) -> bool:
    """Return whether the step does nothing: a GradScaler tells a fused optimizer that it has found infinities."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())


def _bad_value(losses: list[Any]) -> float | None:
    """Return a value of the losses that is nan or infinite; None where all are finite."""
    for place in not_finite(losses):
        if not _may_be_scaled(losses[place]):
            values = losses[place].detach().flatten()
            value: float = values[~values.isfinite()][0].item()
            return value
    return None


def _may_be_scaled(loss: Any) -> bool:
    """Return whether a loss is too large only because a GradScaler has multiplied it: half precision ends at 65504."""
    return str(loss.dtype) == "torch.float16" and not bool(loss.isnan().any())


def _has_closure(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether a step was called with a closure; the first argument is the optimizer."""
    return any(map(callable, [*arguments[1:2], options.get("closure")]))


def _parameters(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


class Losses:
    """Notices what `loss.backward()` and `torch.autograd.backward(losses)` are called for, before they are.

    Args:
        notice: called with these tensors, on the thread that calls.
    """

    def __init__(self, notice: Callable[[list[Any]], None]) -> None:
        self._notice = notice
        self._autograd: Any = None
        self._plain: Any = None
        self._is_on = False

    def begin(self) -> None:
        """Notice them from now on, also when torch is imported later."""
        self._is_on = True
        after_import("torch.autograd", self._patch)

    def end(self) -> None:
        """Leave torch as it was."""
        self._is_on = False
        if self._autograd is not None:
            self._autograd.backward, self._autograd = self._plain, None

    def _patch(self, autograd: Any) -> None:
        if not self._is_on:
            return
        self._autograd, self._plain = autograd, autograd.backward

        def backward(tensors: Any, *arguments: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            if not hasattr(tensors, "grad_fn") and not isinstance(tensors, tuple):
                tensors = list(tensors)  # an iterator can be read once
            losses = [tensors] if hasattr(tensors, "grad_fn") else tensors
            self._notice([each for each in losses if hasattr(each, "grad_fn")])  # a GradientEdge has none
            return self._plain(tensors, *arguments, **options)

        autograd.backward = backward

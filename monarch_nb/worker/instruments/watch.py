"""`--watch nan`: a training stops at its first gradient, loss or parameter that is not finite."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from monarch_nb.errors import NotFinite
from monarch_nb.worker.debug import debugger
from monarch_nb.worker.instruments.finite import not_finite
from monarch_nb.worker.instruments.losses import Losses
from monarch_nb.worker.instruments.steps import Steps

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
        self._steps = Steps(self._before_step, self._after_step)
        self._found = ""
        self._looked_at = self._last_looked_at = self._backward_passes = 0
        self._last_losses: list[Any] = []

    def begin(self) -> None:
        """Look from now on, once there are optimizers."""
        self._steps.begin()
        self._losses.begin()

    def end(self) -> dict[str, Any]:
        """Look no longer; return how many steps and backward passes there were, in how many steps there was something
        to look at, at what, and what was found."""
        self._steps.end()
        self._losses.end()
        self._last_losses = []
        steps = self._steps.done
        return {
            "steps": steps,
            "backward_passes": self._backward_passes,
            "looked_at": min(self._looked_at, steps),
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
        step = self._steps.done + 1
        self._looks_at(step)
        value = _bad_value(losses)
        if value is not None:
            self._stop(f"the loss of step {step} is {value}; {self._steps.batches.origin([], is_loss_finite=False)}")

    def _before_step(self, optimizer: Any, parameters: list[Any], has_closure: bool) -> None:
        __tracebackhide__ = True
        if not has_closure and not _is_left_out(optimizer):
            self._look_at_gradients(optimizer, parameters, self._steps.done + 1)

    def _look_at_gradients(self, optimizer: Any, parameters: list[Any], step: int) -> None:
        __tracebackhide__ = True
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
        origin = self._steps.batches.origin(bad, is_loss_finite=is_finite)
        return origin if value is None else f"the loss is {value} here; {origin}"

    def _after_step(self, optimizer: Any, parameters: list[Any], has_closure: bool) -> None:
        __tracebackhide__ = True
        step = max(self._steps.done, 1)
        if has_closure:  # it has computed the gradients
            self._look_at_gradients(optimizer, parameters, step)
        self._last_losses = []
        if self._found or "param" not in self._what:
            return
        self._looks_at(step)
        bad = [parameters[place] for place in not_finite(parameters)]
        if bad:
            many = f"{len(bad)} of {len(parameters)} parameters"
            finite = "; their gradients are finite: the step has made them so" if "grad" in self._what else ""
            named = self._named(bad, optimizer)
            self._stop(f"{many} are not finite after step {self._steps.done}: {named}{finite}")

    def _looks_at(self, step: int) -> None:
        self._looked_at += step != self._last_looked_at
        self._last_looked_at = step

    def _named(self, parameters: list[Any], optimizer: Any) -> str:
        names = self._steps.names(optimizer)
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
        self._steps.batches.end()
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

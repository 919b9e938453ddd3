"""`--watch nan`: a training stops at its first gradient, loss or parameter that is not finite."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from monarch_nb.errors import NotFinite
from monarch_nb.worker.autosaves.steps import OptimizerNames, StepCounter
from monarch_nb.worker.debug import debugger
from monarch_nb.worker.imports import after_import
from monarch_nb.worker.instruments.batches import Batches
from monarch_nb.worker.instruments.finite import not_finite
from monarch_nb.worker.instruments.losses import Losses

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
        self._batches = Batches()
        self._losses = Losses(self._before_backward)
        self._counter, self._names = StepCounter(), OptimizerNames()
        self._steps = 0
        self._found = ""
        self._is_on = False
        self._hooks: list[Any] = []

    def begin(self) -> None:
        """Look from now on, once there are optimizers."""
        self._is_on = True
        after_import("torch.optim.optimizer", self._hook)
        if "loss" in self._what:
            self._losses.begin()

    def end(self) -> dict[str, Any]:
        """Look no longer; return how many steps were looked at, and what was found."""
        self._is_on = False
        for hook in self._hooks:
            hook.remove()
        self._let_go()
        return {"steps": self._steps, "found": self._found}

    def _let_go(self) -> None:
        self._losses.end()
        self._batches.end()

    def _hook(self, module: Any) -> None:
        if not self._is_on:
            return
        self._torch = module.torch
        self._batches.begin()
        self._hooks.append(module.register_optimizer_step_pre_hook(self._before_step))
        self._hooks.append(module.register_optimizer_step_post_hook(self._after_step))

    # ---- in the user's training ----

    def _before_backward(self, losses: list[Any]) -> None:
        if self._found:
            return
        places = [place for place in not_finite(losses) if not _may_be_scaled(losses[place])]
        if places:
            value = losses[places[0]].detach().flatten()[0].item()
            self._stop(f"the loss of step {self._steps + 1} is {value}: {self._batches.origin([])}")

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_over() or "grad" not in self._what or _is_left_out(optimizer):
            return
        parameters = _parameters(optimizer)
        gradients = [each.grad for each in parameters]
        places = not_finite(gradients)
        if places:
            bad = [parameters[place] for place in places]
            many = f"{len(bad)} of {sum(each is not None for each in gradients)} parameters"
            self._stop(
                f"the gradients of {many} are not finite in step {self._steps + 1}: {self._named(bad, optimizer)}; "
                f"{self._batches.origin(bad)}"
            )

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_over():
            return
        self._batches.stepped()
        self._steps += self._counter.completes(self._names.of(optimizer))
        if "param" not in self._what:
            return
        parameters = _parameters(optimizer)
        bad = [parameters[place] for place in not_finite(parameters)]
        if bad:
            finite = "their gradients are finite: the step has made them so" if "grad" in self._what else ""
            told = f"{len(bad)} of {len(parameters)} parameters are not finite after step {self._steps}"
            self._stop("; ".join(filter(None, [f"{told}: {self._named(bad, optimizer)}", finite])))

    def _is_over(self) -> bool:
        return bool(self._found or self._torch.compiler.is_compiling())

    def _named(self, parameters: list[Any], optimizer: Any) -> str:
        names = _places_in(optimizer) | self._batches.names()
        told = [names[id(each)] for each in parameters[:_MAX_NAMED]]
        return ", ".join([*told, *(["…"] if len(parameters) > _MAX_NAMED else [])])

    def _stop(self, found: str) -> None:
        """Say what was found, and stop at the user's line that led here.

        Raises:
            NotFinite: nobody can answer there.
        """
        __tracebackhide__ = True
        self._found = found
        self._let_go()
        if not debugger.can_stop():
            raise NotFinite(found)
        sys.stderr.write(f"--watch: {found}\n")
        debugger.stop_at_users_line(found)


def _parameters(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _places_in(optimizer: Any) -> dict[int, str]:
    """Return names for the parameters of an optimizer, by id: their own, or where they are."""
    names = {}
    for number, group in enumerate(optimizer.param_groups):
        own = group.get("param_names")
        for place, each in enumerate(group["params"]):
            names[id(each)] = own[place] if own else f"param_groups[{number}]['params'][{place}]"
    return names


def _is_left_out(optimizer: Any) -> bool:
    """Return whether the step does nothing: a GradScaler tells a fused optimizer that it has found infinities."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())


def _may_be_scaled(loss: Any) -> bool:
    """Return whether a loss is too large only because a GradScaler has multiplied it: half precision ends at 65504."""
    return str(loss.dtype) == "torch.float16" and not bool(loss.isnan().any())

"""The losses that a run's backward passes begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb.worker.imports import after_import

Notice = Callable[[list[Any]], None]


class Losses:
    """Notices what `loss.backward()` and `torch.autograd.backward(losses)` are called for, before they are.

    Args:
        notice: called with these tensors, on the thread that calls.
    """

    def __init__(self, notice: Notice) -> None:
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

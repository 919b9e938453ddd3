"""The batches that modules were last called with, and where in a module such a batch stops being finite."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from monarch_nb.worker.saving.collecting import process_random_states, set_process_random_states, unwrapped
from monarch_nb.worker.user_code import outwards

if TYPE_CHECKING:
    import torch


def not_finite(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    """Return the places of the tensors that have a nan or an infinity in them.

    Squares of large finite numbers overflow: then the norm is infinite, and each tensor is looked at by itself. The
    device is waited for once.
    """
    import torch

    places: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for place, tensor in enumerate(tensors):
        plain = None if tensor is None else _plain(tensor)
        if plain is not None:
            places.setdefault((plain.device, plain.dtype), []).append((place, plain))
    with torch.no_grad():
        suspected = [group for group in places.values() if not _has_finite_norm([plain for _, plain in group])]
        return sorted(place for group in suspected for place, plain in group if not bool(plain.isfinite().all()))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value, in dictionaries, lists and tuples at any depth."""
    import torch
    from torch.utils._pytree import tree_leaves

    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor that is spread over ranks; a plain one as it is."""
    own: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return own


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the numbers of a tensor that this process holds; None where none of them can be other than finite."""
    import torch

    own = tensor if type(tensor) in (torch.Tensor, torch.nn.Parameter) else local(tensor)
    if own.layout is not torch.strided:
        own = own.detach()._values() if own.is_sparse else own.detach().values()
    kind = own.dtype
    can_be = (kind.is_floating_point or kind.is_complex) and kind.itemsize > 1
    return own if can_be and own.numel() and not own.is_meta else None


def _has_finite_norm(tensors: list[torch.Tensor]) -> bool:
    import torch

    return bool(torch.stack(torch._foreach_norm(tensors)).sum().isfinite())


_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp")
"""The namespaces of torch's operators that wait for other ranks."""
_SHARDED = ("FullyShardedDataParallel", "FSDPModule")
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Batch:
    """What a module was called with: no copy.

    Attributes:
        args, kwargs: the call.
        versions: of each tensor among them: it is another after a change in place.
        steps: how many steps optimizers had done.
        random: the states of the generators.
        autocast: the dtype in which a device computed, where that was on.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    steps: int
    versions: list[int] = field(default_factory=list)
    random: dict[str, Any] = field(default_factory=dict)
    autocast: dict[str, torch.dtype] = field(default_factory=dict)


class Batches:
    """Keeps what the outermost modules that train were last called with, until `end`.

    DistributedDataParallel is passed over: kept is the batch of what it wraps. While a module computes, those in it
    are not looked at: a hook of all modules takes 10 µs for each call.

    Attributes:
        steps: how many steps optimizers have done; counted by who uses this.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._kept: WeakKeyDictionary[Any, Batch] = WeakKeyDictionary()
        self._calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._last: Any = None
        self._hook: Any = None  # of all modules; of the outermost, while it computes

    def begin(self) -> None:
        """Keep them from now on."""
        import torch
        from torch.autograd import graph
        from torch.nn.parallel.distributed import DistributedDataParallel

        self._torch = torch
        kinds: Any = torch.nn.Module
        self._call: CodeType = kinds._call_impl.__code__
        self._backward: CodeType = graph._engine_run_backward.__code__
        self._wrappers = {DistributedDataParallel.forward.__code__}
        self._replace_hook(torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward))

    def end(self) -> None:
        """Keep none, and let go of those that are kept."""
        self._replace_hook(None)
        self._kept.clear()
        self._last = None

    def _replace_hook(self, hook: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = hook

    def stepped(self) -> None:
        """An optimizer has done a step."""
        self.steps += 1
        self._calls.clear()

    def names(self) -> dict[int, str]:
        """Return the names of the parameters of the modules whose batches are kept, by id."""
        kept = list(self._kept)
        return {id(each): name for module in reversed(kept) for name, each in unwrapped(module).named_parameters()}

    def _before_forward(self, module: Any, args: tuple[Any, ...]) -> None:
        torch = self._torch
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        caller = sys._getframe(1)
        if self._is_wrapper(module) or self._is_inside(caller):
            return
        kwargs = caller.f_locals.get("kwargs") or {}
        self._last = module
        self._calls[module] = self._calls.get(module, 0) + 1
        self._kept[module] = Batch(
            args,
            kwargs,
            self.steps,
            [tensor._version for tensor in tensors_in((args, kwargs)) if not tensor.is_inference()],
            process_random_states(),
            _autocast(),
        )
        self._replace_hook(module.register_forward_hook(self._after_forward, always_call=True))

    def _after_forward(self, *_: Any) -> None:
        if self._hook is not None:
            hook = self._torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward)
            self._replace_hook(hook)

    def _is_wrapper(self, module: Any) -> bool:
        return getattr(type(module).forward, "__code__", None) in self._wrappers

    def _is_inside(self, frame: FrameType) -> bool:
        """Return whether a module is called by another one, or by the backward pass, which computes again what
        checkpointing has left out.

        Args:
            frame: which has called our hook.
        """
        is_own, in_wrapper = True, False
        for each in outwards(frame):
            code = each.f_code
            if code is self._backward:
                return True
            if code in self._wrappers:
                in_wrapper = True
            elif code is self._call:
                if not is_own and not in_wrapper:
                    return True
                is_own = in_wrapper = False
        return False

    # ---- where a batch stops being finite ----

    def origin(self, parameters: list[Any], *, is_loss_finite: bool | None) -> str:
        """Return a clause that says which module's output was the first to be not finite.

        Args:
            parameters: those whose gradients are not finite; none: whatever the module that was called last has.
            is_loss_finite: of the last backward pass; None where that is not known.
        """
        wanted = set(map(id, parameters))
        module = next((each for each in self._kept if wanted & set(map(id, each.parameters()))), None)
        module = module if wanted else self._last
        if module is None:
            return "which module was the first can not be told: no batch of a module that trains was kept"
        kept = self._kept[module]
        try:
            return self._origin(module, kept, is_loss_finite)
        except _CannotTellError as why:
            return f"which module was the first can not be told: {why}"
        except Exception as error:  # noqa: BLE001 -- the user's forward
            return f"which module was the first can not be told: run again, the batch fails: {_brief(error)}"

    def _origin(self, module: Any, kept: Batch, is_loss_finite: bool | None) -> str:
        if any(kind.__name__ in _SHARDED for each in module.modules() for kind in type(each).__mro__):
            raise _CannotTellError("its weights are sharded, and all ranks would have to compute")
        if kept.steps != self.steps:
            raise _CannotTellError("an optimizer has changed weights since its batch")
        call = (kept.args, kept.kwargs)
        if kept.versions != [tensor._version for tensor in tensors_in(call) if not tensor.is_inference()]:
            raise _CannotTellError("its batch was changed in place since")
        if not_finite(list(tensors_in(call))):
            return "the batch itself is not finite"
        found = _first_output(module, kept)
        if found:
            return found
        if is_loss_finite is False:
            return "all outputs of the modules are finite here: it arose in the loss"
        before = self._calls.get(module, 1) - 1
        earlier = "the batch" if before == 1 else f"one of the {before} batches"
        places = ["in the loss"] * (is_loss_finite is None)
        places += ["in backward"]
        places += [f"with {earlier} before it of this step"] * bool(before)
        places += ["on another rank"] * _has_peers()
        finite = "the loss and all outputs" if is_loss_finite else "all outputs"
        arose = " or ".join(filter(None, [", ".join(places[:-1]), places[-1]]))
        return f"{finite} of the modules are finite here: it arose {arose}"


class _CannotTellError(Exception):
    """Why a batch can not be run again."""


class _FoundError(BaseException):
    """Ends the forward pass: a module's output is not finite. No `except Exception` of the user's may take it."""


def _first_output(module: Any, kept: Batch) -> str:
    """Run a batch again, and return a clause that says which output was the first that is not finite, or "" when all
    are finite. Parameters, buffers and random states are afterwards as they were."""
    import torch

    module = unwrapped(module)
    search = _Search(module)
    modules = torch.nn.modules.module
    with ExitStack() as hooks:
        hooks.callback(modules.register_module_forward_pre_hook(search.before).remove)
        hooks.callback(modules.register_module_forward_hook(search.after).remove)
        try:
            with _as_it_was(module, kept):
                module(*kept.args, **kept.kwargs)
        except _FoundError as found:
            return str(found)
    return ""


@dataclass
class _Call:
    """A module that computes.

    Attributes:
        has_bad_input: what it was called with is not finite.
        last_done: of the modules that it has called, the last that is done.
    """

    module: Any
    has_bad_input: bool
    last_done: Any = None


class _Search:
    """Looks at what goes into and out of the modules of a forward pass, and ends it at the first output that is not
    finite."""

    def __init__(self, root: Any) -> None:
        self._names = {id(each): name for name, each in root.named_modules()}
        self._calls: list[_Call] = []

    def before(self, module: Any, args: tuple[Any, ...]) -> None:
        """A module is called."""
        if id(module) in self._names:
            inputs = list(tensors_in((args, sys._getframe(1).f_locals.get("kwargs") or {})))
            bad = [inputs[place] for place in not_finite(inputs)]
            self._calls.append(_Call(module, not all(map(_is_mask, bad))))

    def after(self, module: Any, _: Any, output: Any) -> None:
        """It returns.

        Raises:
            _FoundError: what is not finite.
        """
        if id(module) not in self._names:
            return
        if not_finite(list(tensors_in(output))):
            raise _FoundError(self._told())
        self._calls.pop()
        if self._calls:
            self._calls[-1].last_done = module

    def _told(self) -> str:
        for caller, call in pairwise(self._calls):
            if call.has_bad_input:
                name, last = self._named(call.module), caller.last_done
                where = f"after {self._named(last)}" if last is not None else "before it"
                arose = f"it arose in {type(caller.module).__name__}.forward {where}"
                return f"the input of {name} is not finite already: {arose}"
        return f"the first output that is not finite is that of {self._named(self._calls[-1].module)}"

    def _named(self, module: Any) -> str:
        name, kind = self._names[id(module)], type(module).__name__
        return f"{name} ({kind})" if name else kind


def _is_mask(tensor: Any) -> bool:
    """Return whether a tensor has zeros and negative infinities only: attention leaves places out with it."""
    return bool(((tensor == 0) | (tensor == -math.inf)).all())


@contextmanager
def _as_it_was(module: Any, kept: Batch) -> Iterator[None]:
    """Compute in the block as at the first time, alone and without gradients."""
    import torch

    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    states = process_random_states()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(set_process_random_states, states)
        stack.callback(_restore, buffers)
        for device in _DEVICES:
            dtype = kept.autocast.get(device)
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))
        stack.enter_context(_alone())
        set_process_random_states(kept.random)
        yield


def _restore(buffers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, before in buffers:
        buffer.copy_(before)


def _alone() -> AbstractContextManager[Any]:
    """Return what lets no operator pass that waits for other ranks: they may not run this batch again."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace in _COLLECTIVES:
                raise _CannotTellError("its forward pass waits for other ranks")
            return func(*args, **(kwargs or {}))

    return Alone()  # type: ignore[no-untyped-call]


def _autocast() -> dict[str, torch.dtype]:
    import torch

    return {each: torch.get_autocast_dtype(each) for each in _DEVICES if torch.is_autocast_enabled(each)}


def _has_peers() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _brief(error: Exception) -> str:
    with contextlib.suppress(Exception):
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    return type(error).__name__

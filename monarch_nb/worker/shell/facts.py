"""A value in a few facts, which a rank sends beside its text: many ranks' numbers and tensors become one row of them.

Nothing is imported for it: what is a tensor or an array has its module loaded already.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import torch

MAX_FIELDS = 16
"""A dict, list or tuple of more numbers than this is told as text only."""
MAX_NAME_CHARACTERS, MAX_DIGITS = 40, 400
WHOLE_ELEMENTS = 1 << 18
"""All elements of a tensor are looked at up to this many; else no more, at equal distances: that takes a few ms, and
a few MB on the tensor's device."""
_MAX_DIMENSIONS = 16


def facts_of(value: Any) -> dict[str, Any] | None:
    """Return the facts of a number, of a dict, list or tuple of numbers, of a tensor, or of an array; None of anything
    else.

    Example:
        >>> facts_of(2.5), facts_of({"loss": 2, "acc": 0.5})
        ({'number': '2.5'}, {'numbers': [['loss', '2'], ['acc', '0.5']]})
    """
    try:
        if (text := number_text(value)) is not None:
            return {"number": text}
        if type(value) in (dict, list, tuple):
            return _of_fields(value)
        if (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
            return _of_tensor(value, torch)
        if (numpy := sys.modules.get("numpy")) is not None and type(value) is numpy.ndarray:
            return _of_array(value, numpy)
    except Exception:  # noqa: BLE001 -- whatever a library does not have for this kind: the text says what it is
        return None
    return None


def number_text(value: Any) -> str | None:
    """Return a real number as Python writes it, in the digits of its own precision; None of what is none. Booleans are
    none, and neither are complex numbers, enumerations and text."""
    text = None
    if type(value) in (int, float):
        if type(value) is int and value.bit_length() > MAX_DIGITS * 3:
            return None
        text = repr(value)
    elif type(value) is Decimal:
        text = str(value) if value.is_finite() else str(float(value)) if not value.is_snan() else None
    elif type(value) is Fraction:
        text = repr(float(value))
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, (numpy.floating, numpy.integer)):
        text = None if isinstance(value, numpy.timedelta64) else str(value)
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        text = _scalar_text(value, torch)
    return text if text is not None and len(text) <= MAX_DIGITS else None


def _of_fields(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> dict[str, Any] | None:
    if not 1 <= len(value) <= MAX_FIELDS:
        return None
    named = value.items() if isinstance(value, dict) else ((f"[{place}]", each) for place, each in enumerate(value))
    fields: list[list[str]] = []
    for name, each in named:
        text = number_text(each) if type(name) is str and len(name) <= MAX_NAME_CHARACTERS else None
        if text is None:
            return None
        fields.append([name, text])
    return {"numbers": fields}


# ---- tensors ----


def _is_plain(tensor: torch.Tensor, torch: Any) -> bool:
    """Whether its elements can be looked at here and now: those of a subclass may be on other ranks, or nowhere."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_complex()
    )


def _scalar_text(tensor: torch.Tensor, torch: Any) -> str | None:
    """Return the shortest text that stands for the one number of a tensor without dimensions, in its precision."""
    if tensor.dim() or not _is_plain(tensor, torch) or tensor.dtype == torch.bool:
        return None
    number = tensor.detach().item()
    if isinstance(number, float) and tensor.dtype != torch.float64:
        for digits in range(3, 10):
            text = f"{number:.{digits}g}"
            if torch.tensor(float(text), dtype=tensor.dtype, device="cpu").item() == number:
                return repr(float(text))
    return repr(number)


def _of_tensor(tensor: torch.Tensor, torch: Any) -> dict[str, Any] | None:
    facts: dict[str, Any] = {
        "type": "tensor" if type(tensor) is torch.Tensor else type(tensor).__name__,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
    }
    if len(facts["shape"]) > _MAX_DIMENSIONS:
        return None
    with torch.no_grad():
        own = tensor
        if facts["type"] == "DTensor" and hasattr(tensor, "to_local"):
            own = tensor.to_local()  # without communication, as its text
        if _is_plain(own, torch) and own.numel():
            facts |= _statistics_of_tensor(own.detach(), torch)
    return {"tensor": facts}


def _statistics_of_tensor(tensor: torch.Tensor, torch: Any) -> dict[str, Any]:
    """Return least, greatest and mean of its finite elements, and how many are not: computed where it is, and read at
    once. Its text, which is made before, has waited for what the device had to do."""
    step = _step(tensor.numel())
    if step > 1:  # `take` copies nothing else, whatever the strides
        tensor = torch.take(tensor, torch.arange(0, tensor.numel(), step, device=tensor.device))
    wide = torch.float64 if tensor.device.type == "cpu" and not tensor.dtype.is_floating_point else torch.float32
    tensor = tensor.to(wide) if tensor.dtype != torch.float64 else tensor
    finite, zero = torch.isfinite(tensor), torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    total = torch.where(finite, tensor, zero).sum(dtype=tensor.dtype)
    return _statistics(
        torch.stack(
            [
                torch.where(finite, tensor, zero + torch.inf).min(),
                torch.where(finite, tensor, zero - torch.inf).max(),
                total,
                finite.sum().to(tensor.dtype),
                torch.isnan(tensor).sum().to(tensor.dtype),
            ]
        ).tolist(),
        looked_at=tensor.numel(),
        step=step,
    )


def _of_array(array: numpy.ndarray[Any, Any], numpy: Any) -> dict[str, Any] | None:
    facts = {"type": "array", "shape": list(array.shape), "dtype": str(array.dtype), "device": ""}
    if array.dtype.kind not in "biuf" or not array.size or array.ndim > _MAX_DIMENSIONS:
        return {"tensor": facts} if array.dtype.kind in "biufc" else None
    step = _step(array.size)
    if step > 1:
        array = array.flat[::step] if not array.flags.c_contiguous else array.reshape(-1)[::step]
    array = array.astype(numpy.float64)
    finite = numpy.isfinite(array)
    kept = array[finite]
    found = [kept.min(), kept.max(), kept.sum()] if kept.size else [0.0, 0.0, 0.0]
    statistics = _statistics(
        [*map(float, found), float(kept.size), float(numpy.isnan(array).sum())], looked_at=array.size, step=step
    )
    return {"tensor": facts | statistics}


def _step(elements: int) -> int:
    """Return of how many elements one is looked at."""
    return -(-elements // WHOLE_ELEMENTS)


def _statistics(found: list[float], *, looked_at: int, step: int) -> dict[str, Any]:
    least, greatest, total, finite, nan = found
    facts: dict[str, Any] = {"step": step, "looked_at": looked_at, "nan": int(nan)}
    facts["inf"] = looked_at - int(finite) - int(nan)
    if finite:
        facts |= {"min": f"{least:.6g}", "max": f"{greatest:.6g}", "mean": f"{total / finite:.6g}"}
    return facts

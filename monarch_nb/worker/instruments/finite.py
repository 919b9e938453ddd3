"""Which tensors are not finite: one norm for all of them, and each by itself only where that tells of some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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

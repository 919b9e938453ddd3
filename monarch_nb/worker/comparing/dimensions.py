"""The named dimensions of torch's device meshes that a rank holds: `--over dp` is meant in one of these."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from typing import Any

Dimensions = dict[str, list[tuple[int, ...]]]
"""By the name of a dimension, the ranks that differ from this one in that dimension only, and this one: once, unless
device meshes contradict each other."""


def named_dimensions(variables: Mapping[str, Any]) -> Dimensions:
    """Return the named dimensions of the device meshes of this rank.

    Args:
        variables: of the user. A name that one of them has is not looked for elsewhere: torch keeps old meshes.
    """
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    if kind is None:
        return {}
    found = _dimensions(each for each in variables.values() if issubclass(type(each), kind))
    return _dimensions(each for each in gc.get_objects() if issubclass(type(each), kind)) | found


def _dimensions(meshes: Iterable[Any]) -> Dimensions:
    found: Dimensions = {}
    for mesh in meshes:
        place = mesh.get_coordinate()
        if place is None:  # this rank is not in it
            continue
        for dimension, name in enumerate(mesh.mesh_dim_names or ()):
            others = (*place[:dimension], slice(None), *place[dimension + 1 :])
            ranks = tuple(mesh.mesh[others].tolist())
            if ranks not in found.setdefault(name, []):
                found[name].append(ranks)
    return found

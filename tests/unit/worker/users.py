"""What users have in a rank: code of cells, and an object that betrays who runs its code."""

from __future__ import annotations

import sys
from typing import Any


def label(filename: str) -> str | None:
    return "Cell In[7]" if filename == "<cell>" else None


def run_cell(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"sys": sys}
    exec(compile(code, "<cell>", "exec"), namespace)
    return namespace


class Trap:
    here = 1

    @property
    def computed(self) -> int:
        raise AssertionError("a property was run")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("__getattr__ was run")

    def __dir__(self) -> list[str]:
        raise AssertionError("__dir__ was run")

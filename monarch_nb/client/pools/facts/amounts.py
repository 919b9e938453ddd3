"""How much memory and how many CPUs a reservation may have on each of its nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_nb.errors import UsageError
from monarch_nb.warden.users_file import memory_of, memory_text

_LEAST_BYTES = 1 << 20
_LEAST_CPUS, _MOST_CPUS = 0.01, 100_000


@dataclass(frozen=True)
class Amounts:
    """The most that all processes of a reservation together get on each node; 0: nothing was asked for, and what holds
    for the account on that node holds."""

    memory_bytes: int = 0
    cpus: float = 0.0

    def __str__(self) -> str:
        """`64G of memory and 8 CPUs per node`; empty where nothing was asked for."""
        parts = [f"{memory_text(self.memory_bytes)} of memory"] if self.memory_bytes else []
        parts += [f"{self.cpus:g} CPU{'' if self.cpus == 1 else 's'}"] if self.cpus else []
        return f"{' and '.join(parts)} per node" if parts else ""


ANY = Amounts()


def amounts_of(memory: str | None, cpus: float | None) -> Amounts:
    """Return what `--memory` and `--cpus` mean.

    Raises:
        UsageError: they can not be read.
    """
    memory_bytes = 0 if memory is None else memory_of(memory) or 0
    if memory is not None and memory_bytes < _LEAST_BYTES:
        raise UsageError(f"memory is such as 512M, 64G or 1.5T (powers of 1024), not {memory!r}")
    is_number = isinstance(cpus, int | float) and not isinstance(cpus, bool)
    if cpus is not None and not (is_number and _LEAST_CPUS <= cpus <= _MOST_CPUS):
        raise UsageError(f"cpus is a number such as 8 or 0.5, not {cpus!r}")
    return Amounts(memory_bytes, float(cpus or 0))

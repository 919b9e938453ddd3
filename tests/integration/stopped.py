"""The debugger's prompt in a cell, when all ranks that will stop have stopped: some may come after it has opened."""

from __future__ import annotations

from integration.kernels import Kernel
from integration.live import eventually

DBG, PDB = "monarch_dbg> ", "(Pdb) "


def type_in(kernel: Kernel, cell: str, line: str, prompt: str) -> str:
    """Answer a prompt, and wait for the next; return what that shows."""
    before = len(kernel.text(cell))
    kernel.answer(line)
    return kernel.asked(cell, prompt)[before:]


def all_asked(kernel: Kernel, cell: str, ranks: int, row: str = "| cell ") -> str:
    """Wait until a cell asks, for so many ranks; return what it shows last, with the table of all."""
    return all_listed(kernel, cell, kernel.asked(cell, DBG), ranks, row)


def all_listed(kernel: Kernel, cell: str, shown: str, ranks: int, row: str = "| cell ") -> str:
    """Type `list` until the table has so many rows; return it, or `shown` when it has them already."""
    listed = [shown]

    def all_are_there() -> bool:
        if listed[-1].count(row) < ranks:
            listed.append(type_in(kernel, cell, "list", DBG))
        return listed[-1].count(row) >= ranks

    eventually(all_are_there)
    return listed[-1]

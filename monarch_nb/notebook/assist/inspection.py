"""Shift+Tab in code for the ranks: what a rank knows of a live name, asked as completion is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.tokenutil import token_at_cursor

from monarch_nb.errors import MonarchNbError
from monarch_nb.notebook.assist.completion import InBody, locate
from monarch_nb.notebook.mode import MeshMode
from monarch_nb.notebook.session import Session


def register(shell: InteractiveShell, session: Session, mode: MeshMode) -> Callable[[], None]:
    """Let ranks answer the kernel's inspect requests for their cells; return how to undo it.

    IPython has no hook for it: its shell gets a name, and does not learn in which cell that stands.
    """
    kernel: Any = getattr(shell, "kernel", None)
    kernels_own: Callable[..., Any] | None = getattr(kernel, "do_inspect", None)
    if kernels_own is None:  # a terminal, or a kernel that is no ipykernel
        return lambda: None

    def do_inspect(code: str, cursor_pos: int, *arguments: Any, **options: Any) -> Any:
        if text := described(session, mode, code, cursor_pos):
            return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}
        return kernels_own(code, cursor_pos, *arguments, **options)

    def undo() -> None:
        kernel.do_inspect = kernels_own

    kernel.do_inspect = do_inspect
    return undo


def described(session: Session, mode: MeshMode, code: str, cursor: int) -> str:
    """Return what a rank knows of the name at a cursor; empty when that is not in code for ranks, or none knows it."""
    before = code[:cursor]
    place = locate(code, before.count("\n"), len(before) - before.rfind("\n") - 1, mode)
    if not isinstance(place, InBody):
        return ""
    try:
        name = token_at_cursor(place.code, place.cursor)
        text, rank = session.mesh(place.targets, place.mesh).inspect(name) if name else ("", 0)
    except (SyntaxError, MonarchNbError):  # unfit to be read; as for completion
        return ""
    return f"{text}\n\nOn rank {rank}." if text else ""

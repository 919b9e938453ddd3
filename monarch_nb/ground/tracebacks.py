"""Tracebacks as IPython renders them, and as people want to read them: their own frames, and one line for others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from monarch_nb.ground import escapes

_FRAME = re.compile(r"File .+:\d+(?:, in .*)?|(?:Cell In\[|Run \d|notebook cell).*")
_LIBRARY = re.compile(r"File .*(?:/(?:site|dist)-packages/|/lib/python3[.\d]*/)([^/:]+?)(?:\.py)?[/:]")
_FEWEST = 2
_MOST_NAMED = 3


def without_library(rendered: str, logs: str) -> str:
    """Return a traceback in which frames of installed packages below one of the user's are one line.

    Args:
        rendered: as IPython has rendered it.
        logs: the command that shows the whole.

    Example:
        … 14 frames in torch (`%mesh logs --run 3` has them)
    """
    shown, others, packages = list[str](), list[str](), list[str]()
    is_below_users = False

    def fold() -> None:
        if len(packages) < _FEWEST:
            shown.extend(others)
        else:
            shown.extend([f"… {len(packages)} frames in {_named(packages)} (`{logs}` has them)", ""])
        others.clear()
        packages.clear()

    is_inside = False
    for line in rendered.split("\n"):
        plain = escapes.strip(line)
        if _FRAME.fullmatch(plain):
            library = _LIBRARY.match(plain)
            is_inside = library is not None and is_below_users
            is_below_users |= library is None
            if library is not None and is_inside:
                packages.append(library[1])
        if is_inside:
            others.append(line)
            is_inside = bool(plain.strip())  # a blank line ends a frame
            continue
        fold()
        shown.append(line)
    fold()
    return "\n".join(shown)


def _named(packages: Sequence[str]) -> str:
    """Return what frames are called together: the packages that have most of them first."""
    names = sorted(set(packages), key=lambda name: (-packages.count(name), name))
    return ", ".join([*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])

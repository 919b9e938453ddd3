"""Lines that are typed for pdb: its commands, and Python."""

import codeop
import pdb
import re
from typing import Literal

COMMANDS = frozenset(name.removeprefix("do_") for name in dir(pdb.Pdb) if name.startswith("do_"))
"""The words that pdb takes for commands."""
_WITHOUT_ARGUMENTS = frozenset(["c", "cont", "continue", "n", "next", "q", "r", "return", "s", "step"])
"""Commands after which the code goes on. What else stands in such a line is part of an expression."""


def is_command(line: str) -> bool:
    """Return whether a line is a command of pdb, and no Python about a variable with the name of a command.

    Example:
        >>> [is_command(line) for line in ("n", "p x", "n + 1", "c[0]", "b = 5", "p(x)")]
        [True, True, False, False, False, True]
    """
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)(\s*)(.*?)\s*", line, re.DOTALL)
    if match is None or match[1] not in COMMANDS:
        return False
    word, space, rest = match.groups()
    if not rest:
        return True
    if word in _WITHOUT_ARGUMENTS or rest.startswith("="):
        return False
    return bool(space) or rest.startswith("(")


def read_as_python(line: str) -> Literal["whole", "unfinished", "no"]:
    """Return whether a line is a statement of Python, or begins one of several lines."""
    try:
        compiled = codeop.compile_command(line, "<stdin>", "single")
    except (SyntaxError, ValueError, OverflowError):
        return "no"
    return "unfinished" if compiled is None else "whole"

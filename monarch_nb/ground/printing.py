"""Printing where stdout is the user's: it may be a file or a terminal in which some characters do not exist."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def put(text: str, file: TextIO | None = None) -> None:
    """Write text at once. What the encoding lacks is written as escapes, as Python does on stderr: no line is lost.

    Args:
        text: it ends with a newline of its own, if at all.
        file: where; None for stdout.
    """
    stream = sys.stdout if file is None else file
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def make_streams_safe() -> None:
    """In a process of ours: let its streams be there, also where a shell has closed them (`>&-`), and take every
    character, whoever prints."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")


def discard(stream: TextIO) -> None:
    """Let what is printed from now on go nowhere, also what Python flushes at its exit: it can not be written."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def encodable(text: str) -> str:
    """Return `text` with what UTF-8 can not encode written as escapes.

    Example:
        >>> encodable("caf\\u00e9 \\udc80")
        'caf\\u00e9 \\\\udc80'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

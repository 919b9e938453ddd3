"""Printing where stdout is the user's: it may be a file or a terminal in which some characters do not exist."""

from __future__ import annotations

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


def keep_all_characters() -> None:
    """In a process of ours: let its streams take every character, whoever prints."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")

"""What finds out when a training went wrong: flags of a cell."""

from __future__ import annotations

from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.command_line import Flag

WATCHED = ("grad", "loss", "param")
_NAN = "nan"
WATCHES = (_NAN, f"{_NAN}=loss,grad", f"{_NAN}={','.join(WATCHED)}")
"""What is most often meant, for completion."""
WENT_WRONG = (
    Flag(
        "--watch",
        "stop at the first gradient that is nan or inf; nan=loss,grad,param looks at more",
        value="nan[=WHAT]",
        completes="watched",
    ),
)


def watched(text: str) -> tuple[str, ...]:
    """Return what `--watch` looks at.

    Raises:
        UsageError: it is nothing that can be watched.

    Example:
        >>> watched("nan=loss,grad")
        ('loss', 'grad')
    """
    first, _, listed = text.partition("=")
    what = tuple(dict.fromkeys(filter(None, (each.strip() for each in listed.split(","))))) or WATCHED[:1]
    if first != _NAN or not set(what) <= set(WATCHED):
        raise UsageError(
            f"--watch is nan, or nan= and some of {', '.join(WATCHED)}, not {text!r}: --watch nan=loss,grad"
        )
    return what

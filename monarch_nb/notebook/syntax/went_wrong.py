"""What finds out when a training went wrong: flags of a cell."""

from __future__ import annotations

from monarch_nb.client.instruments.checking import WATCHED
from monarch_nb.client.instruments.compared import LAST
from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.command_line import Flag, Parsed

_NAN = "nan"
WATCHES = (_NAN, f"{_NAN}=loss,grad", f"{_NAN}={','.join(WATCHED)}")
"""What is most often meant, for completion."""
WATCH = Flag(
    "--watch",
    "stop at the first nan or inf in gradients, or nan=loss,grad,param",
    value="nan[=WHAT]",
    completes="watched",
)
REPEATED = (
    Flag("--deterministic", "compute as the same cell did before, and keep a digest of each step"),
    Flag(
        "--seed",
        "with --deterministic: of all random generators (default: 0)",
        value="N",
        kind="number",
    ),
    Flag(
        "--compare-with",
        "compute likewise, and name the first step and tensor that differ",
        value="RUN|last",
    ),
)
"""Those of a cell alone: a script's processes end, with all that they could be compared with."""


def determined(parsed: Parsed) -> dict[str, int | str | None] | None:
    """Return what `--deterministic` is told; None where a line asks for neither it nor `--compare-with`.

    Raises:
        UsageError: a seed of nothing, or no number of a run.
    """
    with_run = parsed.text("compare_with")
    if with_run is not None and with_run != LAST and not (with_run.isdigit() and int(with_run)):
        number = "the number of a run (the line below a --deterministic cell has it)"
        raise UsageError(f"--compare-with is {number}, or {LAST}, not {with_run!r}")
    if with_run is None and not parsed.switch("deterministic"):
        if "seed" in parsed.values:
            raise UsageError("--seed belongs to --deterministic or --compare-with: %%mesh --deterministic --seed 1")
        return None
    compare_with = LAST if with_run == LAST else int(with_run or 0)
    return {"seed": parsed.count("seed"), "compare_with": compare_with}


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

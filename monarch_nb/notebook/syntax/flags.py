"""Flags that many commands have, and what looks inside ranks: `top`, `memory`, and the instruments of a cell."""

from __future__ import annotations

from monarch_nb.client.instruments.asked import WATCHED
from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.command_line import Command, Flag

TARGETS = Flag(
    "--targets", "ranks: 0 | 0,2-3 | ::2 | all | hosts=0,procs=0:2", short="-t", value="T", completes="target"
)
ENVIRONMENT = Flag(
    "--env", "set a variable for it; NAME alone takes this kernel's value", value="NAME[=VALUE]", repeat=True
)
MESH_NAME = Flag(
    "--mesh", "a mesh of the reservation beside main: %mesh status names them", value="NAME", completes="mesh"
)


TOP = Command(
    "top",
    "where every rank is, live: shares of its time, steps a second, and who is waited for",
    usage="[--once | --for TIME] [-t T]",
    flags=(
        Flag("--once", "look for a few seconds, show that, and end"),
        Flag("--for", "end after TIME (default: when nothing runs, or at ■)", value="TIME", kind="duration"),
        TARGETS,
        MESH_NAME,
    ),
    notes="Ranks are looked at 20 times a second while somebody watches. The run must go on meanwhile: with\n"
    "--noblock, or from another notebook. The panel shows the same beside a cell that runs.",
    examples=(("%mesh top", ""), ("%mesh top --for 1m -t hosts=0", "the ranks of one node, for a minute")),
)

PROFILES = ("torch", "python")
INSTRUMENTS = (
    Flag(
        "--profile",
        "where the time goes: torch's operators, or the stacks of Python",
        value="HOW",
        optional=True,
        implied="torch",
        choices=PROFILES,
    ),
    Flag("--profile-steps", "with --profile: steps of the optimizers to record (default: 5)", value="N", kind="count"),
    Flag(
        "--profile-ranks",
        "ranks to profile or record: 0,4-7 (default: the first of each node)",
        value="RANKS",
    ),
    Flag("--memory-history", "record the GPU's allocations, for pytorch.org/memory_viz"),
)
"""The flags of `%%mesh` for these."""
MEMORY = Command(
    "memory",
    "how much memory ranks use, and which tensors hold it",
    usage="[--when-idle] [--release-gpus] [-t T]",
    flags=(
        Flag("--when-idle", "wait until the ranks have finished what they compute"),
        Flag("--release-gpus", "first give the GPU memory back in which no tensors are; no variable is lost"),
        TARGETS,
        MESH_NAME,
    ),
    notes="Ranks that hold the same are one. Memory that several tensors share is counted once. Works on ranks\n"
    "that stand at a breakpoint() too. After an out-of-memory error the cell shows this table by itself.",
    examples=(
        ("%mesh memory", ""),
        ("%mesh memory -t 3", "rank 3 alone"),
        ("%mesh memory --release-gpus", "before other processes use the same GPUs"),
    ),
)


_NAN = "nan"
WATCHES = (_NAN, f"{_NAN}=loss,grad", f"{_NAN}={','.join(WATCHED)}")
"""What is most often meant, for completion."""
WATCH = Flag(
    "--watch",
    "stop at the first nan or inf in gradients, or nan=loss,grad,param",
    value="nan[=WHAT]",
    completes="watched",
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

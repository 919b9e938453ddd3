"""What looks inside ranks: subcommands, and flags of a cell that switch an instrument on while it runs."""

from __future__ import annotations

from monarch_nb.notebook.syntax.command_line import Command, Flag
from monarch_nb.notebook.syntax.common import MESH_NAME, TARGETS

TOP = Command(
    "top",
    "where every rank is, live: shares of its time, steps a second, and who is waited for",
    usage="[--once | --for TIME] [-t T]",
    magic="%mesh ",
    section="Look",
    flags=(
        Flag("--once", "look for a few seconds, show that, and end"),
        Flag("--for", "end after TIME (default: at ■, Ctrl-C)", value="TIME", kind="duration"),
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
    magic="%mesh ",
    section="Look",
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

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
)
"""The flags of `%%mesh` for these."""

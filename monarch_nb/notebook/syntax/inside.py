"""What looks inside ranks: flags of a cell that switch an instrument on while it runs."""

from __future__ import annotations

from monarch_nb.notebook.syntax.command_line import Flag

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

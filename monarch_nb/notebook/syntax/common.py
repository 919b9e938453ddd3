"""Flags that many commands have."""

from __future__ import annotations

from monarch_nb.notebook.syntax.command_line import Flag

TARGETS = Flag(
    "--targets", "ranks: 0 | 0,2-3 | ::2 | all | hosts=0,procs=0:2", short="-t", value="T", completes="target"
)
MESH_NAME = Flag(
    "--mesh", "a mesh of the reservation beside main: %mesh status names them", value="NAME", completes="mesh"
)

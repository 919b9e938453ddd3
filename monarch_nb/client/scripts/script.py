"""A script: a program that runs on a mesh's ranks as torchrun would start it, each rank in a process of its own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from monarch_nb.errors import UsageError


@dataclass(frozen=True)
class Script:
    """A program and how it is to be run.

    Attributes:
        path: a file, relative to `directory`; with `module` a module's name, with `executable` a command, with `shell`
            a line for the shell.
        arguments: the program's.
        module: as `python -m`. executable: as torchrun's `--no-python`.
        in_place: in the live ranks, in the namespace of the cells, as IPython's `%run -i`; what it leaves stays.
        beside: do not wait for other scripts on the same ranks, nor let them wait for this one.
        max_restarts: when a rank fails, how often all are started again.
        environment: added to the processes'.
        shell: the first rank of each node runs it, told of nodes instead of ranks.
        directory: where it runs, on nodes that see it; empty for where the live ranks started.
        instruments: what looks inside meanwhile, with its options, as ranks are told of them.
    """

    path: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    executable: bool = False
    in_place: bool = False
    beside: bool = False
    max_restarts: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    shell: bool = False
    instruments: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The command line: `train.py --lr 3e-4`."""
        if self.shell:
            return self.path
        line = shlex.join([*(["-m"] if self.module else []), self.path, *self.arguments])
        return line.encode("utf-8", "backslashreplace").decode()

    @property
    def is_file(self) -> bool:
        """Whether `path` is that of a Python file."""
        return not (self.module or self.executable or self.shell)

    @property
    def place(self) -> str:
        """Where nodes look for the file."""
        return self.path if self.path.startswith("~") else os.path.join(self.directory, self.path)


def check_script(script: Script) -> None:
    """Raise UsageError for what makes no sense whatever the mesh."""
    if not script.path.strip():
        raise UsageError("no command is given" if script.shell else "no script is named")
    if script.module and script.executable:
        raise UsageError("a module is run by Python: -m and --no-python exclude each other")
    for argument in script.arguments:
        try:
            argument.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise UsageError(f"{argument!r} can be no argument: it has half of a character") from None
    if script.max_restarts < 0:
        raise UsageError(f"max_restarts is {script.max_restarts}: it counts restarts")
    if script.in_place:
        excluded = {"--no-python": script.executable, "--beside": script.beside, "--max-restarts": script.max_restarts}
        if names := [name for name, is_asked in excluded.items() if is_asked]:
            raise UsageError(f"-i runs it in the live ranks: {' and '.join(names)} can not be had with it")
        if script.environment:
            raise UsageError("-i runs it in the live ranks, which have their environment already")
    if script.instruments and (script.executable or script.shell):
        raise UsageError(
            f"instruments such as --profile and --watch look into a program of Python; {script.path} need not be one"
        )
    if "deterministic" in script.instruments and not script.in_place:
        raise UsageError(
            "no run can be compared with a script, whose processes end with all records: compare runs of a cell "
            "(%%mesh --deterministic, with import train; train.main()), or run it in the live ranks (in_place)"
        )
    if script.is_file and script.path.endswith(".ipynb"):
        raise UsageError(
            f"{script.path} is a notebook: open it and attach (%mesh attach), or make a script of it "
            f"(jupyter nbconvert --to script {shlex.quote(script.path)})"
        )

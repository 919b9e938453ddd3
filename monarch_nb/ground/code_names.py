"""What the code of cells, runs and pulls is called: as Python's file names have it, and as people read it."""

from __future__ import annotations

import linecache
import os
import re
import shlex
import sys
import zlib
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, Literal, Protocol

MAX_TITLE_CHARACTERS = 48

Kind = Literal["cell", "run", "pull"]

_PREFIXES: dict[Kind, str] = {"cell": "ipython-input", "run": "mesh-run", "pull": "mesh-pull"}
CODE_NAME = re.compile(rf"<({'|'.join(_PREFIXES.values())})-(\d+)-[0-9a-f]+>")


Sources = Mapping[str, tuple[str, tuple[str, str] | None]]
"""By file name the text of code, and what people call it when the name does not tell that."""

_labels: dict[str, tuple[str, str]] = {}


def sources_of(functions: Mapping[str, FunctionType]) -> Sources:
    """Return the source of functions, by file name, that another process has no file of: those of cells, and of a
    script."""
    found = {}
    for name, function in functions.items():
        is_lacking = function.__module__ == "__main__" or not os.path.exists(name)
        if is_lacking and (lines := linecache.getlines(name)):
            found[name] = "".join(lines), cell_label(name)
    return found


def remember_sources(sources: Sources) -> None:
    """Have tracebacks, debuggers and `inspect.getsource` of this process know the source of another one's functions."""
    for name, (text, label) in sources.items():
        if label is not None:
            _labels[name] = label
        if not os.path.exists(name):
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name


def cell_label(name: str) -> tuple[str, str] | None:
    """Return what people call a cell of this notebook: IPython's compiler knows."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    found: tuple[str, str] | None = shell.compile.format_code_name(name) if shell is not None else code_label(name)
    return found


def code_name(kind: Kind, number: int, code: str) -> str:
    """Return the file name of code.

    Args:
        kind: "cell" for code of a notebook's cell, "run" for a script's, "pull" for an expression.
        number: of the cell, or of the run.
        code: the code.
    """
    checksum = zlib.crc32(code.encode("utf-8", "surrogatepass"))
    return f"<{_PREFIXES[kind]}-{number}-{checksum:08x}>"


def code_label(name: str) -> tuple[str, str] | None:
    """Return what people call the code of a file name, in two words as IPython wants it; None for other files.

    Example:
        >>> code_label("<ipython-input-7-0123456789ab>")
        ('Cell', 'In[7]')
    """
    match = CODE_NAME.fullmatch(name)
    if match is None:
        return _labels.get(name)
    if match[1] == _PREFIXES["cell"]:
        return "Cell", f"In[{match[2]}]"
    return ("Run", match[2]) if match[1] == _PREFIXES["run"] else ("Pulled", "expression")


def run_name(
    number: int, cell_number: int = 0, title: str = "", notebook: str = "", owner: str = "", mesh: str = ""
) -> str:
    """Return what a run is called: by its number, as logs and `--run` have it, and by its cell's, as the notebook does.

    Args:
        notebook: that it is of, when it is another one. owner: who has submitted it, when that is somebody else.
        mesh: on which it runs, when that is one beside the main mesh: each numbers its runs.

    Example:
        >>> run_name(46, 12, "train()")
        'run 46, cell [12] (train())'
        >>> run_name(46, 12, "train()", "eval.ipynb")
        'run 46, cell [12] of eval.ipynb (train())'
        >>> run_name(46, 12, "train()", owner="bob")
        "bob's run 46, cell [12] (train())"
        >>> run_name(3, 12, "judge()", mesh="judges")
        'run 3 on judges, cell [12] (judge())'
    """
    name = f"run {number} on {mesh}" if mesh else f"run {number}"
    name = f"{name}, cell [{cell_number}]" if cell_number else name
    name = f"{owner}'s {name}" if owner else name
    name += f" of {notebook}" if notebook else ""
    title = title if len(title) <= MAX_TITLE_CHARACTERS else f"{title[: MAX_TITLE_CHARACTERS - 1]}…"
    return f"{name} ({title})" if title else name


def mesh_flag(mesh: str) -> str:
    """Return what chooses a mesh on a line of `%mesh`, after a blank: " --mesh judges"; empty for the main mesh, ""."""
    return f" --mesh {shlex.quote(mesh)}" if mesh else ""


class NamedRun(Protocol):
    """What a run is called by."""

    @property
    def run_id(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def cell_number(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def notebook(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def mesh(self) -> str: ...


def run_names(infos: Iterable[NamedRun]) -> dict[str, str]:
    """Return what runs are called, by id: with their notebook's name where they come from several, because these number
    their cells alike, and with whose they are when they are others'."""
    infos = list(infos)
    paths = {info.notebook for info in infos if info.notebook}
    names = [os.path.basename(path) for path in paths]
    notebooks = {path: path if names.count(os.path.basename(path)) > 1 else os.path.basename(path) for path in paths}
    return {
        info.run_id: run_name(
            info.number,
            info.cell_number,
            info.title,
            notebooks.get(info.notebook, "") if len(paths) > 1 else "",
            info.owner,
            info.mesh,
        )
        for info in infos
    }


def not_first(magic: str) -> str:
    """Return what to say of a cell's magic that stands below its first line.

    Example:
        >>> not_first("mesh")
        "%%mesh must be the cell's first line: put it above comments and code"
    """
    return f"%%{magic} must be the cell's first line: put it above comments and code"

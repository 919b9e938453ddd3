"""A name that a cell does not know, and the other side does, ranks or kernel; a module that ranks lack, groups that the
kernel lacks: what to type then.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.config import PRESETS
from monarch_nb.errors import MonarchNbError, RunFailed
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.meant import of_a_magic

_UNKNOWN = re.compile(r"name '(\w+)' is not defined")
_NO_WORLD = re.compile(
    r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected|process group has not been initialized"
)
_NO_LINE = re.compile(r"Line magic function `%mesh` not found")
_NO_MODULE = re.compile(r"No module named '(\w+)'")
_PACKAGES = {
    "cv2": "opencv-python",
    "dotenv": "python-dotenv",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages whose modules have other names."""
_CLIENT = "monarch_nb.client."


def known_on_ranks(error: BaseException | None, session: Session, shell: InteractiveShell) -> str:
    """Return what to type when a cell of the kernel failed for a name that ranks know, or for a magic that has another
    name here; empty when it did not."""
    if isinstance(error, IPythonUsageError):
        return of_a_magic(str(error))
    if (
        session.reservation is not None
        and isinstance(error, ValueError | RuntimeError)
        and _NO_WORLD.search(str(error))
    ):
        return "torch.distributed works on the ranks: put %%mesh at the top of the cell"
    if type(error) is not NameError or not error.name or not _is_raised_in(error, shell.user_global_ns):
        return ""
    said = f"{error.name} is a variable of the ranks: put %%mesh at the top of the cell"
    if error.name in PRESETS:
        return said
    try:
        is_known = session.reservation is not None and bool(session.mesh().inspect(error.name)[0])
    except MonarchNbError:  # they can not be asked now
        is_known = False
    return f"{said}, or fetch it: {error.name} = %mesh pull {error.name}" if is_known else ""


def known_elsewhere(failed: RunFailed, shell: InteractiveShell, script: Path | None) -> str:
    """Return what to type when a cell failed on ranks for a name that the kernel knows, a function of a script or a
    module that is not installed there; empty when it did not.

    Args:
        script: the last one that ran in the ranks' own namespace.
    """
    for failure in failed.failures.values():
        if _NO_LINE.match(failure.message):
            return "%mesh is a line for the kernel: put it into a cell without %%mesh"
        lacks = _NO_MODULE.fullmatch(failure.message) if failure.name == ModuleNotFoundError.__name__ else None
        if lacks and any(map(os.path.exists, (f"{lacks[1]}/__init__.py", f"{lacks[1]}.py"))):
            return f"{lacks[1]} is in this directory, where a script below does not look: %mesh run --env PYTHONPATH=."
        if lacks:
            return f"{lacks[1]} is not installed there: %mesh pip install {_PACKAGES.get(lacks[1], lacks[1])}"
        unknown = _UNKNOWN.match(failure.message) if failure.name == "NameError" else None
        name = unknown[1] if unknown and failure.where.startswith("Cell In[") else ""
        if name not in shell.user_ns or name in shell.user_ns_hidden:
            if name and script and (function := _function_of(name, script)):
                said = f"{name} is a variable of {function}() in {script.name}"
                return f"{said}: let it be global there, or call {function}() in a cell and have it return {name}"
            continue
        value = shell.user_ns[name]
        if isinstance(value, ModuleType):
            return f"{name} is imported in the kernel alone: import it in a %%mesh cell, too"
        if type(value).__module__.startswith(_CLIENT):  # a reservation, a mesh, a run
            return f"{name} belongs to the kernel: use it in a cell without %%mesh"
        flag = failed.run.mesh.flag if failed.run is not None else ""
        return f"{name} is a variable of the kernel: %mesh push{flag} {name} sends it to the ranks"
    return ""


def _function_of(name: str, script: Path) -> str:
    """Return which function of a script sets a variable of that name; empty when none does."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = (each for each in ast.walk(function) if isinstance(each, ast.Name) and each.id == name)
            if any(isinstance(each.ctx, ast.Store) for each in names):
                return function.name
    return ""


def _is_raised_in(error: BaseException, namespace: dict[str, Any]) -> bool:
    """Return whether it was code of cells that raised an error, not a module that they call."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals is namespace

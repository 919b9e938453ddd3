"""Variables that a process reads once, when it starts or imports: a rank, forked from one that has done both, must be
forked from one that had them."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG")
"""How those begin that Python, the loader and libc read before any code of ours runs."""
AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_", "JE_", "MIMALLOC_", "TORCH")
"""And those that libraries read in C when they are loaded. What modules read in Python, a template notes (`noting`)."""
_WHEN_NEEDED = (
    *("PYTHONUNBUFFERED", "PYTHONBREAKPOINT", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONIOENCODING"),
    *("TORCH_NCCL_", "TORCH_FR_", "TORCHELASTIC_", "TORCH_HOME"),
)
"""Of these those that are read when they are needed, or are about streams, which are the rank's own."""
_AFTER_A_FORK = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""And those for which a rank does after its fork what they ask for (monarch_nb.worker.forking.after_fork)."""
_OF_A_PROCESS = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "MPLBACKEND", "PATH", "TZ"),
        *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "DISPLAY"),
    }
)
"""Each process has its own, or its terminal: whatever module looks at them, they need no start of their own."""


def of_start(wanted: Mapping[str, str], base: Mapping[str, str], noted: Collection[str]) -> dict[str, str]:
    """Return what a process must have when it starts.

    Args:
        wanted: variables that were asked for.
        base: those of a process that could be forked.
        noted: those that its modules have read.
    """
    differ = {name for name, value in wanted.items() if base.get(name) != value and name not in _AFTER_A_FORK}
    return {name: wanted[name] for name in wanted if name in differ and _is_read(name, AT_START + AT_IMPORT, noted)}


def set_before_imports(source: bytes, modules: Iterable[str], noted: Collection[str]) -> list[str]:
    """Return the variables that a program sets before it imports any of `modules`, which read them at their import, or
    a package that may do so: any but Python's own. What a function imports, it may import when all has been set."""
    packages = {module.partition(".")[0] for module in modules}
    names: list[str] = []
    late = 0
    try:
        for node, in_function in _in_order(ast.parse(source)):
            names += _set_by(node)
            if (imported := {*_imported(node)}) - sys.stdlib_module_names:
                late = len(names)
            if packages & imported and not in_function:
                break
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [name for name in dict.fromkeys(names[:late]) if _is_read(name, AT_IMPORT, noted)]


@contextmanager
def noting() -> Iterator[set[str]]:
    """Note which variables are read in Python meanwhile, but not those that are only copied with all others.

    Example:
        >>> with noting() as read:
        ...     import torch
        >>> "TORCH_LOGS" in read
        True
    """
    read: set[str] = set()
    copied: set[str] = set()

    class Noting(os._Environ):  # type: ignore[type-arg]
        def __getitem__(self, key: str) -> str:
            if key in copied:
                copied.discard(key)
            else:
                read.add(key)
            value: str = super().__getitem__(key)
            return value

        def __iter__(self) -> Iterator[str]:
            copied.update(names := list(super().__iter__()))
            return iter(names)

    kind, os.environ.__class__ = os.environ.__class__, Noting
    try:
        yield read
    finally:
        os.environ.__class__ = kind


def _is_read(name: str, beginnings: tuple[str, ...], noted: Collection[str]) -> bool:
    if name in _OF_A_PROCESS or name.startswith(_WHEN_NEEDED):
        return False
    return name in noted or name.startswith(beginnings)


def _in_order(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield what a program consists of as it stands there, and whether that is in a function."""
    in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield child, in_function
        yield from _in_order(child, in_function)


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.partition(".")[0]


def _set_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a piece of a program sets in os.environ."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                yield from _constant(target.slice)
    elif isinstance(node, ast.AugAssign):
        if isinstance(node.op, ast.BitOr) and isinstance(node.value, ast.Dict) and _is_environ(node.target):
            yield from _constant(*node.value.keys)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "setdefault" and _is_environ(node.func.value):
            yield from _constant(*node.args[:1])
        elif node.func.attr == "update" and _is_environ(node.func.value):
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)
            yield from (name for each in node.args if isinstance(each, ast.Dict) for name in _constant(*each.keys))


def _is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute | ast.Name) and getattr(node, "attr", getattr(node, "id", "")) == "environ"


def _constant(*nodes: ast.AST | None) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))

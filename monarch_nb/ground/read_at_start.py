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
AT_IMPORT = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_", "JE_", "MIMALLOC_", "TORCH"),
    "TQDM_",  # it looks through all variables
)
"""And those that libraries read in C when they are loaded. What modules read in Python, a template notes (`noting`)."""
_WHEN_NEEDED = (
    *("PYTHONUNBUFFERED", "PYTHONBREAKPOINT", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONIOENCODING"),
    *("TORCH_NCCL_", "TORCH_FR_", "TORCHELASTIC_", "TORCH_HOME"),
)
"""Of these those that are read when they are needed, or are about streams, which are the rank's own."""
_SET_BY_LIBRARIES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK")
"""And those that libraries set themselves, when they are imported or compile."""
_AFTER_A_FORK = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""And those for which a rank does after its fork what they ask for (monarch_nb.worker.become_rank)."""
_NONE_IF_EMPTY = ("PYTHON", "LD_", "LC_", "LANG")
"""How those begin that are to Python, the loader and libc as if they were not there where they are empty."""
_OF_A_PROCESS = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "MPLBACKEND", "PATH", "TZ"),
        *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "DISPLAY"),
    }
)
"""Each process has its own, or its terminal: whatever module looks at them, they need no start of their own."""


started: dict[str, str] = {}
"""The variables with which this process became a rank."""
read_at_import: set[str] = set()
"""Those that modules of its template have read."""


def of_start(wanted: Mapping[str, str], base: Mapping[str, str], noted: Collection[str]) -> dict[str, str]:
    """Return what a process must have when it starts.

    Args:
        wanted: variables that were asked for.
        base: those of a process that could be forked.
        noted: those that its modules have read.
    """

    def differs(name: str, value: str) -> bool:
        none = "" if name.startswith(_NONE_IF_EMPTY) and name not in noted else None
        return base.get(name, none) != value and name not in _AFTER_A_FORK

    differ = {name for name, value in wanted.items() if differs(name, value)}
    return {name: wanted[name] for name in wanted if name in differ and _is_read(name, AT_START + AT_IMPORT, noted)}


def set_late(started: Mapping[str, str], now: Mapping[str, str], noted: Collection[str]) -> list[str]:
    """Return the variables that have changed since a process read them.

    Args:
        started: its variables when it had done all that.
        now: those that it has.
        noted: those that its modules have read.

    Example:
        >>> set_late({}, {"OMP_NUM_THREADS": "8", "MINE": "1"}, ())
        ['OMP_NUM_THREADS']
    """
    names = sorted({*started, *now} - {*_SET_BY_LIBRARIES})
    changed = (name for name in names if started.get(name) != now.get(name))
    return [name for name in changed if _is_read(name, AT_START + AT_IMPORT, noted)]


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
    return [name for name in dict.fromkeys(names[:late]) if is_read_at_import(name, noted)]


def is_read_at_import(name: str, noted: Collection[str]) -> bool:
    """Return whether libraries read a variable when they are imported; `noted` are those that some have read."""
    return _is_read(name, AT_IMPORT, noted)


def when_read(names: Iterable[str], modules: Iterable[str]) -> str:
    """Return when variables are read that a process must have when it starts; `modules` are those that it imports.

    Example:
        >>> when_read(["LANG", "TORCH_LOGS"], ["torch"])
        'LANG: read when Python starts; TORCH_LOGS: read when torch is imported'
    """
    packages = list(dict.fromkeys(module.partition(".")[0] for module in modules))
    imported = (
        f"{', '.join(packages)} are imported" if len(packages) > 1 else f"{(*packages, 'a module')[0]} is imported"
    )
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("Python starts" if name.startswith(AT_START) else imported, []).append(name)
    return "; ".join(f"{', '.join(those)}: read when {when}" for when, those in groups.items())


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

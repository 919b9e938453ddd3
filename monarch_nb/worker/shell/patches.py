"""What works differently in a rank than in a script: input(), other debuggers and spawning what only a cell defines say
so, progress bars are text, crashes are told by us, and processes that are spawned may be a world of their own."""

import ast
import builtins
import functools
import getpass
import multiprocessing.context
import multiprocessing.reduction
import multiprocessing.util
import os
import pdb
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NoReturn

from IPython.core.error import StdinNotImplementedError

from monarch_nb.integrations import accelerate, lightning
from monarch_nb.worker.imports import after_import


class SpawnError(RuntimeError):
    """A process that is spawned (not forked) can not find what was defined in a cell."""


_plain_input, _plain_getpass = builtins.input, getpass.getpass
_plain_dump = multiprocessing.reduction.dump
_contexts: Any = multiprocessing.context._default_context
_plain_context: multiprocessing.context.BaseContext = _contexts._default_context
_RECORD = "torch.distributed.elastic.multiprocessing.errors.error_handler"
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_scripts: list[str] = []
"""The files of scripts that run in the namespace of the cells: a process that they spawn executes the last one, too."""
PYTHON_3_14_DOES_NOT_FORK = sys.version_info >= (3, 14)
"""Unless it is told to: `multiprocessing` begins its processes anew, without what a cell defines."""


def install() -> None:
    """Patch this process."""
    builtins.input = _refuse_input
    getpass.getpass = _refuse_input
    pdb.Pdb.interaction = _with_keyboard(pdb.Pdb.interaction)  # type: ignore[method-assign]
    # Python 3.12 warns because of the control thread, of which a forked child keeps nothing.
    for said_by_ipython in ("To exit: use", "Unknown failure executing module"):  # the run fails anyway
        warnings.filterwarnings("ignore", said_by_ipython, UserWarning)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    ours = {"tqdm.notebook": _use_text_bar, _RECORD: _leave_crashes_to_us}
    for module, patch in {**ours, **accelerate.PATCHES, **lightning.PATCHES}.items():
        after_import(module, patch)
    reduction: Any = multiprocessing.reduction
    reduction.dump = _dump_for_spawn(reduction.dump)
    util: Any = multiprocessing.util
    util.spawnv_passfds = _with_a_store_of_their_own(util.spawnv_passfds)
    if PYTHON_3_14_DOES_NOT_FORK:
        _begin_processes_with(multiprocessing.get_context("fork"))


def undo() -> None:
    """Take back what makes no sense for a script: it can be imported, and it reads the end of its input."""
    builtins.input, getpass.getpass = _plain_input, _plain_getpass
    reduction: Any = multiprocessing.reduction
    reduction.dump = _plain_dump
    _begin_processes_with(_plain_context)


def _begin_processes_with(context: multiprocessing.context.BaseContext) -> None:
    """Make `context` what a program gets that chooses no start method; it can still choose one, once."""
    _contexts._default_context = context


@contextmanager
def running_script(path: str) -> Iterator[None]:
    """Have what a script spawns find its functions and classes, as under Python, while it runs in the namespace of the
    cells: what `__main__` has as its file is executed there."""
    _scripts.append(path)
    try:
        yield
    finally:
        _scripts.pop()


def _is_found(name: str) -> bool:
    """Return whether a process that is spawned now finds a function or class of `__main__`: in a module that runs as a
    script (`-m`), or in a script's file. It finds nothing of cells."""
    if getattr(sys.modules["__main__"], "__spec__", None) is not None:
        return True
    if not _scripts:
        return False
    with open(_scripts[-1], "rb") as file:
        nodes = ast.walk(ast.parse(file.read()))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, kinds) and node.name == name for node in nodes)


def _refuse_input(*_: Any, **__: Any) -> NoReturn:
    __tracebackhide__ = True
    raise StdinNotImplementedError(
        "a rank has no keyboard: input() and getpass() do not work in a %%mesh cell. "
        "Ask in a local cell and send the answer with mesh.push({...}) or %mesh push"
    )


def _with_keyboard(interaction: Callable[..., None]) -> Callable[..., None]:
    def interact(debugger: pdb.Pdb, *arguments: Any) -> None:
        __tracebackhide__ = True
        if debugger.stdin in (sys.stdin, sys.__stdin__):  # else it is one that talks over a socket
            raise StdinNotImplementedError(
                "a rank has no keyboard: breakpoint(), pdb.set_trace(), pdb.pm() and pdb.post_mortem() are answered in "
                "the notebook; after an error %mesh debug --post-mortem enters it"
            )
        interaction(debugger, *arguments)

    return interact


def _use_text_bar(notebook: Any) -> None:
    """Make tqdm.notebook's bar, a widget that no browser would hear from, the text bar that it derives from."""
    bar = notebook.tqdm_notebook
    for name in list(vars(bar)):
        if not name.startswith("__") or name == "__iter__":
            delattr(bar, name)

    def __init__(self: Any, *arguments: Any, display: bool = True, **options: Any) -> None:
        super(bar, self).__init__(*arguments, **options)

    bar.__init__ = __init__


def _leave_crashes_to_us(record: Any) -> None:
    """Have torch's `@record` not turn faulthandler to stderr: there a crash would show our frames below the user's."""
    record.ErrorHandler.initialize = lambda _: None


def _dump_for_spawn(dump: Callable[..., None]) -> Callable[..., None]:
    class CheckingPickler(multiprocessing.reduction.ForkingPickler):
        def reducer_override(self, item: Any) -> Any:
            is_of_main = isinstance(item, (type, FunctionType)) and item.__module__ == "__main__"
            if is_of_main and not _is_found(item.__name__):
                raise SpawnError(
                    f"{item.__qualname__} is defined in a cell, or by a script that has ended, and a spawned process "
                    "can not find it there: use the start method 'fork', or put it into a file (%%writefile mycode.py) "
                    "and import it from there"
                )
            return NotImplemented

    def checking_dump(item: Any, file: Any, protocol: int | None = None) -> None:
        __tracebackhide__ = True
        if multiprocessing.context.get_spawning_popen() is None:
            dump(item, file, protocol)
        else:
            CheckingPickler(file, protocol).dump(item)

    return checking_dump


def _with_a_store_of_their_own(spawn: Callable[..., int]) -> Callable[..., int]:
    """`torch.multiprocessing.spawn(train, nprocs=2)`, as DDP's tutorials have it: rank 0 of these hosts their store at
    the port that they name. All would wait for it if they were told, as ranks are, that an agent hosts one."""

    @functools.wraps(spawn)
    def spawnv_passfds(*arguments: Any) -> int:
        told = os.environ.pop(_AGENT_STORE, None)
        try:
            return spawn(*arguments)
        finally:
            if told is not None:
                os.environ[_AGENT_STORE] = told

    return spawnv_passfds

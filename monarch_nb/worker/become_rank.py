"""What makes a forked child of the template a rank: everything in which it must not look like a copy.

After this a rank is what a fresh process would be: own session, environment, directory, random state, thread counts,
signal handlers and garbage collector.

To libraries that ask where they run it is a script's process, as torchrun starts it, and no notebook (`install`,
`hide_shell`). Lightning refuses `strategy="ddp"` where it finds `sys.ps1`, W&B takes any shell of IPython's for
Jupyter, others look among the builtins. Cells keep what they need of IPython: magics, `!`, `display`. `__main__` has no
`__file__`, as in any kernel: a spawned process would execute what it names a second time.
"""

import builtins
import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import IPython
from IPython.core import getipython
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.config import STACKS_SIGNAL
from monarch_nb.ground import file_locks, pickling, read_at_start
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.integrations import lightning
from monarch_nb.proto.worker_pb2 import RankSpec
from monarch_nb.worker import imports
from monarch_nb.worker.imports import after_import

ARGV = ("cell",)
"""What argparse calls a cell in its messages. Not empty: HfArgumentParser looks for a file of that name."""
_SHOWING = {"IPython", "matplotlib", "matplotlib_inline", "plotly"}
"""Packages that ask for the shell in order to show a figure in the cell."""


def install() -> None:
    """In the template, before anything is preloaded: modules keep what they import, and what they found then."""
    getipython.get_ipython = IPython.get_ipython = _get_ipython


def hide_shell() -> None:
    """Once the shell is made: take away what IPython leaves for everybody to see."""
    for name in ("ps1", "ps2", "ps3"):
        if hasattr(sys, name):
            delattr(sys, name)
    for name in ("__IPYTHON__", "get_ipython"):
        vars(builtins).pop(name, None)


def _get_ipython() -> InteractiveShell | None:
    """Return the shell to who works with it: cells, IPython, what `%load_ext` loaded, what shows figures."""
    if not InteractiveShell.initialized():
        return None
    shell: Any = InteractiveShell.instance()
    package = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
    extensions = {name.partition(".")[0] for name in shell.extension_manager.loaded}
    return shell if package in {"__main__"} | _SHOWING | extensions else None


_OOM_SCORE = 300
"""The kernel's out-of-memory killer takes ranks before allocators and Jupyter."""
_PR_SET_NAME = 15
_INLINE_BACKEND = "module://matplotlib_inline.backend_inline"

_libc = ctypes.CDLL(None)
_stacks_files: list[Any] = []
"""faulthandler writes to the descriptor as long as the process lives."""
_gpu_locks: list[int] = []
"""Files whose locks are held as long as the process lives."""
_STDERR = 2


def become_rank(spec: RankSpec) -> None:
    """Give this freshly forked process everything of its own."""
    os.setsid()
    _hold_gpus(spec.gpu_locks)
    name_process(f"rank {spec.rank}")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(str(_OOM_SCORE))
    gc.enable()
    _replace_environment(spec.environment)
    _replace_stdin()
    _enter_directory(spec.directory)
    _reset_signals(spec.stacks_file)
    _reseed()
    _restore_threads(os.environ)
    if not spec.for_script:
        _prefer_own_gpu(os.environ)
    lightning.become_rank()
    read_at_start.started.update(os.environ)


def _hold_gpus(files: Iterable[str]) -> None:
    """Let no allocator of this machine lease these GPUs while this process lives, or a program that it becomes. Its
    own allocator holds them too, but may die before it."""
    for file in files:
        with contextlib.suppress(OSError):  # somebody has removed it
            _gpu_locks.append(os.open(file, os.O_RDONLY | os.O_NOFOLLOW))
            os.set_inheritable(_gpu_locks[-1], True)
            file_locks.hold(_gpu_locks[-1])


def name_process(name: str) -> None:
    """Set what `ps -o comm` and `top` show of the calling thread."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def presets(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers that every rank's namespace starts with."""
    return {
        "rank": int(environment.get("RANK", "0")),
        "world_size": int(environment.get("WORLD_SIZE", "1")),
        "local_rank": int(environment.get("LOCAL_RANK", "0")),
    }


def device_name(environment: Mapping[str, str]) -> str:
    """Return `cuda:LOCAL_RANK` when GPUs are leased to this rank, else `cpu`; asks no driver.

    Example:
        >>> device_name({"CUDA_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "1"})
        'cuda:1'
    """
    gpus = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip() not in ("", "-1")]
    return f"cuda:{int(environment.get('LOCAL_RANK', '0')) % len(gpus)}" if gpus else "cpu"


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.environ.setdefault("MPLBACKEND", _INLINE_BACKEND)
    time.tzset()
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))


def _replace_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115


def _enter_directory(directory: str) -> None:
    os.chdir(directory)
    sys.path[:] = [directory, *imports.paths_of(os.environ)]
    sys.argv = list(ARGV)


def _reset_signals(stacks_file: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable(_STDERR)
    if stacks_file:
        Path(stacks_file).unlink(missing_ok=True)
        _stacks_files.append(open(stacks_file, "a"))  # noqa: SIM115
        faulthandler.register(STACKS_SIGNAL, file=_stacks_files[-1], all_threads=True)
        # A crash is told with the user's frames alone (allocator/processes/processes.py); children tell it to nobody.
        faulthandler.enable(_stacks_files[-1])
        os.register_at_fork(after_in_child=functools.partial(faulthandler.enable, _STDERR))


def _reseed() -> None:
    """Python's `random` reseeds itself after a fork; these copy their state."""
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def _prefer_own_gpu(environment: Mapping[str, str]) -> None:
    """Let "cuda" be the rank's own GPU, where nobody chooses another. It sees those of all ranks of its node, as
    torchrun's processes do: what people have written takes its own by LOCAL_RANK."""
    own = device_name(environment)
    if own != "cpu":
        pickling.arrive_on(own)
        after_import("torch.cuda", lambda cuda: cuda._lazy_call(lambda: cuda.set_device(own)))


def _restore_threads(environment: Mapping[str, str]) -> None:
    """Undo the template's restriction to one thread."""
    wanted = environment.get("OMP_NUM_THREADS", "")
    count = int(wanted) if wanted.isdecimal() and int(wanted) else usable_cpus()
    if torch := sys.modules.get("torch"):
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        _restore_threads_in_each(torch.get_num_threads)
    blas_wanted = environment.get("OPENBLAS_NUM_THREADS", "")
    blas_count = int(blas_wanted) if blas_wanted.isdecimal() and int(blas_wanted) else count
    if blas_count > 1 and "numpy" in sys.modules:
        from threadpoolctl import ThreadpoolController

        ThreadpoolController().select(internal_api="openblas").limit(limits=blas_count)


def _restore_threads_in_each(get_num_threads: Callable[[], int]) -> None:
    """Have threads that start later compute with as many threads as the main one: OpenMP counts by thread, and what
    it starts with is the template's, one a core. To ask torch for the number sets it (3 µs)."""
    bootstrap = threading.Thread._bootstrap  # type: ignore[attr-defined]

    def bootstrap_counted(thread: threading.Thread) -> None:
        get_num_threads()
        bootstrap(thread)

    threading.Thread._bootstrap = bootstrap_counted  # type: ignore[attr-defined]

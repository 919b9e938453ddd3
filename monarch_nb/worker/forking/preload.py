"""Importing what the template preloads, and refusing by name a module after which the template could not fork."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

_UVM_DEVICE = "/dev/nvidia-uvm"
"""Every CUDA context needs it. NVML, which only asks (as torch.cuda.is_available() does here), opens others."""


class Unfit(Exception):
    """The template can not be forked, or a module of its preload list can not be imported.

    Attributes:
        module: the module to blame; empty when unknown.
        text: what to show: the traceback of a failed import, else the message.
    """

    def __init__(self, message: str, module: str = "", text: str = "") -> None:
        super().__init__(message)
        self.module = module
        self.text = text or message


_ALSO = {"torch": ["torch._dynamo"]}
"""What a module imports when it is first used: the first optimizer would import 821 modules in every rank (1 s)."""


def import_modules(names: Iterable[str]) -> None:
    """Import each module; the first that fails, leaves a thread or initialises CUDA is refused.

    Raises:
        Unfit: names the module.
    """
    for module in [each for name in names for each in (name, *_ALSO.get(name, ()))]:
        try:
            importlib.import_module(module)
        except BaseException as error:  # SystemExit too: a module may call sys.exit()
            text = "".join(traceback.format_exception(type(error), error, _without_ours(error)))
            raise Unfit(f"{module} can not be imported: {error}", module, text) from error
        if threads := other_threads():
            reason = f"leaves a thread running ({', '.join(threads)}), and a process with threads can not be forked"
            raise Unfit(f"{module} can not be preloaded: importing it {reason}. Import it in a cell instead.", module)
        if cuda := cuda_traces():
            reason = f"initialises CUDA ({cuda}), and ranks forked after that could not use the GPU"
            raise Unfit(f"{module} can not be preloaded: importing it {reason}. Import it in a cell instead.", module)


def other_threads() -> list[str]:
    """Return the names of this process's threads other than the calling one, as the kernel knows them."""
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            try:
                names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
            except OSError:
                continue  # it has just ended
    return names


def cuda_traces() -> str:
    """Return a sign that this process has initialised CUDA; empty when there is none."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target == _UVM_DEVICE:
            return f"{target} is open"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return "torch.cuda.is_initialized()" if cuda is not None and cuda.is_initialized() else ""


def _without_ours(error: BaseException) -> TracebackType | None:
    """Return the error's traceback without our frame and importlib's."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        trace = trace.tb_next
    return trace

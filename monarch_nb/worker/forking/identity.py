"""What a rank is to libraries that ask where they run: a script's process, as torchrun starts it, and no notebook.

Lightning refuses `strategy="ddp"` where it finds `sys.ps1`, W&B takes any shell of IPython's for Jupyter, others look
among the builtins. Cells keep what they need of IPython: magics, `!`, `display`.

`__main__` has no `__file__`, as in any kernel: a spawned process would execute what it names a second time.
"""

import builtins
import sys
from typing import Any

import IPython
from IPython.core import getipython
from IPython.core.interactiveshell import InteractiveShell

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

"""How long a program waits for packages that the template could have imported once."""

import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from types import ModuleType

_WORTH_S = 1.0
_INSTALLED = ("/site-packages/", "/dist-packages/")


class ImportTimes:
    """Measures, from now on, the imports of installed packages in the main thread."""

    def __init__(self) -> None:
        self._imported = {name.partition(".")[0] for name in list(sys.modules)}  # another thread may import now
        self._seconds: dict[str, float] = {}
        execute, seconds, main = SourceFileLoader.exec_module, self._seconds, threading.main_thread()
        outermost = ""

        def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
            nonlocal outermost
            is_installed = any(directory in loader.path for directory in _INSTALLED)
            if outermost or not is_installed or threading.current_thread() is not main:
                return execute(loader, module)
            outermost, began = module.__name__.partition(".")[0], time.monotonic()
            try:
                execute(loader, module)
            finally:
                seconds[outermost] = seconds.get(outermost, 0.0) + time.monotonic() - began
                outermost = ""

        # Python leaves importlib's own frames out of the traceback of an import that fails: this is one of them.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=execute.__code__.co_filename)
        SourceFileLoader.exec_module = exec_module  # type: ignore[assignment, method-assign]

    def hint(self) -> str:
        """Return what preloading would save, empty when that is little.

        Example: "lightning: 2.9 s at every run: %mesh reserve --preload lightning imports it once".
        """
        slow = [name for name, time_s in self._seconds.items() if time_s >= _WORTH_S and name not in self._imported]
        if not slow:
            return ""
        costs = ", ".join(f"{name}: {self._seconds[name]:.1f} s" for name in slow)
        options = " ".join(f"--preload {name}" for name in slow)
        return f"{costs} at every run: %mesh reserve {options} imports {'it' if len(slow) == 1 else 'them'} once"

# sys.stderr is None when a hook and an exit function fail: the other exit functions run.
import atexit
import sys

atexit.register(print, "exit function", flush=True)


def fails(*_):
    raise KeyError("itself")


atexit.register(fails)
sys.excepthook = fails
sys.stderr = None
raise ValueError("bad batch")

# A hook chooses the exit status.
import atexit
import sys


def hook(kind, error, trace):
    print("hook", kind.__name__)
    sys.exit(4)


sys.excepthook = hook
atexit.register(print, "exit function")
raise ValueError("bad batch")

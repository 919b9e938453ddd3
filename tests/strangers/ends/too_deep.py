# Endless recursion, as a hook counts its frames.
import sys
import traceback


def descend(depth):
    return descend(depth + 1)


def hook(kind, error, trace):
    frames = traceback.extract_tb(trace)
    print(kind.__name__, frames[0].name, frames[-1].name)


sys.excepthook = hook
descend(0)

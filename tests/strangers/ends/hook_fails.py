# A hook that fails itself: Python says both errors.
import sys


def hook(kind, error, trace):
    raise KeyError("in the hook")


sys.excepthook = hook
raise ValueError("bad batch")

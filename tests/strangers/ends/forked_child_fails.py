# A forked child that fails calls the hook and the exit functions itself, and ends with status 1.
import atexit
import os
import sys

sys.excepthook = lambda kind, error, trace: print("hook", error, os.getpid() == parent)
parent = os.getpid()
atexit.register(lambda: print("exit function", os.getpid() == parent))
if os.fork() == 0:
    raise ValueError("in the child")
_, status = os.wait()
print("child", os.waitstatus_to_exitcode(status))

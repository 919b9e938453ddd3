# A KeyboardInterrupt that comes to the end: hook, exit functions, and the status of SIGINT.
import atexit
import sys

sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, error)
atexit.register(print, "exit function")
raise KeyboardInterrupt("stop")

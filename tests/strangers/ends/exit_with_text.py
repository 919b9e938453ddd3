# A text for sys.exit stands on stderr before what exit functions say there; the hook hears nothing of it.
import atexit
import sys

sys.excepthook = lambda *error: print("hook", error)
atexit.register(print, "exit function", file=sys.stderr)
sys.exit("no data in /data")

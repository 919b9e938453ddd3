# sys.stderr is None when the program leaves with a text: its exit functions run.
import atexit
import sys

atexit.register(print, "exit function", flush=True)
sys.stderr = None
sys.exit("nothing to do")

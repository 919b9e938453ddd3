# A child that cleans up at Ctrl-C has its time (diffusers 1722).
# press: ready
# ways: script live cell
import subprocess
import sys

CHILD = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(print("cleaned up")))
print("ready", flush=True)
signal.pause()
"""
child = subprocess.Popen([sys.executable, "-c", CHILD])
try:
    child.wait()
except KeyboardInterrupt:
    child.wait()
    print("interrupted")

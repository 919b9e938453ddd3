# A timer ticks, and a child's end is told, once each.
# ways: script live
import signal
import subprocess
import sys

ticks, ended = [], []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
subprocess.run([sys.executable, "-c", ""])
print(ticks, ended, signal.getitimer(signal.ITIMER_REAL))
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)

# Each signal that a program may handle reaches its handler once, and none is handled before.
# ways: script live
import os
import signal
import time

NAMES = (
    "SIGUSR1 SIGUSR2 SIGALRM SIGVTALRM SIGPROF SIGTERM SIGCHLD SIGWINCH SIGCONT SIGPIPE SIGRTMIN".split()
)
seen = []
for name in NAMES:
    number = getattr(signal, name)
    print(name, signal.getsignal(number))
    signal.signal(number, lambda number, _: seen.append(signal.Signals(number).name))
for name in NAMES:
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(0.01)
print(seen)
for name in NAMES:
    signal.signal(getattr(signal, name), signal.SIG_DFL)

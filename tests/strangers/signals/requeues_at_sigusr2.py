# A program that saves and requeues itself at a signal of its scheduler does so once.
# procs: 2
import os
import signal
import time

requeued = []
signal.signal(signal.SIGUSR2, lambda *_: requeued.append(1))
os.kill(os.getpid(), signal.SIGUSR2)
while not requeued:
    time.sleep(0.01)
print("requeued", len(requeued), "times")

# A thread that exits ends itself only; one that fails goes to threading.excepthook.
import sys
import threading


def fails():
    raise ValueError("in a thread")


for target in (sys.exit, fails):
    thread = threading.Thread(target=target, name=target.__name__)
    thread.start()
    thread.join()
threading.excepthook = lambda told: print("told", told.exc_value, told.thread.name)
thread = threading.Thread(target=fails, name="worker")
thread.start()
thread.join()
print("main ends well")

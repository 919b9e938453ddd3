# After a Ctrl-C that was handled, a signal that the program sends itself counts as before: a watchdog's, say.
# press: ready
# ways: script live cell
import _thread
import os
import signal
import threading
import time

try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("handled")
for signals in (
    _thread.interrupt_main,
    lambda: os.kill(os.getpid(), signal.SIGINT),
    lambda: signal.raise_signal(signal.SIGINT),
    lambda: threading.Timer(0.1, _thread.interrupt_main).start(),
):
    try:
        signals()
        time.sleep(1)
        print("nothing came")
    except KeyboardInterrupt:
        print("step timed out")

# Watchdogs and timeouts send SIGINT to their own process, which takes it as Ctrl-C.
import _thread
import atexit
import os
import signal
import threading

atexit.register(print, "exit function")
watchdog = threading.Thread(target=_thread.interrupt_main)
for interrupt in (lambda: os.kill(os.getpid(), signal.SIGINT), watchdog.start):
    try:
        interrupt()
        while True:
            pass
    except KeyboardInterrupt as error:
        print("interrupted", repr(error))
print("goes on")

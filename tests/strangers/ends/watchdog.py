# A watchdog interrupts its own process, in a cell, too.
# ways: script live cell
import _thread
import os
import signal
import threading

watchdog = threading.Thread(target=_thread.interrupt_main)
for interrupt in (lambda: os.kill(os.getpid(), signal.SIGINT), watchdog.start):
    try:
        interrupt()
        while True:
            pass
    except KeyboardInterrupt as error:
        print("interrupted", repr(error))
print("goes on")

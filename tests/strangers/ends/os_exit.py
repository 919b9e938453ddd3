# os._exit leaves at once: neither exit functions nor threads.
import atexit
import os
import threading

atexit.register(print, "never")
threading.Thread(target=threading.Event().wait).start()
print("leaves")
os._exit(7)

# Thread-local data, stack sizes and the names of threads are Python's.
# ways: script live cell
import threading

local = threading.local()
local.value = 1
print(threading.current_thread().name, threading.main_thread() is threading.current_thread(), threading.stack_size())
seen = []
thread = threading.Thread(target=lambda: seen.append((hasattr(local, "value"), threading.current_thread().name)))
thread.start()
thread.join()
print(seen)

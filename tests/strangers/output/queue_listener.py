# Logging on another thread, as servers do it: a queue, a listener, a pool that prints.
# ways: script live cell
import logging
import logging.handlers
import queue
import sys
from concurrent.futures import ThreadPoolExecutor

records = queue.SimpleQueue()
listener = logging.handlers.QueueListener(records, logging.StreamHandler(sys.stderr))
listener.start()
log = logging.getLogger("trainer")
log.propagate = False
log.addHandler(logging.handlers.QueueHandler(records))
log.warning("begins")
with ThreadPoolExecutor(2) as pool:
    for future in [pool.submit(lambda: None) for _ in range(4)]:
        future.result()
    pool.submit(print, "from the pool").result()
log.warning("ends")
listener.stop()

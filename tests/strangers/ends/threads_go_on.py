# Threads and pools that still have work finish it; daemons do not count.
import concurrent.futures
import threading
import time


def work(number):
    begun.set()
    main_has_ended.wait()
    return print("task", number)


main_has_ended, begun = threading.Event(), threading.Event()
pool = concurrent.futures.ThreadPoolExecutor(1)
for number in range(3):
    pool.submit(work, number)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
begun.wait()
threading._register_atexit(main_has_ended.set)
print("main ends")

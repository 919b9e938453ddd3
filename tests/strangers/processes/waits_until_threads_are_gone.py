# A downloader waits until its main thread is the only one.
import threading
import time

print(threading.active_count(), [thread.name for thread in threading.enumerate()])
done = []
for number in range(3):
    threading.Thread(target=lambda number=number: (time.sleep(0.05), done.append(number))).start()
while threading.active_count() > 1:
    time.sleep(0.01)
print(sorted(done), threading.current_thread().name, threading.main_thread().name)

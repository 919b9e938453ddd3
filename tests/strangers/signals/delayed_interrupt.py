# Ctrl-C while a checkpoint is written is put off: the handler that was there before is called afterwards, and raises.
# ways: script live cell
import os
import signal
import threading


class Delayed:
    def __enter__(self):
        self.got = None
        self.old = signal.signal(signal.SIGINT, self.note)

    def note(self, *got):
        self.got = got

    def __exit__(self, *_):
        signal.signal(signal.SIGINT, self.old)
        if self.got:
            self.old(*self.got)


print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
try:
    with Delayed():
        os.kill(os.getpid(), signal.SIGINT)
        print("written")
    print("never here")
except KeyboardInterrupt:
    print("stopped", signal.signal(signal.SIGINT, signal.SIG_IGN))
print(signal.signal(signal.SIGINT, signal.default_int_handler))
print(signal.signal(signal.SIGTERM, signal.default_int_handler))
try:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass
except KeyboardInterrupt:
    print("terminated", signal.signal(signal.SIGTERM, signal.SIG_DFL))
try:
    signal.default_int_handler(signal.SIGINT, None)
except KeyboardInterrupt as error:
    print(repr(error))
try:
    signal.getsignal(0)
except ValueError as error:
    print(error)
thread = threading.Thread(target=lambda: print(signal.getsignal(signal.SIGINT)))
thread.start()
thread.join()

# What happens at the end, in its order: finally, hook, threads, exit functions, destructors.
import atexit
import sys
import threading


class Closes:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("deleted", self.name)


def hook(kind, error, trace):
    print("hook", error, sys.last_value is error)


def work():
    main_has_failed.wait()
    print("thread ends")


main_has_failed = threading.Event()
held, _first = Closes("held"), Closes("first")
sys.excepthook = hook
atexit.register(print, "registered first")
atexit.register(lambda: print("registered last", repr(sys.last_value)))
threading.Thread(target=work).start()
threading._register_atexit(lambda: (print("threads are asked"), main_has_failed.set()))
try:
    raise ValueError("bad batch")
finally:
    print("finally")

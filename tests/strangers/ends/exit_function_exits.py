# sys.exit in an exit function does not change the status.
import atexit
import sys


class Exits:
    def __repr__(self):
        return "<exits>"

    def __call__(self):
        sys.exit(9)


atexit.register(print, "still called")
atexit.register(Exits())
sys.exit(3)

# What a destructor raises is told to sys.unraisablehook, and changes nothing.
import sys


class Fails:
    def __del__(self):
        raise OSError("can not close")


def told(unraisable):
    print("told", type(unraisable.exc_value).__name__, unraisable.exc_value)


sys.unraisablehook = told
first = Fails()
del first
at_the_end = Fails()

# Programs that look for __main__ at the end, and find it in exit functions.
import atexit
import sys

value = 3
atexit.register(lambda: print(sys.modules["__main__"].value, __name__))

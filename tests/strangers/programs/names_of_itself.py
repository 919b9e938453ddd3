# What a program knows of itself: its file, its arguments, its annotations, its source.
# args: --lr 0.1 "two words"
import inspect
import os
import sys


def main():
    return 7


print(os.path.isabs(__file__), os.path.basename(__file__), sys.argv, __name__, __spec__, __package__)
print(globals().get("__annotations__"))  # Python 3.14 has none
print(sys.modules["__main__"].main is main, inspect.getsource(main), inspect.getsourcefile(main) == __file__)
print(sys.flags.interactive, hasattr(sys, "ps1"), sys.stdin.isatty(), "get_ipython" in dir(__builtins__))

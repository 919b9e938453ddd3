# A hook adds a line of its own and leaves the rest to Python's, as many loggers do.
import sys


def hook(*error):
    print("a line of its own", file=sys.stderr)
    sys.__excepthook__(*error)


sys.excepthook = hook
print(sys.__excepthook__.__name__)
raise ValueError("bad batch")

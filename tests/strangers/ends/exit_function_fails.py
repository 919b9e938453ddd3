# An exit function that fails is told, the others are called, and the status stays.
import atexit


class Fails:
    def __repr__(self):
        return "<closing the tracker>"

    def __call__(self):
        raise ConnectionError("tracker is gone")


atexit.register(print, "still called")
atexit.register(Fails())
print("done")

# Notes, causes, contexts and `from None`, as a crash reporter formats them.
import sys
import traceback


def hook(kind, error, trace):
    with open("crash.log", "w") as log:
        traceback.print_exception(kind, error, trace, file=log)


def load():
    try:
        {}["weights"]
    except KeyError as missing:
        missing.add_note("in checkpoint 7")
        raise RuntimeError("no checkpoint") from missing


def resume():
    try:
        load()
    except RuntimeError:
        raise ValueError("hidden") from None


sys.excepthook = hook
try:
    load()
except RuntimeError:
    try:
        resume()
    except ValueError as error:
        error.add_note("try --from-scratch")
        raise

# An exception group, as a crash reporter formats it.
import sys
import traceback


def hook(kind, error, trace):
    print("".join(traceback.format_exception(kind, error, trace)))


def fail(number):
    try:
        raise ValueError(f"shard {number}")
    except ValueError as error:
        return error


sys.excepthook = hook
raise ExceptionGroup("two shards", [fail(1), fail(2)])

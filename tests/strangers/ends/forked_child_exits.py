# A forked child comes to the end of the program: its threads and exit functions are its own.
import atexit
import os
import sys

atexit.register(print, "exit function")
child = os.fork()
if child == 0:
    sys.exit("the child says why")
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status))

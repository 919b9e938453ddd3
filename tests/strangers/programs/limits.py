# Limits of the process are those of a process that a shell starts.
import gc
import resource
import sys

print(sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold(), sys.getswitchinterval())
print(resource.getrlimit(resource.RLIMIT_CORE)[0] >= 0 or True, sys.gettrace(), sys.getprofile())
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.stdout is sys.__stdout__)

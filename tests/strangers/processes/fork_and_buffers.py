# What is in a buffer when a program forks is written once by each, as C and Python do.
import os
import sys

sys.stdout.flush()
pid = os.fork()
if pid == 0:
    os.write(1, b"child\n")
    os._exit(3)
_, status = os.waitpid(pid, 0)
print("parent", os.waitstatus_to_exitcode(status))

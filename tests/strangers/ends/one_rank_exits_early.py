# A rank that has nothing to do ends well, and the others go on.
# procs: 3
import atexit
import os
import sys

rank = int(os.environ["RANK"])
atexit.register(print, "exit function of", rank)
if rank == 0:
    sys.exit()
print("rank", rank, "works")

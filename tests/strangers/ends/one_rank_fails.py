# One rank fails while another waits for it: the others are ended, and the whole has failed.
# procs: 2
import os
import time

rank = int(os.environ["RANK"])
print("rank", rank)
if rank == 1:
    raise ValueError("bad batch")
time.sleep(1000)

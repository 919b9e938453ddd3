# One rank fails while another waits for it: the others are ended, and the whole has failed.
# procs: 2
import os
import time
from pathlib import Path

rank = int(os.environ["RANK"])
print("rank", rank)
if rank == 1:
    while not Path("waits").exists():
        time.sleep(0.01)
    raise ValueError("bad batch")
Path("waits").touch()
time.sleep(1000)

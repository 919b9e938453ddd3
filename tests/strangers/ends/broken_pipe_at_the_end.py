# A writer of its own finds only at the end that its reader has gone.
import os
import sys

reads, writes = os.pipe()
os.close(reads)
sys.stderr = open(os.devnull, "w")  # each Python says it in other words
sys.stdout = os.fdopen(os.dup2(writes, 99), "w")
print("line")

# Who reads the output has gone, as with `| head`.
import os
import sys

reads, writes = os.pipe()
os.close(reads)
sys.stderr = open(os.devnull, "w")  # each Python says it in other words
sys.stdout = os.fdopen(os.dup2(writes, 99), "w", buffering=1)
for number in range(10):
    print("line", number)

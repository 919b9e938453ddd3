# Run as plain processes, and as a cell by monarch_nb. No two processes print the same line.
import os
import time

pid = os.getpid()
began_s = time.perf_counter()
for number in range(200_000):
    print(f"line {number} of process {pid}: loss {number / 7:.6f}")
elapsed_s = time.perf_counter() - began_s

# Run as plain processes, and as a cell by monarch_nb.
import time

began_s = time.perf_counter()
for number in range(200_000):
    print(f"line {number}: loss {number / 7:.6f}, as a training loop prints it")
elapsed_s = time.perf_counter() - began_s

# Children that write much on both streams, and C code that prints beside them (ipykernel 110, 847).
# ways: script live cell
import ctypes
import subprocess
import sys

noisy = "import sys\nfor n in range(200):\n    print('out', n)\n    print('err' * 30, n, file=sys.stderr)"
subprocess.run([sys.executable, "-c", noisy], check=True)
libc = ctypes.CDLL(None)
for number in range(3):
    print("Python", number, flush=True)
    libc.printf(b"C %d\n", number)
    libc.fflush(None)
subprocess.run("echo one; echo two >&2; exit 0", shell=True, check=True)

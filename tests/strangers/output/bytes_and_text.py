# Text, raw bytes, a descriptor and C code take turns at stdout.
# ways: script live cell
import ctypes
import os
import sys

print("text")
sys.stdout.flush()
sys.stdout.buffer.write(b"bytes \xff\n")
sys.stdout.buffer.flush()
os.write(1, b"descriptor\n")
ctypes.CDLL(None).puts(b"c")
print("text again", end="")

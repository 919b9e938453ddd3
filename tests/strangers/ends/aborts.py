# C code that aborts.
import os

print("begins")
os.abort()

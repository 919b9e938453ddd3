# What the loader and libc read is there from the start.
# env: MALLOC_ARENA_MAX=1
# env: GLIBC_TUNABLES=glibc.malloc.mxfast=64
import os

with open("/proc/self/environ", "rb") as file:
    started = dict(each.split(b"=", 1) for each in file.read().split(b"\0") if b"=" in each)
print(started[b"MALLOC_ARENA_MAX"], started[b"GLIBC_TUNABLES"], os.environ["MALLOC_ARENA_MAX"])

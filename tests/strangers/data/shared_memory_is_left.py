# Shared memory that nobody unlinks is told at the end, and removed (pytorch 22131, of semaphores).
from multiprocessing import shared_memory

kept = shared_memory.SharedMemory(create=True, size=1 << 16, name="strangers_left_this")
kept.buf[:5] = b"hello"
other = shared_memory.SharedMemory(name=kept.name)
print(bytes(other.buf[:5]))
for each in (other, kept):
    each.close()
gone = shared_memory.SharedMemory(create=True, size=1 << 16)
gone.close()
gone.unlink()

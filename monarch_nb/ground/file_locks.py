"""Locks that say "somebody uses this": any number of processes hold one, and whoever wants to know takes none himself.

They belong to the open file, not to the process (F_OFD_SETLK): the kernel ends them when it is closed, however the
process dies. A descriptor that may read is enough, also to look at what other users hold.
"""

import fcntl
import struct

_FLOCK = struct.Struct("@hhqqi0q")
"""struct flock on 64-bit Linux: type, whence, start, length, pid."""


def hold(file: int) -> None:
    """Hold the lock of an open file until it is closed."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0))


def is_held(file: int) -> bool:
    """Return whether somebody holds the lock of a file, other than by this descriptor."""
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

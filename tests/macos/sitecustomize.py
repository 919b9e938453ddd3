"""Python as it is on a Mac, as far as Linux can show it: names that only Linux has are gone, so are /proc and /sys, and
`sys.platform` is "darwin". Python imports this first where this directory is in PYTHONPATH."""

from __future__ import annotations

import builtins
import errno
import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

GONE = {
    "os": (
        "pidfd_open sched_getaffinity sched_setaffinity memfd_create eventfd eventfd_read eventfd_write "
        "posix_fallocate posix_fadvise pipe2 copy_file_range splice getrandom setns unshare waitid "
        "getresuid getresgid setresuid setresgid fdatasync getxattr listxattr setxattr removexattr "
        "O_TMPFILE O_PATH O_DIRECT O_NOATIME O_LARGEFILE P_PIDFD RTLD_DEEPBIND"
    ),
    "fcntl": (
        "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_SETLEASE F_GETLEASE F_NOTIFY F_GETPIPE_SZ F_SETPIPE_SZ "
        "F_ADD_SEALS F_GET_SEALS"
    ),
    "select": "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLPRI EPOLLET EPOLLONESHOT EPOLL_CLOEXEC",
    "signal": "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL SIGCLD",
    "socket": (
        "SO_PEERCRED SO_PASSCRED SO_DOMAIN SO_PROTOCOL SO_MARK SO_BINDTODEVICE SOCK_CLOEXEC "
        "SOCK_NONBLOCK MSG_NOSIGNAL MSG_CMSG_CLOEXEC TCP_USER_TIMEOUT SCM_CREDENTIALS"
    ),
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
    "resource": "prlimit RUSAGE_THREAD RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
}
"""By module, in the order in which they are imported: `socket` imports what chooses by what `select` has."""
CHOOSE_BY_SYSTEM = (
    "subprocess",
    "asyncio",
    "multiprocessing",
    "shutil",
    "tempfile",
    "platform",
    "sysconfig",
    "urllib.request",
    "psutil",
    "send2trash",
)
"""Modules that would look for what is a Mac's own: imported while this is Linux still."""
TAKE_PATHS = ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access", "statvfs")
"""Functions of `os`."""


def _is_gone(path: object) -> bool:
    name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return name in ("/proc", "/sys", "/dev/shm") or name.startswith(("/proc/", "/sys/", "/dev/shm/"))


def _without(function: Callable[..., Any]) -> Callable[..., Any]:
    def on_a_mac(path: Any = ".", *arguments: Any, **named: Any) -> Any:
        if _is_gone(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *arguments, **named)

    return on_a_mac


def _bind(own: Any, address: Any) -> None:
    name = os.fsencode(address) if isinstance(address, str | bytes) else b""
    if name.startswith(b"\0") or len(name) > 103:
        raise OSError("AF_UNIX path too long" if len(name) > 103 else "there are no abstract sockets")
    _linux_bind(own, address)


for module, names in GONE.items():
    for name in names.split():
        for each in (import_module(module), sys.modules.get(f"_{module}")):
            if hasattr(each, name):
                delattr(each, name)
for name in CHOOSE_BY_SYSTEM:
    import_module(name)
import socket  # noqa: E402
import sysconfig  # noqa: E402

sysconfig.get_config_vars()  # of this Python
os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined] # as where no affinity is known; since 3.13
for name in TAKE_PATHS:
    setattr(os, name, _without(getattr(os, name)))
_linux_bind = socket.socket.bind
builtins.open = io.open = _without(io.open)
socket.socket.bind = _bind  # type: ignore[method-assign]
sys.platform = "darwin"

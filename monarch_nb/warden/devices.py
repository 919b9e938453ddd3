"""Which GPUs a cgroup (v2) may open: a program for the kernel, which looks at every open of a device node below."""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

MOST_GPUS = 248
"""The minor numbers below are GPUs' (/dev/nvidia0, ...); 254 and 255 (/dev/nvidiactl) are for everybody."""
_NVIDIA_MAJOR = 195
_BPF = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH, _CGROUP_DEVICE, _ON_OPEN, _MAY_OVERRIDE = 5, 8, 15, 6, 1
_LOAD_WORD, _SET, _IF_EQUAL, _IF_NOT_EQUAL, _IF_GREATER, _EXIT = 0x61, 0xB7, 0x15, 0x55, 0x25, 0x95
_ANSWER, _DEVICE, _NUMBER = 0, 1, 2  # registers
_MAJOR_AT, _MINOR_AT = 4, 8  # in struct bpf_cgroup_dev_ctx


def fence_gpus(group: Path, minors: Sequence[int]) -> None:
    """Let no process of a group open or make a GPU's device node, but these; what is open stays so. The group below
    counts, where it has a fence of its own.

    Raises:
        OSError: this kernel or machine can not do that.
    """
    code = ctypes.create_string_buffer(_program(minors))
    licence = ctypes.create_string_buffer(b"")
    told = (ctypes.addressof(code), ctypes.addressof(licence))
    program = _bpf(_LOAD, struct.pack("=IIQQIIQII", _CGROUP_DEVICE, len(code) // 8, *told, 0, 0, 0, 0, 0))
    try:
        directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_ATTACH, struct.pack("=IIII", directory, program, _ON_OPEN, _MAY_OVERRIDE))
        finally:
            os.close(directory)
    finally:
        os.close(program)


def _program(minors: Sequence[int]) -> bytes:
    """Return instructions that answer 1 (may) unless the device is a GPU and none of these."""
    count = len(minors)
    return b"".join(
        [
            _instruction(_SET, _ANSWER, value=1),
            _instruction(_LOAD_WORD, _NUMBER, _MAJOR_AT),
            _instruction(_IF_NOT_EQUAL, _NUMBER, count + 3, _NVIDIA_MAJOR),  # to the last
            _instruction(_LOAD_WORD, _NUMBER, _MINOR_AT),
            _instruction(_IF_GREATER, _NUMBER, count + 1, MOST_GPUS - 1),
            *(_instruction(_IF_EQUAL, _NUMBER, count - place, minor) for place, minor in enumerate(minors)),
            _instruction(_SET, _ANSWER, value=0),
            _instruction(_EXIT, _ANSWER),
        ]
    )


def _instruction(code: int, register: int, offset: int = 0, value: int = 0) -> bytes:
    """Args: offset: of a word of the device's, or how many instructions to leave out when it is so."""
    source = _DEVICE if code == _LOAD_WORD else 0
    return struct.pack("=BBhi", code, register | source << 4, offset, value)


def _bpf(command: int, attributes: bytes) -> int:
    if (number := _BPF.get(platform.machine())) is None:
        raise OSError(errno.ENOSYS, f"bpf(2) has no number that is known on {platform.machine()}")
    told = ctypes.create_string_buffer(attributes, len(attributes))
    found = ctypes.CDLL(None, use_errno=True).syscall(number, command, told, len(attributes))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)

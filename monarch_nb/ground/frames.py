"""Length-prefixed frames on sockets, and pickles whose large buffers stay outside the pickle stream.

A frame is a 4-byte big-endian length and that many bytes. A packed pickle is a file (or bytes) made of a small header,
the pickle, and its out-of-band buffers (PEP 574), each aligned, so that a reader can map the file and share one copy
of a large array between all the processes of a node.
"""

import mmap
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any

_LENGTH = struct.Struct(">I")
_MAGIC = b"MNBP"
_HEADER = struct.Struct("<4sI")
_SIZE = struct.Struct("<Q")
_ALIGNMENT_BYTES = 64
MAX_FRAME_BYTES = 1 << 30


class FrameError(ConnectionError):
    """The peer sent something that is not a frame."""


def encode_frame(payload: bytes) -> bytes:
    """Return `payload` with its length before it.

    Raises:
        FrameError: nobody would receive a frame of that length.
    """
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"{len(payload)} bytes are too long for a message of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Cut a byte stream that arrives in pieces into frames, without I/O.

    Example:
        >>> splitter = FrameSplitter()
        >>> list(splitter.feed(encode_frame(b"a") + encode_frame(b"bc")[:3]))
        [b'a']
        >>> list(splitter.feed(b"\\x02bc"))
        [b'bc']
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Add `data`; yield every frame that is complete now."""
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            end = _LENGTH.size + _checked_length(self._pending[: _LENGTH.size])
            if len(self._pending) < end:
                return
            frame = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield frame


def split_frames(data: bytes) -> Iterator[bytes]:
    """Yield the whole frames at the beginning of `data`. Raises FrameError where there is none."""
    start, end = 0, _LENGTH.size
    while end <= len(data):
        length = _checked_length(data[start:end])
        start, end = end, end + length
        if end > len(data):
            return
        yield data[start:end]
        start, end = end, end + _LENGTH.size


def _checked_length(header: bytes | bytearray) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"impossible frame of {length} bytes: the peer does not speak this protocol")
    return int(length)


def pack_pickle(value: Any, dumps: Callable[..., bytes]) -> list[bytes | memoryview]:
    """Pickle `value` with `dumps` (pickle's or cloudpickle's) into pieces to be written one after the other.

    Large buffers (numpy arrays) are not copied. Whatever `dumps` raises is passed on.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = [len(stream), *(view.nbytes for view in views)]
    pieces: list[bytes | memoryview] = [_HEADER.pack(_MAGIC, len(views)) + b"".join(map(_SIZE.pack, sizes))]
    position = len(pieces[0])
    everything: list[bytes | memoryview] = [stream, *views]
    for piece in everything:
        padding = -position % _ALIGNMENT_BYTES
        pieces += [bytes(padding), piece]
        position += padding + memoryview(piece).nbytes
    return pieces


def unpack_pickle(data: bytes | bytearray | memoryview | mmap.mmap) -> Any:
    """Return the value packed in `data`; its arrays are views of `data`, so a private map costs no copy.

    Raises:
        ValueError: `data` is not a packed pickle. Whatever unpickling raises is passed on.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size or bytes(view[:4]) != _MAGIC:
        raise ValueError("not a packed pickle")
    _, count = _HEADER.unpack_from(view)
    position = _HEADER.size + (count + 1) * _SIZE.size
    if len(view) < position:
        raise ValueError("not a packed pickle: its header is cut off")
    sizes = [_SIZE.unpack_from(view, _HEADER.size + i * _SIZE.size)[0] for i in range(count + 1)]
    pieces = []
    for size in sizes:
        position += -position % _ALIGNMENT_BYTES
        pieces.append(view[position : position + size])
        position += size
    if len(view) < position:
        raise ValueError(f"not a packed pickle: cut off at {len(view)} of {position} bytes")
    return pickle.loads(pieces[0], buffers=pieces[1:])

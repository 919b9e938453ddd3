"""What each process of Monarch's runs on a node:

    python -m monarch_nb.worker.monarch.process

It is Monarch's own bootstrap, in a process whose output is ours. The loop's environment says where that goes. The
process ends with the client that it belongs to: soon when that is on this machine, else when Monarch misses it.
"""

from __future__ import annotations

import io
import mmap
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from monarch_nb.config import (
    MONARCH_CALLER_VARIABLE,
    MONARCH_CLIENT_VARIABLE,
    MONARCH_OUTPUT_VARIABLE,
    cadence,
    caller_file,
    run_file,
)
from monarch_nb.ground.readable import readable
from monarch_nb.worker.monarch import census

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_KINDS = ("out", "err")
MOST_HELD_CHARACTERS = 64 << 10
"""Of a line that does not end, so much is written at a time."""
MOST_RUNS = 8
"""So many runs have open files."""
run_of_message: ContextVar[int] = ContextVar("run_of_message", default=0)
"""The number of the run that what a message executes prints to; 0 outside of messages."""


def private_directory(runs: str | os.PathLike[str]) -> Path:
    """Return where the mesh whose outputs lie in a directory has what is for this user alone; it lies beside that."""
    return Path(runs).parent / "monarch"


class Files:
    """The output files of one rank of a mesh, those of the newest run of a client.

    Args:
        runs: holds one directory per run number.
        rank: the rank whose files they are.
        client: as in run.proto's Calls. Where it is not known, as by an older allocator, the newest of all is meant.
    """

    def __init__(self, runs: Path, rank: int, client: str = "") -> None:
        self._runs, self._rank = runs, rank
        self._note = caller_file(runs, client) if client else None
        self._noted: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._descriptors: dict[tuple[int, str], int] = {}

    def newest(self) -> int:
        """Return the number of the client's newest run; 0 when it can not be learnt. Its output may have gone."""
        try:
            return self._in_note() or self._highest()
        except OSError:
            return 0

    def write(self, kind: str, data: bytes) -> None:
        """Append to a file. What can not be written is lost: nobody could be told."""
        try:
            with self._lock:
                os.write(self._descriptor(kind), data)
        except OSError:
            pass

    def _descriptor(self, kind: str) -> int:
        number = run_of_message.get()
        if not self._has(number):  # that is old, and has gone
            number = self._in_note()
        if not self._has(number):
            number = self._highest()
        if (number, kind) not in self._descriptors:
            while len(self._descriptors) >= MOST_RUNS * len(_KINDS):
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[number, kind] = os.open(run_file(self._runs, number, self._rank, kind), _FLAGS, 0o600)
        return self._descriptors[number, kind]

    def _has(self, number: int) -> bool:
        return number > 0 and (self._runs / str(number)).is_dir()

    def _in_note(self) -> int:
        """Return the number that the client's note has; 0 without one. It is mapped: each message asks, and a call of
        the system would give the GIL away to threads of Monarch's."""
        if self._noted is None:
            if self._note is None or not self._note.exists():
                return 0
            with self._note.open("rb") as file:
                self._noted = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        return int.from_bytes(self._noted[:], "little")

    def _highest(self) -> int:
        return max((int(name) for name in os.listdir(self._runs) if name.isdecimal()), default=0)


class LabelledStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr`: whole lines, each with who has printed it.

    Args:
        kind: 0 for stdout, 1 for stderr.
        label: returns who prints now, as in "[trainers 3/4] ".
    """

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = True
    mode = "w"

    def __init__(self, kind: int, files: Files, label: Callable[[], str]) -> None:
        self._kind, self._files, self._label = kind, files, label
        self.name = ("<stdout>", "<stderr>")[kind]
        self._begun = threading.local()
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        """Write the lines that end, and keep what has begun until it ends. Threads do not mix."""
        begun = getattr(self._begun, "text", "") + text
        whole, newline, rest = begun.rpartition("\n")
        if len(rest) > MOST_HELD_CHARACTERS:
            whole, newline, rest = begun, "\n", ""
        self._begun.text = rest
        if newline:
            self._write_lines(whole.split("\n"))
        return len(text)

    def flush(self) -> None:
        """Write the beginning of a line as a line: a progress bar would not be seen otherwise."""
        rest = getattr(self._begun, "text", "")
        if rest.endswith("\r"):
            self._begun.text = ""
            self._write_lines([rest.rstrip("\r")])

    def close_line(self) -> None:
        """What has begun on this thread is a line: nothing more comes to it."""
        if rest := getattr(self._begun, "text", ""):
            self._begun.text = ""
            self._write_lines([rest])

    def _write_lines(self, lines: list[str]) -> None:
        label = self._label()
        text = "".join(f"{label}{line}\n" for line in lines)
        self._files.write(_KINDS[self._kind], text.encode("utf-8", "backslashreplace"))

    def fileno(self) -> int:
        return self._kind + 1

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close: the stream serves as long as the process."""

    def reconfigure(self, **_: Any) -> None:
        """Accepted for the sake of programs that call it, Monarch's among them."""


class _Bytes(io.BufferedIOBase):
    def __init__(self, stream: LabelledStream) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        copied = bytes(data)
        self._stream.write(copied.decode("utf-8", "backslashreplace"))
        return len(copied)

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing to close."""


def install(files: Files, label: Callable[[], str]) -> tuple[LabelledStream, ...]:
    """Replace the standard streams of this process; return the new ones."""
    out, err = LabelledStream(0, files, label), LabelledStream(1, files, label)
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = err  # type: ignore[misc, assignment]
    return out, err


class OfMessage:
    """What the block, a message, prints goes to the run that is the newest now. A line that has begun in it ends with
    it. A class, since every message passes here: a generator takes twice as long."""

    __slots__ = ("_files", "_streams", "_token")

    def __init__(self, files: Files, streams: Iterable[LabelledStream]) -> None:
        self._files, self._streams = files, streams

    def __enter__(self) -> None:
        self._token = run_of_message.set(self._files.newest())

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close_line()
        run_of_message.reset(self._token)


BOOTSTRAP = "monarch._src.actor.bootstrap_main"
GRACE_S = cadence(5.0)
"""Messages that were under way when the client ended have come by then, also on a busy machine."""


def label() -> str:
    """Return who prints now: an actor and its rank among those of its name, else this process."""
    actor_mesh = sys.modules.get("monarch._src.actor.actor_mesh")
    here = actor_mesh._context.get() if actor_mesh is not None else None
    if here is None:
        return f"[pid {os.getpid()}] "
    instance = here.actor_instance
    point = instance.rank
    return f"[{instance.name} {point.rank}/{max(1, point.extent.nelements)}] "


def end_with_client(told: str) -> None:
    """End this process a little after its client has ended, if that is to be seen from here.

    Not sooner: what the client has sent last would find nobody. Monarch's 0.7 returns that to the client, finds nobody
    there either, and ends the worker, with the processes of all other clients.

    Args:
        told: PID:NAMESPACE of the client.
    """
    pid, _, namespace = told.partition(":")
    if str(os.stat("/proc/self/ns/pid").st_ino) != namespace:
        return
    try:
        client = os.pidfd_open(int(pid))
    except ProcessLookupError:
        client = None

    def watch() -> None:
        if client is not None:
            readable([client])
        time.sleep(GRACE_S)
        os._exit(0)

    threading.Thread(target=watch, name="monarch_nb client", daemon=True).start()


def main() -> None:
    """Print where the loop says, end with the client, and be what Monarch starts."""
    if told := os.environ.get(MONARCH_CLIENT_VARIABLE, ""):
        end_with_client(told)
    if told := os.environ.get(MONARCH_OUTPUT_VARIABLE, ""):
        rank, _, runs = told.partition(":")
        files = Files(Path(runs), int(rank), os.environ.get(MONARCH_CALLER_VARIABLE, ""))
        streams = install(files, label)
        directory = private_directory(runs) / census.DIRECTORY
        census.install(directory, lambda: OfMessage(files, streams))
    runpy.run_module(BOOTSTRAP, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""What a process of Monarch's holds and executes: it tells the rank of its node, over a socket, when that asks.

It looks at Monarch's `_Actor`, which handles every message of an actor, and sees each begin and end. Standard library
only: a process imports this before anything of the user's.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

DIRECTORY = "processes"
"""In the private directory of the mesh."""
_HELD = "_monarch_nb_held"
_SYSTEM = "monarch."
"""Classes of Monarch's own modules: each process has a few, which nobody asked for."""
_NOT_USERS = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), "<frozen")
_MONARCHS, _DEBUGGER = "/monarch/_src/", "/monarch/_src/actor/debugger/"
_CLEANUPS = ("__cleanup__", "_run_cleanup")
"""Of Monarch's `_Actor`, async and sync: the last that an actor does."""
Message = tuple[str, float, Callable[[], list[FrameType]]]
"""An endpoint, when it began (of the monotonic clock, which a node's processes have in common), and its frames,
innermost first."""


class Held:
    """An actor.

    Attributes:
        instance: Monarch's, which knows its name, class and rank.
        running: what it executes, by number.
        called: how many messages it has got.
        failure: the line of the error that has ended it; empty while it lives.
        is_over: it was stopped.
    """

    def __init__(self, instance: Any) -> None:
        self.instance = instance
        self.running: dict[int, Message] = {}
        self.called = 0
        self.failure = ""
        self.is_over = False

    def begin(self, endpoint: str, frames: Callable[[], list[FrameType]]) -> int:
        """A message begins; return its number."""
        self.called = number = self.called + 1
        self.running[number] = (endpoint, time.monotonic(), frames)
        return number


class Census:
    """The actors of this process.

    Args:
        around: returns what is entered around all that a message executes.
    """

    def __init__(self, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._around = around
        self._held: WeakSet[Held] = WeakSet()
        self._lock = threading.Lock()  # actors have threads of their own, and another one tells of them

    def watch(self, kind: Any) -> None:
        """From now on know of all that objects of this class, Monarch's `_Actor`, do."""
        handle, handle_sync = kind.handle, kind.handle_sync
        for name in _CLEANUPS:
            if (clean_up := getattr(kind, name, None)) is not None:
                setattr(kind, name, self._noting_end(clean_up))

        @functools.wraps(handle)
        def watched(actor: Any, context: Any, method: Any, *arguments: Any) -> Coroutine[Any, Any, None]:
            coroutine = handle(actor, context, method, *arguments)
            held = self._of(actor, context)
            number = held.begin(method.name, functools.partial(_awaited, coroutine))
            return self._ending(coroutine, held, number)

        @functools.wraps(handle_sync)
        def watched_sync(actor: Any, context: Any, method: Any, *arguments: Any) -> None:
            held = self._of(actor, context)
            number = held.begin(method.name, functools.partial(_frames_of, threading.get_ident()))
            with _Executing(held, number), self._around():
                handle_sync(actor, context, method, *arguments)

        kind.handle, kind.handle_sync = watched, watched_sync

    def _of(self, actor: Any, context: Any) -> Held:
        held: Held | None = getattr(actor, _HELD, None)
        if held is None:
            held = Held(context.actor_instance)
            setattr(actor, _HELD, held)
            with self._lock:
                self._held.add(held)
        return held

    async def _ending(self, coroutine: Coroutine[Any, Any, None], held: Held, number: int) -> None:
        with _Executing(held, number), self._around():
            await coroutine

    def _noting_end(self, clean_up: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(clean_up)
        def noting(actor: Any, *arguments: Any) -> Any:
            held: Held | None = getattr(actor, _HELD, None)
            if held is not None:
                held.is_over = True
            return clean_up(actor, *arguments)

        return noting

    def told(self) -> list[dict[str, Any]]:
        """Return the actors of users, as JSON."""
        with self._lock:
            there = list(self._held)
        return [told for held in there if (told := _told(held)) is not None]


class _Executing:
    """A message is executed in the block. An error that leaves it ends the actor: Monarch catches those that callers
    are told."""

    __slots__ = ("_held", "_number")

    def __init__(self, held: Held, number: int) -> None:
        self._held, self._number = held, number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._held.failure = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
        del self._held.running[self._number]


def _told(held: Held) -> dict[str, Any] | None:
    instance = held.instance
    kind = str(instance.class_name or "")
    if not kind or kind.startswith(_SYSTEM) or (held.is_over and not held.failure):
        return None
    running = [
        {"endpoint": endpoint, "started_s": began_s, "line": _line(frames())}
        for endpoint, began_s, frames in list(held.running.values())
    ]
    uid = str(instance.actor_id).partition(".")[0]
    return {
        "name": str(instance.name),
        "class_name": kind,
        "uid": uid,
        "rank": int(instance.rank.rank),
        "called": held.called,
        "running": running,
        "failure": held.failure,
    }


def _frames_of(thread: int) -> list[FrameType]:
    return list(_outwards(sys._current_frames().get(thread)))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine and of what it awaits, innermost first."""
    frames = []
    while coroutine is not None and (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append(frame)
        coroutine = coroutine.cr_await
    return frames[::-1]


def _line(frames: list[FrameType]) -> str:
    """Return where the user's code is: "train.py:41", "Cell In[7]:3", "a breakpoint (Cell In[7]:3)"; empty when it is
    nowhere."""
    is_stopped = False
    for frame in frames:
        path = frame.f_code.co_filename
        if not path.startswith(_NOT_USERS) and _MONARCHS not in path and path != __file__:
            line = f"{os.path.basename(path)}:{frame.f_lineno}"
            return f"a breakpoint ({line})" if is_stopped else line
        is_stopped = is_stopped or _DEBUGGER in path
    return ""


def serve(census: Census, directory: Path) -> None:
    """Tell whoever may enter the directory, from a thread, until the process ends."""
    listener = socket.socket(socket.AF_UNIX)
    with short_name(directory) as short:
        listener.bind(f"{short}/{os.getpid()}")
    listener.listen(8)

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(json.dumps(census.told()).encode())

    threading.Thread(target=answer, name="monarch_nb census", daemon=True).start()


@contextmanager
def short_name(directory: Path) -> Iterator[str]:
    """Name a directory so that the path of a socket in it is short enough."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def install(directory: Path, around: Callable[[], AbstractContextManager[None]]) -> None:
    """Have the actors of this process known to whoever may enter the directory; `around` as Census's."""
    census = Census(around)
    census.watch(importlib.import_module("monarch._src.actor.actor_mesh")._Actor)
    with suppress(OSError):  # else nobody can ask, and all goes on
        serve(census, directory)

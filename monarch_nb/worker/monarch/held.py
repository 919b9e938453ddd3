"""What the processes of Monarch's engine on this node hold, asked by the rank that has their worker loop."""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from monarch_nb.actor.engine.outside import ActorState, Execution
from monarch_nb.config import patience
from monarch_nb.worker.memory.figures import kilobytes
from monarch_nb.worker.monarch.census import short_name

ANSWER_S = patience(0.25)
"""For all. A process that executes C code with the interpreter's lock held does not answer sooner, and is left out."""

_directories: list[Path] = []


def look_in(directory: Path) -> None:
    """From now on processes answer there."""
    _directories[:] = [directory]


def actors() -> list[ActorState]:
    """Return the actors of all processes. It waits for a moment at most."""
    if not _directories:
        return []
    found: list[ActorState] = []
    with suppress(OSError), short_name(_directories[0]) as short:
        paths = {int(name): f"{short}/{name}" for name in os.listdir(short) if name.isdecimal()}
        for pid, told in sorted(_asked(paths).items()):
            memory_bytes = _memory_bytes(pid) if told else 0
            found += [_state(one, pid, memory_bytes) for one in told]
    return found


def _asked(paths: Mapping[int, str]) -> dict[int, list[dict[str, Any]]]:
    """Return what processes tell that answer in time, by pid."""
    told: dict[int, list[dict[str, Any]]] = {}
    deadline_s = time.monotonic() + ANSWER_S
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for pid, path in paths.items():
            if (connection := _connected(path)) is not None:
                stack.enter_context(connection)
                selector.register(connection, selectors.EVENT_READ, (pid, connection, bytearray()))
        while selector.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                pid, connection, heard = key.data
                with suppress(OSError):
                    if piece := connection.recv(1 << 16):
                        heard += piece
                        continue
                selector.unregister(connection)
                with suppress(ValueError):
                    told[pid] = json.loads(heard)
    return told


def _connected(path: str) -> socket.socket | None:
    """Return a connection to a process; None when it takes none. What an ended one has left is removed."""
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        if isinstance(error, ConnectionRefusedError):
            with suppress(OSError):
                os.unlink(path)
        return None
    return connection


def _state(told: Mapping[str, Any], pid: int, memory_bytes: int) -> ActorState:
    running = [
        Execution(
            actor=told["name"],
            class_name=told["class_name"],
            uid=told["uid"],
            endpoint=each["endpoint"],
            rank=told["rank"],
            caller="",
            runs={},
            started_s=each["started_s"],
        )
        for each in told["running"]
    ]
    oldest = min(told["running"], key=lambda each: float(each["started_s"]), default=None)
    return ActorState(
        name=told["name"],
        class_name=told["class_name"],
        uid=told["uid"],
        rank=told["rank"],
        waiting=0,
        called=told["called"],
        running=running,
        failure=told["failure"],
        is_ending=False,
        pid=pid,
        memory_bytes=memory_bytes,
        line=oldest["line"] if oldest else "",
    )


def _memory_bytes(pid: int) -> int:
    try:
        return kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss")
    except OSError:
        return 0

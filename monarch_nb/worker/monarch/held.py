"""What the processes of Monarch's engine on this node hold, asked by the rank that has their worker loop."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from monarch_nb.actor.engine.outside import ActorState, Execution
from monarch_nb.worker.monarch.census import short_name

ANSWER_S = 0.25
"""Together. A process that executes C code with the interpreter's lock held does not answer sooner, and is left out."""

_directories: list[Path] = []


def look_in(directory: Path) -> None:
    """From now on processes answer there."""
    _directories[:] = [directory]


def actors() -> list[ActorState]:
    """Return the actors of all processes. It waits for a moment at most."""
    if not _directories:
        return []
    deadline_s = time.monotonic() + ANSWER_S
    found: list[ActorState] = []
    with suppress(OSError), short_name(_directories[0]) as short:
        for name in sorted(filter(str.isdecimal, os.listdir(short))):
            told = _asked(f"{short}/{name}", deadline_s)
            memory_bytes = _memory_bytes(int(name)) if told else 0
            found += [_state(one, int(name), memory_bytes) for one in told]
    return found


def _asked(path: str, deadline_s: float) -> list[dict[str, Any]]:
    """Return what a process tells; nothing when it does not answer in time. What an ended one has left is removed."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            pieces: list[bytes] = []
            while (left_s := deadline_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                if not (piece := connection.recv(1 << 16)):
                    told: list[dict[str, Any]] = json.loads(b"".join(pieces))
                    return told
                pieces.append(piece)
        except ConnectionRefusedError:
            with suppress(OSError):
                os.unlink(path)
        except (OSError, ValueError):
            pass
    return []


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
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0

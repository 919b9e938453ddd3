"""Monarch's worker loop, in a rank of the mesh `monarch`: one on each node. A client calls `serve` there in a run.

The loop has a thread of its own, so the rank stays free for the next client's `serve`. It ends with the rank, or when
whoever owns the hosts shuts them down. Then the next `serve` starts another.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.metadata
import json
import os
import re
import selectors
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_nb import config
from monarch_nb.actor.engine.outside import ActorState, Execution
from monarch_nb.config import MONARCH_OUTPUT_VARIABLE, cadence, patience
from monarch_nb.worker import run_secret
from monarch_nb.worker.memory import kilobytes
from monarch_nb.worker.monarch import census
from monarch_nb.worker.monarch.census import short_name
from monarch_nb.worker.monarch.process import private_directory
from monarch_nb.worker.shell import streams

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


TRUST_ALL = "trust_all_connections"
"""All that the arguments of Monarch's 0.7 can say. Its transport `tls` reads these variables instead."""
TLS_VARIABLES = {"cert": "HYPERACTOR_TLS_CERT", "key": "HYPERACTOR_TLS_KEY", "ca": "HYPERACTOR_TLS_CA"}
_OF_A_RANK = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|GROUP_(RANK|WORLD_SIZE)|ROLE_\w+|TORCHELASTIC_\w+|MASTER_(ADDR|PORT)"
)
"""Monarch's processes are no ranks of this mesh: they make worlds of their own."""
_HEARS = b"Monarch internal logs"
"""So Monarch's agent begins on stderr, once it takes messages. Its loop listens a moment before: what comes then is
lost, and what that client sends later waits for it for ever."""
_HEARS_TIMEOUT_S = patience(5.0)
_TICK_S = cadence(0.002)


@dataclass
class _Loop:
    """A loop that goes on. `address` is the one to attach to, `error` why it has ended."""

    address: str
    thread: threading.Thread
    error: BaseException | None = None


_loops: list[_Loop] = []


def certificates() -> dict[str, str]:
    """Return those of the loop that runs here: whoever may run code in this rank has them. Empty without a loop, and
    where it listens to no network."""
    if not (_loops and _loops[0].thread.is_alive() and _loops[0].address.startswith("tls")):
        return {}
    return {kind: Path(os.environ[variable]).read_text() for kind, variable in TLS_VARIABLES.items()}


def serve(rank: int, wanted: str) -> dict[str, str]:
    """Have the worker loop run here, and return where. The run's secret has a place for each rank: on a local pool
    `directory`, for a Unix socket; else `host`, the interface to listen on, and with it `cert`, `key` and `ca`, in PEM,
    of the connections.

    Args:
        rank: this rank.
        wanted: the version of torchmonarch that the client has. With another one nothing is started: they do not
            understand each other.

    Returns:
        `address`, `version` and `python`; without an address when the version is another one; or `missing`, when
        torchmonarch is not installed here.
    """
    try:
        version = importlib.metadata.version("torchmonarch")
        if version != wanted:
            return {"version": version}
        monarch: Any = importlib.import_module("monarch.actor")
    except ModuleNotFoundError as error:  # PackageNotFoundError is one
        return {"missing": error.name or "monarch"}
    if not (_loops and _loops[0].thread.is_alive()):
        _loops[:] = [_start(monarch, run_secret.told()[str(rank)], rank)]
    loop = _loops[0]
    if loop.error is not None:
        raise RuntimeError(f"Monarch's worker loop can not serve {loop.address}: {loop.error}") from loop.error
    return {"address": loop.address, "version": version, "python": sys.executable}


def _start(monarch: Any, place: Mapping[str, str], rank: int) -> _Loop:
    _prepare_environment(rank)
    listen, address = _listen_at(place)
    loop = _Loop(address, threading.Thread(target=lambda: _run(monarch, listen, loop), name="monarch", daemon=True))
    printed = os.fstat(2).st_size
    loop.thread.start()
    _wait_until_it_hears(loop, printed)
    return loop


def _wait_until_it_hears(loop: _Loop, printed_bytes: int) -> None:
    """Wait until the loop takes messages or has ended. stderr, a run's file, had so many bytes before."""
    stderr = Path("/proc/self/fd/2")
    if not stderr.is_file():
        return
    deadline = time.monotonic() + _HEARS_TIMEOUT_S
    with stderr.open("rb") as file:
        file.seek(printed_bytes)
        said = file.read()
        while _HEARS not in said and loop.thread.is_alive() and time.monotonic() < deadline:
            loop.thread.join(_TICK_S)
            said += file.read()


def _run(monarch: Any, listen: str, loop: _Loop) -> None:
    try:
        monarch.run_worker_loop_until_shutdown(address=listen, ca=TRUST_ALL)
    except BaseException as error:  # noqa: BLE001 -- whoever asks next is told
        loop.error = error


def _prepare_environment(rank: int) -> None:
    """Make this process's environment what Monarch's processes, its children, are to have."""
    for name in [name for name in os.environ if _OF_A_RANK.fullmatch(name)]:
        del os.environ[name]
    source = str(Path(config.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    if source not in known.split(os.pathsep):  # last: what the user has comes first
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (known, source)))
    os.environ[MONARCH_OUTPUT_VARIABLE] = f"{rank}:{streams.newest_output().directory}"
    private = private_directory(streams.newest_output().directory)
    private.mkdir(mode=0o700, exist_ok=True)
    directory = private / census.DIRECTORY
    shutil.rmtree(directory, ignore_errors=True)  # of a rank before this one, which has died
    directory.mkdir(mode=0o700)
    look_in(directory)


def _listen_at(place: Mapping[str, str]) -> tuple[str, str]:
    """Return what the loop is told, and what a client attaches to."""
    if directory := place.get("directory"):
        path = os.path.join(directory, f"m-{uuid.uuid4().hex[:8]}")
        atexit.register(_remove, path)
        return f"ipc://{path}", f"ipc://{path}"
    host = place["host"]
    _write_certificates(place)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        descriptor = listener.detach()  # the loop's from here on
    shown = f"[{host}]" if ":" in host else host
    return f"tls://{shown}:fd{descriptor}", f"tls://{shown}:{port}"


def _write_certificates(place: Mapping[str, str]) -> None:
    """Put them where Monarch's processes read them: files for this user alone."""
    directory = private_directory(streams.newest_output().directory)
    for kind, variable in TLS_VARIABLES.items():
        path = directory / f"{kind}.pem"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(place[kind])
        os.environ[variable] = str(path)
    importlib.import_module("monarch._rust_bindings.monarch_hyperactor.config").reload_config_from_env()


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)

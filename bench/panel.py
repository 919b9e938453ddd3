"""The panel: what a Jupyter server spends on showing ranks and GPUs that change at every look."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from bench.harness import Bench, Outcome, Row

_TOKEN = "bench"
_GOAL, _LARGE_GOAL = 0.05, 0.1
_LARGE_GOAL_BYTES = 30_000
_NODES = Path(__file__).parent / "programs" / "busy_nodes.py"


def measure(bench: Bench) -> Outcome:
    """Measure what 16 nodes cost."""
    share, changes, sent = _measured(bench, 16)
    return Outcome(_figures(share, changes, sent), reached=share <= _GOAL and changes >= 0.8)


def measure_large(bench: Bench) -> Outcome:
    """Measure what 256 nodes cost, which are asked less often."""
    share, changes, sent = _measured(bench, 256)
    return Outcome(_figures(share, changes, sent), reached=share <= _LARGE_GOAL and sent <= _LARGE_GOAL_BYTES)


def _figures(share: float, changes: float, sent: float) -> str:
    return f"{share:.1%} of one core; {changes:.1f} changes and {sent / 1000:,.0f} kB a second on the wire"


def _measured(bench: Bench, number: int) -> tuple[float, float, float]:
    """Return the processor time of a Jupyter server while a browser looks, and the changes and bytes that it gets, each
    per second."""
    seconds = bench.repeats(32, 12)
    with ExitStack() as stack:
        environment = stack.enter_context(busy_nodes(bench.directory / f"p{number}", number))
        options = ["--allow-root", "--no-browser", "--ip=127.0.0.1", "--port=0", f"--IdentityProvider.token={_TOKEN}"]
        options.append("--ServerApp.jpserver_extensions={'monarch_nb.server': True}")
        server = stack.enter_context(_started([sys.executable, "-m", "jupyter", "server", *options], environment))
        used_s, views, size_bytes = asyncio.run(_look(server, seconds))
    return used_s / seconds, views / seconds, size_bytes / seconds


@contextmanager
def busy_nodes(home: Path, number: int = 16) -> Iterator[dict[str, str]]:
    """Nodes of 8 ranks and 8 GPUs that are made up; yield the environment of whoever is to see them."""
    home.mkdir(mode=0o700, exist_ok=True)
    environment = os.environ | {"MONARCH_NB_HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "jupyter")}
    with _started([sys.executable, str(_NODES), str(number)], environment) as nodes:
        assert nodes.stdout is not None
        nodes.stdout.readline()
        yield environment


def _started(command: list[str], environment: dict[str, str]) -> _Ended:
    return _Ended(
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    )


class _Ended:
    """A process that is ended at the end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __enter__(self) -> subprocess.Popen[str]:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)


async def _look(server: subprocess.Popen[str], seconds: int) -> tuple[float, int, int]:
    """Return the processor time that the server used, how many changes came, and how many bytes (compressed)."""
    assert server.stdout is not None
    port = next(int(found[1]) for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:(\d+)/", line)))
    socket = await _connected(port)
    await _next(socket)
    process = psutil.Process(server.pid)
    await _next(socket)
    before, heard, began = process.cpu_times(), _bytes_heard(socket), time.monotonic()
    views = 0
    while time.monotonic() - began < seconds:
        await _next(socket)
        views += 1
    after, size_bytes = process.cpu_times(), _bytes_heard(socket) - heard
    socket.close()
    return after.user + after.system - before.user - before.system, views, size_bytes


async def _connected(port: int) -> WebSocketClientConnection:
    request = HTTPRequest(f"ws://127.0.0.1:{port}/monarch-nb/events", headers={"Authorization": f"token {_TOKEN}"})
    deadline = time.monotonic() + 30
    while True:
        try:
            return await websocket_connect(request, compression_options={})
        except ConnectionRefusedError:  # it says that it listens before it does
            if time.monotonic() > deadline:
                raise


async def _next(socket: WebSocketClientConnection) -> None:
    message = await asyncio.wait_for(socket.read_message(), 30)
    assert message is not None
    assert json.loads(message)["type"] in ("view", "change")


def _bytes_heard(socket: WebSocketClientConnection) -> int:
    return int(socket.protocol._wire_bytes_in)  # type: ignore[union-attr, attr-defined]  # as tornado counts for tests


_HOW = (
    "A real Jupyter server has the extension, and a client opens a compressed WebSocket as a browser does. The {} "
    "nodes are made up (`bench/programs/busy_nodes.py`): each answers every request over gRPC with new figures "
    "for its 8 ranks and 8 GPUs. The bench measures the processor time of the server's process over half a minute."
)
ROWS = [
    Row(
        "panel",
        "the panel: 128 ranks and 128 GPUs that change every second",
        "at most 5 % of one core in the Jupyter server",
        _HOW.format(16),
        measure,
    ),
    Row(
        "panel-256",
        "the panel: 2,048 ranks and 2,048 GPUs that change at every look",
        "at most 10 % of one core in the Jupyter server, and 30 kB a second to the browser",
        _HOW.format(256) + " The server asks each node every 4 s: 64 a second.",
        measure_large,
    ),
]

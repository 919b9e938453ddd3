"""The panel: what a Jupyter server spends on showing 128 ranks and 128 GPUs that change every second."""

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

from tests.bench.harness import Bench, Outcome, Row

_TOKEN = "bench"
_GOAL = 0.05
_NODES = Path(__file__).parent / "programs" / "busy_nodes.py"


def measure(bench: Bench) -> Outcome:
    """Measure the processor time of a Jupyter server while a browser looks, and the views that it gets."""
    seconds = bench.repeats(30, 10)
    with ExitStack() as stack:
        environment = stack.enter_context(busy_nodes(bench.directory / "p"))
        options = ["--allow-root", "--no-browser", "--ip=127.0.0.1", "--port=0", f"--IdentityProvider.token={_TOKEN}"]
        options.append("--ServerApp.jpserver_extensions={'monarch_nb.server': True}")
        server = stack.enter_context(_started([sys.executable, "-m", "jupyter", "server", *options], environment))
        used_s, views, size_bytes = asyncio.run(_look(server, seconds))
    share = used_s / seconds
    return Outcome(
        f"{share:.1%} of one core; {views / seconds:.1f} changes a second of {size_bytes / views / 1000:,.0f} kB",
        reached=share <= _GOAL and views >= 0.8 * seconds,
    )


@contextmanager
def busy_nodes(home: Path) -> Iterator[dict[str, str]]:
    """16 nodes of 8 ranks and 8 GPUs that are made up; yield the environment of whoever is to see them."""
    home.mkdir(mode=0o700, exist_ok=True)
    environment = os.environ | {"MONARCH_NB_HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "jupyter")}
    with _started([sys.executable, str(_NODES)], environment) as nodes:
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
    """Return the processor time that the server used, how many changes came, and their size."""
    assert server.stdout is not None
    port = next(int(found[1]) for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:(\d+)/", line)))
    socket = await _connected(port)
    await _next(socket)
    process = psutil.Process(server.pid)
    await _next(socket)
    before, began = process.cpu_times(), time.monotonic()
    views = size_bytes = 0
    while time.monotonic() - began < seconds:
        size_bytes += await _next(socket)
        views += 1
    after = process.cpu_times()
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


async def _next(socket: WebSocketClientConnection) -> int:
    message = await asyncio.wait_for(socket.read_message(), 30)
    assert message is not None
    assert json.loads(message)["type"] in ("view", "change")
    return len(message)


ROWS = [
    Row(
        "panel",
        "the panel: 128 ranks and 128 GPUs that change every second",
        "at most 5 % of one core in the Jupyter server",
        "A real Jupyter server with the extension, a WebSocket as a browser opens it (compressed), and 16 nodes that "
        "are made up (`tests/bench/programs/busy_nodes.py`): each answers over gRPC with new figures for its 8 ranks "
        "and 8 GPUs at every question. The processor time of the server's process over half a minute.",
        measure,
    ),
]

"""Jupyter servers with the panel's extension, and the browsers that look at them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from e2e.lighter import lighter_path
from integration.live import TIMEOUT_S, eventually

TOKEN = "a-token"
EXTENSIONS = {"monarch_nb.server": True, "jupyter_server_ydoc": False, "jupyter_server_fileid": False}
"""Not jupyter-collaboration, which some tests in a browser need: it logs errors of its own when a server ends."""


class Server:
    """A Jupyter server in a process of its own.

    Attributes:
        root: where its notebooks lie.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "notebooks"
        self.root.mkdir(exist_ok=True)
        environment = {f"JUPYTER_{kind}_DIR": str(directory / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
        options = [
            "--allow-root --no-browser --ip=127.0.0.1 --port=0 --ServerApp.base_url=/user/me/",
            f"--IdentityProvider.token={TOKEN} --ServerApp.root_dir={self.root}",
            "--MonarchNB.refresh_s=0.2",
        ]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyter", "server", *" ".join(options).split()),
                f"--ServerApp.jpserver_extensions={EXTENSIONS}",
            ],
            env={**os.environ, **environment, "PYTHONPATH": lighter_path()},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self.log: list[str] = []
        for line in self._process.stderr:
            self.log.append(line)
            if "http://127.0.0.1:" in line:
                self.url = line.split("http://")[1].split("/user/me/")[0] + "/user/me/monarch-nb"
                break
        else:
            raise AssertionError("".join(self.log))
        self._reader = threading.Thread(target=self.log.extend, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        eventually(self._listens)  # it says so before it does

    def _listens(self) -> bool:
        host, _, port = self.url.partition("/")[0].partition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """As if the machine took it away."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)

    def stop(self) -> None:
        """End it, as a person does."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)

    async def ask(self, name: str, **body: Any) -> Any:
        """Ask; return the result."""
        status, answer = await self.fetch(name, **body)
        assert status == 200, answer
        return answer["result"]

    async def fetch(self, name: str, **body: Any) -> tuple[int, Any]:
        request = HTTPRequest(
            f"http://{self.url}/api/{name}",
            method="POST",
            headers={"Authorization": f"token {TOKEN}"},
            body=json.dumps(body),
            request_timeout=TIMEOUT_S,
        )
        answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        return answer.code, json.loads(answer.body)

    async def browser(self) -> Browser:
        """Open the panel."""
        request = HTTPRequest(f"ws://{self.url}/events", headers={"Authorization": f"token {TOKEN}"})
        return Browser(self, await websocket_connect(request))


class Browser:
    """Keeps what it is told, as the panel does."""

    def __init__(self, server: Server, socket: WebSocketClientConnection) -> None:
        self._server, self._socket = server, socket
        self.view: Any = None
        self.jobs: dict[str, Any] = {}

    async def until(self, condition: Callable[[Browser], object]) -> Any:
        """Take events until a condition holds; return what it returned."""
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := condition(self)):
                message = await self._socket.read_message()
                assert message is not None, "the server closed the connection"
                self._take(json.loads(message))
        return found

    def _take(self, event: Any) -> None:
        match event["type"]:
            case "view":
                self.view = event["view"]
            case "job":
                self.jobs[event["job"]["id"]] = event["job"]

    async def finish(self, name: str, **body: Any) -> Any:
        """Do something that takes long; return the job's result."""
        job = (await self._server.ask(name, **body))["job"]
        ended = await self.until(
            lambda told: told.jobs.get(job["id"], job)["state"] != "running" and told.jobs[job["id"]]
        )
        assert ended["state"] == "done", ended
        return ended["result"]

    @property
    def ranks(self) -> list[Any]:
        """The ranks of the only reservation, which is there a moment before its mesh."""
        (reservation,) = self.view["reservations"].values()
        meshes: list[Any] = reservation["meshes"]
        return meshes[0]["ranks"] if meshes else []

    def states(self) -> list[str]:
        return [rank["state"] for rank in self.ranks] if self.view["reservations"] else []

    def close(self) -> None:
        self._socket.close()

"""A stand-in for SkyPilot's API server, with one cloud that has machines of two types: Lambda, with a catalog of ours.
It is run by the Python that has SkyPilot, and answers what SkyPilot's own client asks, in the words of its own
serializers; what is feasible, its own optimizer says. Machines are hosts of this machine that an sshd leads to.

`/_lab` is for tests: GET says which clusters there are, POST which machines, and how the next launch ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import sky
from sky import check, clouds, exceptions
from sky.backends import CloudVmRayResourceHandle
from sky.optimizer import Optimizer
from sky.schemas.api import responses
from sky.server import constants
from sky.server.requests import payloads, requests
from sky.server.requests.serializers import encoders
from sky.utils import dag_utils, status_lib

Facts = dict[str, Any]
GO_S = 20.0
"""So long what runs on a machine may take to end when it is shut down."""


@dataclass
class Machine:
    """A host: as the lab calls it, its network namespace, its address, its home directory and its sshd's pid."""

    name: str
    namespace: str
    address: str
    home: str
    sshd: int
    rank: int = 0

    def shut_down(self) -> None:
        """End what runs there, and forget what is there."""
        for number in ("TERM", "KILL"):
            if pids := self._pids():
                subprocess.run(["kill", f"-{number}", *pids], check=False, stderr=subprocess.DEVNULL)
            deadline_s = time.monotonic() + GO_S
            while self._pids() and time.monotonic() < deadline_s:
                time.sleep(0.05)
        subprocess.run(["rm", "-rf", f"{self.home}/.local"], check=True)

    def _pids(self) -> list[str]:
        words = ["ip", "netns", "pids", self.namespace]
        pids = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        return [pid for pid in pids if int(pid) != self.sshd]


@dataclass
class Cluster:
    """A cluster: `up` when it was launched."""

    name: str
    machines: list[Machine]
    resources: Any
    task: Any
    up: bool = False
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def handle(self) -> Any:
        addresses = [machine.address for machine in self.machines]
        return CloudVmRayResourceHandle(
            cluster_name=self.name,
            cluster_name_on_cloud=f"{self.name}-on-cloud",
            cluster_yaml=None,
            launched_nodes=len(self.machines),
            launched_resources=self.resources,
            stable_internal_external_ips=[(address, address) for address in addresses],
            stable_ssh_ports=[22] * len(addresses),
        )


@dataclass
class Call:
    """A request, as SkyPilot has them: its log grows until it is done."""

    id: str
    name: str
    body: Any
    done: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    log: list[str] = field(default_factory=list)
    value: Any = None
    error: BaseException | None = None

    def encoded(self) -> Facts:
        state = requests.RequestStatus.SUCCEEDED
        if self.error is not None:
            state = requests.RequestStatus.FAILED
        if self.cancelled.is_set():
            state = requests.RequestStatus.CANCELLED
        made = requests.Request(self.id, self.name, print, self.body, state, time.time(), "me")
        if self.error is not None:
            made.set_error(self.error)
        elif state is requests.RequestStatus.SUCCEEDED:
            made.return_value = encoders.get_encoder(self.name)(self.value)
        return made.encode().model_dump()


class Service:
    """What there is."""

    def __init__(self) -> None:
        self.free: list[Machine] = []
        self.client: list[str] = []
        self.key = ""
        self.clusters: dict[str, Cluster] = {}
        self.calls: dict[str, Call] = {}
        self.asked: list[str] = []
        self.next: str = ""
        self.has_clouds = True
        self.lock = threading.RLock()

    def set_up(self, told: Facts) -> None:
        """Be as at the beginning, as it is told; what is not told stays."""
        self.next = told.get("next", "")
        self.has_clouds = told.get("has_clouds", True)
        if "machines" in told:
            for name in list(self.clusters):
                self.end(name)
            self.free = [Machine(**machine) for machine in told["machines"]]
            self.client = told["client"]
            self.key = Path(told["key"]).read_text()
            self.asked.clear()

    def enabled(self, *_: object, **__: object) -> list[Any]:
        if not self.has_clouds:
            raise exceptions.NoCloudAccessError("Cloud access is not set up. Run: sky check")
        return [clouds.Lambda()]

    def begin(self, name: str, body: Any, work: Callable[[Call], Any]) -> str:
        """Do something in the background; return how it is called."""
        call = Call(uuid.uuid4().hex, name, body)
        self.calls[call.id] = call

        def do() -> None:
            try:
                call.value = work(call)
            except Exception as error:  # noqa: BLE001 -- the client is told, whatever it is
                call.error = error
            call.done.set()

        threading.Thread(target=do, daemon=True).start()
        return call.id

    # ---- what is asked ----

    def optimize(self, dag: str) -> Any:
        parsed = dag_utils.load_dag_from_yaml_str(dag)
        return Optimizer.optimize(parsed, quiet=True)

    def launch(self, call: Call) -> Any:
        body = call.body
        call.log.append("\x1b[2mConsidered resources:\x1b[0m Lambda\n")
        task = self.optimize(body.task).tasks[0]
        call.log.append("Launching on Lambda us-east-1.\n")
        with self.lock:
            refusal, self.next = self.next, ""
            if refusal != "hang" and (refusal or len(self.free) < task.num_nodes):
                call.log.append("quota of machines exceeded\n")
                raise exceptions.ResourcesUnavailableError(refusal or "Failed to provision on all clouds: quota")
            machines = [self.free.pop(0) for _ in range(task.num_nodes)]
            resources = task.best_resources.copy(region="us-east-1")
            cluster = self.clusters[body.cluster_name] = Cluster(body.cluster_name, machines, resources, task)
        if refusal == "hang":
            call.log.append("waiting for instances\n")
            call.cancelled.wait()
            return None
        cluster.up = True
        for rank, machine in enumerate(machines):
            line = f"SKYPILOT_NODE_RANK={rank} exec bash -s"
            run = subprocess.Popen([*self.client, machine.name, line], stdin=subprocess.PIPE)
            cluster.runs.append(run)
            assert run.stdin
            run.stdin.write(task.run.encode())
            run.stdin.close()
        threading.Thread(target=self._take_down_when_idle, args=(cluster,), daemon=True).start()
        return 1, cluster.handle()

    def _take_down_when_idle(self, cluster: Cluster) -> None:
        for run in cluster.runs:
            run.wait()
        self.end(cluster.name)

    def end(self, name: str) -> None:
        with self.lock:
            cluster = self.clusters.get(name)
            if cluster is None:
                return
            for machine in cluster.machines:
                machine.shut_down()
            del self.clusters[name]
            self.free += cluster.machines

    def down(self, call: Call) -> None:
        if call.body.cluster_name not in self.clusters:
            raise exceptions.ClusterDoesNotExist(f"Cluster {call.body.cluster_name!r} does not exist.")
        self.end(call.body.cluster_name)

    def status(self, call: Call) -> list[Any]:
        found = [cluster for cluster in self.clusters.values() if cluster.name in call.body.cluster_names]
        return [self._status(cluster) for cluster in found]

    def _status(self, cluster: Cluster) -> Any:
        return responses.StatusResponse(
            name=cluster.name,
            launched_at=int(time.time()),
            handle=cluster.handle(),
            status=status_lib.ClusterStatus.UP if cluster.up else status_lib.ClusterStatus.INIT,
            autostop=5,
            to_down=True,
            cluster_hash="a",
            cluster_ever_up=cluster.up,
            user_hash="me",
            user_name="me",
            workspace="default",
            is_managed=False,
            nodes=len(cluster.machines),
            resources_str="1x machine",
            credentials={"ssh_user": "root", "ssh_private_key_content": self.key} if cluster.up else None,
        )

    def cancel(self, call: Call) -> list[str]:
        for name in call.body.request_ids:
            if name in self.calls and not self.calls[name].done.is_set():
                self.calls[name].cancelled.set()
        return list(call.body.request_ids)


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    posts: dict[str, tuple[str, Any, Callable[[Call], Any]]] = {
        "/optimize": ("sky.optimize", payloads.OptimizeBody, lambda call: service.optimize(call.body.dag) and None),
        "/launch": ("sky.launch", payloads.LaunchBody, service.launch),
        "/status": ("sky.status", payloads.StatusBody, service.status),
        "/down": ("sky.down", payloads.StopOrDownBody, service.down),
        "/api/cancel": ("sky.api_cancel", payloads.RequestCancelBody, service.cancel),
    }
    gets: dict[str, tuple[str, Callable[[Call], Any]]] = {
        "/enabled_clouds": ("sky.enabled_clouds", lambda _: service.enabled()),
        "/workspaces": ("sky.workspaces.get", lambda _: {"default": {}}),
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            path = urlsplit(self.path).path
            told = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            service.asked.append(f"POST {path} {json.dumps(told)}")
            if path == "/_lab":
                service.set_up(told)
                self._answer({})
            elif path in posts:
                name, kind, work = posts[path]
                self._answer({}, {"X-Skypilot-Request-ID": service.begin(name, kind(**told), work)})
            else:
                self._answer({})

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if parts.path == "/api/health":
                self._answer({"status": "healthy", "api_version": constants.API_VERSION, **_VERSIONS})
            elif parts.path == "/_lab":
                known = {name: [one.name for one in each.machines] for name, each in service.clusters.items()}
                self._answer({"clusters": known, "asked": service.asked})
            elif parts.path in gets:
                name, work = gets[parts.path]
                request = service.begin(name, payloads.RequestBody(), work)
                self._answer({}, {"X-Skypilot-Request-ID": request})
            elif parts.path == "/api/get":
                call = service.calls[query["request_id"]]
                while not (call.done.wait(0.1) or call.cancelled.is_set()):
                    pass
                encoded = call.encoded()
                self._answer({"detail": encoded} if call.error else encoded, status=500 if call.error else 200)
            elif parts.path == "/api/stream":
                self._stream(service.calls[query["request_id"]])
            else:
                self._answer({"detail": f"no {parts.path}"}, status=404)

        def _stream(self, call: Call) -> None:
            self.send_response(200)
            self.send_header(constants.STREAM_REQUEST_HEADER, call.id)
            self.send_header("Transfer-Encoding", "chunked")  # else the client waits for the end
            self.end_headers()
            sent = 0
            while True:
                is_done = call.done.wait(0.1) or call.cancelled.is_set()
                for line in call.log[sent:]:
                    self.wfile.write(f"{len(line.encode()):x}\r\n{line}\r\n".encode())
                    self.wfile.flush()
                    sent += 1
                if is_done:
                    self.wfile.write(b"0\r\n\r\n")
                    return

        def _answer(self, facts: Facts, headers: dict[str, str] | None = None, status: int = 200) -> None:
            data = json.dumps(facts).encode()
            self.send_response(status)
            versions = {
                constants.API_VERSION_HEADER: str(constants.API_VERSION),
                constants.VERSION_HEADER: sky.__version__,
            }
            for name, value in {**versions, **(headers or {}), "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(BrokenPipeError):
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


_VERSIONS = {"version": sky.__version__, "version_on_disk": sky.__version__, "commit": sky.__commit__}

_HEADERS = {constants.API_VERSION_HEADER: str(constants.API_VERSION), constants.VERSION_HEADER: sky.__version__}


def main() -> None:
    """Serve until the standard input ends; print the port first."""
    service = Service()
    check.get_cached_enabled_clouds_or_refresh = service.enabled
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    for name in list(service.clusters):
        service.end(name)


if __name__ == "__main__":
    main()

"""A stand-in for the service that Lightning's own packages talk to: teamspace `lab/research`, its secrets and jobs, and
what LitLogger sends.

Machines are processes of this machine, each with an address of loopback of its own. It answers what `Teamspace`,
`Studio` and `Job` of lightning_sdk and `Experiment` of litlogger asked when it was written; nobody has compared it with
the service.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from integration.answering import answering

Answer = dict[str, Any]
MOST_MACHINES = 4

_ACCELERATOR = {
    "slug": "cpu-2",
    "slugMultiCloud": "cpu-2",
    "instanceId": "m7.cpu",
    "family": "CPU",
    "resources": {"cpu": 2, "gpu": 0},
    "cost": 0.25,
    "spotPrice": 0.1,
}


@dataclass
class Machine:
    """A machine of a job."""

    rank: int
    address: str
    process: subprocess.Popen[bytes]
    is_lost: bool = False

    @property
    def state(self) -> str:
        code = self.process.poll()
        if code is None:
            return "running"
        return "failed" if code or self.is_lost else "completed"


@dataclass
class FakeJob:
    """A job: `told` is what it was made with."""

    id: str
    told: Answer
    machines: list[Machine] = field(default_factory=list)
    is_stopped: bool = False

    @property
    def state(self) -> str:
        states = {machine.state for machine in self.machines}
        if "running" in states:
            return "running"
        return "stopped" if self.is_stopped else "failed" if "failed" in states else "completed"


@dataclass
class Service:
    """The stand-in.

    Attributes:
        secrets: values by name. made_secrets: also those that were removed.
        jobs: by their ids. started: how many machines there have been.
        logged: what LitLogger sent, by the experiment's name: metric, step and value.
        refusal: with which the next job is refused: status and message.
    """

    directory: Path
    secrets: dict[str, str] = field(default_factory=dict)
    made_secrets: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    logged: dict[str, list[tuple[str, int, float]]] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    started: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def running(self) -> str:
        return " ".join(job.told["name"] for job in self.jobs.values() if job.state == "running")

    def lose(self, address: str) -> None:
        """Take a machine away, with all that runs there."""
        for job in self.jobs.values():
            for machine in job.machines:
                if machine.address == address:
                    machine.is_lost = True
                    _end(machine, signal.SIGKILL)

    def forget(self) -> None:
        """Be as at the beginning."""
        for job in self.jobs.values():
            for machine in job.machines:
                _end(machine, signal.SIGKILL)
        self.jobs.clear()
        self.secrets.clear()
        self.made_secrets.clear()
        self.refusal = None

    # ---- requests ----

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Answer]:
        """Return the status and the answer to a request."""
        parts = urlsplit(url)
        for pattern, answer in self._routes():
            if found := re.fullmatch(pattern, f"{method} {parts.path.rstrip('/')}"):
                with self.lock:
                    return answer(*found.groups(), body=body, query=parse_qs(parts.query))
        return (404, {"message": f"no {parts.path}"}) if method == "GET" else (200, {})

    def _routes(self) -> list[tuple[str, Callable[..., tuple[int, Answer]]]]:
        project = {
            "id": "p1",
            "name": "research",
            "ownerId": "o1",
            "ownerType": "organization",
            "displayName": "research",
        }
        studio = {"id": "cs1", "name": "my-studio", "clusterId": "c1", "projectId": "p1"}
        organization = {"id": "o1", "name": "lab", "preferredCluster": "c1"}
        membership = {**project, "projectId": "p1", "ownerType": "ORGANIZATION"}
        everybodys = {"id": "c2", "spec": {"driver": "AWS", "awsV1": {}, "clusterType": "CLUSTER_TYPE_GLOBAL"}}
        cluster = {"id": "c1", "spec": {"driver": "AWS", "clusterType": "GLOBAL"}}

        def fixed(answer: Answer) -> Callable[..., tuple[int, Answer]]:
            return lambda *_, **__: (200, answer)

        return [
            ("GET /v1/orgs", fixed(organization)),
            ("GET /v1/orgs/o1", fixed(organization)),
            ("GET /v1/memberships", fixed({"memberships": [membership]})),
            ("GET /v1/projects", fixed({"projects": [project]})),
            ("GET /v1/projects/p1", fixed({**project, "projectSettings": {"preferredCluster": "c1"}})),
            ("GET /v1/projects/p1/cloudspaces", fixed({"cloudspaces": [studio]})),
            ("GET /v1/projects/p1/cloudspaces/cs1", fixed(studio)),
            ("GET /v1/projects/p1/clusters", fixed({"clusters": [cluster]})),
            ("GET /v1/core/clusters", fixed({"clusters": [everybodys]})),
            ("GET /v1/core/accelerators", fixed({"accelerator": [_ACCELERATOR]})),
            ("GET /v1/projects/p1/secrets", self._list_secrets),
            ("POST /v1/projects/p1/secrets", self._make_secret),
            ("DELETE /v1/projects/p1/secrets/(.+)", self._delete_secret),
            ("POST /v1/projects/p1/(jobs|multi-machine-jobs)", self._make_job),
            ("GET /v1/projects/p1/jobs", self._list_machines),
            ("GET /v1/projects/p1/jobs/find", self._find_job),
            ("GET /v1/projects/p1/page-logs", self._logs),
            ("GET /v1/projects/p1/multi-machine-jobs/(.+)/getbyname", partial(self._job_by_name, "multi")),
            ("GET /v1/projects/p1/(?:jobs|multi-machine-jobs)/([^/]+)", self._job_by_id),
            ("PUT /v1/projects/p1/(?:jobs|multi-machine-jobs)/([^/]+)", self._stop_job),
            ("POST /v1/projects/p1/metrics-stream/create", self._make_stream),
            ("GET /v1/projects/p1/logger-metrics-summary", fixed({})),
            ("PUT /v1/projects/p1/logger-metrics/(.+)", self._append_metrics),
        ]

    def _list_secrets(self, **_: Any) -> tuple[int, Answer]:
        return 200, {"secrets": [{"id": name, "name": name, "projectId": "p1"} for name in self.secrets]}

    def _make_secret(self, *, body: Any, **_: Any) -> tuple[int, Answer]:
        self.secrets[body["name"]] = self.made_secrets[body["name"]] = body["value"]
        return 200, {"id": body["name"], "name": body["name"]}

    def _delete_secret(self, name: str, **_: Any) -> tuple[int, Answer]:
        return (200, {}) if self.secrets.pop(name, None) else (404, {"message": "no such secret"})

    def _make_job(self, kind: str, *, body: Any, **_: Any) -> tuple[int, Answer]:
        if self.refusal is not None:
            status, message = self.refusal
            return status, {"message": message}
        count = int(body.get("machines") or 1)
        if count > MOST_MACHINES:
            return 400, {"message": f"quota exceeded: {MOST_MACHINES} machines of this type"}
        job = FakeJob(f"{kind}-{self.started}", body)
        for rank in range(count):
            self.started += 1
            job.machines.append(self._start(rank, f"127.0.1.{self.started}", body["spec"]["command"]))
        self.jobs[job.id] = job
        return 200, _told(job)

    def _start(self, rank: int, address: str, command: str) -> Machine:
        binaries = self.directory / address
        binaries.mkdir()
        _program(binaries / "hostname", f'if [ "$1" = -I ]; then echo "{address} 172.17.0.1"; else echo {address}; fi')
        _program(binaries / "python", f'exec "{sys.executable}" "$@" --interface lo')
        log = (self.directory / address / "log").open("ab")
        with log:
            process = subprocess.Popen(
                ["bash", "-e", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.secrets, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"},
            )
        return Machine(rank, address, process)

    def _logs(self, *, query: dict[str, list[str]], **_: Any) -> tuple[int, Answer]:
        [name] = query.get("mmtId") or query["jobIds"]
        logs = [self.directory / machine.address / "log" for machine in self.jobs[name].machines]
        lines = [line for log in logs for line in log.read_text().splitlines()]
        return 200, {"entries": [{"message": line, "line": number} for number, line in enumerate(lines)]}

    def _find_job(self, *, query: dict[str, list[str]], **_: Any) -> tuple[int, Answer]:
        return self._job_by_name("jobs", query["name"][0])

    def _job_by_name(self, kind: str, name: str, **_: Any) -> tuple[int, Answer]:
        found = [job for job in self.jobs.values() if job.told["name"] == name and job.id.startswith(kind)]
        return (200, _told(found[0])) if found else (404, {"message": f"no job {name}"})

    def _job_by_id(self, identifier: str, **_: Any) -> tuple[int, Answer]:
        if job := self.jobs.get(identifier):
            return 200, _told(job)
        whole, _, rank = identifier.rpartition("-")
        if job := self.jobs.get(whole):
            return 200, _machine(job, job.machines[int(rank)])
        return 404, {"message": f"no job {identifier}"}

    def _stop_job(self, identifier: str, *, body: Any, **_: Any) -> tuple[int, Answer]:
        job = self.jobs[identifier]
        job.is_stopped = True
        for machine in job.machines:
            _end(machine, signal.SIGTERM)
        return 200, _told(job)

    def _make_stream(self, *, body: Any, **_: Any) -> tuple[int, Answer]:
        self.logged[body["name"]] = []
        return 200, {"id": body["name"], "name": body["name"], "projectId": "p1", "cloudspaceId": "", "workId": ""}

    def _append_metrics(self, name: str, *, body: Any, **_: Any) -> tuple[int, Answer]:
        for metric in body["metrics"]:
            self.logged[name] += [(metric["name"], int(each["step"]), each["value"]) for each in metric["values"]]
        return 200, {}

    def _list_machines(self, *, query: dict[str, list[str]], **_: Any) -> tuple[int, Answer]:
        job = self.jobs[query["multiMachineJobId"][0]]
        # The service promises no order.
        return 200, {"jobs": [_machine(job, machine) for machine in reversed(job.machines)]}


def _told(job: FakeJob) -> Answer:
    if job.id.startswith("multi"):
        state = f"MultiMachineJob_STATE_{job.state.upper()}"
        known = {"id": job.id, "name": job.told["name"], "projectId": "p1", "state": state}
        return {**known, "machines": len(job.machines), "spec": job.told["spec"]}
    return _machine(job, job.machines[0]) | {"name": job.told["name"], "id": job.id, "state": job.state}


def _machine(job: FakeJob, machine: Machine) -> Answer:
    spec = {**job.told["spec"], "rank": machine.rank}
    facts = {"id": f"{job.id}-{machine.rank}", "name": f"{job.told['name']}-{machine.rank}", "projectId": "p1"}
    return {**facts, "state": machine.state, "privateIpAddress": machine.address, "spec": spec}


def _end(machine: Machine, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(machine.process.pid, number)
    if number == signal.SIGKILL:
        machine.process.wait()


def _program(path: Path, shell: str) -> None:
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@contextmanager
def service(directory: Path) -> Iterator[Service]:
    """Serve, and have Lightning's package ask there, when it is imported from now on."""
    known = Service(directory)

    with answering(known.answer) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTNING_CLOUD_URL", url)
        patch.setenv("LIGHTNING_USER_ID", "me")
        patch.setenv("LIGHTNING_API_KEY", "a-key")
        patch.setenv("LIGHTNING_TEAMSPACE", "lab/research")
        try:
            yield known
        finally:
            known.forget()

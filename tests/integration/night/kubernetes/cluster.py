"""A stand-in for a Kubernetes cluster: the parts of the API that are used here, which take nothing that the published
schemas do not have; a scheduler, a job controller and a garbage collector of few words; and machines, network
namespaces of this one, on which the commands of pods really run, each as the first process of its own.

It is no cluster: nobody else's pods, no images, no volumes but certificates, and who may do what is what a test says.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from integration.answering import answering
from integration.hosts.network import Host, Network

Object = dict[str, Any]

IMAGE = "registry.lab/monarch-nb:1"
NAMESPACE = "lab"
TIME = "%Y-%m-%dT%H:%M:%SZ"
TICK_S = 0.05
HURRY = 10.0
"""So many times faster than in a cluster a job that has ended is removed."""
VERSIONS = ("1.30", "1.37")
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>log))?"
)
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_MOUNT = "mount --make-rprivate / && mount -t tmpfs none /run && mount -t tmpfs none /dev/shm"


class Refused(Exception):
    """An answer that is none."""

    def __init__(self, status: int, reason: str, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.kind = status, reason, kind


@dataclass
class Machine:
    """A machine: a network namespace that has room for one pod."""

    host: Host
    allocatable: dict[str, str]
    lost: bool = False


@dataclass
class Cluster:
    """The cluster.

    Attributes:
        objects: by plural and name; all are in one namespace.
        denied: what this user may not do: ("create", "secrets"). done: what was done: ("create", "", "secrets").
        queued: whether new jobs are suspended.
        answers: makes the API answer something else, given method and path; None lets it be.
    """

    directory: Path
    machines: list[Machine] = field(default_factory=list)
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    denied: set[tuple[str, str]] = field(default_factory=set)
    done: set[tuple[str, str, str]] = field(default_factory=set)
    queued: bool = False
    crds: set[str] = field(default_factory=set)
    answers: Callable[[str, str], tuple[int, Object] | None] = lambda *_: None
    host: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    # ---- for tests ----

    def names(self, *plurals: str) -> list[str]:
        """Return what there is, but for events."""
        with self.lock:
            return [
                f"{plural}/{name}"
                for plural, name in self.objects
                if plural != "events" and (not plurals or plural in plurals)
            ]

    def of(self, plural: str) -> list[Object]:
        """Return a copy of all objects of a kind."""
        with self.lock:
            return [json.loads(json.dumps(each)) for (kind, _), each in self.objects.items() if kind == plural]

    def kubeconfig(self) -> Path:
        """Write a kubeconfig; return its path."""
        path = self.directory / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": self.host}}
        user = {"name": "u", "user": {"token": "secret-token"}}
        context = {"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}
        facts = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "lab"}
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **facts}))
        return path

    def lose(self, pod: str) -> None:
        """Let the machine of a pod fail."""
        with self.lock:
            told = self.objects["pods", pod]
            machine = self._machine(told["spec"]["nodeName"])
            machine.lost = True
            self._kill(told)
            ready = {"type": "Ready", "status": "False"}
            told["status"]["conditions"] = [ready, *_without(told["status"]["conditions"], "Ready")]

    # ---- the API ----

    def answer(self, method: str, url: str, body: Object) -> tuple[int, Object | str]:
        """Answer a request."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        if (said := self.answers(method, parts.path)) is not None:
            return said
        match = _PATH.fullmatch(parts.path)
        try:
            if match is None:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            with self.lock:
                return self._do(method, match, query, body)
        except Refused as refused:
            facts = {"status": "Failure", "reason": refused.reason, "code": refused.status, "message": str(refused)}
            return refused.status, {"kind": "Status", "apiVersion": "v1", **facts, "details": {"kind": refused.kind}}

    def _do(
        self, method: str, match: re.Match[str], query: Mapping[str, str], body: Object
    ) -> tuple[int, Object | str]:
        plural, name, group = match["plural"], match["name"] or "", (match["group"] or "").partition("/")[0]
        verb = "list" if method == "GET" and not name else _VERBS[method]
        self._check_right(verb, f"{plural}/log" if match["part"] else plural, group, match["namespace"])
        if plural == "nodes":
            return 200, {"items": [{"status": {"allocatable": machine.allocatable}} for machine in self.machines]}
        if plural in ("trainjobs", "pytorchjobs") and plural not in self.crds:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if method == "POST":
            return 201, self._create(plural, match["namespace"], body, is_tried=query.get("dryRun") == "All")
        if not name:
            return 200, {"items": [each for each in self._all(plural) if _matches(each, query)]}
        if (found := self.objects.get((plural, name))) is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found', plural)
        if match["part"]:
            text = (self.directory / f"{name}.log").read_text() if (self.directory / f"{name}.log").exists() else ""
            return 200, "".join(text.splitlines(keepends=True)[-int(query.get("tailLines", "1000")) :])
        if method == "PATCH":
            self._check(merged := _merged(found, body))
            self.objects[plural, name] = merged
            return 200, merged
        if method == "DELETE":
            self._delete(plural, name)
        return 200, found

    def _check_right(self, verb: str, resource: str, group: str, namespace: str) -> None:
        self.done.add((verb, group, resource))
        if (verb, resource) in self.denied:
            raise Refused(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "alice" cannot {verb} resource "{resource}" in API group "{group}" in '
                f'the namespace "{namespace}"',
            )

    def _create(self, plural: str, namespace: str, made: Object, *, is_tried: bool = False) -> Object:
        if namespace != NAMESPACE:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found', "namespaces")
        if (plural, made["metadata"]["name"]) in self.objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{made["metadata"]["name"]}" already exists')
        self._check(made)
        if is_tried:
            return made
        made["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": namespace, "creationTimestamp": _now()}
        made["status"] = {"startTime": _now()} if plural in JOBS and not self.queued else {}
        if plural == "jobs" and self.queued:
            suspended = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
            made["status"] = {"conditions": [suspended]}
        self.objects[plural, made["metadata"]["name"]] = made
        return made

    def _check(self, made: Object) -> None:
        """Take what the published schemas have, and nothing else."""
        if made["apiVersion"].endswith(("k8s.io/v1", "batch/v1")) or "/" not in made["apiVersion"]:
            import kubernetes_validate  # takes 2 s, and every process of a suite collects these tests

            plain = {key: value for key, value in made.items() if key != "status"}
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(plain, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    raise Refused(422, "Invalid", f"{made['kind']}: {error.message}") from None

    def _delete(self, plural: str, name: str) -> None:
        self.objects[plural, name]["metadata"].setdefault("deletionTimestamp", _now())

    def _all(self, plural: str) -> list[Object]:
        return [each for (kind, _), each in self.objects.items() if kind == plural]

    # ---- what goes on by itself ----

    def tick(self) -> None:
        """Let the cluster do what is to be done now."""
        with self.lock:
            for plural in JOBS:
                for job in self._all(plural):
                    self._control(plural, job)
            self._tell_names()
            for pod in self._all("pods"):
                self._drive(pod)
            self._collect()

    def _control(self, plural: str, job: Object) -> None:
        """Make pods of a job, and end it."""
        name, status, spec = job["metadata"]["name"], job["status"], job["spec"]
        pods = [pod for pod in self._all("pods") if _owner(pod) == job["metadata"]["uid"]]
        if status.get("completionTime") or job["metadata"].get("deletionTimestamp"):
            age_s = time.time() - _seconds(status.get("completionTime") or _now())
            policy = spec.get("runPolicy", spec)
            if age_s * HURRY > policy.get("ttlSecondsAfterFinished", float("inf")):
                self._delete(plural, name)
            return
        if "startTime" not in status:
            return
        for index, template in enumerate(_templates(plural, spec)):
            if all(pod["metadata"]["annotations"][_INDEX] != str(index) for pod in pods):
                pods.append(self._make_pod(job, index, template))
        passed_s = time.time() - _seconds(status["startTime"])
        if passed_s > spec.get("runPolicy", spec).get("activeDeadlineSeconds", float("inf")):
            for pod in pods:
                self._delete("pods", pod["metadata"]["name"])
            self._finish(job, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        elif pods and all(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in pods):
            if any(pod["status"]["phase"] == "Failed" for pod in pods):
                self._finish(job, "Failed", "FailedIndexes", "Job has failed indexes")
            else:
                self._finish(job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")

    def _finish(self, job: Object, kind: str, reason: str, message: str) -> None:
        job["status"]["conditions"] = [{"type": kind, "status": "True", "reason": reason, "message": message}]
        job["status"]["completionTime"] = _now()

    def _make_pod(self, job: Object, index: int, template: Object) -> Object:
        name = f"{job['metadata']['name']}-{index}"
        template = json.loads(json.dumps(template))
        owner = {key: job[key] for key in ("apiVersion", "kind")} | {
            key: job["metadata"][key] for key in ("name", "uid")
        }
        facts = {
            "name": f"{name}-{secrets.token_hex(2)}",
            "annotations": {_INDEX: str(index)},
            "ownerReferences": [owner],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], **facts},
            "spec": template["spec"],
        }
        pod["spec"]["hostname"] = name
        made = self._create("pods", NAMESPACE, pod)
        made["status"] = {"phase": "Pending", "conditions": []}
        return made

    def _drive(self, pod: Object) -> None:
        """Take a pod one step further."""
        name, status = pod["metadata"]["name"], pod["status"]
        process = self.processes.get(name)
        machine = self._machine(pod["spec"].get("nodeName", ""))
        if pod["metadata"].get("deletionTimestamp"):
            if process is not None and process.poll() is None:
                self._end(pod)
                return
            self.processes.pop(name, None)
            del self.objects["pods", name]
        elif status["phase"] in ("Succeeded", "Failed") or (machine and machine.lost):
            return
        elif process is not None:
            if (code := process.poll()) is not None:
                reason = "Completed" if code == 0 else "Error"
                _set_state(pod, {"terminated": {"exitCode": abs(code), "reason": reason}})
                status["phase"] = "Succeeded" if code == 0 else "Failed"
        elif machine is None:
            self._schedule(pod)
        else:
            self._start(pod, machine)

    def _machine(self, name: str) -> Machine | None:
        return next((machine for machine in self.machines if machine.host.name == name), None)

    def _schedule(self, pod: Object) -> None:
        taken = {each["spec"].get("nodeName") for each in self._all("pods")}
        needs = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
        free = [machine for machine in self.machines if machine.host.name not in taken and not machine.lost]
        fits = [each for each in free if all(int(each.allocatable.get(key, 0)) >= int(needs[key]) for key in needs)]
        if fits:
            pod["spec"]["nodeName"] = fits[0].host.name
            pod["status"] |= {"podIP": fits[0].host.address, "conditions": [{"type": "PodScheduled", "status": "True"}]}
            return
        what = f"Insufficient {next((key for key in needs if '/' in key), 'cpu')}" if free else "Too many pods"
        said = f"0/{len(self.machines)} nodes are available: {len(self.machines)} {what}."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        pod["status"]["conditions"] = [{**condition, "lastTransitionTime": pod["metadata"]["creationTimestamp"]}]

    def _tell_names(self) -> None:
        """What the name server says of a headless service."""
        lines = ["127.0.0.1 localhost"]
        for pod in self._all("pods"):
            spec = pod["spec"]
            if (ip := pod["status"].get("podIP")) and ("services", spec.get("subdomain", "")) in self.objects:
                lines.append(f"{ip} {spec['hostname']}.{spec['subdomain']} {spec['hostname']} {spec['subdomain']}")
        told = "\n".join(lines) + "\n"
        path = self.directory / "hosts"
        if not path.exists() or path.read_text() != told:
            path.write_text(told)

    def _start(self, pod: Object, machine: Machine) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        if container["image"] != IMAGE:
            said = f'Failed to pull image "{container["image"]}": not found'
            self._tell(name, "Failed", said)
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
            _set_state(pod, {"waiting": waiting})
            return
        _set_state(pod, {"waiting": {"reason": "ContainerCreating"}})
        mounts = []
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                if (held := self.objects.get(("secrets", volume["secret"]["secretName"]))) is None:
                    said = f'MountVolume.SetUp failed for volume "{volume["name"]}": secret not found'
                    self._tell(name, "FailedMount", said)
                    return
                path = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == volume["name"])
                group = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
                mounts.append((self._unpack(name, held, volume["secret"]["defaultMode"], group), path))
        self.processes[name] = self._run(pod, machine, mounts)
        pod["status"]["phase"] = "Running"
        pod["status"]["conditions"].append({"type": "Ready", "status": "True"})
        _set_state(pod, {"running": {"startedAt": _now()}})

    def _unpack(self, pod: str, held: Object, mode: int, group: int) -> Path:
        directory = self.directory / f"{pod}-secret"
        directory.mkdir()
        for key, value in held["data"].items():
            (directory / key).write_bytes(base64.b64decode(value))
            (directory / key).chmod(mode)
            os.chown(directory / key, 0, group)
        return directory

    def _run(self, pod: Object, machine: Machine, mounts: list[tuple[Path, str]]) -> subprocess.Popen[bytes]:
        """Run a container: first of its processes, with its own mounts and host name."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for each in container["env"]:
            field_path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            environment[each["name"]] = each.get("value") or _field_of(pod, field_path)
        state = self.directory / f"{next(self._numbers)}"  # short: socket paths end at 107 bytes
        state.mkdir()
        environment["MONARCH_NB_HOME"] = str(state)
        if (user := pod["spec"].get("securityContext", {}).get("runAsUser")) is not None:
            os.chown(state, user, user)
            environment["HOME"] = "/"  # for a user that the image does not know
        words = [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in container["command"]]
        binds = [(self.directory / "hosts", "/etc/hosts"), *mounts]
        shell = _MOUNT + "".join(f" && mkdir -p {to} && mount --bind {which} {to}" for which, to in binds[1:])
        shell += f" && mount --bind {binds[0][0]} /etc/hosts && hostname {pod['spec']['hostname']}"
        shell += f' && exec {_account(pod)} "$@"'
        inside = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", shell]
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", machine.host.name, *inside, "sh", *words],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _end(self, pod: Object) -> None:
        """Tell the first process of a pod to end, once it hears that; it is killed when that takes too long. Another
        kubelet would not wait until it hears, and kill it later."""
        process = self.processes[pod["metadata"]["name"]]
        asked = pod.setdefault("_asked", time.monotonic())
        if time.monotonic() - asked > pod["spec"]["terminationGracePeriodSeconds"]:
            process.kill()
        elif not pod.get("_told"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{child}/status").read_text())
                    if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
                        os.kill(int(child), signal.SIGTERM)
                        pod["_told"] = True

    def _kill(self, pod: Object) -> None:
        process = self.processes.get(pod["metadata"]["name"])
        if process is not None:
            process.kill()
            process.wait()

    def _collect(self) -> None:
        """Remove what is deleted and has no pods any more, and what belonged to something that is gone."""
        for (plural, name), each in list(self.objects.items()):
            owned = [pod for pod in self._all("pods") if _owner(pod) == each["metadata"].get("uid")]
            if plural != "pods" and each["metadata"].get("deletionTimestamp"):
                for pod in owned:
                    self._delete("pods", pod["metadata"]["name"])
                if not owned:
                    del self.objects[plural, name]
        alive = {each["metadata"].get("uid") for each in self.objects.values()}
        for (plural, name), each in list(self.objects.items()):
            if _owner(each) and _owner(each) not in alive:
                self._delete(plural, name)

    def _tell(self, name: str, reason: str, message: str) -> None:
        event = {"involvedObject": {"name": name}, "type": "Warning", "reason": reason, "message": message}
        self.objects["events", f"{name}-{reason}"] = {"metadata": {"name": f"{name}-{reason}"}, **event}


JOBS = ("jobs", "trainjobs", "pytorchjobs")
_INDEX = "batch.kubernetes.io/job-completion-index"


def _account(pod: Object) -> str:
    """Return the command before a container's that makes it the pod's user, who finds our Python wherever it lies. A
    certificate is read by its group."""
    wanted = pod["spec"].get("securityContext")
    if wanted is None:
        return ""
    ids = f"--reuid={wanted['runAsUser']} --regid={wanted['runAsGroup']} --groups={wanted['fsGroup']}"
    return f"setpriv {ids} --inh-caps=+dac_read_search --ambient-caps=+dac_read_search"


_PASSED_ON = ("HOME", "LANG", "PYTHONPATH", "FAKE_NVML", "MONARCH_NB_GPU_LOCKS", "VIRTUAL_ENV")


@contextmanager
def cluster(directory: Path, machines: int = 3, gpus: int = 0) -> Iterator[Cluster]:
    """Have a cluster of machines with 4 CPUs and so many GPUs each; nothing of it stays."""
    made = Cluster(directory)
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(TICK_S):
            made.tick()

    with Network(machines) as network, answering(made.answer) as made.host:
        room = {"cpu": "4", "memory": "8Gi", "pods": "1"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        made.machines = [Machine(host, dict(room)) for host in network.hosts]
        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield made
        finally:
            ended.set()
            thread.join()
            for process in made.processes.values():
                process.kill()
                process.wait()
            shutil.rmtree(directory)


def _templates(plural: str, spec: Object) -> list[Object]:
    """Return what the pods of a job are made from, as its controller does that."""
    if plural == "jobs":
        return [spec["template"]] * int(spec["completions"])
    if plural == "pytorchjobs":
        return [one["template"] for one in spec["pytorchReplicaSpecs"].values() for _ in range(one["replicas"])]
    trainer = spec["trainer"]
    replicated = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    template = replicated["template"]["spec"]["template"]
    told = {key: trainer[key] for key in ("image", "command", "env")}
    container = {**template["spec"]["containers"][0], **told, "resources": trainer["resourcesPerNode"]}
    pod = {**template["spec"], "containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 30}
    return [{**template, "spec": pod}] * int(trainer["numNodes"])


def _matches(each: Object, query: Mapping[str, str]) -> bool:
    labels = each["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in _selected(query.get("labelSelector", ""))):
        return False
    told = {"involvedObject.name": each.get("involvedObject", {}).get("name"), "involvedObject.kind": "Pod"}
    return all(told[key] == value for key, value in _selected(query.get("fieldSelector", "")))


def _selected(text: str) -> list[tuple[str, str]]:
    return [(part.partition("=")[0], part.partition("=")[2]) for part in text.split(",") if part]


def _merged(found: Object, changes: Object) -> Object:
    """Return an object with a merge patch."""
    made = dict(found)
    for key, value in changes.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _merged(made.get(key) or {}, value) if isinstance(value, dict) else value
    return made


def _owner(each: Object) -> str:
    return str((each["metadata"].get("ownerReferences") or [{}])[0].get("uid", ""))


def _field_of(pod: Object, path: str) -> str:
    if match := re.fullmatch(r"metadata\.annotations\['(.+)'\]", path):
        return str(pod["metadata"]["annotations"][match[1]])
    return str({"metadata.name": pod["metadata"]["name"], "status.podIP": pod["status"]["podIP"]}[path])


def _set_state(pod: Object, state: Object) -> None:
    pod["status"]["containerStatuses"] = [{"name": pod["spec"]["containers"][0]["name"], "state": state}]


def _without(conditions: list[Object], kind: str) -> list[Object]:
    return [condition for condition in conditions if condition["type"] != kind]


def _now() -> str:
    return datetime.now(UTC).strftime(TIME)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

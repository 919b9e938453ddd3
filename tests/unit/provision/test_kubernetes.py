"""Kubernetes' launcher without a cluster: what it is asked for, what its words mean, what is refused."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from monarch_nb.cli.main import make_parser
from monarch_nb.cli.manifest import manifest
from monarch_nb.config import PATIENCE_VARIABLE, TrustPaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.provision.kubernetes import launcher
from monarch_nb.provision.kubernetes.api import NotAllowed, NotThere, api_of, connect, refusal
from monarch_nb.provision.kubernetes.launcher import Place
from monarch_nb.provision.kubernetes.manifests import Manifest, Wanted, manifests, owned, parse_flags, secret
from monarch_nb.provision.kubernetes.pods import (
    explained,
    job_end,
    never_fits,
    quantity,
    read_pod,
    refused_pods,
    taken_away,
)
from monarch_nb.provision.launchers import Job

HERE = Path(__file__).parent
VERSIONS = ("1.29", "1.31", "1.34", "1.37")
ALL_FLAGS = (
    "--image=registry/monarch-nb:1",
    "--cpu=64",
    "--memory=512Gi",
    "--node-selector=pool=a100",
    "--toleration=nvidia.com/gpu:NoSchedule",
    "--toleration=team=lab:NoExecute",
    "--volume=team-data:/data",
    "--image-pull-secret=registry",
    "--priority-class=high",
    "--label=kueue.x-k8s.io/queue-name=lab",
    "--user=1000",
)


def wanted(*flags: str, **changes: Any) -> Wanted:
    facts: dict[str, Any] = {"name": "k8s-dev-1f2e", "namespace": "lab", "nodes": 2, "procs": 0, "gpus": 8}
    options = parse_flags(flags or ("--image=registry/monarch-nb:1",))
    return Wanted(
        **{**facts, "command": ["python3"], "options": options, "longest_s": 600, "pool": "k8s-dev-9a8b", **changes}
    )


def pod_of(job: Manifest) -> Manifest:
    """Return a Pod as a controller makes it of a job."""
    spec = job["spec"]
    template = spec["pytorchReplicaSpecs"]["Master"]["template"] if "pytorchReplicaSpecs" in spec else spec["template"]
    return {"apiVersion": "v1", "kind": "Pod", **template}


class TestManifests:
    @pytest.mark.parametrize("kind", ["Job", "TrainJob", "PyTorchJob"])
    def test_are_as_they_were(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those of Kubeflow were checked by hand against the definitions of Trainer 2.2 and 2.3, operator 1.9."""
        monkeypatch.delenv(PATIENCE_VARIABLE)
        made = manifests(wanted(f"--kind={kind}", *ALL_FLAGS))
        golden = HERE / f"kubernetes_{kind.lower()}.yaml"
        assert list(yaml.safe_load_all(golden.read_text())) == made

    def test_allocators_are_as_patient_as_who_asks_for_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PATIENCE_VARIABLE, "5")
        told = {"name": PATIENCE_VARIABLE, "value": "5"}
        of_a_pool, *_ = manifests(wanted())
        of_a_script, *_ = manifests(wanted(has_allocators=False))
        assert told in pod_of(of_a_pool)["spec"]["containers"][0]["env"]
        assert told not in pod_of(of_a_script)["spec"]["containers"][0]["env"]

    @pytest.mark.parametrize("flags", [(), ALL_FLAGS], ids=["plain", "all flags"])
    def test_have_nothing_that_the_published_schemas_have_not(self, flags: tuple[str, ...]) -> None:
        made = wanted(*flags)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": made.name, "uid": "1"}}
        kubeflows, *_ = manifests(wanted("--kind=pytorchjob", *ALL_FLAGS))
        own = manifests(made)
        for each in (*own, owned(secret(made, b"key"), owner), pod_of(own[0]), pod_of(kubeflows)):
            for version in VERSIONS:
                kubernetes_validate.validate(each, version, strict=True)

    def test_cpu_ranks_ask_for_a_cpu_each_and_may_have_more(self) -> None:
        job, *_ = manifests(wanted("--kind=PyTorchJob", "--image=x", gpus=0, procs=4, nodes=1))
        assert pod_of(job)["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "4"}}
        assert set(job["spec"]["pytorchReplicaSpecs"]) == {"Master"}, "one pod has no workers"

    @pytest.mark.parametrize(
        ("flag", "said"),
        [
            (
                "--imagine=x",
                "after the -- for Kubernetes: unrecognized arguments: --imagine=x; there are --kind, --namespace",
            ),
            ("--kind=Deployment", "it is Job, TrainJob or PyTorchJob"),
            ("--kind=Job", "which image do pods run"),
            ("--toleration=gpu:Never", "where EFFECT is NoSchedule"),
            ("--volume=data", "as in --volume team-data:/data"),
            ("--memory=64GB", "--memory 64GB: it is a size .* 64Gi"),
            ("--cpu=many", "--cpu many: it is a number of CPUs"),
            ("--runtime=x", "only a TrainJob has one: --kind TrainJob"),
            ("--user=me", "invalid int value: 'me'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, flag: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            wanted(flag)
        parse_flags(("--memory=1.5Gi", "--memory=1e9", "--memory=64G", "--cpu=500m", "--cpu=.5"))


class TestCommand:
    def text(self, *words: str) -> str:
        return manifest(make_parser().parse_args(["manifest", *words]))

    def test_says_how_to_use_the_pool(self) -> None:
        text = self.text("lab", "--nodes", "2", "--gpus", "8", "--image", "x", "--namespace", "ml")
        service, policy, job = yaml.safe_load_all(text)
        assert (job["kind"], policy["kind"], service["kind"]) == ("Job", "NetworkPolicy", "Service")
        assert "monarch-nb pool add lab dns:lab.ml.svc:7878" in text
        assert "kubectl create secret generic lab --namespace ml --from-file=node.pem=" in text
        assert "monarch-nb reserve dev --nodes 2 --gpus 8 --pool lab" in text
        assert "activeDeadlineSeconds" not in text, "it stays until it is deleted"
        assert "&id" not in text
        text = self.text("lab", "--nodes", "2", "--procs", "1", "--image", "x", "--kind", "PyTorchJob")
        assert "pool add lab lab-master-0:7878 lab-worker-0:7878" in text

    def test_a_script_for_a_shell_is_run_by_bash_which_makes_way(self, tmp_path: Path) -> None:
        script = f"cd {tmp_path} && exec sh -c 'pwd; echo $$'"
        *_, job = yaml.safe_load_all(self.text("train", "--procs", "1", "--image", "x", "--command", script))
        command = [word.replace("$$", "$") for word in pod_of(job)["spec"]["containers"][0]["command"]]  # as Kubernetes
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            said, _ = process.communicate()
        assert said == f"{tmp_path}\n{process.pid}\n"

    def test_a_script_has_no_certificate_and_its_pods_stay_with_their_logs(self) -> None:
        for kind, policy in {"Job": {}, "PyTorchJob": {"cleanPodPolicy": "Running"}}.items():
            text = self.text("t", "--procs", "1", "--image", "x", "--kind", kind, "--command", "torchrun train.py -v")
            *_, job = yaml.safe_load_all(text)
            assert pod_of(job)["spec"]["containers"][0]["command"] == ["torchrun", "train.py", "-v"]
            assert "secret" not in text
            facts = job["spec"].get("runPolicy", job["spec"])
            assert "ttlSecondsAfterFinished" not in facts
            assert facts.items() >= policy.items()

    def test_what_can_not_be(self) -> None:
        for name, script, said in (
            ("train", "echo 'a", "--command.*no closing quotation"),
            ("train", " ", r"--command.*which\?"),
            ("1lab", "torchrun train.py", "begins with a letter"),
        ):
            with pytest.raises(UsageError, match=said):
                self.text(name, "--procs", "1", "--image", "x", "--command", script)

    def test_is_written_into_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "lab.yaml"
        options = make_parser().parse_args(["manifest", "lab", "--procs", "1", "--image", "x", "-o", str(file)])
        assert options.handler(options) == 0
        assert "its first lines say" in capsys.readouterr().out
        text = file.read_text()
        assert text.startswith("# Nodes of the pool lab.")
        assert f"kubectl apply -f {file}\n" in text


def told(phase: str, state: Manifest | None = None, **status: Any) -> Manifest:
    """What the API tells of a pod."""
    statuses = {"containerStatuses": [{"name": "node", "state": state}]} if state else {}
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "m1"}, "status": {"phase": phase, **statuses, **status}}


def condition(kind: str, status: str, reason: str = "", message: str = "", **more: str) -> list[Manifest]:
    return [{"type": kind, "status": status, "reason": reason, "message": message, **more}]


RUNNING: Manifest = {"running": {"startedAt": "2026-11-23T01:00:00Z"}}
CRASHES: Manifest = {"waiting": {"reason": "CrashLoopBackOff"}}
PREEMPTED = condition("DisruptionTarget", "True", "PreemptionByScheduler", "x")


def ended(reason: str, status: int, **more: str) -> Manifest:
    return {"terminated": {"reason": reason, "exitCode": status, **more}}


class TestPods:
    @pytest.mark.parametrize(("ip", "address"), [("10.0.0.7", "10.0.0.7:7878"), ("fd00::7", "[fd00::7]:7878")])
    def test_one_that_runs(self, ip: str, address: str) -> None:
        pod = read_pod(told("Running", RUNNING, podIP=ip))
        assert (pod.state, pod.words, pod.address, pod.since) == ("running", "", address, 1795395600.0)

    @pytest.mark.parametrize(
        ("reason", "conditions", "words", "hopeless"),
        [
            ("", [], "waits: ContainerCreating", False),
            ("", condition("PodScheduled", "False", "Unschedulable", "0/3."), "waits: Unschedulable: 0/3", False),
            ("ErrImagePull", [], "waits: ErrImagePull: said", False),
            ("ImagePullBackOff", [], "waits in vain: ImagePullBackOff: said", True),
            ("CreateContainerConfigError", [], "waits in vain: CreateContainerConfigError: said", True),
        ],
    )
    def test_one_that_waits_and_one_that_waits_in_vain(
        self, reason: str, conditions: list[Manifest], words: str, hopeless: bool
    ) -> None:
        state = {"waiting": {"reason": reason, "message": "said"}} if reason else None
        read = read_pod(told("Pending", state, conditions=conditions))
        assert (read.state, read.hopeless) == ("waiting", hopeless)
        assert words in read.words

    @pytest.mark.parametrize(
        ("phase", "state", "status", "words"),
        [
            ("Failed", ended("OOMKilled", 137), {}, "has failed (OOMKilled)"),
            ("Failed", ended("Error", 3), {}, "has no allocator any more: it ended with exit status 3"),
            ("Failed", None, {"reason": "Evicted", "message": "no disk."}, "was taken away (Evicted: no disk)"),
            ("Running", RUNNING, {"conditions": PREEMPTED}, "was taken away (PreemptionByScheduler: x)"),
            ("Running", RUNNING, {"conditions": condition("Ready", "False")}, "is on m1, which does not answer"),
            ("Running", CRASHES, {}, "has failed (CrashLoopBackOff)"),
            ("Succeeded", None, {}, "has ended: nobody held it"),
        ],
    )
    def test_one_that_is_lost(self, phase: str, state: Manifest | None, status: Manifest, words: str) -> None:
        read = read_pod(told(phase, state, **status))
        assert (read.state, read.words) == ("lost", words)
        deleted = told("Running", RUNNING)
        deleted["metadata"]["deletionTimestamp"] = "2026-11-23T01:00:00Z"
        assert str(read_pod(deleted)) == "p is being deleted"

    @pytest.mark.parametrize(
        ("reason", "message", "words"),
        [
            ("Failed", 'pulling "x": unauthorized', 'ImagePullBackOff: pulling "x": unauthorized'),
            ("Pulling", 'Pulling image "x"', 'waits: Pulling image "x"'),
            ("FailedMount", 'secret "k" not found', 'waits: FailedMount: secret "k" not found'),
        ],
    )
    def test_events_say_more(self, reason: str, message: str, words: str) -> None:
        events = [{"type": "Normal" if reason == "Pulling" else "Warning", "reason": reason, "message": message}]
        state = {"waiting": {"reason": "ImagePullBackOff"}} if reason == "Failed" else None
        assert words in explained(read_pod(told("Pending", state)), events).words

    def test_of_those_that_are_gone_events_tell(self) -> None:
        events = [
            {"involvedObject": {"name": "job-1-x"}, "reason": "Preempted", "message": "by pod 7"},
            {"involvedObject": {"name": "other-1-x"}, "reason": "Preempted", "message": "by pod 8"},
        ]
        assert taken_away("job", events) == "job-1-x was taken away (Preempted: by pod 7)"


@pytest.mark.parametrize(
    ("message", "hopeless"),
    [
        ("exceeded quota: q, requested: gpu=8, used: gpu=8, limited: gpu=8", False),  # others may give it back
        ("exceeded quota: q, requested: cpu=1,gpu=16, used: cpu=0,gpu=0, limited: cpu=10,gpu=8", True),
        ('violates PodSecurity "restricted:latest": runAsNonRoot != true', True),
    ],
)
def test_pods_that_are_refused(message: str, hopeless: bool) -> None:
    refused = [{"reason": "FailedCreate", "message": f'Error creating: pods "p" is forbidden: {message}'}]
    said, is_hopeless = refused_pods(refused)
    assert message.partition(":")[0] in said
    assert is_hopeless is hopeless
    assert refused_pods([]) == ("", False), "the controller has not come to it"


class TestRoom:
    MACHINES = ({"status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8", "pods": "110"}}},) * 2

    @pytest.mark.parametrize(
        ("needs", "nodes", "said"),
        [
            ({"nvidia.com/gpu": "8"}, 2, ""),
            ({"nvidia.com/gpu": "16"}, 1, "no machine of the cluster has 16 nvidia.com/gpu: the most is 8"),
            ({"nvidia.com/gpu": "8"}, 3, "all machines of the cluster together have room for 2 such pods, not for 3"),
            ({}, 221, "all machines of the cluster together have room for 220 such pods, not for 221"),
        ],
    )
    def test_is_compared_with_what_is_asked_for(self, needs: dict[str, str], nodes: int, said: str) -> None:
        assert never_fits(self.MACHINES, needs, nodes) == said

    @pytest.mark.parametrize(
        ("text", "value"), [("8", 8), ("500m", 0.5), ("64Gi", 64 << 30), ("1e3", 1000), ("2k", 2000)]
    )
    def test_quantities(self, text: str, value: float) -> None:
        assert quantity(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("reported", "end"),
    [
        ([], None),
        (condition("Complete", "True"), ("has ended", "")),
        (condition("Failed", "True", "DeadlineExceeded", "x"), ("has failed", "DeadlineExceeded: x")),
        (condition("Failed", "True", "FailedIndexes", "1 is"), ("has failed", "FailedIndexes: 1 is")),
        (condition("Failed", "False"), None),
    ],
)
def test_how_jobs_end(reported: list[Manifest], end: tuple[str, str] | None) -> None:
    assert job_end({"conditions": reported}) == end


@pytest.mark.parametrize(
    ("status", "message", "kind", "error", "said"),
    [
        (401, "Unauthorized", "", PoolError, r"does not know you \(Unauthorized\): log in again"),
        (403, "x is forbidden: User u can not", "x", NotAllowed, "User u can not.*docs/kubernetes.md has the role"),
        (403, "jobs is forbidden: exceeded quota: q", "", CapacityError, "exceeded quota"),
        (404, 'namespaces "lob" not found', "namespaces", UsageError, "--namespace=NAME"),
        (404, "the server could not find the requested resource", "", NotThere, "could not find"),
        (422, "Job is invalid", "", UsageError, r"refuses \(422 Why\): Job is invalid"),
        (503, "etcd is away", "", PoolError, "does not answer now: 503 etcd is away"),
    ],
)
def test_refusals_say_what_to_do(status: int, message: str, kind: str, error: type[Exception], said: str) -> None:
    body = {"kind": "Status", "message": message, "reason": "Why", "details": {"kind": kind}}
    found = refusal(status, json.dumps(body).encode(), "https://k")
    assert type(found) is error
    assert re.search(said, str(found))
    assert "<html>Bad" in str(refusal(502, b"<html>Bad gateway", "https://k")), "a page of a proxy is shown"


class TestConnecting:
    def test_without_a_kubeconfig(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(
            PoolError, match=r"no Kubernetes cluster is known here: .*none.* is no pod\. .*KUBECONFIG=FILE"
        ):
            api_of("")

    def test_without_the_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)
        connect.cache_clear()
        with pytest.raises(PoolError, match=r"not installed: pip install 'monarch-nb\[k8s\]'"):
            api_of("")

    def test_namespaces_are_those_of_contexts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        facts = {
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [
                {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "lab"}},
                {"name": "two", "context": {"cluster": "c", "user": "u"}},
            ],
            "current-context": "one",
        }
        (tmp_path / "config").write_text(json.dumps(facts))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        assert (api_of("").namespace, api_of("two").namespace) == ("lab", "default")
        with pytest.raises(UsageError, match="--on k8s:three: the kubeconfig has the contexts one"):
            api_of("three")
        with pytest.raises(PoolError, match=r"at http://127.0.0.1:9 does not answer: .*Connection refused"):
            api_of("").get("/api/v1/namespaces/lab/pods")


class WaitedForTenMinutes:
    """The API of a cluster with a job that began to run ten minutes ago, whose nodes serve since now."""

    now, ahead_s = 1_700_000_000.0, 0.0

    def __init__(self) -> None:
        notes = {launcher.TIME_NOTE: "3600", launcher.WAITS_NOTE: "yes"}
        started = datetime.fromtimestamp(self.now - 600, UTC).isoformat()
        self.job: Manifest = {
            "metadata": {"annotations": notes},
            "spec": {"activeDeadlineSeconds": 1200},
            "status": {"startTime": started},
        }

    def get(self, path: str, **_: object) -> Manifest:
        return self.job if path == Place.parse("job/dev -n lab").path else {}

    def patch(self, _: str, changes: Manifest) -> None:
        self.job["spec"] |= changes["spec"]
        self.job["metadata"]["annotations"] = {}


def test_the_time_of_a_job_counts_from_when_its_nodes_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = WaitedForTenMinutes()
    monkeypatch.setattr(launcher, "api_of", lambda _: cluster)
    job = Job("k8s", "job/dev -n lab", "dev", "k8s-dev", 1, 1, 0, TrustPaths(tmp_path), served=True)
    for _ in range(2):
        assert launcher.KubernetesLauncher().look(job).ends_at == cluster.now + 3600
        assert cluster.job["spec"]["activeDeadlineSeconds"] == 600 + 3600


def test_a_place_is_what_kubectl_takes() -> None:
    place = Place.parse("pytorchjob/k8s-dev-1f2e -n lab")
    assert str(place) == "pytorchjob/k8s-dev-1f2e -n lab"
    assert place.path == "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs/k8s-dev-1f2e"

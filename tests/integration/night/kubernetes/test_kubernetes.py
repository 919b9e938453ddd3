"""Pods of a stand-in for Kubernetes: asked for, waited for, used, found again, lost, and given back without a trace."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpus import FakeGpus
from integration.live import eventually
from integration.night.kubernetes.cluster import IMAGE, NAMESPACE, TIME, Cluster
from integration.ways import AnyWay, interrupted_at
from monarch_nb.cli.main import make_parser
from monarch_nb.cli.manifest import manifest
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import TrustPaths, config_directory
from monarch_nb.errors import CapacityError, MonarchNbError, PoolError, UsageError
from monarch_nb.provision import jobs, launchers
from monarch_nb.provision.kubernetes import launcher as kubernetes
from monarch_nb.provision.kubernetes.launcher import KubernetesLauncher, Place
from monarch_nb.provision.kubernetes.manifests import allocator_words
from monarch_nb.provision.launchers import Ask, Job, Offer, offer_of, options_of
from monarch_nb.trust.pools import make_paths

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"


class TestKubernetes(AnyWay):
    """What holds for every way holds for Kubernetes."""

    unheld_s = 1.0  # its pods wait twelve times as long for a first client


def pods_of_lab(nodes: int = 1, flags: tuple[str, ...] = (), **options: object) -> Reservation:
    arguments = (f"--image={IMAGE}", *flags)
    return reserve("dev", nodes=nodes, procs=1, preload=[], on="k8s", on_arguments=arguments, **options)  # type: ignore[arg-type]


def test_a_pod_of_a_user_without_a_name_is_a_node(standin: Cluster) -> None:
    dev = pods_of_lab(flags=("--user=54321",))
    facts = "import os\nos.getuid(), os.environ['HOME'], oct(os.stat('/run/monarch-nb/node.pem').st_mode & 0o777)"
    assert dev.mesh.run(facts).values == [(54321, "/", "0o440")]
    dev.release()
    assert standin.of("jobs") == []


@pytest.mark.slow
def test_a_job_has_its_certificate_its_limit_and_its_owner(standin: Cluster) -> None:
    dev = pods_of_lab(time="20m")
    [job], [secret], [pod] = standin.of("jobs"), standin.of("secrets"), standin.of("pods")
    assert dev.node_names[0] == pod["metadata"]["name"], "nodes are called as Kubernetes calls them"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert [each["metadata"]["ownerReferences"] for each in standin.of("services") + standin.of("networkpolicies")] == [
        secret["metadata"]["ownerReferences"]
    ] * 2
    assert dev.mesh.run("import os\noct(os.stat('/run/monarch-nb/node.pem').st_mode & 0o777)").values == ["0o400"]
    left_s = dev.status().time_left_s
    assert left_s is not None
    assert 18 * 60 < left_s < 20 * 60
    before_s = job["spec"]["activeDeadlineSeconds"]
    assert before_s >= 20 * 60
    dev.extend("21m")
    assert standin.of("jobs")[0]["spec"]["activeDeadlineSeconds"] == before_s + 21 * 60
    dev.release()


def test_gpus_are_those_that_the_pod_has(standin: Cluster, fake_gpus: FakeGpus) -> None:
    dev = reserve("dev", gpus=8, preload=[], on="k8s", on_arguments=[f"--image={IMAGE}"])
    [pod] = standin.of("pods")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    code = "import os\nos.environ['CUDA_VISIBLE_DEVICES']"
    assert dev.mesh.run(code).values == ["0,1,2,3,4,5,6,7"] * 8
    dev.release()


def test_a_form_is_told_what_there_is_to_choose_and_what_would_be_refused(standin: Cluster) -> None:
    way = KubernetesLauncher()
    options = {option.name: option for option in options_of(way)}
    assert list(options) == ["namespace", "image", "memory", "volume", "kind"]
    assert "empty: lab" in options["namespace"].help
    ask = Ask("dev", "k8s-dev", 1, 1, 0, 0.0, (f"--image={IMAGE}",), TrustPaths(config_directory() / "pools" / "x"))
    assert offer_of(way, ask) == Offer()
    with pytest.raises(UsageError, match='namespaces "lob" not found'):
        offer_of(way, replace(ask, arguments=(f"--image={IMAGE}", "--namespace=lob")))
    assert standin.names() == []


@contextmanager
def in_a_pod(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process look like one of a pod."""
    (directory / "namespace").write_text(NAMESPACE)
    with monkeypatch.context() as patch:
        patch.setattr(kubernetes, "OWN_NAMESPACE", directory / "namespace")
        yield


def test_the_image_is_that_of_the_notebook(standin: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = f"/pods/{socket.gethostname()}"
    told = {"spec": {"containers": [{"image": IMAGE}]}}
    standin.answers = lambda _, path: (200, told) if path.endswith(own) else None
    with in_a_pod(tmp_path, monkeypatch):
        dev = reserve("dev", procs=1, preload=[], on="k8s")
    dev.release()


def test_the_role_has_the_rights_that_are_needed_and_no_other(
    standin: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    role, _ = yaml.safe_load_all((DEPLOY / "kubernetes-role.yaml").read_text())
    has = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    monkeypatch.setattr(kubernetes, "LOG_AFTER_S", 0.0)
    with in_a_pod(tmp_path, monkeypatch), pytest.raises(UsageError, match="which image do pods run"):
        reserve("dev", procs=1, on="k8s")
    dev = pods_of_lab(time="20m")
    dev.extend("1m")
    dev.release()
    refused(CapacityError, "no machine", "--cpu=100")
    assert standin.done - {("list", "", "nodes")} == has


def test_a_right_that_is_lost_later_ends_nothing(standin: Cluster) -> None:
    dev = pods_of_lab()
    standin.denied.add(("list", "pods"))
    with pytest.raises(PoolError, match='cannot list resource "pods"'):
        pods_of_lab()
    assert dev.mesh.run("rank").values == [0]
    standin.denied.clear()
    dev.release()


@pytest.mark.slow
def test_a_job_that_was_deleted_saves_in_the_grace_period_of_its_pods_and_says_so(
    standin: Cluster, tmp_path: Path
) -> None:
    dev = pods_of_lab()
    dev.mesh.run("import torch; step = 7")  # now: the grace period is short on a busy machine
    dev.mesh.autosave(tmp_path / "saves", at_end=True)
    with standin.lock:
        standin.objects["jobs", standin.names("jobs")[0].removeprefix("jobs/")]["metadata"]["deletionTimestamp"] = (
            "1970"
        )
    eventually(lambda: not standin.names())
    with pytest.raises(PoolError, match=r"Kubernetes job/k8s-dev-\w+ -n lab is gone: %mesh reserve dev --on k8s"):
        dev.status()
    dev.release()
    assert (tmp_path / "saves" / "0001" / "save.json").exists()


SCRIPT = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
sys.stdout.write(f"total {int(total)} of {dist.get_world_size()} on {os.environ['POD_NAME']}\\n")  # whole, unbuffered
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob"])
def test_a_job_of_kubeflow_has_pods_that_are_nodes(standin: Cluster, kind: str) -> None:
    standin.crds.add(f"{kind.lower()}s")
    dev = pods_of_lab(nodes=2, flags=(f"--kind={kind}",), time="20m")
    assert dev.mesh.run("rank").values == [0, 1]
    if kind == "TrainJob":
        with pytest.raises(UsageError, match="the time of a TrainJob can not be changed"):
            dev.extend("1h")
    else:
        dev.extend("1h")
        [job] = standin.of("pytorchjobs")
        assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] > 4500
    dev.release()


def test_a_train_job_that_has_ended_by_itself_is_removed(standin: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer keeps it."""
    standin.crds.add("trainjobs")
    monkeypatch.setattr(launchers, "UNHELD_S", 0.2)
    flags = (f"--image={IMAGE}", "--kind=TrainJob")
    ask = lambda pool, paths: Ask("dev", pool, 1, 1, 0, 0.0, flags, paths)  # noqa: E731
    job, _ = jobs.obtain("k8s", ask, "k8s-dev", None, lambda _: None)
    eventually(lambda: KubernetesLauncher().look(job).state == "ended")
    eventually(lambda: not standin.names())
    jobs.sweep()


@pytest.mark.slow
def test_a_script_can_be_the_command_of_pods(standin: Cluster, tmp_path: Path) -> None:
    """torchrun finds its way by the pods' environment and names."""
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["train", "--nodes", "2", "--procs", "2", "--image", IMAGE, "--namespace", NAMESPACE]
    text = manifest(
        make_parser().parse_args(
            ["manifest", *words, "--command", f"python3 -m torch.distributed.run {tmp_path / 'train.py'}"]
        )
    )
    made = []
    for each in yaml.safe_load_all(text):
        plural = {"Job": "jobs", "Service": "services", "NetworkPolicy": "networkpolicies"}[each["kind"]]
        path = kubernetes.collection(each["apiVersion"], NAMESPACE, plural)
        assert standin.answer("POST", path, each)[0] == 201
        made.append(f"{path}/train")
    logs = lambda: "".join(path.read_text() for path in standin.directory.glob("train-*.log"))  # noqa: E731
    try:
        eventually(lambda: logs().count("total 6 of 4") == 4 or "Error" in logs())
    finally:
        print(logs())  # shown if it fails
    assert "on train-0-" in logs()
    assert "on train-1-" in logs()
    for path in made:  # as kubectl delete -f does: nothing else removes what may still be read
        assert standin.answer("DELETE", path, {})[0] == 200
    eventually(lambda: not standin.names())


def refused(error: type[MonarchNbError], said: str, *flags: str, **options: object) -> None:
    """Reserve in vain."""
    with pytest.raises(error, match=said):
        pods_of_lab(flags=flags, **options)  # type: ignore[arg-type]


class TestRefusals:
    @pytest.mark.parametrize(
        ("verb", "resource"),
        [
            ("create", "jobs"),
            ("create", "secrets"),
            ("list", "pods"),
        ],
    )
    def test_a_right_that_is_missing_is_named(
        self, standin: Cluster, monkeypatch: pytest.MonkeyPatch, verb: str, resource: str
    ) -> None:
        monkeypatch.setattr(jobs, "END_S", 0.0)  # whether it has ended may not be seen
        standin.denied.add((verb, resource))
        refused(MonarchNbError, f'"alice" cannot {verb} resource "{resource}".*has the role that is needed')

    def test_a_kind_that_the_cluster_does_not_have(self, standin: Cluster) -> None:
        refused(UsageError, "the cluster has no TrainJob .*: it needs Kubeflow", "--kind=TrainJob")

    def test_who_may_not_look_at_machines_waits(self, standin: Cluster) -> None:
        standin.denied |= {("list", "nodes"), ("list", "events")}
        for machine in standin.machines:
            machine.lost = True
        refused(CapacityError, "without success: .*Unschedulable: 0/3 nodes are available", wait="1s")

    def test_an_allocator_that_dies_shows_its_log(self, standin: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        code = "print('the module is not here'); raise SystemExit(3)"
        monkeypatch.setattr(kubernetes, "allocator_words", lambda *_: ["python3", "-c", code])
        refused(PoolError, r"(?s)it ended with exit status 3.*its log ends with\n.*the module is not here")

    def test_pods_that_can_not_be_reached(self, standin: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """What an allocator says that listens elsewhere than where the cluster says that it is."""
        words = lambda *given: [*allocator_words(*given)[:-1], "7999"]  # noqa: E731
        monkeypatch.setattr(kubernetes, "allocator_words", words)
        monkeypatch.setattr(kubernetes, "LOG_AFTER_S", 0.0)
        refused(PoolError, r"serves on 10\.\S+:7878, which can not be reached from here: run the notebook in")


def test_a_queue_is_told_and_ctrl_c_leaves_it(standin: Cluster) -> None:
    standin.queued = True
    said = interrupted_at("suspended", lambda hear: pods_of_lab(progress=hear))
    assert said.endswith(" is suspended (JobSuspended: Job suspended)")


@pytest.fixture
def asked(standin: Cluster) -> Iterator[Callable[[], Job]]:
    """Ask for a pod for which there is no machine, as a client does that is then killed."""
    for machine in standin.machines:
        machine.lost = True
    paths = make_paths("k8s-dev")
    paths.node.write_bytes(b"key")
    paths.node.chmod(0o600)

    def ask() -> Job:
        wanted = Ask("dev", "k8s-dev", 1, 1, 0, 0.0, (f"--image={IMAGE}",), paths)
        return Job("k8s", KubernetesLauncher().ask(wanted), "dev", "k8s-dev", 1, 1, 0, paths)

    yield ask
    shutil.rmtree(paths.directory)


def ten_minutes_pass(cluster: Cluster) -> None:
    with cluster.lock:
        for (plural, _), each in cluster.objects.items():
            if plural == "jobs":
                each["status"]["startTime"] = datetime.fromtimestamp(time.time() - 601, UTC).strftime(TIME)


def test_a_client_that_is_killed_while_it_waits_leaves_nothing(standin: Cluster, asked: Callable[[], Job]) -> None:
    asked()
    assert len(standin.names("jobs", "secrets", "services", "networkpolicies")) == 4
    ten_minutes_pass(standin)
    eventually(lambda: not standin.names())


def test_a_client_that_is_killed_while_it_asks_leaves_nothing(
    standin: Cluster, asked: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KubernetesLauncher, "_delete", lambda *_: None)
    standin.denied.add(("create", "secrets"))
    with pytest.raises(PoolError):
        asked()
    assert standin.names("jobs", "secrets") == standin.names("jobs") != []
    ten_minutes_pass(standin)
    eventually(lambda: not standin.names())


def test_a_client_that_waits_keeps_the_job(standin: Cluster, asked: Callable[[], Job]) -> None:
    """It would have ended already."""
    job = asked()
    with standin.lock:
        ten_minutes_pass(standin)
        standin.objects["jobs", Place.parse(job.id).name]["spec"]["activeDeadlineSeconds"] = 700
    assert KubernetesLauncher().look(job).state == "waiting"
    assert standin.of("jobs")[0]["spec"]["activeDeadlineSeconds"] >= 1200
    KubernetesLauncher().end(job)
    eventually(lambda: not standin.names())

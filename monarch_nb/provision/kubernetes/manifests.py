"""What Kubernetes is asked for, as plain dictionaries: a job whose pods run allocators, and what these need. Their form
is in manifests.yaml; what stands there in the places of names is made here.

Pure: nothing here talks to a cluster. The same is printed by `monarch-nb manifest`.
"""

from __future__ import annotations

import argparse
import base64
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from monarch_nb.config import DEFAULT_PORT, gap, passed_on
from monarch_nb.errors import UsageError
from monarch_nb.provision.kubernetes.pods import quantity
from monarch_nb.provision.launchers import EngineFlags

Manifest = dict[str, Any]

CERTIFICATE_DIRECTORY = "/run/monarch-nb"
CERTIFICATE = f"{CERTIFICATE_DIRECTORY}/node.pem"
STATE = "/tmp/monarch-nb"
MASTER_PORT = 29500
"""Where torchrun of the first pod listens, when a script is the pods' command."""
GONE_AFTER_S = int(gap(60))
"""A job that has ended, and all that it owns, is removed so long after."""
INSTANCE = "app.kubernetes.io/instance"
"""The label by which the pods of a job are found, whatever made them."""
POOL = "monarch-nb/pool"
"""The label by which the pods of a pool know each other: it may have several jobs."""
INDEX = "batch.kubernetes.io/job-completion-index"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}~\n]")
"""What a shell does not take as it is written."""
_QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)([KMGTPE]i|[mkMGTP]|[eE]\d+)?")
_LEAST_MEMORY_BYTES = 1 << 20
"""Who asks for less has forgotten the unit, or written m for M."""
_RUNTIME = "torch-distributed"
_OF_A_USER = ("pod_security", "container_security")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class Kind:
    """A kind of job.

    Attributes:
        group, version, plural: as the API calls it.
        container: what the container of a pod has to be called.
        says_where: whether its controller tells pods of each other in PET_* and torchrun's environment.
        goes_by_itself: whether it is removed some time after its end, and its deadline can be moved before that.
        needs: what has to be installed in the cluster; empty when every cluster has it.
    """

    name: str
    group: str
    version: str
    plural: str
    container: str
    says_where: bool = True
    goes_by_itself: bool = True
    needs: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


KINDS = {
    kind.name.lower(): kind
    for kind in (
        Kind("Job", "batch", "v1", "jobs", "node", says_where=False),
        Kind(
            *("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs", "node"),
            goes_by_itself=False,
            needs="Kubeflow Trainer 2.2 or later",
        ),
        Kind("PyTorchJob", "kubeflow.org", "v1", "pytorchjobs", "pytorch", needs="Kubeflow's training operator (v1)"),
    )
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what can be said of pods."""
    parser.add_argument("--kind", metavar="KIND", default="Job", help="Job (default), TrainJob or PyTorchJob")
    parser.add_argument("--namespace", metavar="NAME", default="", help="where (default: that of the kubeconfig)")
    image = "has monarch_nb and torch (default: that of the pod in which this runs)"
    parser.add_argument("--image", metavar="IMAGE", default="", help=image)
    parser.add_argument("--image-pull-secret", metavar="NAME", default="", help="for a private registry")
    parser.add_argument("--cpu", metavar="N", default="", help="CPUs of a pod (default: one for each CPU rank)")
    parser.add_argument("--memory", metavar="SIZE", default="", help="of a pod, as in 64Gi")
    resource = "what GPUs are called (default: %(default)s)"
    parser.add_argument("--gpu-resource", metavar="NAME", default="nvidia.com/gpu", help=resource)
    parser.add_argument("--node-selector", metavar="KEY=VALUE", action="append", default=[], help="only such machines")
    toleration = "machines with this taint as well; EFFECT and =VALUE can be left out"
    parser.add_argument("--toleration", metavar="KEY=VALUE:EFFECT", action="append", default=[], help=toleration)
    volume = "a volume claim that all pods have at PATH, for --shared"
    parser.add_argument("--volume", metavar="CLAIM:PATH", action="append", default=[], help=volume)
    parser.add_argument(
        "--label", metavar="KEY=VALUE", action="append", default=[], help="of the job: a queue of Kueue"
    )
    parser.add_argument("--priority-class", metavar="NAME", default="", help="of the pods")
    user = "run as this user, not as the image's, and as restricted namespaces demand"
    parser.add_argument("--user", metavar="UID", type=int, help=user)
    parser.add_argument("--runtime", metavar="NAME", default="", help=f"of a TrainJob (default: {_RUNTIME})")


def parse_flags(words: Sequence[str]) -> argparse.Namespace:
    """Read what stands after ` -- `.

    Raises:
        UsageError: an unknown flag, or one whose value can not be.
    """
    parser = EngineFlags("Kubernetes")
    add_flags(parser)
    options = parser.parse_args(list(words))
    check_flags(options)
    return options


def check_flags(options: argparse.Namespace) -> None:
    """Refuse values that can not be.

    Raises:
        UsageError: there is one.
    """
    if options.kind.lower() not in KINDS:
        raise UsageError(f"--kind {options.kind}: it is Job, TrainJob or PyTorchJob")
    if options.runtime and options.kind.lower() != "trainjob":
        raise UsageError(f"--runtime {options.runtime}: only a TrainJob has one: --kind TrainJob")
    if options.cpu and not _amount(options.cpu):
        raise UsageError(f"--cpu {options.cpu}: it is a number of CPUs, as in 8 or 500m")
    if options.memory and _amount(options.memory) < _LEAST_MEMORY_BYTES:
        raise UsageError(f"--memory {options.memory}: it is a size of 1Mi at least, with its unit, as in 64Gi or 512Mi")
    for flag in ("node_selector", "label"):
        _pairs(flag, getattr(options, flag))
    for text in options.toleration:
        _toleration(text)
    for text in options.volume:
        _claim(text)


def _amount(text: str) -> Decimal:
    """Read a quantity of the user's; 0 when it is none."""
    return quantity(text) if _QUANTITY.fullmatch(text) else Decimal(0)


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--{flag.replace('_', '-')} {text}: it is KEY=VALUE")
        found[key] = value
    return found


def _toleration(text: str) -> Manifest:
    """Read a toleration.

    Example:
        >>> _toleration("nvidia.com/gpu:NoSchedule")
        {'key': 'nvidia.com/gpu', 'operator': 'Exists', 'effect': 'NoSchedule'}
    """
    pair, _, effect = text.partition(":")
    key, equals, value = pair.partition("=")
    if not key or (effect and effect not in _EFFECTS):
        raise UsageError(f"--toleration {text}: it is KEY=VALUE:EFFECT, where EFFECT is {', '.join(_EFFECTS)}")
    made = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**made, "effect": effect} if effect else made


def _claim(text: str) -> tuple[str, str]:
    claim, _, path = text.partition(":")
    if not claim or not path.startswith("/"):
        raise UsageError(f"--volume {text}: it is CLAIM:PATH, as in --volume team-data:/data")
    return claim, path


@dataclass(frozen=True)
class Wanted:
    """What is asked of Kubernetes.

    Attributes:
        name: of the job, its service, secret and network policy.
        namespace: where; empty for that of whoever applies it.
        nodes: pods. procs: CPU ranks of each, 0 with GPUs. gpus: of each, 0 with CPU ranks.
        command: of the container.
        options: what `parse_flags` returned.
        longest_s: until Kubernetes ends the job; 0 when it does not.
        notes: annotations of the job.
        pool: what only the jobs of one pool have, as a label of their pods; empty for a job that stands alone.
        has_allocators: whether pods are nodes of a pool, with its secret of that name; else they run a script, and
            stay, with their logs, until somebody deletes the job.
    """

    name: str
    namespace: str
    nodes: int
    procs: int
    gpus: int
    command: Sequence[str]
    options: argparse.Namespace
    longest_s: int = 0
    notes: tuple[tuple[str, str], ...] = ()
    pool: str = ""
    has_allocators: bool = True

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!r} can not be the name of a service: it begins with a letter of a to z")
        if not self.options.image:
            raise UsageError(
                "which image do pods run? One that has monarch_nb and torch, as in --image registry/monarch-nb:1 "
                "(deploy/Containerfile makes one)"
            )

    @property
    def kind(self) -> Kind:
        return KINDS[self.options.kind.lower()]


def allocator_words(command: Sequence[str], certificate: str) -> list[str]:
    """Return the command of an allocator as a pod runs it: with its own Python, address and name.

    Args:
        command: as it would run here. certificate: in it.
    """
    words = ["python3", *(CERTIFICATE if word == certificate else word for word in command[1:])]
    return [*words, "--node-id", "$(POD_NAME)", "--toward", "$(POD_IP)", "--port", str(DEFAULT_PORT)]


def script_words(text: str) -> list[str]:
    """Return the command of a script as a pod runs it: by bash what means something to a shell. Bash makes
    way for a last command with exec, which signals reach then: as the first process of a pod it would not heed them.

    Raises:
        UsageError: a quote has no end.

    Example:
        >>> script_words("torchrun train.py -v"), script_words("cd /data && torchrun train.py")
        (['torchrun', 'train.py', '-v'], ['bash', '-c', 'cd /data && torchrun train.py'])
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command {text}: {str(error).lower()}") from None
    if not words:
        raise UsageError("--command: which? As in --command 'torchrun train.py'")
    if not _SHELL.search(text) and "=" not in words[0]:
        return words
    return ["bash", "-c", text.replace("$$", "$$$$")]  # Kubernetes makes one of two


def manifests(wanted: Wanted) -> list[Manifest]:
    """Return the job, the first of them, and what it owns apart from the certificate."""
    values = _values(wanted)
    facts: Manifest = {"name": wanted.name, "labels": values["labels"]}
    if wanted.namespace:
        facts["namespace"] = wanted.namespace
    of_job = {**facts, "labels": {**facts["labels"], **_pairs("label", wanted.options.label)}}
    if wanted.notes:
        of_job["annotations"] = dict(wanted.notes)
    kind = wanted.kind
    parts = [(kind.api_version, kind.name, of_job), ("networking.k8s.io/v1", "NetworkPolicy", facts)]
    if not kind.says_where:
        parts.append(("v1", "Service", facts))
    return [
        {"apiVersion": version, "kind": name, "metadata": metadata, "spec": _filled(_templates()[name], values)}
        for version, name, metadata in parts
    ]


def secret(wanted: Wanted, certificate: bytes) -> Manifest:
    """Return what holds the certificate of the nodes, with its key."""
    data = {"node.pem": base64.b64encode(certificate).decode()}
    facts = {"name": wanted.name, "labels": _labels(wanted)}
    facts |= {"namespace": wanted.namespace} if wanted.namespace else {}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": facts, "type": "Opaque", "data": data}


def owned(manifest: Manifest, owner: Manifest) -> Manifest:
    """Return a manifest of what goes when its owner, as the API has returned it, goes."""
    facts = {key: owner[key] for key in ("apiVersion", "kind")}
    reference = {**facts, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


@cache
def _templates() -> dict[str, Any]:
    import yaml

    made: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return made


def _filled(part: Any, values: dict[str, Any]) -> Any:
    """Return a part of a template with values in the places of their names; what is None is left out."""
    if isinstance(part, str) and part.startswith("$"):
        return values[part[1:]]
    if isinstance(part, dict):
        made = {key: _filled(each, values) for key, each in part.items()}
        return {key: each for key, each in made.items() if each is not None}
    return [_filled(each, values) for each in part] if isinstance(part, list) else part


def _labels(wanted: Wanted) -> dict[str, str]:
    return {"app.kubernetes.io/name": "monarch-nb", INSTANCE: wanted.name}


def _values(wanted: Wanted) -> dict[str, Any]:
    """Return what the templates name."""
    options, kind, labels = wanted.options, wanted.kind, _labels(wanted)
    of_pool = {POOL: wanted.pool} if wanted.pool else {}
    ranks, user = wanted.gpus or wanted.procs, options.user
    values = {
        "nodes": wanted.nodes,
        "further_nodes": wanted.nodes - 1,
        "ranks": ranks,
        "ranks_as_text": str(ranks),
        "port": DEFAULT_PORT,
        "removed_after_s": GONE_AFTER_S if wanted.has_allocators else None,
        "pods_removed": "All" if wanted.has_allocators else "Running",
        "longest_s": wanted.longest_s or None,
        "runtime": options.runtime or _RUNTIME,
        "labels": labels,
        "pod_labels": labels | of_pool,
        "friends": of_pool or labels,
        "container": kind.container,
        "image": options.image,
        "command": list(wanted.command),
        "environment": _environment(wanted),
        "mounts": _mounts(wanted),
        "volumes": _volumes(wanted),
        "resources": _resources(wanted) or None,
        "subdomain": None if kind.says_where else wanted.name,
        "node_selector": _pairs("node_selector", options.node_selector) or None,
        "tolerations": [_toleration(text) for text in options.toleration] or None,
        "image_pull_secrets": [{"name": options.image_pull_secret}] if options.image_pull_secret else None,
        "priority_class": options.priority_class or None,
        "user": user,
        "is_not_root": user != 0,
    }
    named = user is not None
    values |= {part: _filled(_templates()[part], values) if named else None for part in _OF_A_USER}
    values["template"] = _filled(_templates()["template"], values)
    values["workers"] = _filled(_templates()["workers"], values) if wanted.nodes > 1 else None
    return values


def _mounts(wanted: Wanted) -> list[Manifest]:
    mounts: list[Manifest] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if wanted.has_allocators:
        mounts.append({"name": "certificate", "mountPath": CERTIFICATE_DIRECTORY, "readOnly": True})
    paths = [_claim(text)[1] for text in wanted.options.volume]
    return [*mounts, *({"name": f"shared-{at}", "mountPath": path} for at, path in enumerate(paths))]


def _volumes(wanted: Wanted) -> list[Manifest]:
    """The certificate is its user's alone; of a user that is not root, root's and the group's, which is the pod's own.
    Shared memory is as large as the memory: 64 MB, as without a volume, are too few for NCCL and data loaders."""
    mode = 0o400 if not wanted.options.user else 0o440
    made: list[Manifest] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if wanted.has_allocators:
        made.append({"name": "certificate", "secret": {"secretName": wanted.name, "defaultMode": mode}})
    claims = [_claim(text)[0] for text in wanted.options.volume]
    return made + [
        {"name": f"shared-{at}", "persistentVolumeClaim": {"claimName": claim}} for at, claim in enumerate(claims)
    ]


def _resources(wanted: Wanted) -> Manifest:
    """CPUs are asked for, and may be exceeded; memory and GPUs may not."""
    options = wanted.options
    cpu = options.cpu or (str(wanted.procs) if wanted.procs else "")
    limits = {options.gpu_resource: str(wanted.gpus)} if wanted.gpus else {}
    limits |= {"memory": options.memory} if options.memory else {}
    requests = {"cpu": cpu, **limits} if cpu else dict(limits)
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _environment(wanted: Wanted) -> list[Manifest]:
    """Return what tells a pod of itself, and, where no controller does, of the others: as torchrun reads it (PET_*),
    and as a script reads it that is one process on each pod."""
    own = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    made = [_of_pod(name, field) for name, field in own.items()] + [{"name": "MONARCH_NB_HOME", "value": STATE}]
    if wanted.has_allocators:
        made += [{"name": name, "value": value} for name, value in passed_on().items()]
    if wanted.kind.says_where:
        return made
    master, port = f"{wanted.name}-0.{wanted.name}", str(MASTER_PORT)
    index = f"metadata.annotations['{INDEX}']"
    said = {
        "PET_NNODES": str(wanted.nodes),
        "PET_NPROC_PER_NODE": str(wanted.gpus or wanted.procs),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(wanted.nodes),
    }
    made += [_of_pod("PET_NODE_RANK", index), _of_pod("RANK", index)]
    return [*made, *({"name": name, "value": value} for name, value in said.items())]


def _of_pod(name: str, field: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}

"""Pods of a Kubernetes cluster: a job whose pods run one allocator each.

Everything that is made belongs to the job, and goes with it. A job that nobody waits for any more ends after some
minutes: as long as its nodes have not served, its deadline is near, and is moved by whoever waits.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monarch_nb.config import cadence, gap, patience
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Option, launchers
from monarch_nb.provision.jobs import serves
from monarch_nb.provision.kubernetes.api import OWN_NAMESPACE, Api, NotAllowed, NotThere, api_of
from monarch_nb.provision.kubernetes.manifests import (
    INSTANCE,
    KINDS,
    Kind,
    Manifest,
    Wanted,
    allocator_words,
    manifests,
    owned,
    parse_flags,
    secret,
)
from monarch_nb.provision.kubernetes.pods import (
    Pod,
    Told,
    are_scaling,
    explained,
    job_end,
    never_fits,
    read_pod,
    refused_pods,
    seconds_of,
    taken_away,
    why_suspended,
)
from monarch_nb.provision.launchers import Ask, Job, Look, Offer, target_of
from monarch_nb.trust.private_files import read_private

WAIT_S = int(gap(600))
"""A job whose nodes have not served ends so long after the last look at it."""
FIRST_TIMES = 12
"""So many times as long as else an allocator waits for its first reservation: its peers may still wait for machines."""
NEVER_S = patience(30.0)
"""A pod for which so long no machine was found, and none is brought, is compared with those that there are."""
LOG_AFTER_S = cadence(10.0)
"""Allocators that have run for so long and do not serve yet have their logs kept."""
MOST_EXPLAINED = 4
"""Of so many pods it is asked why they wait: others wait for the same."""
LOG_LINES = 20
MOST_EVENTS = 500
TIME_NOTE, WAITS_NOTE = "monarch-nb/time-s", "monarch-nb/waits"
_PLURALS = {"Secret": "secrets", "Service": "services", "NetworkPolicy": "networkpolicies"}


@dataclass(frozen=True)
class Place:
    """Where a job is. As text it is what stands after `kubectl get`, so that people can look for themselves."""

    kind: Kind
    name: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}/{self.name} -n {self.namespace}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read what `str` has written.

        Example:
            >>> Place.parse("job/k8s-dev-1f2e -n lab").namespace
            'lab'
        """
        which, _, namespace = text.partition(" -n ")
        kind, _, name = which.partition("/")
        return cls(KINDS[kind], name, namespace)

    @property
    def path(self) -> str:
        return f"{collection(self.kind.api_version, self.namespace, self.kind.plural)}/{self.name}"

    @property
    def events(self) -> str:
        return collection("v1", self.namespace, "events")

    @property
    def pods(self) -> str:
        return collection("v1", self.namespace, "pods")


def collection(api_version: str, namespace: str, plural: str) -> str:
    """Return the path of all objects of a kind in a namespace.

    Example:
        >>> collection("batch/v1", "lab", "jobs")
        '/apis/batch/v1/namespaces/lab/jobs'
    """
    return f"/{'apis' if '/' in api_version else 'api'}/{api_version}/namespaces/{namespace}/{plural}"


class KubernetesLauncher:
    """Nodes of a Kubernetes cluster. A target is a context of the kubeconfig."""

    title = "Kubernetes"
    targets = "CONTEXT"

    def options(self) -> list[Option]:
        """Return what people choose of most jobs."""
        namespace, image = api_of("").namespace, _own_image(api_of(""))
        kinds = tuple(
            (kind.name, f"{kind.name} ({kind.needs})" if kind.needs else kind.name) for kind in KINDS.values()
        )
        note = "has monarch_nb and torch" + ("; empty: that of this notebook" if image else "")
        return [
            Option("namespace", "Namespace", "text", "", f"where; empty: {namespace}", flag="--namespace"),
            Option("image", "Image", "text", "", note, flag="--image"),
            Option("memory", "Memory", "text", "", "of a pod, as in 64Gi; empty: without limit", flag="--memory"),
            Option("volume", "Shared volume", "text", "", "a claim, as in team-data:/data", flag="--volume"),
            Option("kind", "Job’s kind", "choice", "Job", "of the job", choices=kinds, flag="--kind"),
        ]

    def offer(self, ask: Ask) -> Offer:
        """Return nothing: only the scheduler knows when. What the cluster would refuse is refused."""
        api, place, wanted = _wanted(ask)
        _create_job(api, place, manifests(wanted)[0], dryRun="All")
        return Offer()

    def ask(self, ask: Ask) -> str:
        """Create the job, and what belongs to it."""
        api, place, wanted = _wanted(ask)
        certificate = secret(wanted, read_private(ask.paths.node))
        first, *others = manifests(wanted)
        job = _create_job(api, place, first)
        try:
            for manifest in (certificate, *others):
                api.create(_collection_of(manifest, place), owned(manifest, job))
        except BaseException:
            self._delete(api, place)
            raise
        return str(place)

    def look(self, job: Job) -> Look:
        """Return what the cluster says; a job that it has forgotten has ended."""
        try:
            return self._look(job)
        except NotAllowed as error:
            if job.served:
                raise  # its nodes may well be there
            return Look("waiting", f"{self.title} {job.id}: {error}", str(error))

    def _look(self, job: Job) -> Look:
        api, place = api_of(target_of(job.on)), Place.parse(job.id)
        name = f"{self.title} {place}"
        try:
            told = api.get(place.path)
        except NotThere:
            _keep_log(job, "its pods are gone, and their logs with them\n")
            why = taken_away(place.name, _events(api, place, "involvedObject.kind=Pod"))
            return Look(
                "ended", f"{name} is gone{why and f' ({why})'}", why or "it was deleted, or removed after its end"
            )
        selector = f"{INSTANCE}={place.name}"
        pods = [read_pod(each) for each in api.get(place.pods, labelSelector=selector).get("items", ())]
        lost = "; ".join(str(pod) for pod in pods if pod.state == "lost")
        status = told.get("status") or {}
        if end := job_end(status):
            what, why = end
            why = "; ".join(filter(None, (lost, why)))
            if not _keep_logs(api, place, pods, job):
                _keep_log(job, "none of its pods is there any more\n")
            if not place.kind.goes_by_itself:
                self._delete(api, place)
            return Look("ended", f"{name} {what}{why and f' ({why})'}", why or what)
        ends_at = _moved_deadline(api, place, told, job)
        if told["metadata"].get("deletionTimestamp"):
            return Look("running", f"{name} is being deleted", f"{name} is being deleted")
        if why := why_suspended(status):
            words = f"{name} is suspended ({why})"
            return Look("running", words, words) if job.served else Look("waiting", words)
        addresses = tuple(pod.address for pod in pods if pod.address)
        if job.served or lost or sum(pod.state == "running" for pod in pods) == job.nodes:
            if job.served:
                trouble = lost or _missing(api, place, job, len(pods))
            else:
                logs = _keep_logs(api, place, [pod for pod in pods if _is_late(pod, api)], job)
                trouble = lost or _out_of_reach(pods, logs)
            return Look("running", f"{name} runs", trouble, addresses, ends_at)
        words, trouble = _why_it_waits(api, place, told, pods, job)
        return Look("waiting", f"{name} waits: {words}", trouble, addresses, ends_at)

    def extend(self, job: Job, by_s: float) -> None:
        """Move the deadline of the job."""
        api, place = api_of(target_of(job.on)), Place.parse(job.id)
        if not place.kind.goes_by_itself:
            raise UsageError(
                f"the time of a {place.kind.name} can not be changed: save your work and reserve again with a longer "
                "--time, or with -- --kind=Job"
            )
        told = api.get(place.path)
        api.patch(place.path, _with_deadline(place.kind, _deadline(place.kind, told) + int(by_s)))

    def end(self, job: Job) -> None:
        """Delete the job, and what belongs to it."""
        self._delete(api_of(target_of(job.on)), Place.parse(job.id))

    def _delete(self, api: Api, place: Place) -> None:
        """The cluster removes by itself what belongs to a job, some time after it; certificates go at once."""
        api.delete(place.path)
        for version, plural in (("v1", "secrets"), ("v1", "services"), ("networking.k8s.io/v1", "networkpolicies")):
            api.delete(f"{collection(version, place.namespace, plural)}/{place.name}")


def _wanted(ask: Ask) -> tuple[Api, Place, Wanted]:
    """Return what is asked for as Kubernetes takes it, and where."""
    options = parse_flags(ask.arguments)
    api = api_of(ask.target)
    options.image = options.image or _own_image(api)
    kind = KINDS[options.kind.lower()]
    words = allocator_words(ask.allocator(publish=False), str(ask.paths.node))
    waits = ((WAITS_NOTE, "yes"),) if kind.goes_by_itself else ()
    wanted = Wanted(
        name=f"{ask.pool}-{secrets.token_hex(2)}",
        namespace=options.namespace or api.namespace,
        nodes=ask.nodes,
        procs=ask.procs,
        gpus=ask.gpus,
        command=[*words, "--first", f"{FIRST_TIMES * launchers.UNHELD_S:g}s"],
        options=options,
        longest_s=WAIT_S if waits else int(ask.time_s),
        notes=((TIME_NOTE, str(int(ask.time_s))), *waits),
        pool=_pool_label(ask),
    )
    return api, Place(kind, wanted.name, wanted.namespace), wanted


def _pool_label(ask: Ask) -> str:
    """Return what no other pool of the namespace has: it has to do with the certificate of its nodes."""
    try:
        return f"{ask.pool}-{hashlib.sha256(read_private(ask.paths.node)).hexdigest()[:12]}"
    except FileNotFoundError:  # nothing is asked for yet
        return ""


def _create_job(api: Api, place: Place, manifest: Manifest, **query: str) -> Manifest:
    try:
        return api.create(collection(place.kind.api_version, place.namespace, place.kind.plural), manifest, **query)
    except NotThere as error:
        needs = place.kind.needs
        raise UsageError(
            f"the cluster has no {place.kind.name} ({error}): it needs {needs}; or take --kind=Job"
        ) from None


def _collection_of(manifest: Manifest, place: Place) -> str:
    return collection(manifest["apiVersion"], place.namespace, _PLURALS[manifest["kind"]])


def _own_image(api: Api) -> str:
    """Return the image of the pod in which this process runs; empty when it runs in none."""
    if not OWN_NAMESPACE.exists():
        return ""
    pods = collection("v1", OWN_NAMESPACE.read_text().strip(), "pods")
    try:
        told = api.get(f"{pods}/{socket.gethostname()}")
    except (NotThere, PoolError):
        return ""
    return str(told["spec"]["containers"][0]["image"])


# ---- the deadline ----


def _with_deadline(kind: Kind, deadline_s: int | None) -> dict[str, Any]:
    spec = {"activeDeadlineSeconds": deadline_s}
    return {"spec": {"runPolicy": spec} if kind.name == "PyTorchJob" else spec}


def _deadline(kind: Kind, told: Told) -> int:
    spec = told["spec"].get("runPolicy", {}) if kind.name == "PyTorchJob" else told["spec"]
    return int(spec.get("activeDeadlineSeconds") or 0)


def _moved_deadline(api: Api, place: Place, told: Told, job: Job) -> float:
    """Keep a job alive that somebody waits for, and give one whose nodes serve the time that was asked for; return when
    it ends, by this computer's clock, or 0 when it does not."""
    started_s = seconds_of((told.get("status") or {}).get("startTime"))
    deadline_s = _deadline(place.kind, told)
    notes: Mapping[str, str] = told["metadata"].get("annotations") or {}
    if not started_s:
        return 0.0  # it is queued
    passed_s = int(api.now - started_s)
    if WAITS_NOTE in notes:
        if not job.served:
            if deadline_s - passed_s < WAIT_S / 2:
                api.patch(place.path, _with_deadline(place.kind, passed_s + WAIT_S))
            return 0.0
        time_s = int(notes.get(TIME_NOTE, "0"))
        deadline_s = passed_s + time_s if time_s else 0
        done = {"metadata": {"annotations": {WAITS_NOTE: None}}}
        api.patch(place.path, {**_with_deadline(place.kind, deadline_s or None), **done})
    return started_s + deadline_s - api.ahead_s if deadline_s else 0.0


# ---- what it waits for ----


def _why_it_waits(api: Api, place: Place, told: Told, pods: Sequence[Pod], job: Job) -> tuple[str, str]:
    """Return what a job waits for, and why it does so in vain, if it does."""
    if len(pods) < job.nodes:
        why, is_hopeless = refused_pods(_events(api, place, f"involvedObject.name={place.name}"))
        if why:
            return f"{counted(job.nodes - len(pods), 'pod')} can not be made: {why}", why if is_hopeless else ""
    waiting = [pod for pod in pods if pod.state == "waiting"]
    trouble = ""
    for index, pod in enumerate(waiting[:MOST_EXPLAINED]):
        events = _events(api, place, f"involvedObject.name={pod.name}")
        waiting[index] = explained(pod, events)
        if pod.unschedulable_since and api.now - pod.unschedulable_since >= NEVER_S and not are_scaling(events):
            trouble = trouble or _never_fits(api, told, job, place)
    trouble = trouble or next((str(pod) for pod in waiting if pod.hopeless), "")
    return _summary(waiting, job.nodes), trouble


def _summary(waiting: Sequence[Pod], nodes: int) -> str:
    """Return in a line what pods wait for, each reason once."""
    by_words: dict[str, list[str]] = {}
    for pod in waiting:
        by_words.setdefault(pod.words, []).append(pod.name)
    parts = [
        f"{names[0] if len(names) == 1 else f'{names[0]} and {len(names) - 1} more'} {words}"
        for words, names in by_words.items()
    ]
    return "; ".join(parts) or f"its {counted(nodes, 'pod')} are being made"


def _never_fits(api: Api, told: Told, job: Job, place: Place) -> str:
    """Return why the cluster never has so much, as far as this user may know."""
    try:
        machines = api.get("/api/v1/nodes").get("items", ())
    except (NotThere, PoolError):
        return ""
    return never_fits(machines, _needs(place.kind, told), job.nodes)


def _needs(kind: Kind, told: Told) -> Mapping[str, str]:
    """Return what a pod of a job asks for."""
    spec = told["spec"]
    if kind.name == "TrainJob":
        resources = spec["trainer"].get("resourcesPerNode", {})
    else:
        holder = spec["pytorchReplicaSpecs"]["Master"] if kind.name == "PyTorchJob" else spec
        resources = holder["template"]["spec"]["containers"][0].get("resources", {})
    needs: Mapping[str, str] = resources.get("requests", {})
    return needs


def _missing(api: Api, place: Place, job: Job, there: int) -> str:
    """Return what became of pods that are not there any more."""
    if there >= job.nodes:
        return ""
    events = _events(api, place, "involvedObject.kind=Pod")
    gone = counted(job.nodes - there, "pod")
    return taken_away(place.name, events) or f"{gone} of {place} {'are' if job.nodes - there > 1 else 'is'} gone"


def _events(api: Api, place: Place, of: str) -> Sequence[Told]:
    """Return what happened lately, the newest last, as far as this user may know."""
    try:
        found = api.get(place.events, fieldSelector=of, limit=MOST_EVENTS)
    except (NotThere, PoolError):
        return ()
    return sorted(found.get("items", ()), key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")


# ---- logs ----


def _is_late(pod: Pod, api: Api) -> bool:
    return pod.state != "running" or api.now - pod.since > LOG_AFTER_S


def _out_of_reach(pods: Sequence[Pod], logs: Mapping[str, str]) -> str:
    """Return which allocator serves, as its log says, but can not be reached from here."""
    for pod in pods:
        if " serves on " in logs.get(pod.name, "") and not serves(pod.address):
            return (
                f"{pod.name} serves on {pod.address}, which can not be reached from here: run the notebook in the "
                "cluster, where network policies let it reach pods (docs/kubernetes.md)"
            )
    return ""


def _keep_logs(api: Api, place: Place, pods: Sequence[Pod], job: Job) -> dict[str, str]:
    """Keep what allocators have printed last: their pods will be gone. Those that failed come last: they are read.
    Return it by their names."""
    texts = {}
    for pod in sorted(pods, key=lambda pod: pod.state == "lost")[-MOST_EXPLAINED:]:
        try:
            text = api.text(
                f"{place.pods}/{pod.name}/log", tailLines=LOG_LINES, container=place.kind.container, **_previous(pod)
            )
        except (NotThere, PoolError, UsageError, CapacityError) as error:
            text = f"its log can not be read: {error}\n"
        texts[pod.name] = text
    if texts:
        _keep_log(job, "".join(f"{name}:\n{text}" for name, text in texts.items()))
    return texts


def _previous(pod: Pod) -> dict[str, str]:
    """One that is to be started again has no log yet."""
    return {"previous": "true"} if pod.restarts else {}


def _keep_log(job: Job, text: str) -> None:
    if job.paths.directory.exists() and not (job.served and job.paths.log.exists()):
        job.paths.log.write_text(text)

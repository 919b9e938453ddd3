"""What the API says of jobs and pods, in words. Pure: nothing here asks it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from monarch_nb.config import DEFAULT_PORT
from monarch_nb.ground.rank_sets import counted

Told = Mapping[str, Any]
"""An object as the API tells of it."""

OURS = ("node", "pytorch")
"""What the container of an allocator is called; a pod may have been given others, such as a proxy."""
_HOPELESS = {
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
"""Why a container that waits does so in vain."""
_TAKEN_AWAY = {
    "PreemptionByScheduler",
    "Preempted",
    "Preempting",
    "DeletionByTaintManager",
    "TaintManagerEviction",
    "EvictionByEvictionAPI",
    "TerminationByKubelet",
    "Evicted",
    "NodeNotReady",
    "NodeLost",
}
_SCALING = {"TriggeredScaleUp", "Nominated", "ScaleUp"}
"""Somebody brings machines."""
_QUOTA = re.compile(r"(requested|limited): (\S+?)(?:,? |,?$)")
_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15"}


@dataclass(frozen=True)
class Pod:
    """A pod.

    Attributes:
        state: "waiting" for a machine, an image or the like; "running"; "lost": it has ended, or does.
        words: more of that, for people, to follow its name; empty of one that runs.
        hopeless: whether it waits in vain.
        address: where its allocator listens; empty as long as it has none.
        since: when its container began to run, seconds since the epoch; 0 when it does not.
        restarts: how often its container was started again.
        unschedulable_since: when the scheduler found no machine for it; 0 when it has one.
    """

    name: str
    state: Literal["waiting", "running", "lost"]
    words: str = ""
    hopeless: bool = False
    address: str = ""
    since: float = 0.0
    restarts: int = 0
    unschedulable_since: float = 0.0

    def __str__(self) -> str:
        return f"{self.name} {self.words}"


def read_pod(told: Told) -> Pod:
    """Return what the API tells of a pod."""
    name, status = told["metadata"]["name"], told.get("status") or {}
    statuses = sorted(status.get("containerStatuses") or [{}], key=lambda each: each.get("name") not in OURS)
    state = statuses[0].get("state") or {}
    restarts = int(statuses[0].get("restartCount") or 0)
    if taken := _taken_away(status):
        return Pod(name, "lost", taken)
    phase = status.get("phase")
    if told["metadata"].get("deletionTimestamp") and phase != "Failed":
        return Pod(name, "lost", "is being deleted")
    if phase == "Succeeded":
        return Pod(name, "lost", "has ended: nobody held it")
    if phase == "Failed" or "terminated" in state:
        return Pod(name, "lost", _failure(status, state.get("terminated") or {}), restarts=restarts)
    if "running" in state:
        if phase == "Running" and _condition(status, "Ready").get("status") == "False":
            machine = told.get("spec", {}).get("nodeName", "")
            return Pod(name, "lost", f"is on {machine or 'a machine'}, which does not answer")
        since = seconds_of(state["running"].get("startedAt"))
        return Pod(name, "running", address=_address(status.get("podIP", "")), since=since, restarts=restarts)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        words = f"waits: {_reason(scheduled.get('reason'), scheduled.get('message'))}"
        return Pod(name, "waiting", words, unschedulable_since=seconds_of(scheduled.get("lastTransitionTime")))
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason") or "ContainerCreating"
    said = _reason(reason, waiting.get("message"))
    if reason == "CrashLoopBackOff":
        return Pod(name, "lost", f"has failed ({said})", restarts=restarts)
    if reason in _HOPELESS:
        return Pod(name, "waiting", f"waits in vain: {said}", True)
    return Pod(name, "waiting", f"waits: {said}")


def _taken_away(status: Told) -> str:
    """Return how a pod was taken away from us, or from its machine; empty when it was not."""
    target = _condition(status, "DisruptionTarget")
    if target.get("status") == "True":
        return f"was taken away ({_reason(target.get('reason'), target.get('message'))})"
    if status.get("reason") in _TAKEN_AWAY:
        return f"was taken away ({_reason(status['reason'], status.get('message'))})"
    return ""


def _failure(status: Told, terminated: Told) -> str:
    """Return why the container of a pod has ended."""
    reason, code = terminated.get("reason") or status.get("reason") or "", terminated.get("exitCode")
    message = terminated.get("message") or status.get("message")
    if reason in ("", "Error", "Completed") and code is not None:
        return f"has no allocator any more: it ended with exit status {code}" + (
            f" ({_line(message)})" if message else ""
        )
    return f"has failed ({_reason(reason, message)})"


def taken_away(name: str, events: Sequence[Told]) -> str:
    """Return what became of pods of a job of that name which are gone; empty when nobody tells."""
    found = {}
    for event in events:
        pod, reason = event.get("involvedObject", {}).get("name", ""), event.get("reason", "")
        if pod.startswith(f"{name}-") and reason in _TAKEN_AWAY:
            found[pod] = f"{pod} was taken away ({_reason(reason, event.get('message'))})"
    return "; ".join(found.values())


def explained(pod: Pod, events: Sequence[Told]) -> Pod:
    """Return a pod that waits, with what events say of it: why an image is not pulled, or a volume is not there.

    Args:
        events: the newest last.
    """
    warnings = [event for event in events if event.get("type") == "Warning" and event.get("message")]
    pulls = [event for event in warnings if "pull" in event["message"] and "Back-off" not in event["message"]]
    if pod.hopeless and pulls and (said := _line(pulls[-1]["message"])) not in pod.words:
        return Pod(pod.name, pod.state, f"{pod.words}: {said}", pod.hopeless)
    if "ContainerCreating" in pod.words and events and events[-1].get("reason") == "Pulling":
        return Pod(pod.name, pod.state, f"waits: {_line(events[-1].get('message'))}")
    mounts = [event for event in warnings if event.get("reason", "").startswith(("Failed", "NetworkNotReady"))]
    if mounts and "ContainerCreating" in pod.words:
        return Pod(pod.name, pod.state, f"waits: {_reason(mounts[-1]['reason'], mounts[-1]['message'])}", pod.hopeless)
    return pod


def refused_pods(events: Sequence[Told]) -> tuple[str, bool]:
    """Return why pods of a job are not even made, and whether they will never be; empty when nothing is said."""
    messages = [
        event.get("message", "") for event in events if event.get("reason") in ("FailedCreate", "FailedCreatePod")
    ]
    if not messages:
        return "", False
    said = _line(messages[-1].removeprefix("Error creating: "))
    return said, "is forbidden" in said and not ("exceeded quota" in said and not _beyond_quota(said))


def _beyond_quota(said: str) -> bool:
    """Whether what is requested is more than a quota has when nothing is used.

    Example:
        >>> _beyond_quota("exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4")
        False
    """
    told = dict(_QUOTA.findall(said))
    requested, limited = (_amounts(told.get(label, "")) for label in ("requested", "limited"))
    return any(amount > limited[name] for name, amount in requested.items() if name in limited)


def _amounts(text: str) -> dict[str, Decimal]:
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name: quantity(amount) for name, _, amount in pairs}


def are_scaling(events: Sequence[Told]) -> bool:
    """Whether somebody brings machines for a pod."""
    return any(event.get("reason") in _SCALING for event in events)


def never_fits(machines: Sequence[Told], needs: Mapping[str, str], nodes: int) -> str:
    """Return why so many pods find no room even when nothing else runs; empty when they do.

    Args:
        machines: as the API tells of them, whoever may use them.
        needs: what a pod asks for.
    """
    room = 0
    most: dict[str, Decimal] = dict.fromkeys(needs, Decimal(0))
    for machine in machines:
        has = machine.get("status", {}).get("allocatable", {})
        fits = []
        for name, amount in needs.items():
            here = quantity(has.get(name, "0"))
            most[name] = max(most[name], here)
            fits.append(int(here // quantity(amount)))
        room += min(int(quantity(has.get("pods", "110"))), *fits) if fits else int(quantity(has.get("pods", "110")))
    short = [
        f"{amount} {name}: the most is {most[name]}" for name, amount in needs.items() if quantity(amount) > most[name]
    ]
    if short:
        return f"no machine of the cluster has {'; or '.join(short)}"
    if room < nodes:
        return f"all machines of the cluster together have room for {counted(room, 'such pod')}, not for {nodes}"
    return ""


def quantity(text: str) -> Decimal:
    """Read a quantity.

    Example:
        >>> quantity("1500m"), quantity("2Ki")
        (Decimal('1.500'), Decimal('2048'))
    """
    text = str(text)
    if text[-2:] in _BINARY:
        return Decimal(text[:-2]) * _BINARY[text[-2:]]
    if text[-1:] in _DECIMAL:
        return Decimal(text[:-1]) * Decimal(_DECIMAL[text[-1]])
    return Decimal(text)


def job_end(status: Told) -> tuple[str, str] | None:
    """Return how a job has ended, and why; None when it has not."""
    for kind in ("Complete", "Succeeded"):
        if _condition(status, kind).get("status") == "True":
            return "has ended", ""
    failed = _condition(status, "Failed")
    if failed.get("status") == "True":
        return "has failed", _reason(failed.get("reason"), failed.get("message"))
    return None


def why_suspended(status: Told) -> str:
    """Return why a job is suspended, as in a queue; empty when it is not."""
    condition = _condition(status, "Suspended")
    return _reason(condition.get("reason"), condition.get("message")) if condition.get("status") == "True" else ""


def seconds_of(text: str | None) -> float:
    """Return a time of the API's as seconds since the epoch; 0 when there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _address(ip: str) -> str:
    if not ip:
        return ""
    return f"[{ip}]:{DEFAULT_PORT}" if ":" in ip else f"{ip}:{DEFAULT_PORT}"


def _condition(status: Told, kind: str) -> Told:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})


def _reason(reason: str | None, message: str | None) -> str:
    words = [part for part in (reason, message and _line(message)) if part]
    return ": ".join(words) or "no reason is given"


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).rstrip(".")

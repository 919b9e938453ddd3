"""Talks to SkyPilot for a notebook whose kernel stays free of it: SkyPilot's import takes seconds, and it is often
installed in an environment of its own. It answers lines of JSON with lines of JSON, and ends when nobody asks any more.

It is run as a file, by the Python that has SkyPilot, which need not have monarch_nb.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import sky
from sky import exceptions
from sky.client import sdk
from sky.client.cli import command
from sky.utils import cluster_utils, common, dag_utils, registry

IDLE_S = 30.0
"""It ends when nobody has asked for so long."""
IDLE_MINUTES = 5
"""SkyPilot takes a cluster down when nothing has run there for so long."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WITHOUT_PRICES = ("Kubernetes", "SSH", "Slurm", "vSphere")
"""Where machines are somebody's own: SkyPilot takes these first, whatever others cost."""
_NO_CATALOG = (requests.RequestException, OSError, ValueError)
_RESOURCES = ("infra", "accelerators", "instance_type", "cpus", "memory", "use_spot", "image_id", "disk_size")

Facts = dict[str, Any]


# ---- what is asked ----


def check(facts: Facts) -> Facts:
    """Have SkyPilot say what there never is."""
    sdk.get(sdk.optimize(dag_utils.convert_entrypoint_to_dag(_task(facts))))
    return {}


def offer(facts: Facts) -> Facts:
    """Return what SkyPilot would choose, as far as its catalog says."""
    check(facts)
    [wanted] = _task(facts).resources
    names = [str(wanted.cloud)] if wanted.cloud else sdk.get(sdk.enabled_clouds())
    if any(name in _WITHOUT_PRICES for name in names):
        return {"text": "", "price_per_hour": 0.0}
    feasible = ((_price(found, facts["nodes"]), found) for name in names for found in _feasible(name, wanted))
    price, chosen = min((pair for pair in feasible if pair[0]), key=lambda pair: pair[0], default=(0.0, None))
    return {"text": _what(chosen, facts["nodes"]) if chosen else "", "price_per_hour": price}


def launch(facts: Facts) -> Facts:
    """Ask for a cluster; it goes down by itself when its job has ended."""
    request = sdk.launch(_task(facts), cluster_name=facts["cluster"], idle_minutes_to_autostop=IDLE_MINUTES, down=True)
    return {"request": str(request)}


def wait(facts: Facts) -> Facts:
    """Wait until a cluster runs, and have OpenSSH know its machines; return what they are called, the first one first.

    What SkyPilot says meanwhile is appended to the file `log`.
    """
    with open(facts["log"], "a") as log:
        _, handle = sdk.stream_and_get(facts["request"], output_stream=_Plain(log))
    name = facts["cluster"]
    _tell_ssh(name)
    hosts = [name, *(f"{name}-worker{index}" for index in range(1, handle.launched_nodes))]
    resources = handle.launched_resources
    return {
        "hosts": hosts,
        "text": _what(resources, handle.launched_nodes),
        "price_per_hour": _price(resources, handle.launched_nodes),
    }


def state(facts: Facts) -> Facts:
    """Return whether a cluster is up, as SkyPilot writes it; empty when there is none. The cloud is asked: it may
    have taken the cluster down by itself."""
    found = sdk.get(sdk.status([facts["cluster"]], refresh=common.StatusRefreshMode.AUTO, all_users=True))
    return {"state": found[0]["status"].value if found else ""}


def down(facts: Facts) -> Facts:
    """End a cluster, also one that is being launched; again is as once."""
    name = facts["cluster"]
    if facts["request"]:
        sdk.get(sdk.api_cancel([facts["request"]], silent=True))
    with contextlib.suppress(exceptions.ClusterDoesNotExist):
        sdk.get(sdk.down(name))
    cluster_utils.SSHConfigHelper.remove_cluster(name)
    Path(cluster_utils.SSHConfigHelper.ssh_cluster_key_path.format(name)).expanduser().unlink(missing_ok=True)
    return {}


# ---- SkyPilot ----


def _task(facts: Facts) -> sky.Task:
    task = sky.Task(name=facts["name"], run=facts["run"], num_nodes=facts["nodes"])
    task.set_resources(sky.Resources(**{name: facts[name] for name in _RESOURCES if facts.get(name)}))
    return task


def _what(resources: sky.Resources, nodes: int) -> str:
    """Return what machines are called: "2 × gpu_1x_a100 on Lambda us-east-1"."""
    where = filter(None, [str(resources.cloud), resources.region])
    return f"{nodes} × {resources.instance_type or 'machines'} on {' '.join(where)}"


def _feasible(cloud: str, wanted: sky.Resources) -> list[Any]:
    """Return which of a cloud's machines would do; none when the catalog can not be read."""
    known = registry.CLOUD_REGISTRY.from_str(cloud)
    try:
        return list(known.get_feasible_launchable_resources(wanted.copy(cloud=known)).resources_list)
    except _NO_CATALOG:
        return []


def _price(resources: sky.Resources, nodes: int) -> float:
    """Return what machines cost in an hour; 0 when the catalog can not be read, which is no reason not to have them."""
    try:
        return float(resources.get_cost(3600.0)) * nodes
    except _NO_CATALOG:
        return 0.0


def _tell_ssh(cluster: str) -> None:
    """Write a cluster into ssh's configuration, as `sky status` does."""
    command.cli.main(["status", cluster], standalone_mode=False)


class _Plain(io.TextIOBase):
    """Writes text to a file as it comes, without colours."""

    def __init__(self, file: io.TextIOBase) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(_COLOURS.sub("", text))
        self._file.flush()
        return len(text)


def _refusal(error: Exception) -> str:
    """Return the class of an error: what our own is called."""
    if isinstance(error, exceptions.ApiServerAuthenticationError):
        return "login"
    if isinstance(error, (exceptions.ApiServerConnectionError, requests.ConnectionError, requests.Timeout)):
        return "away"
    if isinstance(error, exceptions.NoCloudAccessError):
        return "clouds"
    if isinstance(error, exceptions.ResourcesUnavailableError):
        return "capacity"
    return "usage" if isinstance(error, (ValueError, exceptions.NotSupportedError)) else "other"


# ---- lines ----

_CALLS: dict[str, Callable[[Facts], Facts]] = {
    "check": check,
    "offer": offer,
    "launch": launch,
    "wait": wait,
    "state": state,
    "down": down,
}


def main() -> None:
    """Answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SkyPilot prints
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (line := sys.stdin.readline()):
        facts = json.loads(line)
        try:
            answer = _CALLS[facts["call"]](facts)
        except Exception as error:  # noqa: BLE001 -- SkyPilot raises what its server has raised, which is anything
            said = _COLOURS.sub("", str(error)).strip() or type(error).__name__
            answer = {"refused": _refusal(error), "message": said}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()

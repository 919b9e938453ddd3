"""Machines of any cloud, by SkyPilot: a job is a cluster of SkyPilot's, whose machines are prepared by ssh.

SkyPilot chooses them, starts them, and has OpenSSH know them. What is SkyPilot's own job there only waits for our
allocators to end: then nothing runs, and SkyPilot takes the cluster down. So nothing stays, whatever becomes of us.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, TrustPaths, cadence, patience
from monarch_nb.errors import CapacityError, MonarchNbError, PoolError, UsageError
from monarch_nb.provision import Option
from monarch_nb.provision.helpers import Helper
from monarch_nb.provision.launchers import Ask, EngineFlags, Job, Look, Offer
from monarch_nb.provision.remote.command import ssh_command
from monarch_nb.provision.remote.preparing import (
    Preparation,
    allocator_flags,
    begin,
    end_preparing,
    is_preparing,
    look_at,
    preparation_of,
    serve,
)
from monarch_nb.provision.remote.tunnels import forget
from monarch_nb.trust.pools import change_hosts, read_hosts
from monarch_nb.trust.private_files import read_private, write_private

CALL_S = patience(120.0)
"""SkyPilot may start its own server first."""
PREPARED_S = patience(3600)
"""So long it may take until allocators run: packages may have to be installed."""
HOLD_EVERY_S = cadence(5)


class SkyLauncher:
    """Machines that SkyPilot has. A target is what it calls an infra: a cloud, or more, as in `aws/us-east-1`.

    A job is known by its cluster, as `sky status` shows it: "sky-dev-1f2e".
    """

    title = "SkyPilot cluster"
    targets = "CLOUD/REGION"

    def options(self) -> list[Option]:
        """Return what people choose of most machines, without a word to SkyPilot, which is slow to load."""
        _python()
        return [
            Option("accelerator", "GPU", "text", "", "as in H100; sky show-gpus lists them", flag="--accelerator"),
            Option("spot", "Spot", "boolean", False, "cheaper; can be taken away", flag="--spot"),
            Option("instance", "Instance type", "text", "", "as the cloud calls it", flag="--instance-type"),
            Option("image", "Image", "text", "", "of the machines; docker:NAME for a container", flag="--image"),
        ]

    def offer(self, ask: Ask) -> Offer:
        """Return which machines SkyPilot would choose now, and what they cost."""
        found = _call("offer", **_task(ask))
        return Offer(f"would be {found['text']}", found["price_per_hour"])

    def ask(self, ask: Ask) -> str:
        """Have SkyPilot launch a cluster, and start to wait for it."""
        ssh_command()
        task = _task(ask)
        _call("check", **task)
        cluster = f"{ask.pool}-{secrets.token_hex(2)}"
        request = ""
        try:
            request = _call("launch", cluster=cluster, **task)["request"]
            _Launch(cluster, request).save(ask.paths)
            flags = tuple(allocator_flags(ask))
            begin(__name__, ask, Preparation((), flags, ask.gpus, "", None, os.uname().nodename))
        except BaseException:
            with contextlib.suppress(MonarchNbError):  # what it launches nevertheless it takes down when nothing runs
                _call("down", cluster=cluster, request=request)
            raise
        return cluster

    def look(self, job: Job) -> Look:
        """Return how far the cluster is; or, once allocators serve, which of its machines do no more."""
        preparation = preparation_of(job)
        if preparation is None:
            return Look("ended", f"nothing is known of SkyPilot cluster {job.id} any more", "it has ended")
        launch = _Launch.load(job.paths)
        if is_preparing(job.paths):
            said = "; ".join(f"{host} {text}" for host, text in preparation.said.items()) or _last_line(job.paths)
            text = f"SkyPilot cluster {job.id}: {said or 'is being launched'}"
            return Look("waiting", text, price_per_hour=launch.price_per_hour)
        if preparation.state == "serving":
            return _look_at(job, launch)
        _down(launch)
        if preparation.state == "failed":
            why = preparation.error
            return Look("ended", f"SkyPilot cluster {job.id}: {why}", why, no_room=launch.no_room)
        return Look("ended", f"what prepared SkyPilot cluster {job.id} was killed", "it was killed")

    def extend(self, job: Job, by_s: float) -> None:
        """Clusters have no limit: that of the reservation is all there is."""
        raise UsageError("SkyPilot's clusters have no time limit")

    def end(self, job: Job) -> None:
        """Take the cluster down; its machines go with all that is on them."""
        preparation = preparation_of(job)
        if preparation is None:
            return
        end_preparing(job.paths, preparation)
        _down(_Launch.load(job.paths))
        forget(read_hosts(job.paths).ssh)
        change_hosts(job.paths, lambda hosts: replace(hosts, ssh=()))


@dataclass(frozen=True)
class _Launch:
    """What is remembered of a cluster.

    Attributes:
        request: as SkyPilot calls the launch. text: what machines it has.
        price_per_hour: of all of them, 0 as long as it is not known.
        no_room: whether it was not launched as no cloud has so much.
    """

    cluster: str
    request: str
    text: str = ""
    price_per_hour: float = 0.0
    no_room: bool = False

    @classmethod
    def load(cls, paths: TrustPaths) -> _Launch:
        try:
            return cls(**json.loads(read_private(_note(paths))))
        except (OSError, ValueError, TypeError) as error:
            raise PoolError(f"{_note(paths)} can not be read: {error}") from error

    def save(self, paths: TrustPaths) -> None:
        write_private(_note(paths), json.dumps(asdict(self), indent=2).encode() + b"\n")


def _note(paths: TrustPaths) -> Path:
    return paths.directory / "sky.json"


# ---- what is asked ----


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = EngineFlags("SkyPilot")
    for flag in ("--accelerator", "--instance-type", "--cpus", "--memory", "--image", "--infra"):
        parser.add_argument(flag)
    parser.add_argument("--disk-size", type=int)
    parser.add_argument("--spot", action="store_true")
    return parser.parse_args(list(arguments))


def _task(ask: Ask) -> dict[str, Any]:
    """Return what SkyPilot is asked for.

    Raises:
        UsageError: it does not say which GPUs.
    """
    options = _options(ask.arguments)
    if ask.target and options.infra:
        raise UsageError(f"--on sky:{ask.target} says where already: leave --infra={options.infra} out")
    if ask.gpus and not options.accelerator and not options.instance_type:
        raise UsageError("say which GPUs: ... -- --accelerator=H100 (sky show-gpus lists them)")
    named = {options.accelerator: ask.gpus} if options.accelerator else None
    some = None if ask.gpus or options.instance_type else f"{ask.procs}+"
    return {
        "name": ask.pool,
        "nodes": ask.nodes,
        "run": hold_script(ask.pool),
        "infra": ask.target or options.infra,
        "accelerators": named,
        "instance_type": options.instance_type,
        "cpus": options.cpus or some,
        "memory": options.memory,
        "disk_size": options.disk_size,
        "image_id": options.image,
        "use_spot": options.spot,
    }


def hold_script(pool: str) -> str:
    """Return what SkyPilot runs on the machines: the first one waits for its allocator, and until it has ended."""
    node = f'"${{XDG_DATA_HOME:-$HOME/.local/share}}"/monarch-nb/nodes/{shlex.quote(pool)}.*/pid'
    return f"""\
[ "${{SKYPILOT_NODE_RANK:-0}}" = 0 ] || exit 0
tries=0
until ls {node} >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -le {PREPARED_S:.0f} ] || exit 0
    sleep 1
done
while ls {node} >/dev/null 2>&1; do sleep {HOLD_EVERY_S}; done
"""


# ---- what becomes of it ----


def _look_at(job: Job, launch: _Launch) -> Look:
    """Ask the machines, and where none says anything, SkyPilot; what has no allocator any more is taken down."""
    hosts = read_hosts(job.paths).ssh
    if not hosts:
        return Look("ended", f"SkyPilot cluster {job.id} has ended", "it was taken down")
    try:
        look = look_at(job, hosts)
    except PoolError:
        if _state(launch) in ("UP", "INIT"):
            raise
        _down(launch)  # OpenSSH still knows it
        return Look("ended", f"SkyPilot cluster {job.id} has ended", "SkyPilot has taken it down")
    if look.state == "ended":
        _down(launch)
        return Look("ended", f"SkyPilot cluster {job.id} has ended: {look.trouble}", look.trouble)
    text = f"SkyPilot cluster {job.id} runs: {launch.text}"
    return Look("running", text, look.trouble, price_per_hour=launch.price_per_hour)


def _state(launch: _Launch) -> str:
    return str(_call("state", cluster=launch.cluster)["state"])


def _down(launch: _Launch) -> None:
    _call("down", cluster=launch.cluster, request=launch.request)


def _last_line(paths: TrustPaths) -> str:
    """Return what SkyPilot has said last."""
    try:
        lines = paths.log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# ---- SkyPilot's own Python ----


def _python() -> str:
    """Return the Python that has SkyPilot: that of the `sky` that is found first, else this one.

    Raises:
        PoolError: neither has.
    """
    found = shutil.which("sky")
    if found and (python := Path(found).resolve().parent / "python").exists():
        return str(python)
    if find_spec("sky") is not None:
        return sys.executable
    raise PoolError(
        "SkyPilot is not installed here: uv tool install skypilot, or pip install 'monarch-nb[sky]'; then sky check"
    )


def _command() -> list[str]:
    return [_python(), "-P", str(Path(__file__).with_name("helper.py"))]


_helper = Helper("SkyPilot", _command, (HOME_VARIABLE, CONFIG_VARIABLE))

_REFUSALS: dict[str, tuple[type[MonarchNbError], str]] = {
    "away": (PoolError, "SkyPilot's API server does not answer (sky api info says which one it is): {message}"),
    "login": (PoolError, "nobody is logged in to SkyPilot's API server: {message}"),
    "clouds": (PoolError, "SkyPilot has no cloud that it may use (sky check says why): {message}"),
    "capacity": (CapacityError, "SkyPilot: {message}"),
    "usage": (UsageError, "SkyPilot: {message}"),
    "other": (PoolError, "SkyPilot: {message}"),
}


def _call(call: str, longest_s: float | None = CALL_S, /, **facts: object) -> dict[str, Any]:
    """Have SkyPilot do something.

    Raises:
        PoolError, CapacityError, UsageError: as SkyPilot says.
    """
    answer = _helper.call({"call": call, **facts}, longest_s)
    if kind := answer.get("refused"):
        error, text = _REFUSALS[kind]
        raise error(text.format(message=answer["message"]))
    return answer


# ---- the process that waits for the cluster, and prepares its machines ----


def _hosts(paths: TrustPaths, _: Preparation) -> list[str]:
    """Wait for the cluster; return its machines."""
    launch = _Launch.load(paths)
    try:
        found = _call("wait", None, cluster=launch.cluster, request=launch.request, log=str(paths.log))
    except CapacityError:
        _Launch(launch.cluster, launch.request, no_room=True).save(paths)
        raise
    _Launch(launch.cluster, launch.request, found["text"], found["price_per_hour"]).save(paths)
    return list(found["hosts"])


def main(arguments: Sequence[str]) -> int:
    """Wait for a cluster, and prepare its machines; return the exit status."""
    return serve(arguments, _hosts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Machines of Lightning AI: a job with one allocator on each, asked for through Lightning's own Python package.

The machines share no files with the notebook: the node's certificate travels as a secret of the teamspace, which jobs
have as an environment variable, and is removed there once they run. Addresses are those that Lightning says.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import secrets
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monarch_nb.config import DEFAULT_PORT, TrustPaths, gap, passed_on, patience
from monarch_nb.errors import CapacityError, MonarchNbError, PoolError, TrustError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Option
from monarch_nb.provision.launchers import Ask, EngineFlags, Job, Look, Offer
from monarch_nb.trust.private_files import read_private, write_private

LOG_S = patience(10.0)
"""So long it is waited for what a job has printed."""
LOG_LINES = 20
LONGEST_MESSAGE = 300
STOP_S = patience(10.0)
"""So long it is waited until Lightning has stopped a job; it goes on stopping by itself after that."""
_ENDED = {"Completed": "has ended", "Failed": "failed", "Stopped": "was stopped"}
_CPU, _OF_CPUS = "CPU", ("CPU", "DATA-PREP")
_TQDM = ("TQDM_POSITION", "TQDM_MININTERVAL")
_NO_ROOM = re.compile(r"quota|capacity|insufficient|not enough|limit|balance|credits", re.IGNORECASE)


class LightningLauncher:
    """Machines of Lightning AI. A target is a teamspace, `owner/teamspace`.

    A job is known by its teamspace and its name, as in "lab/research/lightning-dev-1f2e".
    """

    title = "Lightning job"
    targets = "OWNER/TEAMSPACE"

    def options(self) -> list[Option]:
        """Return what people choose of most jobs, without a word to Lightning or its package, which is slow to load."""
        if find_spec("lightning_sdk") is None:
            raise _not_installed()
        _check_login()
        return [
            Option("machine", "Machine", "text", "", "as in A100_X_8; empty: the smallest, of CPUs", flag="--machine"),
            Option("studio", "Studio", "text", "", "whose environment the machines have", flag="--studio"),
            Option("image", "Image", "text", "", "of a container, instead of a studio", flag="--image"),
            Option("interruptible", "Interruptible", "boolean", False, "cheaper", flag="--interruptible"),
        ]

    def offer(self, ask: Ask) -> Offer:
        """Return which machines it would be, and what Lightning says that they cost."""
        options = _parse(ask.arguments)
        sdk = _sdk()
        machine = _machine_for(sdk.Machine, options.machine, ask.procs, ask.gpus)
        with _translated():
            teamspace = sdk.Teamspace(ask.target or None)
        return Offer(f"would be {ask.nodes} × {machine}", ask.nodes * _price_per_hour(teamspace, machine, options))

    def ask(self, ask: Ask) -> str:
        """Keep the certificate as a secret of the teamspace, and run the job."""
        options = _parse(ask.arguments)
        sdk = _sdk()
        machine = _machine_for(sdk.Machine, options.machine, ask.procs, ask.gpus)
        name = f"{ask.pool}-{secrets.token_hex(2)}"
        key = secret_name(name)
        with _translated():
            teamspace = sdk.Teamspace(ask.target or None)
        price = ask.nodes * _price_per_hour(teamspace, machine, options)
        write_private(_price_path(ask.paths), json.dumps(price).encode())
        with _translated():
            teamspace.set_secret(key, base64.b64encode(read_private(ask.paths.node)).decode())
        try:
            with _translated():
                job = sdk.Job.run(
                    name=name,
                    machine=machine,
                    command=command(ask, key, options.python),
                    teamspace=teamspace,
                    studio=options.studio,
                    image=options.image,
                    cloud=options.cloud,
                    interruptible=options.interruptible,
                    num_machines=ask.nodes,
                )
        except BaseException:
            _forget(teamspace, key)
            raise
        return f"{teamspace.owner.name}/{teamspace.name}/{job.name}"

    def look(self, job: Job) -> Look:
        """Return what Lightning says. The secret of a job that has ended is removed."""
        known = _job(job)
        name = job.id.rpartition("/")[2]
        if known is None:
            return Look("ended", f"Lightning job {name} has ended, and was deleted", "it was deleted")
        with _translated():
            state = str(known.status)
        if what := _ENDED.get(state):
            _forget(known.teamspace, secret_name(name))
            _keep_log(job, known)
            return Look("ended", f"Lightning job {name} {what}", what)
        if state != "Running":
            return Look("waiting", f"Lightning job {name} waits for machines ({state})")
        with _translated():
            machines = known.machines
            hosts = [each.private_ip_address for each in machines]
            states = [str(each.status) for each in machines]
        lost = [f"{host} {_ENDED[state]}" for host, state in zip(hosts, states, strict=True) if state in _ENDED]
        if lost and job.nodes > 1:
            _keep_log(job, known)
        if not job.served and states == ["Running"] * job.nodes:
            _forget(known.teamspace, secret_name(name))  # they have it
        text = f"Lightning job {name} runs on {counted(len(machines), 'machine')}"
        trouble = "; ".join(lost) if job.nodes > 1 else ""
        addresses = tuple(f"{host}:{DEFAULT_PORT}" for host in hosts if host)
        return Look("running", text, trouble, addresses, price_per_hour=_known_price(job.paths))

    def extend(self, job: Job, by_s: float) -> None:
        """Jobs have no limit: that of the reservation is all there is."""
        raise UsageError("Lightning's jobs have no time limit")

    def end(self, job: Job) -> None:
        """Stop the job, and remove its secret."""
        known = _job(job)
        if known is None:
            return
        _within(STOP_S, known.stop)
        _forget(known.teamspace, secret_name(job.id.rpartition("/")[2]))


def secret_name(name: str) -> str:
    """Return what the secret of a job is called.

    Example:
        >>> secret_name("lightning-dev-1f2e")
        'MONARCH_NB_LIGHTNING_DEV_1F2E'
    """
    return f"MONARCH_NB_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"


def command(ask: Ask, key: str, python: str) -> str:
    """Return what each machine runs: an allocator on its own address, with the certificate out of the environment."""
    _, *words = ask.allocator(publish=False)
    at = words.index("--certificate")
    before, after = shlex.join([python, *words[:at]]), shlex.join(words[at + 2 :])
    lines = ["umask 077", "directory=$(mktemp -d)", "trap 'rm -rf \"$directory\"' EXIT"]
    lines += ['address=$(hostname -I | cut -d " " -f 1)']
    lines += [f'printf %s "${key}" | base64 -d > "$directory/node.pem"', f"unset {key}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in passed_on().items()]
    lines += [f'{before} --certificate "$directory/node.pem" {after} \\']
    lines += [f'    --node-id "$address" --listen "$address:{DEFAULT_PORT}" &']
    lines += ["allocator=$!", "trap 'kill $allocator' TERM INT"]
    lines += ["wait $allocator || wait $allocator"]  # the first one ends with a signal
    return "\n".join(lines)


def slots_of(machine: str) -> tuple[int, int]:
    """Return how many CPU ranks fit on a machine of that name, 0 when it has GPUs; and how many GPUs it has.

    Raises:
        UsageError: there is no such machine. PoolError: Lightning's package is not installed.
    """
    known = _machines(_package().Machine)
    if machine not in known:
        raise UsageError(f"Lightning knows no machine {machine}; there are {', '.join(known)}")
    count = int(known[machine].accelerator_count)
    return (count, 0) if known[machine].family in _OF_CPUS else (0, count)


# ---- what is said ----


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = EngineFlags("Lightning")
    for flag in ("--machine", "--studio", "--image", "--cloud"):
        parser.add_argument(flag)
    parser.add_argument("--interruptible", action="store_true")
    parser.add_argument("--python", default="python")
    return parser.parse_args(list(arguments))


def _machines(kind: Any) -> dict[str, Any]:
    """Return Lightning's machines by name."""
    return {name: each for name, each in vars(kind).items() if isinstance(each, kind)}


def _machine_for(kind: Any, name: str | None, procs: int, gpus: int) -> Any:
    """Return the machine to ask for: the one that is named, else the smallest of CPUs only."""
    known = _machines(kind)
    if name is not None:
        if name not in known:
            return name  # one of the cloud's own names
        has = 0 if known[name].family in _OF_CPUS else known[name].accelerator_count
        if gpus and has < gpus:
            raise CapacityError(f"a machine {name} has {counted(has, 'GPU')}, not {gpus}{_with(known, gpus)}")
        return known[name]
    if gpus:
        raise UsageError(f"say which machine: ... -- --machine=NAME{_with(known, gpus)}")
    fitting = [each for each in known.values() if each.family == _CPU and each.accelerator_count >= procs]
    if not fitting:
        raise CapacityError(f"Lightning has no machine of {procs} CPUs: name one, as in ... -- --machine=DATA_PREP")
    return min(fitting, key=lambda each: (each.accelerator_count, each.name))


def _with(known: dict[str, Any], gpus: int) -> str:
    names = [name for name, each in known.items() if each.family not in _OF_CPUS and each.accelerator_count == gpus]
    return f"; with {gpus} there are {', '.join(names)}" if names else ""


def _price_path(paths: TrustPaths) -> Path:
    return paths.directory / "lightning.json"


def _known_price(paths: TrustPaths) -> float:
    """Return what was said of a job's machines when they were asked for."""
    try:
        return float(json.loads(read_private(_price_path(paths))))
    except (OSError, ValueError, TypeError, TrustError):
        return 0.0


# ---- Lightning's package ----


@cache
def _package() -> Any:
    """Import it, without what that does beside: it asks for the descriptor of stderr, which a kernel's may not have,
    logs there, and tells tqdm how to show progress."""
    before = {name: os.environ.get(name) for name in _TQDM}
    try:
        with redirect_stderr(sys.__stderr__ or sys.stderr):
            package = import_module("lightning_sdk")
    except ImportError:
        raise _not_installed() from None
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
    return package


def _sdk() -> Any:
    """Return the package, when somebody is logged in and the service can be reached: else it would open a browser, and
    try again for minutes."""
    package = _package()
    _check_login()
    url = urlsplit(os.environ.get("LIGHTNING_CLOUD_URL", "https://lightning.ai"))
    if not any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")):
        try:
            port = url.port or (80 if url.scheme == "http" else 443)
            socket.create_connection((url.hostname or "", port), gap(5.0)).close()
        except OSError as error:
            raise PoolError(f"Lightning does not answer at {url.geturl()}: {error}") from None
    return package


def _check_login() -> None:
    """Raise PoolError when nobody is logged in."""
    own = any(os.environ.get(f"LIGHTNING_{name}") for name in ("API_KEY", "AUTH_TOKEN"))
    path = Path(os.environ.get("LIGHTNING_CREDENTIAL_PATH", Path.home() / ".lightning" / "credentials.json"))
    if not own and not path.exists():
        raise PoolError(
            "nobody is logged in to Lightning here: lightning login, or set LIGHTNING_USER_ID and LIGHTNING_API_KEY"
        )


def _not_installed() -> PoolError:
    return PoolError(
        "Lightning's package is not installed here: pip install 'monarch-nb[lightning-sdk]', then lightning login"
    )


@cache
def _teamspace(name: str) -> Any:
    return _sdk().Teamspace(name)


def _job(job: Job) -> Any:
    """Return Lightning's job; None when it was deleted."""
    sdk = _sdk()
    teamspace, _, name = job.id.rpartition("/")
    with _translated():
        where = _teamspace(teamspace)
        try:
            return sdk.Job(name, teamspace=where)
        except ValueError:
            return None


def _price_per_hour(teamspace: Any, machine: Any, options: argparse.Namespace) -> float:
    """Return what a machine costs where it is cheapest, in Lightning's credits, which are US dollars; 0 when Lightning
    does not say, or a cloud is named, whose prices it lists by another name."""
    if options.cloud:
        return 0.0
    listed: list[Any] = []
    with suppress(MonarchNbError), _translated():
        listed = teamspace.list_machines(machine=None if isinstance(machine, str) else machine.name)
    prices = [
        each.interruptible_cost if options.interruptible else each.cost
        for each in listed
        if not isinstance(machine, str) or each.instance_type == machine
    ]
    return min(filter(None, prices), default=0.0)


def _keep_log(job: Job, known: Any) -> None:
    """Write what the machines have printed last where it is looked for, when nodes did not come up."""
    if job.served or not job.paths.directory.exists():
        return

    def read() -> None:
        job.paths.log.write_text(str(known.logs(tail=LOG_LINES)))

    _within(LOG_S, read)


def _forget(teamspace: Any, key: str) -> None:
    """Remove a secret, if it is there."""
    with _translated(), suppress(ValueError):
        teamspace.delete_secret(key)


def _within(longest_s: float, call: Callable[[], None]) -> None:
    """Call something that waits for as long as it takes; go on after a while."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with _translated():
                call()
        except MonarchNbError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(longest_s)
    if raised:
        raise raised[0]


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what Lightning's package raises as our own errors."""
    refused = import_module("lightning_sdk.lightning_cloud.openapi.rest").ApiException
    unreachable = import_module("urllib3.exceptions").HTTPError
    try:
        yield
    except Exception as error:
        # The package gives up after some attempts with an exception of no kind, in the context of the last one.
        cause = error.__context__ if type(error) is Exception else error
        if isinstance(cause, refused):
            raise _refusal(cause.status, _message(cause.body)) from error
        if isinstance(cause, (unreachable, OSError)):
            raise PoolError(f"Lightning does not answer: {cause}") from error
        if type(cause) in (ValueError, RuntimeError):
            raise UsageError(f"Lightning: {cause}") from error
        raise


def _message(body: object) -> str:
    """Return what the service says of a refusal: JSON with a message, or anything."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "it says nothing")
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(text)["message"])
    return text[:LONGEST_MESSAGE]


def _refusal(status: int, said: str) -> CapacityError | PoolError | UsageError:
    if status in (401, 403):
        return PoolError(f"Lightning does not let you: {said} (lightning login)")
    if status >= 500:
        return PoolError(f"Lightning does not answer: {said}")
    if _NO_ROOM.search(said):
        return CapacityError(f"Lightning refused the job: {said}")
    return UsageError(f"Lightning refused the job: {said}")

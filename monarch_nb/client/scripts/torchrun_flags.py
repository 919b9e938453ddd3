"""torchrun's flags, checked against what is held: what they say already is confirmed, what contradicts it is refused.

torchrun starts the processes that its flags describe; here what a script runs on is held before. So most flags can only
be right or wrong, and a few do something. None is ignored in silence: what changes nothing here is said in a note.
Pure: the lines are read by `%mesh run` and `monarch-nb run`, each in its own way; `FLAGS` says to both what there is.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monarch_nb.client.scripts.script import Script
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import counted

if TYPE_CHECKING:
    from monarch_nb.client.runs.needs import HeldMesh

Given = Mapping[str, object]
"""What a line says: by the names of flags as identifiers ("nnodes", "no_python") their values, or True for a switch."""


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Held:
    """What a script would run on.

    Attributes:
        nodes, ranks_per_node: so many.
        kind: of the ranks: "procs", or "gpus" when each has one.
        hosts: names and addresses of the node where the ranks meet.
        reserve: the command that holds another shape, without the shape.
    """

    nodes: int
    ranks_per_node: int
    kind: str = "procs"
    hosts: frozenset[str] = LOOPBACK
    reserve: str = "%mesh reserve --replace"

    @property
    def ranks(self) -> str:
        """What runs on each node: "4 CPU ranks"."""
        return counted(self.ranks_per_node, "GPU rank" if self.kind == "gpus" else "CPU rank")

    def other(self, nodes: int, ranks_per_node: int) -> str:
        """Return how one comes to a shape that is not held: by a part of what is, or by another reservation."""
        if nodes <= self.nodes and ranks_per_node <= self.ranks_per_node:
            parts = [("hosts", nodes, self.nodes), (self.kind, ranks_per_node, self.ranks_per_node)]
            chosen = ",".join(f"{name}=0:{wanted}" for name, wanted, held in parts if wanted < held)
            return f"-t {chosen} chooses that many"
        return f"{self.reserve} --nodes {nodes} --{self.kind} {ranks_per_node} holds that many"


@dataclass(frozen=True, slots=True)
class Launch:
    """What the flags ask for, besides what is held.

    Attributes:
        module, executable: `path` is a module's name; it is a command.
        max_restarts: how often the script is started again.
        environment: variables of the ranks.
        shown: local ranks whose output is shown; None for all.
        notes: what to say about flags that change nothing here.

    Example:
        launch = read(given, os.environ, held_by(mesh, "%mesh reserve --replace"))
        run = mesh.start_script(launch.script("train.py", ["--lr", "3e-4"]))
    """

    module: bool = False
    executable: bool = False
    max_restarts: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    shown: frozenset[int] | None = None
    notes: tuple[str, ...] = ()

    def script(
        self,
        path: str,
        arguments: Iterable[str],
        *,
        in_place: bool = False,
        beside: bool = False,
        directory: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Script:
        """Return the script that is started so. Its environment has what the flags say, and what is given here."""
        return Script(
            path,
            tuple(arguments),
            module=self.module,
            executable=self.executable,
            in_place=in_place,
            beside=beside,
            max_restarts=self.max_restarts,
            environment={**(environment or {}), **self.environment},
            directory=directory,
        )

    def shown_ranks(self, mesh: HeldMesh) -> frozenset[int] | None:
        """Return the ranks of a mesh whose output is shown; None for all."""
        if self.shown is None:
            return None
        by_node = mesh.core.by_node(mesh.ranks).values()
        return frozenset(rank for ranks in by_node for local, rank in enumerate(ranks) if local in self.shown)


Check = Callable[[str, str, Held], str]
"""Takes a flag as it was given (`--nnodes 4`, `PET_NNODES=4`), its value and what is held; returns a note, or ""."""


def _confirmed(said: str, value: str, held: Held) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class TorchrunFlag:
    """One flag of torchrun.

    Attributes:
        name: as torchrun's help has it; with _ for - it is the same flag.
        help: what it does here.
        value: what stands after it; empty for a switch.
        check: refuses what contradicts what is held.
        short: torchrun's short form, where it is not another flag's here.
        variable: whether torchrun also reads it from PET_….
        since: the first release of torch that has it, where that is newer than the oldest we support.
    """

    name: str
    help: str
    value: str = ""
    check: Check = _confirmed
    short: str = ""
    variable: bool = True
    since: str = ""


def read(given: Given, environment: Mapping[str, str], held: Held) -> Launch:
    """Check what a line says, and PET_ variables where it says nothing, as torchrun reads them.

    Raises:
        UsageError: a value that can not be read, or that contradicts what is held; the message says what to do.

    Example:
        >>> read({"nnodes": "1:4", "max_restarts": "2"}, {}, Held(nodes=2, ranks_per_node=4)).max_restarts
        2
        >>> read({"nnodes": "4"}, {}, Held(nodes=2, ranks_per_node=4))
        Traceback (most recent call last):
            ...
        monarch_nb.errors.UsageError: --nnodes 4: 2 nodes are held. Leave it out, or %mesh reserve --replace --nodes 4 \
--procs 4 holds that many
    """
    values: dict[str, str] = {}
    notes: dict[str, list[str]] = {}  # flags by what there is to say of them
    for flag in FLAGS:
        found = _found(flag, given, environment)
        if found is None:
            continue
        said, values[flag.name] = found
        if note := flag.check(said, values[flag.name], held):
            notes.setdefault(note, []).append(said)
    executable, module = "--no-python" in values, "--module" in values
    if module and "--run-path" in values:
        raise UsageError("-m names a module and --run-path a file: leave one out")
    named = {"TORCHELASTIC_RUN_ID": values.get("--rdzv-id"), "ROLE_NAME": values.get("--role")}
    shown = values.get("--local-ranks-filter")
    return Launch(
        module=module,
        executable=executable and "--run-path" not in values,
        max_restarts=int(values.get("--max-restarts", 0)),
        environment={name: value for name, value in named.items() if value is not None},
        shown=frozenset(map(int, shown.split(","))) if shown else None,
        notes=tuple(f"{', '.join(flags)}: {note}" for note, flags in notes.items()),
    )


def held_by(mesh: HeldMesh, reserve: str) -> Held:
    """Return what a script would run on that is started on `mesh`.

    Args:
        reserve: the command that holds another shape.
    """
    kind = "gpus" if mesh.reservation.gpus else "procs"
    return held_in(mesh.ranks, mesh.core.ranks_per_node, kind, reserve)


def held_in(ranks: Iterable[int], ranks_per_node: int, kind: str, reserve: str) -> Held:
    """As `held_by`, for ranks that may not be there yet, of nodes with so many each."""
    numbers = Counter(rank // ranks_per_node for rank in ranks)
    return Held(len(numbers), max(numbers.values()), kind, LOOPBACK | {socket.gethostname()}, reserve)


def _found(flag: TorchrunFlag, given: Given, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return how a flag was given, and its value; None when it was not."""
    key = flag.name.lstrip("-").replace("-", "_")
    value = given.get(key)
    if value is True:
        return flag.name, ""
    if isinstance(value, str):
        return f"{flag.name} {value}", value
    variable = f"PET_{key.upper()}"
    text = environment.get(variable, "") if flag.variable else ""
    if not text or (not flag.value and text == "0"):
        return None
    if not flag.value and not text.isdecimal():
        raise UsageError(f"{variable}={text} (in the environment): it is 1 or 0")
    return f"{variable}={text} (in the environment)", text


# ---- what each says ----


def _refused(why: str) -> Check:
    """Return the check of a flag that makes no sense here, whatever its value."""

    def check(said: str, value: str, held: Held) -> str:
        raise UsageError(f"{said}: {why}. Leave it out")

    return check


def _without_meaning(why: str, pattern: str = "", meant: str = "") -> Check:
    """Return the check of a flag that sets something which is not there; its value must be one for torchrun."""

    def check(said: str, value: str, held: Held) -> str:
        if pattern and not re.fullmatch(pattern, value):
            raise UsageError(f"{said}: give {meant}")
        return why

    return check


def _whole(said: str, text: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise UsageError(f"{said}: give a whole number of at least {least}")
    return int(text)


def _nnodes(said: str, value: str, held: Held) -> str:
    least, colon, most = value.partition(":")
    fewest = _whole(said, least, 1)
    largest = _whole(said, most, fewest) if colon else fewest
    if fewest <= held.nodes <= largest:
        return ""
    there = held.other(fewest if held.nodes < fewest else largest, held.ranks_per_node)
    are = "is" if held.nodes == 1 else "are"
    raise UsageError(f"{said}: {counted(held.nodes, 'node')} {are} held. Leave it out, or {there}")


def _nproc_per_node(said: str, value: str, held: Held) -> str:
    if value in ("auto", "cpu" if held.kind == "procs" else "gpu"):
        return f"{held.ranks} on each node"
    if value in ("cpu", "gpu"):
        of_node = "cpu" if held.kind == "procs" else "gpu"
        raise UsageError(
            f"{said}: the reservation has {held.ranks} on each node. Write {of_node}, or leave it out; {held.reserve} "
            f"--nodes {held.nodes} --{'gpus' if value == 'gpu' else 'procs'} N holds others, where there are some"
        )
    if not value.isdecimal():
        raise UsageError(f"{said}: give a whole number, auto, gpu or cpu")
    wanted = _whole(said, value, 1)
    if wanted == held.ranks_per_node:
        return ""
    there = held.other(held.nodes, wanted)
    raise UsageError(f"{said}: the reservation has {held.ranks} on each node. Leave it out, or {there}")


def _standalone(said: str, value: str, held: Held) -> str:
    if held.nodes > 1:
        there = held.other(1, held.ranks_per_node)
        raise UsageError(f"{said} means one node, and {held.nodes} are held. Leave it out, or {there}")
    return ""


def _rdzv_backend(said: str, value: str, held: Held) -> str:
    if value not in ("c10d", "static"):
        raise UsageError(f"{said}: the ranks meet at a TCP store on their first node, as with c10d. Leave it out")
    return ""


_OWN_STORE = "each script has a store of its own, at a free port of its first node"


def _rdzv_endpoint(said: str, value: str, held: Held) -> str:
    match = re.fullmatch(r"(\[(?P<address>.*)\]|(?P<host>[^:]*))(:(?P<port>\d*))?", value)
    host = (match["address"] or match["host"]) if match else value
    _check_host(said, host, held)
    return _OWN_STORE if match and (match["port"] or "0") != "0" else ""


def _master_addr(said: str, value: str, held: Held) -> str:
    _check_host(said, value.strip("[]"), held)
    return ""


def _check_host(said: str, host: str, held: Held) -> None:
    if not {host, host.partition(".")[0]} & held.hosts:  # also by its name with a domain
        raise UsageError(f"{said}: {_OWN_STORE}; ranks can not meet elsewhere. Leave it out")


def _master_port(said: str, value: str, held: Held) -> str:
    return _OWN_STORE if _whole(said, value) else ""


def _local_addr(said: str, value: str, held: Held) -> str:
    if value not in held.hosts:
        raise UsageError(f"{said}: nodes know their own addresses. Leave it out")
    return ""


def _node_rank(said: str, value: str, held: Held) -> str:
    if _whole(said, value):
        raise UsageError(
            f"{said}: one command starts the script on all nodes ({held.nodes} here). Leave it out, and start nothing "
            "for the other nodes"
        )
    return ""


def _max_restarts(said: str, value: str, held: Held) -> str:
    _whole(said, value)
    return ""


def _event_log_handler(said: str, value: str, held: Held) -> str:
    if value != "null":
        raise UsageError(f"{said}: there is no elastic agent whose events could be logged. Leave it out")
    return ""


def _tee(said: str, value: str, held: Held) -> str:
    if not re.fullmatch(r"[0123]|(\d+:[0123],)*\d+:[0123]", value):
        raise UsageError(f"{said}: give 0, 1, 2, 3 or RANK:N,RANK:N")
    return ""


def _redirects(said: str, value: str, held: Held) -> str:
    _tee(said, value, held)
    return "" if value == "0" else "every rank's output is kept in files, and shown here all the same"


def _local_ranks_filter(said: str, value: str, held: Held) -> str:
    if any(_whole(said, each) >= held.ranks_per_node for each in value.split(",")):
        raise UsageError(f"{said}: there are {held.ranks} on each node, 0 to {held.ranks_per_node - 1}")
    return "only the logs have the output of the other ranks"


def _signals_to_handle(said: str, value: str, held: Held) -> str:
    if more := {each.strip() for each in value.split(",")} - {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"}:
        raise UsageError(f"{said}: {', '.join(sorted(more))} would not reach the ranks. Leave it out")
    return ""


_SECONDS = {"pattern": r"\d+(\.\d*)?|\.\d+", "meant": "a number of seconds"}
_NO_COPIES = _refused("no filtered copies of the output are made; the logs have all of it")

FLAGS = (
    TorchrunFlag("--nnodes", "must be the number of held nodes, or a range with that number", "N|MIN:MAX", _nnodes),
    TorchrunFlag(
        "--nproc-per-node",
        "must be the ranks per node; auto means these, as do gpu for GPU ranks and cpu for others",
        "N",
        _nproc_per_node,
    ),
    TorchrunFlag("--standalone", "confirmed when you hold one node", check=_standalone),
    TorchrunFlag("--max-restarts", "after a failure, restart all ranks, at most N times", "N", _max_restarts),
    TorchrunFlag("--module", "SCRIPT is a module, as for python -m", short="-m"),
    TorchrunFlag("--no-python", "SCRIPT is a command"),
    TorchrunFlag("--run-path", "confirmed: SCRIPT runs in an interpreter that is there"),
    TorchrunFlag("--node-rank", "0 is confirmed, others are refused: one command starts all nodes", "N", _node_rank),
    TorchrunFlag("--master-addr", "confirmed when it is the first node, else refused", "HOST", _master_addr),
    TorchrunFlag("--master-port", "not needed; a note says so: each script has its own store", "PORT", _master_port),
    TorchrunFlag("--local-addr", "confirmed when it is this node, else refused", "HOST", _local_addr),
    TorchrunFlag("--rdzv-backend", "c10d and static are confirmed, others refused", "NAME", _rdzv_backend),
    TorchrunFlag("--rdzv-endpoint", "confirmed when it is the first node, else refused", "HOST:PORT", _rdzv_endpoint),
    TorchrunFlag("--rdzv-id", "TORCHELASTIC_RUN_ID in the ranks", "ID"),
    TorchrunFlag(
        "--rdzv-conf",
        "changes nothing; a note says so",
        "KEY=VALUE,…",
        _without_meaning("the ranks are there already: no rendezvous takes place"),
    ),
    TorchrunFlag("--role", "ROLE_NAME in the ranks", "NAME"),
    TorchrunFlag("--tee", "confirmed: output is kept in files and shown (`-t` is ours)", "N|RANK:N,…", _tee),
    TorchrunFlag("--redirects", "kept in files, and also shown; a note says so", "N|RANK:N,…", _redirects, "-r"),
    TorchrunFlag(
        "--log-dir",
        "says where the output is kept instead",
        "DIR",
        _without_meaning("every rank's output is kept by its node: %mesh logs, or monarch-nb logs, shows it"),
    ),
    TorchrunFlag(
        "--log-line-prefix-template",
        "changes nothing; a note says so",
        "TEMPLATE",
        _without_meaning("lines are shown with the ranks that printed them"),
        since="2.15",
    ),
    TorchrunFlag("--local-ranks-filter", "only these ranks of each node are shown", "N,…", _local_ranks_filter),
    TorchrunFlag(
        "--monitor-interval",
        "changes nothing; a note says so",
        "S",
        _without_meaning("the end of a rank is learnt at once", **_SECONDS),
    ),
    TorchrunFlag(
        "--shutdown-timeout",
        "changes nothing; a note says so",
        "S",
        _without_meaning("ranks that do not stop when one has failed are killed after some seconds", **_SECONDS),
        since="2.12",
    ),
    TorchrunFlag(
        "--start-method",
        "changes nothing; a note says so",
        "HOW",
        _without_meaning(
            "ranks are always forked where torch is imported", "spawn|fork|forkserver", "spawn, fork or forkserver"
        ),
    ),
    TorchrunFlag("--event-log-handler", "null is confirmed, others are refused", "NAME", _event_log_handler),
    TorchrunFlag("--signals-to-handle", "torchrun's own are confirmed, others refused", "NAMES", _signals_to_handle),
    TorchrunFlag("--duplicate-stdout-filters", "refused: logs have all lines", "WORDS", _NO_COPIES),
    TorchrunFlag("--duplicate-stderr-filters", "refused: logs have all lines", "WORDS", _NO_COPIES),
    TorchrunFlag("--logs-specs", "refused", "NAME", _refused("nodes keep the logs, no plugin can"), variable=False),
    TorchrunFlag("--numa-binding", "refused", "MODE", _refused("ranks are not bound to processors"), variable=False),
    TorchrunFlag(
        "--virtual-local-rank",
        "refused",
        check=_refused("each rank has a LOCAL_RANK of its own and sees all GPUs of its node"),
    ),
    TorchrunFlag(
        "--print-completion",
        "refused: Tab completes `%mesh run`",
        "SHELL",
        _refused("it is about torchrun's own command line"),
        variable=False,
        since="2.15",
    ),
)

NEWEST_TORCH = "2.15"
ABOUT_UNKNOWN = f". torchrun's flags are known up to torch {NEWEST_TORCH}: leave out what a newer torchrun has besides"
"""What is said of a flag like none of these."""

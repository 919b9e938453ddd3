"""torchrun's flags: some mean something for ranks that are held, and a note names the others.

Those that describe nodes and processes must agree with what is held: torchrun starts them, and here they are there.
Pure: the lines are read by `%mesh run` and `monarch-nb run`, each in its own way; `FLAGS` says to both what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import counted, name_ranks

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.scripts.script import Script

Given = Mapping[str, object]
"""What a line says: by the names of flags as identifiers ("nnodes", "no_python") their values, or True for a switch."""


Room = Callable[[int, int, str], bool]


def _has_room(nodes: int, ranks_per_node: int, kind: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Held:
    """What a script would run on.

    Attributes:
        nodes, ranks_per_node: so many.
        kind: of the ranks: "procs", or "gpus" when each has one.
        reserve: the command that holds another shape, without the shape.
        room: returns whether that command would get so many nodes, with so many ranks of a kind on each.
        asked: the ranks per node that the line asks for; 0 when it names no number.
    """

    nodes: int
    ranks_per_node: int
    kind: str = "procs"
    reserve: str = "%mesh reserve --replace"
    room: Room = _has_room
    asked: int = 0

    @property
    def ranks(self) -> str:
        """What runs on each node: "4 CPU ranks"."""
        return self._counted(self.ranks_per_node)

    def _counted(self, ranks: int) -> str:
        return counted(ranks, "GPU rank" if self.kind == "gpus" else "CPU rank")

    def other(self, nodes: int, ranks_per_node: int = 0) -> str:
        """Return how one comes to a shape that is not held: by a part of what is, or by another reservation."""
        ranks_per_node = ranks_per_node or self.asked or self.ranks_per_node
        if nodes <= self.nodes and ranks_per_node <= self.ranks_per_node:
            parts = [("hosts", nodes, self.nodes), (self.kind, ranks_per_node, self.ranks_per_node)]
            chosen = ",".join(f"{name}=0:{wanted}" for name, wanted, held in parts if wanted < held)
            return f"-t {chosen} chooses that many"
        if not self.room(nodes, ranks_per_node, self.kind):
            lacks = f"{counted(nodes, 'node')} × {self._counted(ranks_per_node)}"
            held = f"--nnodes {self.nodes} --nproc-per-node {self.ranks_per_node}"
            return f"write {held}: the pool has no room for {lacks}"
        return f"{self.reserve} --nodes {nodes} --{self.kind} {ranks_per_node} holds that many"


@dataclass(frozen=True, slots=True)
class Node:
    """What a node has: so many CPU ranks or GPUs. `nodes`: how many there are."""

    procs: int
    gpus: int
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """What the flags ask for, besides what is held.

    Attributes:
        module, executable: `path` is a module's name; it is a command.
        max_restarts: how often the script is started again.
        environment: variables of the ranks.
        shown: local ranks whose output is shown; None for all.
        note: names the flags that are ignored; empty when there are none.

    Example:
        launch = read(given, os.environ, held_by(mesh, "%mesh reserve --replace"))
        run = mesh.start_script(launch.script("train.py", ["--lr", "3e-4"]))
    """

    module: bool = False
    executable: bool = False
    max_restarts: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    shown: frozenset[int] | None = None
    note: str = ""

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
        from monarch_nb.client.scripts.script import Script

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

    def shown_ranks(self, mesh: Mesh) -> frozenset[int] | None:
        """Return the ranks of a mesh whose output is shown; None for all."""
        if self.shown is None:
            return None
        by_node = mesh.core.by_node(mesh.ranks).values()
        return frozenset(rank for ranks in by_node for local, rank in enumerate(ranks) if local in self.shown)


Check = Callable[[str, str, Held], None]
"""Takes a flag as it was given (`--nnodes 4`, `PET_NNODES=4`), its value and what is held; refuses what contradicts."""


def _accepted(said: str, value: str, held: Held) -> None:
    pass


@dataclass(frozen=True, slots=True)
class TorchrunFlag:
    """One flag of torchrun.

    Attributes:
        name: as torchrun's help has it; with _ for - it is the same flag.
        help: what it does here.
        value: what stands after it; empty for a switch.
        check: refuses what contradicts what is held.
        short: torchrun's short form, where it is not another flag's here.
    """

    name: str
    help: str
    value: str = ""
    check: Check = _accepted
    short: str = ""


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
    asked = _found(_PER_NODE, given, environment)
    if asked is not None and asked[1].isdecimal():
        held = replace(held, asked=int(asked[1]))
    for flag in MEANT:
        found = _found(flag, given, environment)
        if found is not None:
            said, values[flag.name] = found
            flag.check(said, values[flag.name], held)
    named = {"TORCHELASTIC_RUN_ID": values.get("--rdzv-id"), "ROLE_NAME": values.get("--role")}
    shown = values.get("--local-ranks-filter")
    ignored = [flag.name for flag in IGNORED if given.get(_key(flag)) not in (None, False)]
    return Launch(
        module="--module" in values,
        executable="--no-python" in values,
        max_restarts=int(values.get("--max-restarts", 0)),
        environment={name: value for name, value in named.items() if value is not None},
        shown=frozenset(map(int, shown.split(","))) if shown else None,
        note=f"{', '.join(ignored)}: ignored, because the ranks are there already" if ignored else "",
    )


def asked_shape(given: Given, environment: Mapping[str, str], node: Callable[[], Node]) -> tuple[int, str, int] | None:
    """Return the shape that a line describes as one of torchrun does: so many nodes, the kind of ranks, and how many on
    each. None where it says nothing of that.

    A number of ranks means GPUs where a node has so many, as a script of torchrun takes them.

    Args:
        node: what there is on a node, which is asked only if that counts.

    Raises:
        UsageError: a value that can not be read.

    Example:
        >>> asked_shape({"nnodes": "2", "nproc_per_node": "4"}, {}, lambda: Node(procs=8, gpus=0))
        (2, 'procs', 4)
    """
    read = {flag.name: _found(flag, given, environment) for flag in FLAGS if flag.name in _OF_SHAPE}
    if not any(read.values()):
        return None
    nodes, per_node = read["--nnodes"] or ("", "1"), read["--nproc-per-node"] or ("", "1")
    fewest = _whole(nodes[0], nodes[1].partition(":")[0], 1)
    there = node()
    said, value = per_node
    if (in_all := _in_all(given)) and not said:
        most, numbers = there.gpus or there.procs, range(1, there.nodes + 1)
        if not nodes[0]:
            fewest = next((n for n in numbers if not in_all % n and in_all // n <= most), 1)
        if in_all % fewest:
            raise UsageError(f"-n {in_all} on {fewest} nodes: {_EQUALLY}. Write a multiple of {fewest}")
        value = str(in_all // fewest)
    if value == "cpu" or (value == "auto" and not there.gpus):
        return fewest, "procs", there.procs
    if value in ("auto", "gpu"):
        if not there.gpus:
            raise UsageError(f"{said}: there is no GPU. Write cpu, or how many")
        return fewest, "gpus", there.gpus
    wanted = _whole(said, value, 1)
    return fewest, "gpus" if wanted <= there.gpus else "procs", wanted


def held_by(mesh: Mesh, reserve: str, room: Room = _has_room) -> Held:
    """Return what a script would run on that is started on `mesh`. Arguments as of `Held`."""
    kind = "gpus" if mesh.reservation.gpus else "procs"
    return held_in(mesh.ranks, mesh.core.ranks_per_node, kind, reserve, room)


def held_in(ranks: Iterable[int], ranks_per_node: int, kind: str, reserve: str, room: Room = _has_room) -> Held:
    """As `held_by`, for ranks that may not be there yet, of nodes with so many each."""
    numbers = Counter(rank // ranks_per_node for rank in ranks)
    return Held(len(numbers), max(numbers.values()), kind, reserve, room)


def of_all(given: Given, ranks: Sequence[int], ranks_per_node: int, held: Held) -> tuple[tuple[int, ...], str]:
    """Return the ranks on which a script runs whose line counts those of all nodes together, as srun's and mpirun's -n:
    equally many on each of as few nodes as can be. And what is to be said of that.

    Args:
        ranks: those that are held or chosen, of nodes with so many each; all are returned when the line says nothing.

    Raises:
        UsageError: they can not be so many; the message says what to do.

    Example:
        >>> of_all({"ntasks": "2"}, range(4), 2, Held(nodes=2, ranks_per_node=2))
        ((0, 1), '-n 2: on ranks 0-1 of 4; leave it out for all')
    """
    wanted = _in_all(given)
    if not wanted or wanted == len(ranks):
        return tuple(ranks), ""
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // ranks_per_node, []).append(rank)
    asked, most = str(given.get("nnodes")), min(map(len, by_node.values()))
    numbers = [int(asked)] if asked.isdecimal() and 0 < int(asked) <= held.nodes else range(1, held.nodes + 1)
    possible = {nodes * each: nodes for nodes in reversed(numbers) for each in range(1, most + 1)}
    if nodes := possible.get(wanted):
        chosen = tuple(rank for of_node in [*by_node.values()][:nodes] for rank in of_node[: wanted // nodes])
        return chosen, f"-n {wanted}: on {name_ranks(chosen)} of {len(ranks)}; leave it out for all"
    if wanted < max(possible):
        nearest = " or ".join(f"-n {each}" for each in sorted(possible, key=lambda each: abs(each - wanted))[:2])
        raise UsageError(f"-n {wanted}: {_EQUALLY}, of {counted(held.nodes, 'node')} × {held.ranks}. Write {nearest}")
    there = held.other(held.nodes, -(-wanted // held.nodes))
    raise UsageError(f"-n {wanted}: {counted(held.nodes, 'node')} × {held.ranks} are held. Leave it out, or {there}")


def _in_all(given: Given) -> int:
    """Return how many ranks of all nodes together a line asks for; 0 when it says nothing of that."""
    text = given.get(_key(_IN_ALL))
    return _whole(f"-n {text}", text, 1) if isinstance(text, str) else 0


def _found(flag: TorchrunFlag, given: Given, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return how a flag was given, and its value; None when it was not."""
    value = given.get(_key(flag))
    if value is True:
        return flag.name, ""
    if isinstance(value, str):
        return f"{flag.name} {value}", value
    variable = f"PET_{_key(flag).upper()}"
    text = environment.get(variable, "")
    if not text or (not flag.value and text == "0"):
        return None
    if not flag.value and not text.isdecimal():
        raise UsageError(f"{variable}={text} (in the environment): it is 1 or 0")
    return f"{variable}={text} (in the environment)", text


def _key(flag: TorchrunFlag) -> str:
    """Return the name of a flag as an identifier."""
    return flag.name.lstrip("-").replace("-", "_")


# ---- what each says ----


def _whole(said: str, text: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise UsageError(f"{said}: give a whole number of at least {least}")
    return int(text)


def _nnodes(said: str, value: str, held: Held) -> None:
    least, colon, most = value.partition(":")
    fewest = _whole(said, least, 1)
    largest = _whole(said, most, fewest) if colon else fewest
    if fewest <= held.nodes <= largest:
        return
    there = held.other(fewest if held.nodes < fewest else largest)
    are = "is" if held.nodes == 1 else "are"
    raise UsageError(f"{said}: {counted(held.nodes, 'node')} {are} held. Leave it out, or {there}")


def _nproc_per_node(said: str, value: str, held: Held) -> None:
    if value in ("auto", "cpu" if held.kind == "procs" else "gpu"):
        return
    if value in ("cpu", "gpu"):
        of_node = "cpu" if held.kind == "procs" else "gpu"
        raise UsageError(
            f"{said}: the reservation has {held.ranks} on each node. Write {of_node}, or leave it out; {held.reserve} "
            f"--nodes {held.nodes} --{'gpus' if value == 'gpu' else 'procs'} N holds others, where there are some"
        )
    if not value.isdecimal():
        raise UsageError(f"{said}: give a whole number, auto, gpu or cpu")
    wanted = _whole(said, value, 1)
    if wanted != held.ranks_per_node:
        there = held.other(held.nodes, wanted)
        raise UsageError(f"{said}: the reservation has {held.ranks} on each node. Leave it out, or {there}")


def _standalone(said: str, value: str, held: Held) -> None:
    if held.nodes > 1:
        there = held.other(1)
        raise UsageError(f"{said} means one node, and {held.nodes} are held. Leave it out, or {there}")


def _max_restarts(said: str, value: str, held: Held) -> None:
    _whole(said, value)


def _local_ranks_filter(said: str, value: str, held: Held) -> None:
    if any(_whole(said, each) >= held.ranks_per_node for each in value.split(",")):
        known = f", 0 to {held.ranks_per_node - 1}" if held.ranks_per_node > 1 else ": the only one is 0"
        raise UsageError(f"{said}: each node has {held.ranks}{known}")


_PER_NODE = TorchrunFlag(
    "--nproc-per-node",
    "must be the ranks per node; auto means these, as do gpu for GPU ranks and cpu for others",
    "N",
    _nproc_per_node,
)
MEANT = (
    TorchrunFlag("--nnodes", "must be the number of held nodes, or a range with that number", "N|MIN:MAX", _nnodes),
    _PER_NODE,
    TorchrunFlag("--standalone", "must stand only where one node is held", check=_standalone),
    TorchrunFlag("--max-restarts", "after a failure, restart all ranks, at most N times", "N", _max_restarts),
    TorchrunFlag("--module", "SCRIPT is a module, as for python -m", short="-m"),
    TorchrunFlag("--no-python", "SCRIPT is a command"),
    TorchrunFlag("--rdzv-id", "TORCHELASTIC_RUN_ID in the ranks", "ID"),
    TorchrunFlag("--role", "ROLE_NAME in the ranks", "NAME"),
    TorchrunFlag("--local-ranks-filter", "only these ranks of each node are shown", "N,…", _local_ranks_filter),
)
"""Those that mean something here."""
IGNORED = (
    TorchrunFlag("--redirects", "ignored", "VALUE", short="-r"),
    *(
        TorchrunFlag(name, "ignored", "VALUE")
        for name in (
            "--node-rank",
            "--master-addr",
            "--master-port",
            "--local-addr",
            "--rdzv-backend",
            "--rdzv-endpoint",
            "--rdzv-conf",
            "--tee",
            "--log-dir",
            "--log-line-prefix-template",
            "--monitor-interval",
            "--shutdown-timeout",
            "--start-method",
            "--event-log-handler",
            "--signals-to-handle",
            "--duplicate-stdout-filters",
            "--duplicate-stderr-filters",
            "--logs-specs",
            "--numa-binding",
            "--print-completion",
        )
    ),
    TorchrunFlag("--run-path", "ignored"),
    TorchrunFlag("--virtual-local-rank", "ignored"),
)
"""Those of which a line may have any, with a note that names them."""
_IN_ALL = TorchrunFlag("--ntasks", "so many ranks of all nodes together, as srun and mpirun count them", "N")
"""It is none of torchrun's."""
FLAGS = (*MEANT, *IGNORED, _IN_ALL)

_OF_SHAPE = ("--nnodes", "--nproc-per-node", "--standalone", _IN_ALL.name)
_EQUALLY = "a script needs equally many ranks on each node"
NEWEST_TORCH = "2.15"
ABOUT_UNKNOWN = f". torchrun's flags are known up to torch {NEWEST_TORCH}: leave out what a newer torchrun has besides"
"""What is said of a flag like none of these."""

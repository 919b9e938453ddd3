"""What differs between this process and the nodes of a reservation, and what to do about it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from monarch_nb.client.pools.answering import WHAT_HELPS, WHAT_PASSES, Way, speed_of
from monarch_nb.ground.rank_sets import counted, format_ranks
from monarch_nb.sizes import size
from monarch_nb.worker.environment_report import Environment

CLOCK_TOLERANCE_S = 1.0
LITTLE_DISK_BYTES = 1 << 30
LITTLE_SHARED_MEMORY_BYTES = 1 << 30
FEW_OPEN_FILES = 4096
_TORCH_INDEX = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class NodeReport:
    """What a node says.

    Attributes:
        error: why it says nothing; empty when it does. advice: what to do about that.
        version: of monarch_nb.
        clock_ahead_s: of this process's clock.
        directory: the node's own.
        blind: why it does not see the ranks' files as they are here; empty when it does, None when that is not known.
        own_python: the environment is that of the node's own python, and not of the ranks'.
        unseen: what we may not have it look at, and who can let us; empty when it said all.
    """

    name: str
    environment: Environment = field(default_factory=Environment)
    error: str = ""
    version: str = ""
    clock_ahead_s: float = 0.0
    directory: str = ""
    blind: str | None = None
    advice: str = ""
    own_python: bool = False
    unseen: str = ""


@dataclass(frozen=True)
class Difference:
    """Something that is not as it is here, or as it should be.

    Attributes:
        what: "torch".
        here: what this process has; empty when that does not matter.
        nodes: what nodes have, each with the names of those that have it.
        advice: what to do; empty when `Diagnosis.advice` says it for several at once.
        is_sentence: what nodes have is a sentence, before which their names stand.
    """

    what: str
    here: str
    nodes: tuple[tuple[str, tuple[str, ...]], ...]
    advice: str = ""
    is_sentence: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found.

    Attributes:
        title: of what: "dev: 2 nodes".
        fine: what is equal and enough everywhere.
        differences: what is not.
        advice: what to do about several of them at once.
        notes: what is worth knowing and no fault.
        node_names: every node's.
        here: this process's environment. nodes: what the nodes said. Both are for programs.
    """

    title: str
    fine: tuple[str, ...]
    differences: tuple[Difference, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    node_names: tuple[str, ...]
    here: Environment = field(default_factory=Environment, repr=False)
    nodes: tuple[NodeReport, ...] = field(default=(), repr=False)

    @property
    def healthy(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def rows(self) -> list[list[str]]:
        """Return what, here, on the nodes, and what to do: a line per group of nodes."""
        rows = []
        for difference in self.differences:
            first = [difference.what, difference.here]
            advice = difference.advice
            for value, names in difference.nodes:
                named = name_nodes(names, self.node_names)
                told = f"{named}: {value}" if difference.is_sentence else f"{value} on {named}".strip()
                rows.append([*first, told, advice])
                first, advice = ["", ""], ""
        return rows

    def lines(self) -> list[str]:
        """Return what stands below the rows."""
        fine = [f"fine: {', '.join(self.fine)}"] if self.fine else []
        return [*self.advice, *fine, *self.notes]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.title, *(f"  {line}" for line in table), *self.lines()])


def diagnose(
    title: str,
    here: Environment,
    version: str,
    nodes: Sequence[NodeReport],
    ways: Sequence[Way] = (),
    *,
    shared: str,
    directory: str,
    copied: Container[str],
) -> Diagnosis:
    """Compare.

    Args:
        here: this process's environment. version: its monarch_nb's.
        ways: between nodes of a network, as they were tried.
        shared: the storage that all nodes see; empty when there is none.
        directory: with the ranks' files, as the reservation has it; empty when they have none.
        copied: names of the nodes that have a copy of it.
    """
    answering = [node for node in nodes if not node.error]
    return _Examination(here, version, answering, ways, shared, directory, copied).diagnosis(title, nodes)


def _without(silent: NodeReport) -> str:
    """Return why a node gave no report, without its name, which is said of all in the row."""
    return silent.error.removeprefix(f"{silent.name} does not answer; ").rstrip("?")


class _Examination:
    def __init__(
        self,
        here: Environment,
        version: str,
        nodes: list[NodeReport],
        ways: Sequence[Way],
        shared: str,
        directory: str,
        copied: Container[str],
    ) -> None:
        self._here, self._version, self._nodes, self._ways = here, version, nodes, ways
        self._described = [node for node in nodes if not node.own_python]
        self._shared, self._directory, self._copied = shared, directory, copied
        self._fine: list[str] = []
        self._differences: list[Difference] = []
        self._advice: list[str] = []
        self._notes: list[str] = []

    def diagnosis(self, title: str, asked: Sequence[NodeReport]) -> Diagnosis:
        silent = [
            Difference("no answer", "", ((_without(node), (node.name,)),), node.advice, is_sentence=True)
            for node in asked
            if node.error
        ]
        if self._nodes:
            for examine in (
                self._software,
                self._packages,
                self._gpus,
                self._clocks,
                self._network,
                self._room,
                self._files,
                self._unseen,
            ):
                examine()
        return Diagnosis(
            title,
            tuple(self._fine),
            (*silent, *self._differences),
            tuple(self._advice),
            tuple(self._notes),
            tuple(node.name for node in asked),
            self._here,
            tuple(asked),
        )

    def _compare(
        self,
        what: str,
        here: str | None,
        value: Callable[[NodeReport], str | None],
        advice: str = "",
        nodes: Sequence[NodeReport] | None = None,
    ) -> bool:
        """Note the nodes (of which the ranks' python is known, by default) that have something else; `here` None
        compares them with one another."""
        groups: dict[str, list[str]] = {}
        for node in self._described if nodes is None else nodes:
            groups.setdefault(value(node) or "none", []).append(node.name)
        expected = here if here is not None else max(groups, key=lambda each: len(groups[each]))
        different = {each: names for each, names in groups.items() if each != expected}
        if different:
            told = groups if here is None else different
            self._differ(what, here or "", ((each, names) for each, names in told.items()), advice)
        return not different

    def _differ(
        self,
        what: str,
        here: str,
        nodes: Iterable[tuple[str, Sequence[str]]],
        advice: str = "",
        *,
        is_sentence: bool = False,
    ) -> None:
        told = tuple((text, tuple(names)) for text, names in nodes)
        self._differences.append(Difference(what, here, told, advice, is_sentence))

    def _limit(
        self,
        what: str,
        bad: Callable[[NodeReport], str | None],
        advice: str,
        fine: str | None = None,
        nodes: Sequence[NodeReport] | None = None,
    ) -> None:
        """Note the nodes (all by default) for which `bad` returns what is wrong."""
        groups: dict[str, list[str]] = {}
        for node in self._nodes if nodes is None else nodes:
            if problem := bad(node):
                groups.setdefault(problem, []).append(node.name)
        if groups:
            self._differ(what, "", groups.items(), advice)
        elif fine:
            self._fine.append(fine)

    # ---- what is looked at ----

    def _software(self) -> None:
        advice = "install the same version there, then monarch-nb down and up"
        if self._compare("monarch_nb", self._version, lambda node: node.version, advice, self._nodes):
            self._fine.append(f"monarch_nb {self._version}")
        if not self._described:
            return
        minor = {node.environment.python.rpartition(".")[0] for node in self._described}
        advice = (
            "functions can not travel between them: %mesh reserve --replace --python PATH"
            if minor != {self._here.python.rpartition(".")[0]}
            else "no harm as a rule"
        )
        if self._compare("Python", self._here.python, lambda node: node.environment.python, advice):
            self._fine.append(f"Python {self._here.python}")
        self._torch()

    def _torch(self) -> None:
        here = self._here.torch
        same = self._compare("torch", public(here) or "none", lambda node: public(node.environment.torch))
        # A kernel without a GPU may well have another build than the nodes that it drives.
        other_machine = not self._here.driver and any(node.environment.driver for node in self._described)
        if not same:
            self._advise_install({"torch": public(here) if other_machine else here})
        build = self._here.torch_cuda or "CPU"
        built_for = lambda node: node.environment.torch_cuda or "CPU"  # noqa: E731
        if self._compare("torch is built for CUDA", build if self._here.driver else None, built_for) and same:
            self._fine.append(f"torch {here or 'nowhere'}")
        lacks: dict[str, list[str]] = {}
        for node in self._described:
            for sentence in node.environment.torch_lacks:
                lacks.setdefault(sentence, []).append(node.name)
        if lacks:
            self._differ("torch's insides", "", lacks.items(), "a newer monarch_nb may know it", is_sentence=True)

    def _packages(self) -> None:
        wanted: dict[str, str | None] = {}
        for name, version in self._here.packages.items():
            if self._compare(name, version or "none", lambda node, name=name: node.environment.packages.get(name)):  # type: ignore[misc]
                continue
            if source := self._here.sources.get(name):
                self._advice.append(
                    f"{name} is not published: %mesh sync --add {shlex.quote(source)} brings its source"
                )
            else:
                wanted[name] = version
        equal = sum(name not in {each.what for each in self._differences} for name in self._here.packages)
        if equal and self._described:
            self._fine.append(f"{equal} imported package{'' if equal == 1 else 's'}")
        self._advise_install(wanted)

    def _advise_install(self, wanted: Mapping[str, str | None]) -> None:
        plain = [f"{name}=={version}" for name, version in wanted.items() if version and "+" not in version]
        for name, version in wanted.items():
            if version and "+" in version:
                index = f" --index-url {_TORCH_INDEX}/{version.partition('+')[2]}" if name == "torch" else ""
                self._advice.append(f"%mesh pip install {name}=={public(version)}{index}")
        if plain:
            self._advice.append(f"%mesh pip install {' '.join(plain)}")

    def _gpus(self) -> None:
        here = self._here
        driver = here.driver if all(node.environment.driver for node in self._nodes) else None
        advice = "no harm while torch runs on it"
        same = self._compare("GPU driver", driver, lambda node: node.environment.driver, advice, self._nodes)
        if same and (found := self._nodes[0].environment).driver:
            self._fine.append(f"GPU driver {found.driver} (CUDA {found.cuda})")
        self._limit("GPUs", _gpus_unused, "install a build of torch for this driver", nodes=self._described)

    def _clocks(self) -> None:
        off = [node for node in self._nodes if abs(node.clock_ahead_s) > CLOCK_TOLERANCE_S]
        if not off:
            self._fine.append("clocks")
            return
        told = [
            (f"{abs(n.clock_ahead_s):,.0f} s {'ahead' if n.clock_ahead_s > 0 else 'behind'}", [n.name]) for n in off
        ]
        self._differ("clock", "", told, "have NTP set it; synced files keep this machine's times")

    def _network(self) -> None:
        for way in self._ways:
            if way.unreachable:
                reason = f"does not reach {way.end}: {way.unreachable}"
                self._differ("network", "", [(reason, [way.start])], WHAT_PASSES, is_sentence=True)
            elif way.refused:
                reason = f"can not connect to {way.end} at {way.host} {way.refused}"
                self._differ("network of collectives", "", [(reason, [way.start])], WHAT_HELPS, is_sentence=True)
        if self._ways and not any(way.trouble for way in self._ways):
            speed = speed_of(self._ways)
            measured = f" ({size(int(speed))}/s at least)" if speed else ""
            self._fine.append(f"network between {counted(len(self._nodes), 'node')}{measured}")

    def _room(self) -> None:
        self._disk("disk of the node's directory", lambda node: node.directory, self._nodes)
        if self._shared:
            seeing = [node for node in self._nodes if self._shared in node.environment.free_bytes]
            self._disk("shared storage", lambda _: self._shared, seeing)
        memory = [node.environment.shared_memory_bytes for node in self._nodes]
        known = min((each for each in memory if each is not None), default=None)
        self._limit(
            "/dev/shm",
            lambda node: _little(node.environment.shared_memory_bytes, LITTLE_SHARED_MEMORY_BYTES, ""),
            "DataLoader workers need it: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm",
            None if known is None else f"/dev/shm {size(known)}",
        )
        files = [node.environment.open_files for node in self._nodes if node.environment.open_files is not None]
        self._limit(
            "open files",
            lambda node: f"{limit:,}" if (limit := node.environment.open_files or 1 << 30) < FEW_OPEN_FILES else None,
            "ulimit -n 65536 before the node is started",
            f"{min(files):,} open files" if files else None,
        )
        if cpus := [node.environment.cpus for node in self._nodes if node.environment.cpus is not None]:
            self._fine.append(counted(min(cpus), "CPU") if len(set(cpus)) == 1 else f"{min(cpus)} to {max(cpus)} CPUs")

    def _disk(self, what: str, directory: Callable[[NodeReport], str], nodes: Sequence[NodeReport]) -> None:
        def problem(node: NodeReport) -> str | None:
            free = node.environment.free_bytes.get(directory(node))
            return "can not be read" if free is None else _little(free, LITTLE_DISK_BYTES)

        free = [node.environment.free_bytes.get(directory(node)) or 0 for node in nodes]
        fine = f"{what} {size(min(free))} free" if free else None
        self._limit(what, problem, "make room there, or choose another one", fine, nodes)

    def _files(self) -> None:
        copied = [node.name for node in self._nodes if node.name in self._copied]
        seeing = [node for node in self._nodes if node.name not in self._copied]
        if lost := [node.name for node in seeing if node.blind]:
            advice = "have it mounted there, or %mesh reserve --replace"
            self._differ("the ranks' files", self._directory, [("not as they are here", lost)], advice)
        elif self._directory and not copied:
            self._fine.append(f"{self._directory} seen by all")
        if self._directory and copied:
            where = name_nodes(copied, [node.name for node in self._nodes])
            self._notes.append(f"{self._directory} is copied to {where} before each cell")
        if not self._shared and (copied or not self._directory):  # else there is some
            self._notes.append("no storage that all nodes see: --shared DIR at reserve names it")

    def _unseen(self) -> None:
        everyone, unseen = [node.name for node in self._nodes], dict[str, list[str]]()
        for node in self._nodes:
            if node.unseen:
                unseen.setdefault(node.unseen, []).append(node.name)
        for what, names in unseen.items():
            where = name_nodes(names, everyone)
            self._notes.append(
                f"not looked at on {where}, because only users who may run cells there can ask for it: {what}"
            )


def public(version: str | None) -> str | None:
    """Return a version without its local part: "2.13.0" for "2.13.0+cpu"."""
    return version.partition("+")[0] if version else None


def name_nodes(names: Sequence[str], everyone: Sequence[str]) -> str:
    """Return names for sentences: "every node", "node1" or "node[0-3,7], gpu-a".

    Example:
        >>> name_nodes(["node1", "node2", "node4"], ["node0", "node1", "node2", "node3", "node4"])
        'node[1-2,4]'
    """
    if len(everyone) > 1 and set(names) >= set(everyone):
        return "every node"
    numbered: dict[str, list[int]] = {}
    others = []
    for name in names:
        if match := re.fullmatch(r"(.*?\D)(0|[1-9]\d*)", name):
            numbered.setdefault(match[1], []).append(int(match[2]))
        else:
            others.append(name)
    told = [
        f"{prefix}{numbers[0]}" if len(numbers) == 1 else f"{prefix}[{format_ranks(numbers)}]"
        for prefix, numbers in numbered.items()
    ]
    return ", ".join([*told, *others])


def _little(count_bytes: int | None, enough_bytes: int, suffix: str = " free") -> str | None:
    return f"{size(count_bytes)}{suffix}" if count_bytes is not None and count_bytes < enough_bytes else None


def _gpus_unused(node: NodeReport) -> str | None:
    environment = node.environment
    if environment.driver is None or environment.torch is None:
        return None
    if environment.torch_cuda is None:
        return "torch is built for the CPU"
    if environment.cuda and _major(environment.torch_cuda) > _major(environment.cuda):
        return f"torch needs CUDA {environment.torch_cuda}, the driver has {environment.cuda}"
    return None


def _major(version: str) -> int:
    return int(version.partition(".")[0])

"""Which nodes a reservation gets, and why it gets none. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from monarch_nb.allocator.state.lease import until, why_not_free
from monarch_nb.errors import CapacityError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.shape import reserve_flags

WAITING_HELPS = "--wait waits for it; or "
"""To who has not waited yet."""


@dataclass(frozen=True)
class Shape:
    """What is asked for: nodes, and CPU ranks (`procs`) or GPUs per node."""

    nodes: int
    procs: int
    gpus: int

    @property
    def per_node(self) -> int:
        return self.gpus or self.procs

    @property
    def kind(self) -> str:
        return "gpu" if self.gpus else "proc"

    @property
    def flags(self) -> str:
        """How `%mesh reserve` is asked for it.

        Example:
            >>> Shape(2, 4, 0).flags
            '--nodes 2 --procs 4'
        """
        return reserve_flags(self.nodes, self.procs, self.gpus)

    def __str__(self) -> str:
        return f"{counted(self.nodes, 'node')} × {counted(self.per_node, self.kind)}"


def choose_nodes(
    shape: Shape,
    nodes: list[pb.DescribeReply],
    *,
    force_busy: bool = False,
    silent: Mapping[str, str] = MappingProxyType({}),
    own_pid: int = 0,
    besides: int = 0,
) -> list[int]:
    """Return the indices of the nodes to use: the first that have enough free.

    Args:
        force_busy: GPUs on which others compute are free too; nodes that have enough without them come first.
        silent: nodes that do not answer: names, and why as far as that is known.
        own_pid: of the process that asks.
        besides: how many nodes the pool has that are not meant: they hold a part already.

    Raises:
        CapacityError: there are too few; the message says what is free and who holds the rest.
    """
    free = _free(shape, nodes)
    busy = [len(_busy(node)) if shape.gpus else 0 for node in nodes]
    total = [len(node.gpus) if shape.gpus else node.procs for node in nodes]
    if shape.gpus and not any(total):
        raise CapacityError(
            f"{counted(shape.gpus, 'GPU')} per node asked for, but no node of this pool has a GPU; "
            "--procs N asks for CPU ranks"
        )
    fitting = [index for index, count in enumerate(free) if count >= shape.per_node]
    if force_busy:
        fitting += [i for i, count in enumerate(free) if count < shape.per_node <= count + busy[i]]
    if len(fitting) >= shape.nodes:
        return sorted(fitting[: shape.nodes])
    asked = counted(len(nodes) + len(silent), "other node" if besides else "node")
    fit = f"only {len(fitting)} of {asked} can take {counted(shape.per_node, shape.kind)}"
    lines = [f"{shape} asked for, but {fit}:"]
    for node, count, most in zip(nodes, free, total, strict=True):
        held = "".join(f"; {_holds(holder)}" for holder in node.holders)
        others = "".join(f"; {why}" for gpu in node.gpus if shape.gpus and (why := why_not_free(gpu)))
        lines.append(f"  {node.node_id}: {count} of {counted(most, shape.kind)} free{held}{others}")
    lines += [f"  {name}: does not answer{f' ({why})' if why else ''}" for name, why in silent.items()]
    usable = [len([gpu for gpu in node.gpus if not gpu.trouble]) if shape.gpus else node.procs for node in nodes]
    able = len([count for count in usable if count >= shape.per_node])
    if sum(f + b >= shape.per_node for f, b in zip(free, busy, strict=True)) >= shape.nodes:
        lines.append("--force-busy also takes GPUs that others use, and shares their memory and time")
        if any(pid == own_pid and node.address.startswith("unix:") for node in nodes for pid in _pids_of_others(node)):
            lines.append(f"pid {own_pid} is this process: restart the kernel, and leave the GPU to ranks")
    else:
        are_local = all(node.address.startswith("unix:") for node in nodes)
        missing = shape.nodes - len(fitting)
        lines.append(_what_helps(shape, usable, able, len(nodes) + besides, missing, are_local=are_local))
    raise CapacityError("\n".join(lines), waiting_helps=able >= shape.nodes)


def lacking(shape: Shape, nodes: Sequence[pb.DescribeReply]) -> int:
    """Return how many nodes more it takes, as not so many have enough free."""
    return max(0, shape.nodes - sum(count >= shape.per_node for count in _free(shape, nodes)))


def _free(shape: Shape, nodes: Sequence[pb.DescribeReply]) -> list[int]:
    return [node.gpus_free if shape.gpus else node.procs_free for node in nodes]


def who_holds(shape: Shape, nodes: Sequence[pb.DescribeReply], but: tuple[str, str] = ("", "")) -> str:
    """Return why slots of a kind are not free: "dev (alice) holds 8 gpus until 18:40; GPU 3 of node1 is busy: …".

    Args:
        but: name and owner of a reservation that is to grow, and does not wait for itself.
    """
    held: dict[tuple[str, str], int] = {}
    ends: dict[tuple[str, str], float] = {}
    others = []
    for node in nodes:
        for holder in node.holders:
            if count := holder.gpus if shape.gpus else holder.procs:
                key = (holder.reservation, holder.owner)
                if key == but:
                    continue
                held[key] = held.get(key, 0) + count
                ends[key] = max(ends.get(key, 0.0), holder.until)
        others += [f"{node.node_id}: {why}" for gpu in node.gpus if shape.gpus and (why := why_not_free(gpu))]
    holders = [
        f"{name} ({owner}) holds {counted(count, shape.kind)}{until(ends[name, owner])}"
        for (name, owner), count in held.items()
    ]
    return "; ".join([*holders, *others])


def _busy(node: pb.DescribeReply) -> list[pb.Gpu]:
    """Return the GPUs that nobody holds, but others use."""
    return [gpu for gpu in node.gpus if gpu.used_by and not gpu.trouble and not gpu.HasField("held_by")]


def _pids_of_others(node: pb.DescribeReply) -> list[int]:
    return [process.pid for gpu in _busy(node) for process in gpu.used_by]


def _what_helps(shape: Shape, usable: Sequence[int], able: int, nodes: int, missing: int, *, are_local: bool) -> str:
    """Return what to do when nodes are missing. Of all nodes, with so many usable slots each, some were able to take
    their part if nobody held them.

    All nodes of a local pool have the same slots, and its first one has all GPUs. A pool of hosts does not grow by
    itself.
    """
    if able >= shape.nodes:
        return f"{WAITING_HELPS}release what you no longer need (%mesh release NAME), or ask for less"
    if not able and any(usable) and (shape.gpus or not are_local):
        return f"ask for less: the largest node of this pool has {counted(max(usable), shape.kind)}"
    if shape.gpus:
        have = "node of this pool has" if able == 1 else "nodes of this pool have"
        return f"ask for less: {able} {have} {counted(shape.per_node, 'GPU')} that can be used"
    if not are_local:
        return f"ask for less: {counted(able, 'node')} can take {counted(shape.per_node, shape.kind)} at all"
    if able:
        return f"monarch-nb up --nodes {nodes + missing} adds nodes to a local pool"
    return "release all reservations (%mesh release NAME): a local pool without reservations takes any shape"


def _holds(holder: pb.Holder) -> str:
    slots = counted(holder.gpus or holder.procs, "gpu" if holder.gpus else "proc")
    return f"{holder.reservation} ({holder.owner}) holds {slots}{until(holder.until)}"

"""What one rank did in the last seconds, of what its node tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monarch_nb.client.pools.facts.infos import RankInfo
from monarch_nb.proto import run_pb2

KINDS = {
    "torch": "torch",
    "python": "Python",
    "loader": "data loader",
    "waiting": "waits",
    "breakpoint": "breakpoint",
    "collective": "collectives",
    "idle": "idle",
}
"""What a rank does, as people read it: in this order. See monarch_nb/worker/control/looks.py."""


@dataclass(frozen=True)
class Part:
    """A part of the time of a rank.

    Attributes:
        kind: one of KINDS.
        what: the collective, when it is one.
        share: of the last seconds, from 0 to 1.
        line: the line of the user's code where it was for most of that: "train.py:41".
    """

    kind: str
    what: str
    share: float
    line: str


@dataclass(frozen=True)
class RankTop:
    """A rank.

    Attributes:
        state: "running", "idle", "dead", "starting", "unreachable", or "no answer" where only the rank is silent.
        parts: what it did, the greatest first; empty when it was not looked at yet.
        steps_per_s: of its optimizers; None when that is not known.
        memory_bytes: of the process (PSS).
        cpu: 1.0 is one processor; None when it is not known. gpu: how busy its GPUs were, from 0 to 1.
        gpu_memory_bytes: that is used on its GPUs.
    """

    rank: int
    node: str
    state: str
    parts: tuple[Part, ...] = ()
    steps_per_s: float | None = None
    memory_bytes: int = 0
    cpu: float | None = None
    gpu: float | None = None
    gpu_memory_bytes: int = 0

    @property
    def is_seen(self) -> bool:
        """Whether it was looked at."""
        return bool(self.parts)

    def share(self, kind: str) -> float:
        """Return which part of the time it did something, from 0 to 1."""
        return sum(part.share for part in self.parts if part.kind == kind)

    @property
    def own(self) -> Part | None:
        """Where it is mostly when it waits for no other rank; None when it always does."""
        return next((part for part in self.parts if part.kind != "collective"), None)

    @property
    def collective(self) -> str:
        """The collective in which it is mostly; empty for none."""
        return next((part.what for part in self.parts if part.kind == "collective"), "")

    @property
    def line(self) -> str:
        """The line where it is mostly."""
        return self.parts[0].line if self.parts else ""


def rank_top(info: RankInfo, looks: run_pb2.Looks | None, gpus: Iterable[tuple[float | None, int]] = ()) -> RankTop:
    """Return what is known of a rank.

    Args:
        looks: what it told; None when it did not answer.
        gpus: how busy each of its GPUs is, and the bytes that are used there.
    """
    gpus = list(gpus)
    busy = [each for each, _ in gpus if each is not None]
    state = "no answer" if looks is None and info.is_alive else info.state
    parts: tuple[Part, ...] = ()
    if looks is not None and looks.count:
        parts = tuple(Part(each.kind, each.what, each.looks / looks.count, each.line) for each in looks.shares)
    return RankTop(
        rank=info.rank,
        node=info.host,
        state=state,
        parts=parts,
        steps_per_s=_steps_per_s(looks),
        memory_bytes=info.memory_bytes,
        cpu=info.cpu,
        gpu=sum(busy) / len(busy) if busy else None,
        gpu_memory_bytes=sum(used for _, used in gpus),
    )


def _steps_per_s(looks: run_pb2.Looks | None) -> float | None:
    """Return how many steps a rank does; None when that is not known, or nothing runs."""
    if looks is None or not looks.HasField("steps_per_s") or all(share.kind == "idle" for share in looks.shares):
        return None
    return looks.steps_per_s

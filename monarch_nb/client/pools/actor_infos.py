"""The actors of ranks, as these tell of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.proto import run_pb2


@dataclass(frozen=True)
class ActorInfo:
    """An actor of a rank.

    Attributes:
        mesh: the name of the mesh of ranks; rank: in it.
        class_name: "__main__.Trainer".
        uid: the same on all ranks of a mesh of actors, and of no other.
        waiting: messages that wait. called: messages executed so far.
        running: the endpoint that is executed; empty when none is. running_s: for how long.
        where: the line where it is, or the collective that it waits in: then it `is_in_collective`.
        caller: whose message is executed, for people.
        failure: why it does not answer any more; empty while it does.
        is_ending: it was stopped or replaced, but has not ended yet.
        pid: its process, where that is one of Monarch's own engine; else 0, and it is in the rank.
        memory_bytes: of that process. own_rank: its rank among the actors of its name, where a rank has several such
            processes; else None, and it is that of the rank.
    """

    mesh: str
    rank: int
    name: str
    class_name: str
    uid: str
    waiting: int = 0
    called: int = 0
    running: str = ""
    running_s: float = 0.0
    where: str = ""
    is_in_collective: bool = False
    caller: str = ""
    failure: str = ""
    is_ending: bool = False
    pid: int = 0
    memory_bytes: int = 0
    own_rank: int | None = None

    @classmethod
    def of(cls, mesh: str, rank: int, told: run_pb2.ActorStatus) -> ActorInfo:
        """Return what a rank says of one of its actors."""
        where = told.where
        in_collective = where.state == run_pb2.Where.STATE_COLLECTIVE and bool(where.collective)
        return cls(
            mesh=mesh,
            rank=rank,
            name=told.name,
            class_name=told.class_name,
            uid=told.uid,
            waiting=told.waiting,
            called=told.called,
            running=told.running,
            running_s=told.running_s,
            where=f"{where.collective} at {where.line}" if in_collective else where.line,
            is_in_collective=in_collective,
            caller=told.caller,
            failure=told.failure,
            is_ending=told.ending,
            pid=told.pid,
            memory_bytes=told.memory_bytes,
            own_rank=told.actor_rank if told.HasField("actor_rank") else None,
        )

    @property
    def actor_rank(self) -> int:
        """Its rank among the actors of its name."""
        return self.rank if self.own_rank is None else self.own_rank

    @property
    def class_label(self) -> str:
        """The class, without the module that means nothing to people."""
        return self.class_name.removeprefix("__main__.")

    @property
    def failure_line(self) -> str:
        """The last line of the failure, which says most."""
        lines = self.failure.strip().splitlines()
        return lines[-1].strip() if lines else ""


@dataclass(frozen=True)
class ActorGroup:
    """Actors of ranks that are alike: of one mesh of actors, and doing the same.

    Attributes:
        ranks: theirs, among the actors of their name. waiting: messages, on the rank where most wait.
        running_s: of the one that runs longest.
    """

    info: ActorInfo
    ranks: tuple[int, ...]
    waiting: int
    running_s: float


def grouped(infos: Iterable[ActorInfo]) -> list[ActorGroup]:
    """Return actors folded by what is alike: mesh by mesh, in the order in which they are named."""
    groups: dict[tuple[str, ...], list[ActorInfo]] = {}
    for info in sorted(infos, key=lambda info: (info.mesh != "main", info.mesh, info.name, info.uid, info.actor_rank)):
        does = bool(info.waiting) and not info.running
        key = (
            info.mesh,
            info.uid,
            info.running,
            info.where,
            info.caller,
            info.failure_line,
            str((does, info.is_ending)),
        )
        groups.setdefault(key, []).append(info)
    return [
        ActorGroup(
            info=alike[0],
            ranks=tuple(sorted({info.actor_rank for info in alike})),
            waiting=max(info.waiting for info in alike),
            running_s=max(info.running_s for info in alike),
        )
        for alike in groups.values()
    ]


def actor_infos(told: Mapping[str, Mapping[int, Sequence[run_pb2.ActorStatus]]]) -> list[ActorInfo]:
    """Return what ranks say of their actors, by the name of their mesh."""
    return [
        ActorInfo.of(mesh, rank, status)
        for mesh, ranks in told.items()
        for rank, statuses in ranks.items()
        for status in statuses
    ]

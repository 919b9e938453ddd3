"""How long a reservation is held, what somebody may do with it, and why a GPU can not be leased, in words. Pure.

Times are seconds since boot (CLOCK_BOOTTIME): they go on while the machine sleeps and while no allocator runs, and
nobody sets them. Whoever asks brings the time.

The owner of a reservation may do everything. Others may what the owner has granted: to read, or to run cells as well.
Whoever made the pool has no more rights than others, but that it may release what anybody holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from monarch_nb.config import cadence, gap
from monarch_nb.errors import ReservationExpired, ReservationReleased
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2
from monarch_nb.sizes import size
from monarch_nb.times import duration, time_of_day

if TYPE_CHECKING:
    from monarch_nb.allocator.state.state import Lease


def until(at: float) -> str:
    """Return " until 18:40", or "" for a time (seconds since the epoch) that is 0."""
    return f" until {time_of_day(at)}" if at else ""


def why_not_free(gpu: pb.Gpu) -> str:
    """Return why a GPU can not be leased just so, or an empty text.

    Example:
        >>> why_not_free(pb.Gpu(index=3, held_by=pb.GpuHolder(owner="alice", reservation="dev")))
        'GPU 3 is held by alice (dev)'
    """
    if gpu.trouble:
        return gpu.trouble
    if gpu.HasField("held_by"):
        return held_line(gpu.index, gpu.held_by)
    return busy_line(gpu.index, gpu.used_by) if gpu.used_by else ""


def held_line(index: int, holder: pb.GpuHolder) -> str:
    """Return "GPU 3 is held by alice (dev) until 18:40"."""
    name = f" ({holder.reservation})" if holder.reservation else ""
    return f"GPU {index} is held by {holder.owner}{name}{until(holder.until)}"


def busy_line(index: int, processes: Iterable[pb.GpuProcess]) -> str:
    """Return "GPU 2 is busy: pid 4711 (python, bob, 11.2 GB)"."""
    return f"GPU {index} is busy: {', '.join(map(_process, processes))}"


def _process(process: pb.GpuProcess) -> str:
    memory = size(process.memory_bytes) if process.memory_bytes else ""
    facts = ", ".join(filter(None, [process.name, process.user, memory]))
    return f"pid {process.pid} ({facts})" if facts else f"pid {process.pid}"


WARN_BEFORE_S = 600.0
LOOK_EVERY_S = cadence(30.0)
"""How often to look at least: timers stand still while a machine sleeps."""
RETURN_S = gap(30.0)
"""How long clients may take to come back to an allocator that was restarted before a reservation counts as idle."""


@dataclass
class Limits:
    """One reservation's limits on one node; 0 is none.

    Attributes:
        time_s: how long it is held, from its confirmation on.
        idle_s: how long it is held while nobody uses it.
        confirmed_s: when it was confirmed; None before that.
        used_s: when it was last used.
        warned: clients have been told that the time is nearly up.
    """

    time_s: float = 0.0
    idle_s: float = 0.0
    confirmed_s: float | None = None
    used_s: float = 0.0
    warned: bool = False

    def confirm(self, now_s: float) -> None:
        """Both clocks start; a second confirmation changes nothing."""
        if self.confirmed_s is None:
            self.confirmed_s = self.used_s = now_s

    def extend(self, time_s: float, now_s: float) -> None:
        """Set the time limit; when it is far away again, there will be another warning."""
        self.time_s = time_s
        self.warned = self.warned and self.is_nearly_up(now_s)

    def time_left_s(self, now_s: float) -> float | None:
        """Return how much of the time is left; None when it does not run."""
        if not self.time_s or self.confirmed_s is None:
            return None
        return max(0.0, self.confirmed_s + self.time_s - now_s)

    def idle_left_s(self, now_s: float, *, busy: bool) -> float | None:
        """Return how long it may stay idle still; None when that does not matter."""
        if not self.idle_s or self.confirmed_s is None:
            return None
        return self.idle_s if busy else max(0.0, self.used_s + self.idle_s - now_s)

    @property
    def warn_before_s(self) -> float:
        """How long before the end clients are warned: in the middle of a time that is short."""
        return min(WARN_BEFORE_S, self.time_s / 2)

    def is_nearly_up(self, now_s: float) -> bool:
        left_s = self.time_left_s(now_s)
        return left_s is not None and left_s <= self.warn_before_s

    def look_in_s(self, now_s: float, *, busy: bool) -> float | None:
        """Return when to look again; None when nothing runs."""
        looks = []
        if (time_left_s := self.time_left_s(now_s)) is not None:
            looks += [time_left_s] if self.warned else [time_left_s - self.warn_before_s]
        if (idle_left_s := self.idle_left_s(now_s, busy=busy)) is not None:
            looks.append(idle_left_s or self.idle_s / 4)  # at 0 another node was found to be busy, or did not answer
        return min(LOOK_EVERY_S, *(max(0.0, look) for look in looks)) if looks else None

    @property
    def time_is_up(self) -> str:
        """Why it ended when its time was up."""
        return f"its time of {duration(self.time_s)} was up"

    @property
    def was_idle(self) -> str:
        """Why it ended when nobody used it."""
        return f"nobody used it for {duration(self.idle_s)}"

    def record(self, boot_id: str) -> state_pb2.LimitsRecord:
        return state_pb2.LimitsRecord(
            time_s=self.time_s,
            idle_s=self.idle_s,
            confirmed_s=self.confirmed_s or 0.0,
            used_s=self.used_s,
            boot_id=boot_id,
        )

    @classmethod
    def from_record(cls, record: state_pb2.LimitsRecord, boot_id: str, now_s: float, *, confirmed: bool) -> Limits:
        """Go on where the allocator before this one was; after a boot, whose length nobody knows, from the start."""
        limits = cls(record.time_s, record.idle_s)
        if confirmed and record.boot_id == boot_id:
            limits.confirmed_s = record.confirmed_s
            limits.used_s = max(record.used_s, now_s - limits.idle_s + min(RETURN_S, limits.idle_s))
        elif confirmed:
            limits.confirm(now_s)
        return limits


def how_it_ended(ended: pb.Ended) -> str:
    """Return "dev was released at 14:02: its time of 8 h was up", or "dev was released at 14:02 in the panel"."""
    how = f" {ended.by}" if ended.by else f": {ended.why}"
    return f"{ended.name} was released at {time_of_day(ended.ended_at)}{how}"


def released(ended: pb.Ended) -> ReservationExpired | ReservationReleased:
    """Return the error for whoever asks for a reservation that was released."""
    anew = f"%mesh reserve {ended.reserve or ended.name} makes a new one"
    if ended.by:
        message = f"{how_it_ended(ended)}: {anew}"
        return ReservationReleased(message, ended.name, ended.by, ended.ended_at)
    logs = f"%mesh logs {ended.name} shows what it printed"
    message = f"{how_it_ended(ended)}; {anew} (say --time and --save again), {logs}"
    return ReservationExpired(message, ended.name, ended.why, ended.ended_at)


class Right(IntEnum):
    """Each includes those before it."""

    NONE = pb.RIGHT_UNSPECIFIED
    READ = pb.RIGHT_READ
    RUN = pb.RIGHT_RUN
    OWN = pb.RIGHT_OWN


def right_of(name: str, lease: Lease) -> Right:
    """Return what a person may do with a reservation."""
    if name == lease.request.owner:
        return Right.OWN
    return Right(lease.shares.get(name, Right.NONE))

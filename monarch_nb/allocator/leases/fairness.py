"""What people hold of the pool, counted over all of its nodes, and the limits of that.

A node leases first and counts then: what it has leased is there for the other nodes to see before it asks them. So of
two nodes that lease at the same time to one person, at least one sees both leases, and no limit is passed; both may
refuse. What is refused is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import hashlib
import logging
import math
import os
import pwd
import stat
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from monarch_nb.allocator.leases.others import Others
from monarch_nb.allocator.leases.record import Record
from monarch_nb.allocator.readings.load import Readings
from monarch_nb.allocator.state import ledger, quotas
from monarch_nb.allocator.state.identity import Identity
from monarch_nb.allocator.state.quotas import Holdings, Quotas
from monarch_nb.allocator.state.quotas_file import read_quotas
from monarch_nb.allocator.state.state import Lease, NodeState
from monarch_nb.allocator.supervision.processes import seconds_since_boot
from monarch_nb.config import cadence
from monarch_nb.errors import UsageError
from monarch_nb.proto import allocator_pb2 as pb

_log = logging.getLogger(__name__)

LOOK_EVERY_S = cadence(15.0)
"""How often a node looks which reservations are used."""
WRITE_EVERY_S = cadence(600.0)
"""How often the record says how long they were: the most that a crash forgets."""
GROUPS_KEPT_S = cadence(60.0)
_DIGITS = 16
"""Of a digest."""


class LimitsFile:
    """The file of a node's limits, read again when it has changed.

    Args:
        path: where it is, or may come to be; None: nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read: tuple[object, Quotas | None] = (None, None)
        self.digest = ""
        """Of the text that the limits are from."""
        self.problems: list[str] = []
        """Of what the file says now."""

    def newest(self) -> Quotas | None:
        """Return the limits; None where there is no file. While the file is spoilt they are what they were before."""
        if self.path is None:
            return None
        try:
            facts = self.path.stat()
        except FileNotFoundError:
            self._read, self.problems, self.digest = (None, None), [], ""
            return None
        except OSError as error:
            self._is_wrong([f"it can not be read: {error.strerror}"])
            return self._read[1]
        state = facts.st_mtime_ns, facts.st_ino, facts.st_size, facts.st_mode
        if self._read[0] != state:
            self._read = state, self._take_in(facts)
        return self._read[1]

    def _take_in(self, facts: os.stat_result) -> Quotas | None:
        before = self._read[1]
        assert self.path is not None
        if facts.st_uid not in (os.getuid(), 0) or stat.S_IMODE(facts.st_mode) & 0o022:
            self._is_wrong(["others can change it: it must be root's or yours, with mode 644 or 600"])
            return before
        try:
            text = self.path.read_text()
            read, problems = read_quotas(text)
        except (OSError, UnicodeDecodeError) as error:
            read, problems = Quotas(), [f"it can not be read: {error}"]
        if problems:
            self._is_wrong(problems)
            return before
        self.problems, self.digest = [], hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        _log.info("the limits are those of %s", self.path)
        return read

    def check(self) -> None:
        """Raise UsageError when the file can not be used: a node does not start without the limits that it has."""
        if self.newest() is None and self.problems:
            raise UsageError(f"{self.path}: {'; '.join(self.problems)} (monarch-nb pool limits shows it)")

    def _is_wrong(self, problems: list[str]) -> None:
        if problems != self.problems:
            _log.warning("%s: %s; the limits stay as they were", self.path, "; ".join(problems))
        self.problems = problems


class Fairness:
    """Counts for one node what people hold of its pool, and refuses what would be too much.

    Args:
        others: the other nodes.
        record: knows the hours.
    """

    def __init__(
        self,
        identity: Identity,
        state: NodeState,
        readings: Readings,
        others: Others,
        record: Record,
        file: LimitsFile,
    ) -> None:
        self._identity, self._state, self._readings = identity, state, readings
        self._others, self._record, self._file = others, record, file
        self._told: list[pb.UsageReply] = []
        self._groups: dict[str, tuple[float, frozenset[str]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.running_in_rooms: Callable[[], Awaitable[set[str]]] | None = None
        """Of a gateway: returns in which reservations something runs, which its state does not know."""

    async def start(self) -> None:
        """Read the record, and look from now on which reservations are used."""
        await asyncio.to_thread(self._record.read)
        for reservation_id in self._record.ledger.lost(self._state.leases):
            self._record.note(ledger.LOST, reservation=reservation_id)
        for reservation_id, lease in self._state.leases.items():
            if self._record.ledger.span(reservation_id) is None:  # its line was lost, or there was no record
                self.note_lease(reservation_id, lease)
        self._looking = asyncio.create_task(self._look())

    def close(self) -> None:
        """Look no more, and write down what is known."""
        if self._looking is not None:
            self._looking.cancel()
            self._write_use()

    # ---- limits ----

    async def check(self, reservation_id: str) -> None:
        """Let a lease stay that was just taken, or raise: then it is to be given back.

        Raises:
            LimitReached: somebody would have more than they may.
        """
        await self._check(reservation_id)

    async def check_extension(self, reservation_id: str, time_s: float) -> None:
        """Let a reservation be held for so long in all, or raise as `check` does. A shorter time is always fine."""
        limits, now_s = self._state.lease(reservation_id).limits, seconds_since_boot()
        if (time_s or math.inf) <= (limits.time_s or math.inf):
            return
        held_s = now_s - (limits.confirmed_s or now_s)
        await self._check(reservation_id, time.time() - held_s + time_s if time_s else 0.0)

    async def _check(self, reservation_id: str, ends_at: float | None = None) -> None:
        limits = self._file.newest()
        if limits is None or reservation_id not in self._state.leases:
            return
        holdings, _ = await self._ask(limits)
        await self._learn_groups(limits, holdings.people)
        if (asked := holdings.reserved.get(reservation_id)) is None:
            return
        if ends_at is not None:
            asked.ends_at = ends_at
        where, node = str(self._file.path), self._identity.node_id
        quotas.check(limits, holdings, reservation_id, self._groups_of, time.time(), where, node)

    async def _ask(self, limits: Quotas | None) -> tuple[Holdings, list[str]]:
        """Return what people hold of the pool, and which nodes do not answer."""
        since = time.time() - (limits.window_s if limits else 0.0)
        self._told, silent = await self._others.ask(since)
        return Holdings.told([self.usage(since), *self._told]), silent

    async def _learn_groups(self, limits: Quotas, people: set[str]) -> None:
        now_s = time.monotonic()
        unix = [entry.name for entry in limits.groups if entry.members is None and "*" not in entry.name]
        stale = [one for one in people if now_s - self._groups.get(one, (-GROUPS_KEPT_S, None))[0] >= GROUPS_KEPT_S]
        if stale:
            found = await asyncio.to_thread(_unix_groups, stale, unix)
            self._groups |= {person: (now_s, found[person]) for person in stale}

    def _groups_of(self, person: str) -> set[str]:
        limits = self._file.newest()
        if limits is None:
            return set()
        _, of_unix = self._groups.get(person, (0.0, frozenset()))
        return limits.listed_groups(person) | (of_unix & set(limits.group_names))

    # ---- what is told ----

    def usage(self, since: float) -> pb.UsageReply:
        """Return who holds what here, and what people held since a time."""
        now, limits = time.time(), self._file.newest()
        used = self._record.ledger.used(since, now) if since else []
        for each in used:
            each.groups.extend(sorted(self._groups_of(each.owner)))
        return pb.UsageReply(
            node_id=self._identity.node_id,
            token=self._identity.token,
            procs=self._state.procs,
            gpus=len(self._identity.gpus),
            held=[self._held(reservation_id, lease, now) for reservation_id, lease in self._state.leases.items()],
            used=used,
            known_since=self._record.ledger.known_since,
            limits_file=str(self._file.path) if limits is not None or self._file.problems else "",
            limits_digest=self._file.digest,
            problems=self._file.problems,
        )

    async def usage_with_standings(self, since: float, asker: str) -> tuple[pb.UsageReply, set[str]]:
        """Return the same, and who is how near to which limit in the pool; and the groups of who asks."""
        limits = self._file.newest()
        holdings, silent = await self._ask(limits)
        if limits is not None:
            await self._learn_groups(limits, holdings.people | {asker, *(entry.name for entry in limits.people)})
        reply = self.usage(since)
        reply.silent.extend(silent)
        reply.asks_others = self._others.are_known
        if limits is not None:
            reply.contact = limits.contact
            reply.standings.extend(quotas.standings(limits, holdings, self._groups_of, time.time(), [asker]))
        return reply, self._groups_of(asker)

    def _held(self, reservation_id: str, lease: Lease, now: float) -> pb.Held:
        request, span = lease.request, self._record.ledger.span(reservation_id)
        left_s = lease.limits.time_left_s(seconds_since_boot())
        left_s = lease.limits.time_s if left_s is None else left_s
        return pb.Held(
            reservation_id=reservation_id,
            name=request.name,
            owner=request.owner,
            node_rank=request.node_rank,
            nodes=request.nodes,
            procs=request.procs,
            gpus=request.gpus,
            confirmed=lease.confirmed,
            begun_at=span.begun if span else now,
            ends_at=now + left_s if left_s else 0.0,
        )

    # ---- the line ----

    async def look_at_pool(self) -> None:
        """Ask the other nodes what people hold, for the order of those who wait."""
        await self._ask(None)

    def slots(self, *, gpus: bool) -> tuple[Mapping[str, int], int]:
        """Return how many slots of a kind people hold of the pool, as far as it was looked at, and how many it has."""
        held: Counter[str] = Counter()
        told = [self.usage(0.0), *self._told]
        for part in (part for reply in told for part in reply.held):
            held[part.owner] += part.gpus if gpus else part.procs
        return held, sum(reply.gpus if gpus else reply.procs for reply in told)

    # ---- the record ----

    def note_lease(self, reservation_id: str, lease: Lease, caller: str = "") -> None:
        """Write down that slots were leased.

        Args:
            caller: from where.
        """
        request = lease.request
        self._record.note(
            ledger.RESERVED,
            reservation=reservation_id,
            name=request.name,
            owner=request.owner,
            node=self._identity.node_id,
            node_rank=request.node_rank,
            nodes=request.nodes,
            procs=request.procs,
            gpus=request.gpus,
            gpu_indices=list(lease.gpu_indices),
            time_s=request.time_s,
            notebook=request.notebook,
            **{"from": caller},
        )

    def note_end(self, reservation_id: str, lease: Lease, ended: pb.Ended | None) -> None:
        """Write down that a reservation has ended here.

        Args:
            ended: what there is to say of that; None of one that was never confirmed.
        """
        if (span := self._record.ledger.span(reservation_id)) is None:
            return
        self._record.note(
            ledger.EXPIRED if ended is not None and ended.why else ledger.RELEASED,
            reservation=reservation_id,
            name=lease.request.name,
            owner=lease.request.owner,
            why=(ended.why or ended.by) if ended is not None else "",
            held_s=round(time.time() - span.begun, 1),
            busy_s=round(span.busy_s, 1),
        )

    async def _look(self) -> None:
        looked_s = written_s = seconds_since_boot()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now_s = seconds_since_boot()
            busy = await self._readings.busy_gpus()
            running = await self.running_in_rooms() if self.running_in_rooms else set[str]()
            running |= {
                reservation_id for reservation_id in self._state.leases if self._state.is_running(reservation_id)
            }
            for reservation_id, lease in self._state.leases.items():
                if reservation_id in running or busy.intersection(lease.gpu_indices):
                    self._record.ledger.used_for(reservation_id, min(now_s - looked_s, 2 * LOOK_EVERY_S))
            looked_s = now_s
            if now_s - written_s >= WRITE_EVERY_S:
                written_s = now_s
                self._write_use()

    def _write_use(self) -> None:
        for reservation_id in self._state.leases:
            if span := self._record.ledger.span(reservation_id):
                self._record.note(ledger.HELD, reservation=reservation_id, busy_s=round(span.busy_s, 1))


def _unix_groups(people: list[str], groups: list[str]) -> dict[str, frozenset[str]]:
    """Return which of some groups of this machine people are in. It may ask a server."""
    found: dict[str, set[str]] = {person: set() for person in people}
    for name in groups:
        with contextlib.suppress(KeyError, OSError):
            group = grp.getgrnam(name)
            for person in people:
                with contextlib.suppress(KeyError, OSError, ValueError):
                    if person in group.gr_mem or pwd.getpwnam(person).pw_gid == group.gr_gid:
                        found[person].add(name)
    return {person: frozenset(names) for person, names in found.items()}

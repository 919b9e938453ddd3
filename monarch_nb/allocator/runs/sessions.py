"""Client sessions: who follows which run, and what they are sent, in batches and at a bounded rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.allocator.logs.output import DirectoryWatch, RankFiles
from monarch_nb.allocator.runs.below import OUTPUT_S, Below
from monarch_nb.branches.alike import pack
from monarch_nb.branches.folding import fold, joined_alike
from monarch_nb.config import PROTOCOL, cadence
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto.files_pb2 import Peer
from monarch_nb.proto.state_pb2 import ProcessIdentity

if TYPE_CHECKING:
    from monarch_nb.allocator.mail.letters import Letter
    from monarch_nb.allocator.state.runs import Run

OUTPUT_INTERVAL_S = cadence(0.04)
FLOOD_INTERVAL_S = cadence(0.1)
UNWATCHED_INTERVAL_S = cadence(1.0)
MAX_UNSENT_BYTES = 8 << 20
BATCH_S = cadence(0.05)
"""How long an event that nobody waits for may wait for others: a message costs more than what is in it."""
FLOOD_RANKS_PER_S = 80
LONGEST_FLOOD_HOLD_S = cadence(5.0)
"""After a flood from nodes below, what they print is put together, as long as so many ranks a second are told of (but
no longer): as many as 8 that are followed directly say something. So a flood on all costs the client no more."""
FLOOD_HOLD_LEFT = 0.8
"""What a part of them says meanwhile is held back almost as long: each message is of a part, where nodes are busy."""
MAX_FOLLOWED = 64
MAX_PACKED_BYTES = 64 << 10
"""Of what ranks print at a time, so much at most is packed, which takes 20 ns a byte: more is sent as it is."""


class Session:
    """One client's stream of events.

    Args:
        may_read: whether the client is told what happens to a reservation, by its id.

    Attributes:
        mailbox: where the client takes mail; "" when it takes none here.
    """

    def __init__(self, may_read: Callable[[str], bool] = lambda _: True) -> None:
        self.may_read, self.mailbox = may_read, ""
        self._events: list[pb.SessionEvent] = []
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._closed = False
        self.followers: dict[str, Follower] = {}
        self.run_ids: set[str] = set()
        """Runs whose results this client wants."""
        self.calls: set[str] = set()
        """Runs of calls that this client has opened and not ended."""
        self.attached: set[str] = set()
        """Reservations that this client uses, by id."""
        self.notebook = ""
        """Path of the client's notebook, as it said with the last of these."""
        self.client_id = ""
        self.process: ProcessIdentity | None = None
        """The client's; None when it is not known."""
        self.below: Below | None = None
        """Of one that runs come through: the mesh, and the other nodes for which it is as well."""
        self.whole: set[str] = set()
        """Runs of which floods are sent, too."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._flood_hold_s = self._flood_until_s = 0.0
        self._is_flood_over = False

    def send(self, *, urgent: bool = True, **event: object) -> None:
        """Queue an event; one that is not urgent may wait a little for others."""
        packed = pb.SessionEvent(**event)  # type: ignore[arg-type]
        self._add(packed, urgent=urgent)

    def send_mail(self, letters: Iterable[Letter]) -> None:
        """Send letters, at once."""
        self.send(mail=pb.Envelopes(envelopes=[letter.envelope for letter in letters]))

    def _add(self, event: pb.SessionEvent, *, urgent: bool = False) -> None:
        delay_s = 0.0 if urgent else BATCH_S
        if self.below is not None:  # it waits for what others say of the same
            delay_s = self.below.delay_s(event, urgent=urgent)
            is_result = event.HasField("finished")
            if event.HasField("output") or (is_result and delay_s > OUTPUT_S):
                delay_s = max(delay_s, self._flood_until_s - asyncio.get_running_loop().time())
            elif is_result:
                self._flood_until_s, self._is_flood_over = 0.0, True  # what came before it goes with it
        self._events.append(event)
        self._unsent_bytes += event.ByteSize()
        if self.is_behind:
            self._has_room.clear()
        loop = asyncio.get_running_loop()
        if delay_s <= 0:
            self._wake.set()
        elif self._timer is None or self._timer.when() > loop.time() + delay_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(delay_s, self._wake.set)

    def stand_above(self, branches: pb.Branches, world_size: int, open_session: Callable[[Peer], Any]) -> None:
        """Serve the client for other nodes as well, from now on.

        Args:
            world_size: of the mesh. open_session: opens one with a node, in the client's name.
        """
        if self.below is not None:
            self.below.close()
        opening = pb.Open(protocol=PROTOCOL, client_id=self.client_id)
        self.below = Below(branches, world_size, open_session, opening, self._add, self.room)

    async def room(self) -> None:
        """Wait until the client has read what is queued, if that is much."""
        await self._has_room.wait()

    @property
    def is_behind(self) -> bool:
        """Whether the client does not read (it is stopped, or its network is slow): output stays in its files."""
        return self._unsent_bytes > MAX_UNSENT_BYTES

    async def batches(self) -> pb.SessionEvents | None:
        """Wait for the next batch of events; None when the session is closed."""
        await self._wake.wait()
        if self._closed:
            return None
        self._wake.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        events = self._events
        self._events, self._unsent_bytes = self._held_back(events), 0
        if self._events:
            events = [event for event in events if not _may_wait(event)]
            self._unsent_bytes = sum(event.ByteSize() for event in self._events)
        self._has_room.set()
        if self.below is not None and not self.below.is_alone:
            events, flooding = fold(events, self.whole)
            if self._is_flood_over:
                self._flood_hold_s, self._is_flood_over = 0.0, False
            elif flooding:
                hold_s = max(flooding / FLOOD_RANKS_PER_S, FLOOD_HOLD_LEFT * self._flood_hold_s)
                self._flood_hold_s = min(LONGEST_FLOOD_HOLD_S, hold_s)
                self._flood_until_s = asyncio.get_running_loop().time() + self._flood_hold_s
        return pb.SessionEvents(events=events)

    def _held_back(self, events: list[pb.SessionEvent]) -> list[pb.SessionEvent]:
        """Return the output that has to wait after a flood, although something else goes, and what is a part of the
        results."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._flood_until_s or self.is_behind:
            return []
        held = [event for event in events if _may_wait(event)]
        if held:
            self._timer = loop.call_at(self._flood_until_s, self._wake.set)
        return held

    def follow(self, follower: Follower) -> None:
        """Begin to send a run's output; the oldest finished run is followed no longer when there are many."""
        if old := self.followers.pop(follower.run_id, None):
            old.close()
        self.followers[follower.run_id] = follower
        if len(self.followers) > MAX_FOLLOWED:
            for run_id, other in self.followers.items():
                if other.finished:
                    self.unfollow(run_id)
                    break

    def unfollow(self, run_id: str) -> None:
        if follower := self.followers.pop(run_id, None):
            follower.close()

    def leave(self, directory: Path, ranks: Iterable[int]) -> None:
        """Read these ranks' files there no longer: a newer run writes to them."""
        for follower in list(self.followers.values()):
            if follower.directory == directory:
                follower.leave(ranks)
                if not follower.cursors:
                    self.unfollow(follower.run_id)

    def forget(self, run_id: str) -> None:
        """The run is known no longer."""
        self.unfollow(run_id)
        self.run_ids.discard(run_id)
        self.whole.discard(run_id)

    def close(self) -> None:
        if self.below is not None:
            self.below.close()
        for follower in self.followers.values():
            follower.close()
        self.followers.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        self._wake.set()


def _may_wait(event: pb.SessionEvent) -> bool:
    """Whether it is held back after a flood: output, and results, which must not overtake it."""
    return event.HasField("output") or event.HasField("finished")


class Follower:
    """Sends a run's output to one session: at once when it was quiet, else at a bounded rate. A rank's result follows.

    Args:
        cursors: where to begin, by rank; updated as output is sent.
        runs: where the mesh has their outputs.
        is_new: the run has not begun, so there is nothing to read yet.
        packs: lines that differ only in numbers are packed: clients show them as one.
        whole: floods are sent, too, in parts, as fast as the client reads them; meanwhile they are in their files.
    """

    def __init__(
        self,
        session: Session,
        watch: DirectoryWatch,
        run: Run,
        runs: Path,
        cursors: dict[int, run_pb2.Cursor],
        *,
        is_new: bool = False,
        packs: bool = False,
        whole: bool = False,
    ) -> None:
        self.session, self.run_id, self.cursors, self._packs = session, run.run_id, cursors, packs
        self._is_whole, self._results = whole, list[run_pb2.RankResult]()
        self.finished = run.finished
        self.directory = runs / str(run.output)
        self._watch = watch
        self._files = {rank: RankFiles(runs, run.output, rank) for rank in cursors}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._last_pump_s = 0.0
        self._interval_s = OUTPUT_INTERVAL_S
        self._closed = False
        if not (is_new and self._watch_for_more()):
            self.pump()

    def _on_change(self) -> None:
        if self._closed or self._timer is not None:
            return
        delay_s = self._last_pump_s + self._interval_s - self._loop.time()
        if delay_s <= 0:
            self.pump()
        else:
            self._timer = self._loop.call_later(delay_s, self.pump)

    def pump(self) -> None:
        """Send everything written since the last time and wait for more."""
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        watched = self._watch_for_more()  # before reading: what comes later is noticed
        if self.session.is_behind:
            self._timer = self._loop.call_later(FLOOD_INTERVAL_S, self.pump)
            return
        has_more = self._send(self._files)
        self._last_pump_s = self._loop.time()
        self._send_results()
        if has_more:
            self._timer = self._loop.call_later(0, self.pump)
        elif not watched and not self.finished:  # no directory (a full disk), or no watches left
            self._timer = self._loop.call_later(UNWATCHED_INTERVAL_S, self.pump)

    def _watch_for_more(self) -> bool:
        return self._watch.arm(self.directory, self._on_change)

    def leave(self, ranks: Iterable[int]) -> None:
        """Read these ranks' files no longer: a newer run writes to them."""
        for rank in ranks:
            self._files.pop(rank, None)
            self.cursors.pop(rank, None)

    def finish(self, results: Iterable[run_pb2.RankResult]) -> None:
        """Send the rest of ranks that have finished, and then their results."""
        self._results += results
        ranks = [result.rank for result in self._results if self._has_more(result.rank, result.end)]
        if ranks and self._send(ranks) and self._timer is None:
            self._timer = self._loop.call_later(0, self.pump)
        self._send_results()

    def hurry(self) -> None:
        """The client waits for the end: what is left of ranks that have finished is told as of any flood."""
        if self._results:
            self._is_whole = False
            self.finish(())

    def _send_results(self) -> None:
        waiting, self._results = self._results, []
        over: list[run_pb2.RankResult] = []
        for result in waiting:
            (self._results if self._has_more(result.rank, result.end) else over).append(result)
        if over:
            self.session.send(finished=pb.Finished(run_id=self.run_id, results=over))

    def _has_more(self, rank: int, end: run_pb2.Cursor) -> bool:
        cursor = self.cursors.get(rank)
        return cursor is not None and (
            end.stdout_bytes > cursor.stdout_bytes
            or end.stderr_bytes > cursor.stderr_bytes
            or end.marks_bytes > cursor.marks_bytes
        )

    def _send(self, ranks: Iterable[int]) -> bool:
        """Send what these ranks have written; return whether there may be more."""
        outputs, has_more = [], False
        for rank in ranks:
            try:
                files, cursor = self._files[rank], self.cursors[rank]
                output, more = files.read_part(cursor) if self._is_whole else (files.read_since(cursor), False)
                has_more |= more
            except OSError as error:
                output = pb.RankOutput(rank=rank, cursor=self._files[rank].end())
                output.items.add(notice=f"the log can not be read: {error}")
            if output is not None:
                self.cursors[rank] = output.cursor
                if output.items:
                    outputs.append(output)
        flood = any(item.HasField("elided") for output in outputs for item in output.items)
        self._interval_s = FLOOD_INTERVAL_S if flood else OUTPUT_INTERVAL_S
        if len(outputs) > 1 and not flood:  # no two floods are alike
            wrote = [(output.rank, list(output.items), output.cursor) for output in outputs]
            outputs = joined_alike(wrote)
            if self._packs and sum(map(pb.RankOutput.ByteSize, outputs)) <= MAX_PACKED_BYTES:
                outputs = pack(outputs)
        if outputs:
            self.session.send(output=pb.Output(run_id=self.run_id, ranks=outputs))
        return has_more

    def close(self) -> None:
        self._closed = True
        if self._results:
            self.session.send(finished=pb.Finished(run_id=self.run_id, results=self._results))
        self._watch.disarm(self._on_change)
        if self._timer is not None:
            self._timer.cancel()

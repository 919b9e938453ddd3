"""Who hears of what a connection is told: runs that are followed, and reservations that are attached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb


class RunListener(Protocol):
    """What a run gives to a connection that follows it. All methods are called on the background loop."""

    run_id: str

    ranks: tuple[int, ...]

    @property
    def done(self) -> bool: ...

    @property
    def shows(self) -> bool:
        """Whether somebody sees the output, so that no other client need show it."""

    def on_queued(self, connection: Any, queued: pb.Queued) -> None: ...
    def on_started(self, connection: Any, nodes: Iterable[int] = ()) -> None: ...
    def on_output(self, connection: Any, output: pb.Output) -> None: ...
    def on_finished(self, connection: Any, finished: pb.Finished) -> None: ...
    def on_refused(self, connection: Any, error: MonarchNbError) -> None: ...
    def on_link(self, connection: Any, up: bool) -> None: ...


class Followed:
    """A run on this connection: what to send again after a break."""

    def __init__(self, listener: RunListener, submit: pb.Submit | None, follow: pb.Follow) -> None:
        self.listener, self.submit, self.follow = listener, submit, follow
        self.accepted = False
        self.cancelled = False
        self.ended = False

    @property
    def is_quiet(self) -> bool:
        return self.submit is not None and self.submit.quiet

    def request(self) -> pb.SessionRequest:
        # The node ends calls whose client is away for long: it has to know that they go on.
        goes_on = self.submit is not None and self.submit.run.HasField("calls") and not self.ended
        if self.submit is None or (self.accepted and not goes_on):
            return pb.SessionRequest(follow=self.follow)
        submit = pb.SessionRequest(submit=self.submit)
        for rank, cursor in self.follow.cursors.items():
            submit.submit.cursors[rank].CopyFrom(cursor)
        return submit


def drop_cancels(outgoing: asyncio.Queue[pb.SessionRequest], run_id: str) -> None:
    """Take out of what is yet to be sent that a run is cancelled: a stream that waits for its node sends all that lies
    there when the node is back."""
    for request in [outgoing.get_nowait() for _ in range(outgoing.qsize())]:
        if request.cancel.run_id != run_id:
            outgoing.put_nowait(request)


class ReservationListener(Protocol):
    """What hears of a reservation, on the background loop, while it is attached."""

    def on_time_left(self, message: pb.TimeLeft) -> None: ...

    def on_files_changed(self, message: pb.FilesChanged) -> None: ...

    def on_members_changed(self, message: pb.MembersChanged) -> None: ...

    def on_line(self, message: pb.InLine) -> None: ...

"""Who hears of what a connection is told: runs that are followed, and reservations that are attached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb


class RunListener(Protocol):
    """What a run gives to a session that follows it. All methods are called on the background loop."""

    run_id: str

    ranks: tuple[int, ...]

    @property
    def done(self) -> bool: ...

    @property
    def shows(self) -> bool:
        """Whether somebody sees the output, so that no other client need show it."""

    def on_queued(self, queued: pb.Queued) -> None: ...
    def on_started(self, nodes: Iterable[int]) -> None: ...
    def on_output(self, output: pb.Output) -> None: ...
    def on_finished(self, finished: pb.Finished) -> None: ...
    def on_refused(self, error: MonarchNbError) -> None: ...
    def on_link(self, connection: Any, up: bool) -> None: ...


class ReservationListener(Protocol):
    """What hears of a reservation, on the background loop, while it is attached.

    Attributes:
        notebook: path of the notebook that uses it; empty when there is none.
    """

    @property
    def notebook(self) -> str: ...

    def on_time_left(self, message: pb.TimeLeft) -> None: ...

    def on_files_changed(self, message: pb.FilesChanged) -> None: ...

    def on_members_changed(self, message: pb.MembersChanged) -> None: ...

    def on_line(self, message: pb.InLine) -> None: ...

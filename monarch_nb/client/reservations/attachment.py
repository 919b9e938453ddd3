"""A client's part in a reservation: while it is attached nothing is idle, and it is told when the time is nearly up and
what other clients say of the files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from monarch_nb.allocator.state.limits import how_it_ended
from monarch_nb.client.connections.bridge import post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.events import TIME_NOTICE, Notice
from monarch_nb.client.files.record import FilesRecord
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.times import duration, time_of_day

_log = logging.getLogger(__name__)

TimeListener = Callable[[str], None]


class Attachment:
    """What a Reservation object tells the reservation's first node, and hears from it.

    Args:
        connection: to the first node.
        core: of the mesh whose running cells show how much time is left.
        files: hears what others say of the files.
    """

    def __init__(
        self, connection: Connection, reservation_id: str, name: str, core: MeshCore, files: FilesRecord
    ) -> None:
        self._connection, self._reservation_id, self._name, self._core = connection, reservation_id, name, core
        self._files = files
        self._listeners: list[TimeListener] = []
        self._text = ""
        post(connection.attach, reservation_id, self)

    def close(self) -> None:
        """Use the reservation no longer."""
        post(self._connection.detach, self._reservation_id, self)

    def add_listener(self, listener: TimeListener) -> None:
        """Call `listener` on the background thread with what is to be said about the time; at once if there is
        something."""
        post(self._add_listener, listener)

    def _add_listener(self, listener: TimeListener) -> None:
        self._listeners.append(listener)
        if self._text:
            self._tell(listener)

    def on_time_left(self, message: pb.TimeLeft) -> None:
        """The first node says how much time is left, or that none is."""
        self._text = self._describe(message)
        for run in [reference() for reference in self._core.runs.valuerefs()]:  # runs begin on other threads
            if run is not None and not run.done:
                run.emit(Notice(self._text, key=TIME_NOTICE))
        for listener in self._listeners:
            self._tell(listener)

    def _tell(self, listener: TimeListener) -> None:
        try:
            listener(self._text)
        except Exception:  # noqa: BLE001 (a listener's fault must not keep the others from hearing)
            _log.exception("a listener failed at %r", self._text)

    def on_files_changed(self, message: pb.FilesChanged) -> None:
        """The first node says what others have changed."""
        self._files.hear(message.files)

    def _describe(self, message: pb.TimeLeft) -> str:
        if message.HasField("ended"):
            return how_it_ended(message.ended)
        if not message.nearly_up:
            return ""
        at = time_of_day(time.time() + message.left_s)
        limit = duration(message.time_s)
        return f"{self._name} will be released at {at}, when its time of {limit} is up: %mesh extend 1h adds to it"

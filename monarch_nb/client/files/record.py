"""What the kernels of a reservation say of its files, beside what it was made with: directories that were added, and
whether modules are reloaded.

The reservation's first node keeps it, and tells all that are attached. So it is the same for every kernel, also for one
that comes later.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.proto import files_pb2 as pb


class FilesRecord:
    """Safe to use from any thread.

    Args:
        nodes: connections to the reservation's nodes, by node rank. files: what its first node says of them now.
        reload: whether ranks reload changed modules when nobody has said anything.
    """

    def __init__(
        self, reservation_id: str, nodes: Mapping[int, Connection], files: pb.ReservationFiles, *, reload: bool
    ) -> None:
        self._reservation_id, self._nodes, self._reload = reservation_id, nodes, reload
        self._files = files
        self._me = uuid.uuid4().hex
        self._news: deque[str] = deque()
        self._lock = threading.Lock()

    @property
    def files(self) -> pb.ReservationFiles:
        """All of it, as the first node has it."""
        return self._files

    @property
    def revision(self) -> int:
        """Differs whenever anything of it does."""
        return self._files.revision

    @property
    def added(self) -> dict[str, str]:
        """The directories that were added, "HOST:DIRECTORY" by name."""
        return {tree.name: tree.source for tree in self._files.added}

    @property
    def reload(self) -> bool:
        """Whether ranks reload changed modules before each run."""
        return self._files.reload if self._files.HasField("reload") else self._reload

    def add(self, name: str, directory: Path) -> None:
        """Let ranks have a directory of this computer too."""
        self._change(add=pb.AddedTree(name=name, source=f"{socket.gethostname()}:{directory}"))

    def remove(self, name: str) -> None:
        """Undo `add`."""
        self._change(remove=name)

    def set_reload(self, reload: bool) -> None:
        """Say whether ranks reload changed modules, from the next run on."""
        if reload != self.reload:
            self._change(reload=reload)

    def _change(self, **change: object) -> None:
        request = pb.ChangeFilesRequest(reservation_id=self._reservation_id, client=self._me, **change)  # type: ignore[arg-type]
        self.hear(call(self._nodes[0].unary("ChangeFiles", request)).files)

    def hear(self, files: pb.ReservationFiles) -> None:
        """The first node says how it is now; it never waits, and may be called on the background loop."""
        with self._lock:
            before, was_reloading = self.added, self.reload
            if files.revision <= self._files.revision:
                return  # an answer and an event may overtake one another
            self._files = files
        if files.changed_by != self._me:
            self._say_what_changed(before, was_reloading)

    def _say_what_changed(self, before: Mapping[str, str], was_reloading: bool) -> None:
        for name, source in self.added.items():
            if before.get(name) != source:
                self._news.append(f"another kernel added {directory_of(source)}: ranks have it too, as {name}")
        for name, source in before.items():
            if name not in self.added:
                directory = directory_of(source)
                again = f"%mesh sync --add {directory} brings it back"
                self._news.append(f"another kernel removed {directory}: ranks no longer have it; {again}")
        if self.reload != was_reloading:
            self._news.append(f"another kernel said --reload {'auto' if self.reload else 'off'}")

    def take_news(self) -> list[str]:
        """Return what other kernels have changed since the last call, a line each."""
        news = []
        while self._news:
            news.append(self._news.popleft())
        return news


def directory_of(source: str) -> str:
    """Return the directory of a source, with its computer where that is another one."""
    host, _, directory = source.partition(":")
    return directory if host == socket.gethostname() else source

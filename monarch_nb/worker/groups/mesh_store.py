"""Where the mesh's store listens: elsewhere, once the node that hosted it has died."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Address = tuple[str, int]
"""Host and port."""


class MeshStore:
    """The address of the mesh's store, followed as it moves.

    Args:
        address: where it listened when the rank started, as MASTER_ADDR and MASTER_PORT said.
        note: the file in which the node says where it is now, once it has moved; None: it never does.
        report: called with the address at which nobody answers: the node then finds the store, or has another hosted.
    """

    def __init__(self, address: Address, note: Path | None, report: Callable[[Address], None]) -> None:
        self._address, self._note, self.report = address, note, report

    def look(self) -> Address:
        """Return where it is now. MASTER_ADDR and MASTER_PORT follow, unless the user has set them to another one."""
        if self._note is None:
            return self._address
        try:
            host, port = self._note.read_text().split()
        except FileNotFoundError:
            return self._address
        now = host, int(port)
        if now != self._address:
            if (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")) == _as_variables(self._address):
                os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = _as_variables(now)
            self._address = now
        return now


def _as_variables(address: Address) -> tuple[str, str]:
    return address[0], str(address[1])

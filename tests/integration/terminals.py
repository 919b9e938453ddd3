"""Programs at a terminal, answered as a person answers."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from integration.live import TIMEOUT_S


class AtTerminal:
    """A program whose terminal this process is.

    Args:
        command: the program.
        directory: where it works.
    """

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, start_new_session=True
        )
        os.close(theirs)
        self.text = ""
        self._seen = 0

    def shows(self, text: str) -> str:
        """Wait until it shows `text` after what was waited for before; return all up to that."""
        deadline = time.monotonic() + TIMEOUT_S
        while (at := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"no {text!r} in: {self.text[self._seen :]}"
            assert self._read(), f"it ended without {text!r}: {self.text[self._seen :]}"
        before, self._seen = self.text[self._seen : at], at + len(text)
        return before

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._ours, f"{line}\n".encode())

    def end(self) -> int:
        """Wait until it has ended; return its exit status."""
        while self._read():
            pass
        os.close(self._ours)
        return self._process.wait(TIMEOUT_S)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], TIMEOUT_S)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # its end of the terminal is closed
            return False
        self.text += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

"""Processes that talk to engines whose packages a kernel stays free of: their import takes longer than all that is
asked of them, or they are installed elsewhere. Each answers lines of JSON with lines of JSON."""

from __future__ import annotations

import io
import json
import select
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from typing import IO, Any

from monarch_nb.config import patience
from monarch_nb.errors import PoolError
from monarch_nb.ground import interrupting
from monarch_nb.provision.daemons import daemon_environment

CALL_S = patience(60.0)
"""An engine that is busy may take this long."""
END_S = patience(10.0)
"""So long one that says nothing more may take to end: an interpreter that has imported much takes a second."""


class Helper:
    """Such a process: started when something is asked, ended soon after by itself.

    Args:
        engine: what it talks to, for errors. command: of it, asked for when it is started.
        kept_from: environment variables that it does not get.
    """

    def __init__(self, engine: str, command: Callable[[], list[str]], kept_from: Collection[str] = ()) -> None:
        self._engine = engine
        self._command = command
        self._kept_from = kept_from
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = io.BytesIO()
        self._said = ""

    def call(self, facts: Mapping[str, object], longest_s: float | None = CALL_S) -> dict[str, Any]:
        """Return what it answers. Can be interrupted; it ends then.

        Args:
            longest_s: how long it may take; None for as long as it takes.

        Raises:
            PoolError: it has ended, or takes too long.
        """
        with self._lock:
            for _ in range(2):  # it may just have ended, as nobody had asked for a while
                process = self._process or self._start()
                try:
                    line = self._line(process, json.dumps(facts).encode() + b"\n", longest_s)
                except BaseException:
                    self._end()
                    raise
                if line:
                    answer: dict[str, Any] = json.loads(line)
                    return answer
                if status := self._end(END_S):
                    raise PoolError(f"the process that talks to {self._engine} has ended with {status}: {self._said}")
        raise PoolError(f"the process that talks to {self._engine} ends at once")

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in daemon_environment().items() if name not in self._kept_from}
        command = self._command()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- read when it has ended
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is for this process
        )
        return self._process

    def _line(self, process: subprocess.Popen[bytes], request: bytes, longest_s: float | None) -> bytes:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(request)
        except BrokenPipeError:
            return b""
        received = b""
        interrupt = interrupting.current()
        while not received.endswith(b"\n"):
            waited: list[Any] = [process.stdout, *([interrupt] if interrupt else [])]
            ready = select.select(waited, [], [], longest_s)[0]
            if interrupt:
                interrupt.check()
            if not ready:
                raise PoolError(f"it took longer than {longest_s:g} s")
            if not (data := process.stdout.read(1 << 16)):
                return b""
            received += data
        return received

    def _end(self, patience_s: float = patience(0.5)) -> int:
        """End it; return its exit status, 0 when it ended by itself as it should."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            self._errors.seek(0)
            lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
            self._said = next((line for line in reversed(lines) if line), "it says nothing")
            self._errors.close()

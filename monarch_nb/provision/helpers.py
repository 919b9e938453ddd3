"""How engines are asked: schedulers by their commands, others by processes.

A kernel stays free of the packages of those: their import takes longer than all that is asked of them, or they are
installed elsewhere. Each process answers lines of JSON with lines of JSON.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from monarch_nb.config import patience
from monarch_nb.errors import PoolError
from monarch_nb.ground import interrupting
from monarch_nb.ground.readable import readable
from monarch_nb.provision.daemons import daemon_environment

COMMAND_S = patience(60.0)
"""A scheduler that is busy may take this long."""


@dataclass(frozen=True)
class Commands:
    """The commands of a scheduler.

    Attributes:
        scheduler: its name, for errors.
        where: what the user does when the commands are not there: "Run the notebook on a login node".
        when_silent: what the user does when the scheduler does not answer, as a sentence of its own.
    """

    scheduler: str
    where: str
    when_silent: str = ""

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, with `text` as its input; return what it said and its exit status.

        Raises:
            PoolError: there is no such command, or it takes too long.
        """
        self.check_installed(words[0])
        try:
            return subprocess.run(
                words, input=text, capture_output=True, text=True, check=False, timeout=COMMAND_S, env=environment
            )
        except subprocess.TimeoutExpired:
            raise self.no_answer(f"{words[0]} took longer than {COMMAND_S:g} s") from None

    def check_installed(self, command: str) -> None:
        """Raise a PoolError when there is no such command."""
        if shutil.which(command) is None:
            raise PoolError(
                f"{self.scheduler} is not installed on this machine: there is no {command} in the PATH. {self.where}"
            )

    def no_answer(self, why: str) -> PoolError:
        """Return the error for a scheduler that does not answer."""
        return PoolError(". ".join(filter(None, [f"{self.scheduler} does not answer: {why}", self.when_silent])))


def last_said(text: str) -> str:
    """Return the last error that a command printed, without its own name and its usage; else its last line.

    Example:
        >>> last_said("sbatch: error: Batch job submission failed: Invalid qos specification\\n")
        'Batch job submission failed: Invalid qos specification'
    """
    before_usage = re.split(r"^(?:Usage:|Try )", text, maxsplit=1, flags=re.MULTILINE | re.IGNORECASE)[0]
    lines = [line.strip() for line in before_usage.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "error: " in line), lines[-1] if lines else "it says nothing")
    return re.sub(r"^.*?error: ", "", last)


def whole_minutes(seconds: float) -> int:
    """Return a time in minutes, as schedulers want it: rounded up, at least 1."""
    return max(1, -int(-seconds // 60))


CALL_S = patience(60.0)
"""An engine that is busy may take this long."""
END_S = patience(10.0)
"""So long one that says nothing more may take to end: an interpreter that has imported much takes a second."""


class Helper:
    """A process that talks to an engine for a kernel: started when something is asked, ended soon after by itself.

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
            ready = readable(waited, longest_s)
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

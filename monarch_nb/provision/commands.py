"""Schedulers that are asked by their commands: Slurm, LSF."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.config import patience
from monarch_nb.errors import PoolError

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

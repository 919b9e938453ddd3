"""`%mesh pip`: pip in the environment of this rank."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError

_ENVIRONMENT = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
ROLL_BACK_S = patience(3.0)
"""How long an interrupted pip may put back what it had begun to replace."""


def run(*arguments: str) -> None:
    """Run pip to its end; what it prints belongs to the run that goes on. An interrupt ends it.

    Raises:
        MonarchNbError: it failed.
    """
    command = [sys.executable, "-P", "-m", "pip", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | _ENVIRONMENT)
    try:
        status = process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ROLL_BACK_S)
        except subprocess.TimeoutExpired:
            pass  # killed below
        raise
    finally:
        process.kill()
        process.wait()
    if status:
        raise MonarchNbError(f"pip {shlex.join(arguments)} failed with exit status {status}; its output says why")

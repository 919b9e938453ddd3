"""OpenSSH's client: with the user's own configuration, keys, agents and known hosts, and without a question to him."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from monarch_nb.config import SSH_VARIABLE, gap
from monarch_nb.errors import NodeUnreachable, PoolError

CONNECT_S = gap(15)
_QUIET = ("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "ServerAliveInterval=5")
_OPTIONS = (*_QUIET, "-o", "ServerAliveCountMax=3")
_FAILED = 255
"""The status of ssh's own failures."""
_REFUSED = 3
"""The status of host.sh when something can not be done."""
_HOST_SCRIPT = Path(__file__).with_name("host.sh")

T = TypeVar("T")


def ssh_command() -> list[str]:
    """Return the command of the client, with the options that hold for all that we do.

    Raises:
        PoolError: it is not installed.
    """
    words = shlex.split(os.environ.get(SSH_VARIABLE, "")) or ["ssh"]
    if shutil.which(words[0]) is None:
        raise PoolError(
            f"there is no {words[0]} in the PATH of this machine: install OpenSSH's client (apt install openssh-client)"
        )
    return [*words, *_OPTIONS]


def end_ssh(pid: int, how: signal.Signals) -> None:
    """End an ssh that leads a session of its own. That of its ProxyJump is in it, and can outlive it: one that is just
    connecting hears of nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, how)


async def run(
    host: str,
    function: str,
    variables: Mapping[str, str],
    timeout_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Call a function of host.sh on a host; return what it prints, by its first words.

    Args:
        say: told what is done, as it comes.

    Raises:
        NodeUnreachable: nobody can connect to it. PoolError: ssh is not let in, or it can not be done there.
    """
    script = "\n".join(f"{name}={shlex.quote(text)}" for name, text in variables.items())
    with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as errors:
        sent.write(f"{script}\n{_HOST_SCRIPT.read_text()}\n{function}\n".encode())
        sent.seek(0)
        process = await asyncio.create_subprocess_exec(
            *ssh_command(),
            host,
            "exec sh -s",
            stdin=sent,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C in a terminal is for us
            limit=1 << 20,
        )
        try:
            async with asyncio.timeout(timeout_s):
                answers = await _answers(process, say)
                status = await process.wait()
        except TimeoutError:
            raise PoolError(f"{host} took longer than {timeout_s:g} s to {function}") from None
        finally:
            if process.returncode is None:
                end_ssh(process.pid, signal.SIGKILL)
                await process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if status == _FAILED:
        raise failure(host, said)
    if status:
        raise PoolError(_with_advice(said if status == _REFUSED else f"sh ended with status {status}: {said}"))
    return answers


async def _answers(process: asyncio.subprocess.Process, say: Callable[[str], None]) -> dict[str, str]:
    answers: dict[str, str] = {}
    assert process.stdout is not None
    async for line in process.stdout:
        word, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        if word == "say":
            say(text)
        else:
            answers[word] = text
    return answers


def waited_for(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, in any thread: also in one that has an event loop already."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()


def failure(host: str, said: str) -> PoolError:
    """Return the error for what ssh said when it failed: what is the matter, and what to do.

    Example:
        >>> str(failure("lab-1", "ssh: Could not resolve hostname lab-1: Name or service not known"))
        'ssh knows no host lab-1: name one as ~/.ssh/config or the name server knows it (Name or service not known)'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "ssh failed and says nothing"
    if "Could not resolve hostname" in said:
        reason = last.rpartition(": ")[2]
        return PoolError(f"ssh knows no host {host}: name one as ~/.ssh/config or the name server knows it ({reason})")
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in said:
        return PoolError(
            f"its host key has changed: somebody may be between you and the host, or it was installed anew. If "
            f"you know that it was: ssh-keygen -R {host}, then ssh {host} once by hand"
        )
    if "Host key verification failed" in said:
        return PoolError(f"its host key is not known here: run ssh {host} once by hand, and compare the fingerprint")
    if "Permission denied" in said or "Too many authentication failures" in said:
        return PoolError(
            f"it lets you in with none of your keys ({last}), and passwords are never asked for: ssh-copy-id {host} "
            "brings your key there, ssh-add gives one with a passphrase to the agent"
        )
    if "Bad configuration option" in said or "terminating," in said:
        return PoolError(f"ssh can not read its configuration: {last}")
    return NodeUnreachable(f"ssh does not reach it: {last}")


def _with_advice(said: str) -> str:
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return f"{said}\nits disk is full: make room there, or name a directory on another one with --directory"
    return said

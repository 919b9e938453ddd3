"""OpenSSH's client, with the user's own configuration, keys, agents and known hosts, and without a question to him; and
which hosts are meant.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from monarch_nb.config import SSH_VARIABLE, TrustPaths, gap
from monarch_nb.errors import NodeUnreachable, PoolError, UsageError
from monarch_nb.trust.pools import is_pool, paths_of, pool_names, pools_directory, read_hosts

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


_DESTINATION = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?(?P<name>[A-Za-z0-9_][\w.:-]*)")
_DEEPEST_INCLUDE = 16


def node_name(host: str) -> str:
    """Return what the node on a host is called: as ssh calls it, without the user.

    Raises:
        UsageError: that is no host.
    """
    match = _DESTINATION.fullmatch(host)
    if match is None:
        raise UsageError(f"{host!r} is no host for ssh: write HOST or USER@HOST; a port belongs into ~/.ssh/config")
    return match["name"].replace(":", "-")


def checked_hosts(hosts: Sequence[str]) -> list[str]:
    """Return hosts that ssh can be given.

    Raises:
        UsageError: one is none, or two are called the same.
    """
    names = [node_name(host) for host in hosts]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(f"{twice[0]} is named twice: a host has one node")
    return list(hosts)


def hosts_of(target: str) -> tuple[list[str], str]:
    """Return the hosts that `--on ssh:TARGET` means, and the directory of ours on them, where that was chosen.

    Raises:
        UsageError: it means none; the message says which there are.
    """
    if is_pool(target) and (of_pool := read_hosts(paths_of(target)).ssh):
        return [host.destination for host in of_pool], of_pool[0].directory
    configured = configured_hosts()
    if target in configured or not (lab := [name for name in configured if name.startswith(f"{target}-")]):
        words = [word for part in target.split(",") if (word := part.strip())]
        return checked_hosts(list(dict.fromkeys(name for word in words for name in _matching(word, configured)))), ""
    return checked_hosts(lab), ""


def _matching(word: str, configured: Sequence[str]) -> list[str]:
    if not re.search(r"[*?]", word):
        return [word]
    if found := [name for name in configured if fnmatchcase(name, word)]:
        return found
    raise UsageError(f"no Host of {_configuration()} matches {word}; there are {', '.join(configured) or 'none'}")


def known_targets() -> list[str]:
    """Return what can stand after `--on ssh:`, as far as it has a name."""
    paths = ((name, TrustPaths(pools_directory() / name)) for name in pool_names())
    pools = [name for name, of_pool in paths if not of_pool.jobs.exists() and read_hosts(of_pool).ssh]
    return [*pools, *configured_hosts()]


def configured_hosts() -> list[str]:
    """Return the names in ssh's configuration, patterns left out."""
    return list(dict.fromkeys(_names_in(_configuration(), 0)))


def _configuration() -> Path:
    words = shlex.split(os.environ.get(SSH_VARIABLE, ""))
    given = [after for word, after in pairwise(words) if word == "-F"]
    return Path(given[0] if given else "~/.ssh/config").expanduser()


def _names_in(path: Path, depth: int) -> Iterator[str]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:
            continue
        if keyword.lower() == "host":
            yield from (word for word in words if not re.search(r"[*?!]", word))
        elif keyword.lower() == "include" and depth < _DEEPEST_INCLUDE:
            for word in words:
                pattern = os.path.join(path.parent, os.path.expanduser(word))
                for found in sorted(glob(pattern)):
                    yield from _names_in(Path(found), depth + 1)

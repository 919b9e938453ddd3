"""Which hosts are meant: those of a pool that `monarch-nb pool init --ssh` made, or those in ssh's configuration."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import glob
from itertools import pairwise
from pathlib import Path

from monarch_nb.config import SSH_VARIABLE, TrustPaths
from monarch_nb.errors import UsageError
from monarch_nb.trust.pools import is_pool, paths_of, pool_names, pools_directory, read_hosts

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

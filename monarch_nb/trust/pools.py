"""Pools of hosts in the user's config: their names, their directories, and where their nodes are found."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from monarch_nb.config import (
    CONFIG_VARIABLE,
    DEFAULT_POOL,
    DEFAULT_PORT,
    TrustPaths,
    config_directory,
    private_directory,
)
from monarch_nb.errors import PoolError, TrustError, UsageError
from monarch_nb.trust.private_files import locked, read_private, write_private

DNS = "dns:"
_POOL_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
"""A label of a DNS name, because nodes' certificates have it in one."""
_USER_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.@+-]{0,62}[A-Za-z0-9_])?")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[A-Za-z0-9][A-Za-z0-9_.-]*)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class SshHost:
    """A host on which we started an allocator by ssh.

    Attributes:
        destination: as ssh knows it. address: of its allocator, as other nodes know it.
        tunnel: whether clients reach that by ssh alone.
        directory: ours on the host; empty for the usual one.
    """

    destination: str
    address: str
    tunnel: bool = False
    directory: str = ""

    @property
    def name(self) -> str:
        """What its node is called."""
        return self.destination.rpartition("@")[2].replace(":", "-")


@dataclass(frozen=True)
class Hosts:
    """Where the nodes of a pool are found; all ways can be used at once.

    Attributes:
        nodes: addresses, `host:port`.
        directory: on a shared file system, where nodes publish themselves (`allocator --publish`); "" for none.
        dns: `name:port`, each of whose addresses is a node; "" for none.
        interface: of the nodes, to which stores, Gloo and NCCL listen; "" for the one to which they listen themselves.
        ssh: hosts on which this user has started nodes.
    """

    nodes: tuple[str, ...] = ()
    directory: str = ""
    dns: str = ""
    interface: str = ""
    ssh: tuple[SshHost, ...] = ()

    @property
    def words(self) -> list[str]:
        """The ways as `monarch-nb pool add` takes them; hosts by their names."""
        hosts = [host.destination for host in self.ssh]
        return [*self.nodes, *filter(None, [self.dns and DNS + self.dns, self.directory]), *hosts]

    def added(self, word: str) -> Hosts:
        """Return the same with one way more.

        Raises:
            UsageError: it is no address, or there is another directory or DNS name already.
        """
        kind, value = _kind_of(word)
        if kind == "node":
            return replace(self, nodes=tuple(dict.fromkeys([*self.nodes, value])))
        if (there := self.dns if kind == "DNS name" else self.directory) not in ("", value):
            raise UsageError(
                f"a pool has one {kind}, not {there} and {value}: monarch-nb pool remove forgets what was added before"
            )
        return replace(self, dns=value) if kind == "DNS name" else replace(self, directory=value)

    def removed(self, word: str) -> Hosts:
        """Return the same without one way.

        Raises:
            UsageError: it was not there; the message says what is.
        """
        kind, value = _kind_of(word)
        if kind == "node" and value in self.nodes:
            return replace(self, nodes=tuple(node for node in self.nodes if node != value))
        if kind == "DNS name" and value == self.dns:
            return replace(self, dns="")
        if kind == "directory" and value == self.directory:
            return replace(self, directory="")
        raise UsageError(f"{word} is not in the pool; there are {', '.join(self.words) or 'no nodes'}")


def checked_pool_name(name: str) -> str:
    """Return a name for a pool of hosts.

    Raises:
        UsageError: it is none. It becomes a folder and a part of a DNS name.
    """
    if not _POOL_NAME.fullmatch(name) or name == DEFAULT_POOL:
        what = "is the pool of this machine" if name == DEFAULT_POOL else "is no name for a pool of hosts"
        raise UsageError(f"{name!r} {what}: take lower-case letters, digits and '-', at most 32")
    return name


def checked_user_name(name: str) -> str:
    """Return a name for a person.

    Raises:
        UsageError: it is none.
    """
    if not _USER_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a person: letters, digits and '_.@+-' between, at most 64")
    return name


def checked_address(address: str) -> str:
    """Return `host:port`; the port is 7878 where none is given.

    Raises:
        UsageError: it can not be read.
    """
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match["port"] or DEFAULT_PORT) < 1 << 16:
        raise UsageError(
            f"{address!r} is no address: write host:port, as in host1:{DEFAULT_PORT} or [2001:db8::1]:7878"
        )
    return address if match["port"] else f"{address}:{DEFAULT_PORT}"


def pools_directory() -> Path:
    """Return where the directories of all pools of hosts lie; it may not be there yet."""
    return config_directory() / "pools"


def private_pools_directory() -> Path:
    """Return the same, made if it is missing.

    Raises:
        PoolError: it can not be made, or others can enter it.
    """
    private_directory(config_directory(), CONFIG_VARIABLE)
    return private_directory(pools_directory(), CONFIG_VARIABLE)


def pool_names() -> list[str]:
    """Return the pools of hosts that this user has made or joined."""
    try:
        found = [path.name for path in pools_directory().iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return sorted(name for name in found if is_pool(name))


def is_pool(name: str) -> bool:
    """Whether a pool of hosts of that name has been made or joined here."""
    if not _POOL_NAME.fullmatch(name) or name == DEFAULT_POOL:
        return False
    return TrustPaths(pools_directory() / name).hosts.exists()


def paths_of(name: str) -> TrustPaths:
    """Return the paths of a pool that is there.

    Raises:
        UsageError: that is no name for one.
        PoolError: there is none of that name, or others can enter its directory.
    """
    if not is_pool(checked_pool_name(name)):
        there = pool_names()
        raise PoolError(
            f"there is no pool {name!r} in {pools_directory()}"
            + (f", only {', '.join(there)}" if there else "")
            + f": monarch-nb pool init {name} makes one, monarch-nb pool join FILE takes an invitation in"
        )
    return make_paths(name)


def make_paths(name: str) -> TrustPaths:
    """Return the paths of a pool, whose directory is made if it is missing.

    Raises:
        UsageError: that is no name for one. PoolError: the directory can not be made, or others can enter it.
    """
    checked_pool_name(name)
    return TrustPaths(private_directory(private_pools_directory() / name, CONFIG_VARIABLE))


def read_hosts(paths: TrustPaths) -> Hosts:
    """Return where a pool's nodes are found.

    Raises:
        TrustError: the file can not be read.
    """
    try:
        return parse_hosts(read_private(paths.hosts))
    except FileNotFoundError:
        return Hosts()
    except ValueError as error:
        raise TrustError(f"{paths.hosts} can not be read ({error}): mend or remove it") from None


def read_all_hosts(paths: TrustPaths) -> Hosts:
    """Return where a pool's nodes are found: what people have said, and the addresses and hosts of its jobs, as far as
    nodes do not publish themselves.

    Raises:
        TrustError: a file can not be read.
    """
    own = read_hosts(paths)
    all_of_them = [own, *(read_hosts(TrustPaths(directory)) for directory in sorted(paths.jobs.glob("*")))]
    nodes = dict.fromkeys(node for hosts in all_of_them for node in hosts.nodes)
    return replace(own, nodes=tuple(nodes), ssh=tuple(host for hosts in all_of_them for host in hosts.ssh))


def parse_hosts(text: bytes) -> Hosts:
    """Read what `format_hosts` wrote.

    Raises:
        ValueError: it can not be read.
    """
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise ValueError("not an object")
    nodes, texts = facts.get("nodes", []), [facts.get(name, "") for name in ("directory", "dns", "interface")]
    if not isinstance(nodes, list) or not all(isinstance(text, str) for text in [*nodes, *texts]):
        raise ValueError("not what monarch-nb writes")
    directory, dns, interface = texts
    started = facts.get("ssh", [])
    if not isinstance(started, list):
        raise ValueError("not what monarch-nb writes")
    ssh = tuple(_parse_ssh_host(one) for one in started)
    return Hosts(tuple(map(checked_address, nodes)), directory, dns and checked_address(dns), interface, ssh)


def _parse_ssh_host(facts: object) -> SshHost:
    match facts:
        case {"destination": str(name), "address": str(address), "tunnel": bool(tunnel), "directory": str(directory)}:
            return SshHost(name, checked_address(address), tunnel, directory)
    raise ValueError("not what monarch-nb writes")


def for_others(hosts: Hosts) -> Hosts:
    """Return where somebody else finds the nodes: what ssh needs is this user's own, and what it alone reaches is left
    out."""
    reached = [host.address for host in hosts.ssh if not host.tunnel]
    return replace(hosts, nodes=tuple(dict.fromkeys([*hosts.nodes, *reached])), ssh=())


def format_hosts(hosts: Hosts) -> bytes:
    """Return the content of `pool.json`."""
    return json.dumps(asdict(hosts), indent=2).encode() + b"\n"


def change_hosts(paths: TrustPaths, change: Callable[[Hosts], Hosts]) -> Hosts:
    """Change where a pool's nodes are found; return what it is now.

    Raises:
        TrustError: the file can not be read or written. What `change` raises.
    """
    with locked(paths.directory):
        hosts = change(read_hosts(paths))
        write_private(paths.hosts, format_hosts(hosts))
    return hosts


def _kind_of(word: str) -> tuple[str, str]:
    """Return what kind of way to nodes a word is, and the way as it is kept."""
    if word.startswith(DNS):
        return "DNS name", checked_address(word.removeprefix(DNS))
    if word.startswith("~") or "/" in word:
        return "directory", os.path.abspath(os.path.expanduser(word))
    return "node", checked_address(word)

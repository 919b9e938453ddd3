"""Hosts on one machine: network namespaces on a bridge, each with a host name and a file system of its own where it
matters; and what can go wrong with a network. Needs root.
"""

from __future__ import annotations

import itertools
import os
import shutil
import string
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from integration.live import eventually


@cache
def why_no_hosts() -> str:
    """Return why this machine can not have hosts; empty when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` (apt install iproute2)"
    name = f"mnbtry{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespace can be made here: {tried.stderr.strip()}"
    _ip("netns", "delete", name)
    return ""


@dataclass
class Host:
    """A host: a network namespace with one cable to the bridge.

    Attributes:
        name: of the host and of its namespace.
        address: on the network.
        cable: the bridge's end of its cable.
        processes: that were started on it and are ended with it.
    """

    name: str
    address: str
    cable: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, words: Sequence[str], hidden: Sequence[Path] = ()) -> list[str]:
        """Return the command that runs `words` on the host.

        Args:
            hidden: directories that are empty there: the host has other disks.
        """
        mounts = "".join(f"mount -t tmpfs none '{path}' && " for path in hidden)
        shell = f'hostname {self.name} && {mounts}exec "$@"'
        inside = ["unshare", "--uts", "--mount", "sh", "-c", shell, "sh", *words]
        return ["ip", "netns", "exec", self.name, *inside]

    def start(self, words: Sequence[str], hidden: Sequence[Path] = (), **options: object) -> subprocess.Popen[bytes]:
        """Start a process on the host; it is ended with the network."""
        process = subprocess.Popen(self.command(words, hidden), **options)  # type: ignore[call-overload]
        self.processes.append(process)
        return process  # type: ignore[no-any-return]

    def listeners(self) -> list[str]:
        """Return the addresses on which anything on the host listens for TCP, as `address:port`."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, "ss", "-Htln"], capture_output=True, text=True, check=True
        )
        return [line.split()[3] for line in done.stdout.splitlines()]

    def pull_the_cable(self) -> None:
        """Take the link down: both sides notice nothing, or errors."""
        _ip("link", "set", self.cable, "down")

    def plug_it_in(self) -> None:
        """Bring the link up again; it is when this returns."""
        _ip("link", "set", self.cable, "up")
        state = Path(f"/sys/class/net/{self.cable}/operstate")
        eventually(lambda: state.read_text() == "up\n")  # else `pass_on` is refused

    def swallow(self) -> None:
        """Let the network drop everything in silence, with all links up."""
        subprocess.run(["bridge", "link", "set", "dev", self.cable, "state", "0"], check=True)

    def pass_on(self) -> None:
        """Let the network forward again."""
        subprocess.run(["bridge", "link", "set", "dev", self.cable, "state", "3"], check=True)


_networks = itertools.count()


class Network:
    """A bridge with hosts on it; this process is on it as well, at `address`.

    Args:
        count: of hosts.

    Example:
        >>> with Network(3) as network:  # doctest: +SKIP
        ...     network.hosts[0].pull_the_cable()
    """

    def __init__(self, count: int) -> None:
        count_before = next(_networks)
        letters = "".join(string.ascii_lowercase[count_before // base % 26] for base in (26, 1))
        number = f"{os.getpid()}{letters}"  # one stays as long as the tests; names of cables have 15 characters
        self._bridge = f"mnb{number}"
        subnet_number = os.getpid() + 7919 * count_before  # else a client's old connections lead to new hosts
        subnet = f"10.{64 + subnet_number % 128}.{(subnet_number >> 7) % 256}"
        self.address = f"{subnet}.254"
        self.hosts = [
            Host(f"mnb{number}h{index}", f"{subnet}.{index}", f"mnb{number}v{index}") for index in range(1, count + 1)
        ]

    def __enter__(self) -> Network:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for host in self.hosts:
                _ip("netns", "add", host.name)
                _ip("link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.name)
                _ip("link", "set", host.cable, "master", self._bridge, "up")
                _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
                _ip("-n", host.name, "link", "set", "eth0", "up")
                _ip("-n", host.name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            for process in host.processes:
                process.kill()
                process.wait()
            _ip("link", "delete", host.cable, check=False)  # else it goes with the namespace, some time after its end
            _ip("netns", "delete", host.name, check=False)
        _ip("link", "delete", self._bridge, check=False)


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")

"""A pool of hosts for tests: a pool in a config of its own, allocators that serve mutual TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.config import NodePaths
from monarch_nb.provision.daemons import daemon_environment, shut_down
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import ADMIN, NODE, load_identity
from monarch_nb.trust.pools import change_hosts, make_paths

if TYPE_CHECKING:
    from integration.hosts.network import Host

START_S = 60.0


@dataclass
class Allocator:
    """An allocator of a test's pool.

    Attributes:
        address: `host:port`.
        paths: of the node, on its host's disk.
        host: that it runs on; None for this machine itself.
    """

    node_id: str
    address: str
    paths: NodePaths
    host: Host | None
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class Lab:
    """A pool of hosts. Its name is `lab`, and who runs the test has made it.

    Attributes:
        config: directory of the pools and certificates.
        home: below which the state of the nodes lies.
    """

    config: Path
    home: Path
    allocators: list[Allocator] = field(default_factory=list)
    name: str = "lab"

    @classmethod
    def make(cls, config: Path, home: Path, owner: str = "alice") -> Lab:
        """Make the pool in `config`."""
        paths = make_paths("lab")
        authority = Authority.create("lab", paths)
        authority.issue(owner, ADMIN).save(paths.identity)
        authority.issue("node", NODE).save(paths.node)
        change_hosts(paths, lambda hosts: hosts)
        return cls(config, home)

    def start(
        self,
        host: Host | None = None,
        procs: int = 2,
        flags: Sequence[str] = (),
        hidden: Sequence[Path] = (),
        directory: Path | None = None,
        number: int = 0,
    ) -> Allocator:
        """Start an allocator and wait until it serves; the pool knows it then. It imports no torch before ranks ask for
        it: that takes a processor 1.5 s, and most of these tests need none.

        Args:
            host: where; None for this machine, on loopback.
            procs: CPU slots.
            flags: more of its command line.
            hidden: directories that are empty on its host.
            directory: of a node that was there before.
            number: of that node.
        """
        number = number or len(self.allocators) + 1
        node_id = host.name if host else f"host{number}"
        state = directory or self.home / node_id
        state.mkdir(mode=0o700, exist_ok=True)
        listen = f"{host.address}:7878" if host else "127.0.0.1:0"
        ready, ready_end = os.pipe()
        log = self.config / f"{node_id}.log"
        words = [sys.executable, "-m", "monarch_nb.allocator", "--directory", str(state), "--node-id", node_id]
        words += ["--pool", "lab", "--listen", listen, "--procs", str(procs), "--gpus", "none", "--preload", ""]
        words += ["--ready-fd", str(ready_end), *flags]
        command = host.command(words, hidden) if host else words
        try:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=[ready_end],
                    env=daemon_environment(),
                    start_new_session=True,
                )
        finally:
            os.close(ready_end)
        with os.fdopen(ready) as lines:
            line = lines.readline()
        assert line, f"{node_id} did not start:\n{log.read_text()}"
        made = Allocator(node_id, json.loads(line)["serving"], NodePaths(state), host, process, log)
        self.allocators = [one for one in self.allocators if one.node_id != node_id] + [made]
        change_hosts(make_paths("lab"), lambda hosts: hosts.added(made.address))
        return made

    def forget_addresses(self) -> None:
        """The pool's list is empty: its nodes are to be found in another way."""
        change_hosts(make_paths("lab"), lambda hosts: replace(hosts, nodes=()))

    def end(self) -> None:
        """End every allocator with its ranks."""
        living = [one for one in self.allocators if one.process.poll() is None]
        identity = load_identity(make_paths("lab").identity)
        for one in living:
            assert shut_down(one.address, START_S, identity), f"{one.node_id} does not answer"
        for one in living:
            one.process.wait(START_S)

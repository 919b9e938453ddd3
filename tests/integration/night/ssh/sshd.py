"""Hosts with an sshd each: network namespaces with a host name, a home directory and an environment of their own. Needs
root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from integration.hosts.network import Host, Network, why_no_hosts

START_S = 60.0
SSHD = "/usr/sbin/sshd"


@cache
def why_no_sshd() -> str:
    """Return why this machine can not have hosts with an sshd; empty when it can."""
    if why := why_no_hosts():
        return why
    for command in (SSHD, "ssh", "ssh-keygen"):
        if shutil.which(command) is None:
            return f"there is no {command} (apt install openssh-server)"
    return ""


@dataclass
class SshLab:
    """Hosts `lab-1`, `lab-2`, … as ssh's configuration names them.

    Attributes:
        directory: with keys, configurations and the hosts' home directories.
        client: the command of the client, for MONARCH_NB_SSH.
        environment: of whoever logs in.
        hidden: directories that are empty on the hosts.
    """

    directory: Path
    network: Network
    environment: dict[str, str]
    hidden: Sequence[Path] = ()
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.directory / "config"

    @property
    def client(self) -> str:
        return f"ssh -F {self.config}"

    def home(self, name: str) -> Path:
        """Return the home directory on a host."""
        return self.directory / name

    def host(self, name: str) -> Host:
        return self.network.hosts[int(name.rpartition("-")[2]) - 1]

    def begin(self) -> None:
        """Make keys, and start an sshd on every host."""
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("me", "host"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / key)]
            subprocess.run(words, check=True)
        shutil.copy(self.directory / "me.pub", self.directory / "authorized")
        names = [f"lab-{number}" for number in range(1, len(self.network.hosts) + 1)]
        key = (self.directory / "host.pub").read_text().strip()
        known = "".join(f"{self.host(name).address} {key}\n" for name in names)
        (self.directory / "known").write_text(known)
        blocks = [f"Host {name}\n    HostName {self.host(name).address}\n" for name in names]
        common = f"""\
Host *
    User root
    IdentityFile {self.directory}/me
    IdentitiesOnly yes
    UserKnownHostsFile {self.directory}/known
    StrictHostKeyChecking yes
"""
        self.config.write_text("".join([*blocks, common]))
        for name in names:
            self.home(name).mkdir()
            self.start(name)

    def start(self, name: str) -> None:
        """Start a host's sshd, and wait until it answers."""
        host = self.host(name)
        variables = {"HOME": str(self.home(name)), **self.environment}
        conf = self.directory / f"{name}.sshd"
        conf.write_text(f"""\
Port 22
HostKey {self.directory}/host
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
AuthorizedKeysFile {self.directory}/authorized
MaxStartups 100
SetEnv {" ".join(f'"{name}={value}"' for name, value in variables.items())}
""")
        log = (self.directory / f"{name}.log").open("ab")
        with log:
            words = [SSHD, "-D", "-e", "-f", str(conf)]
            self.daemons[name] = host.start(
                words, self.hidden, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}
            )
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection((host.address, 22), 1.0).close()
                return
            except OSError:
                assert time.monotonic() < deadline_s, (self.directory / f"{name}.log").read_text()
                time.sleep(0.02)

    @property
    def living(self) -> list[str]:
        """The hosts that are on."""
        return [name for name, daemon in self.daemons.items() if daemon.poll() is None]

    def cut_power(self, name: str) -> None:
        """End everything on a host at once."""
        pids = subprocess.run(["ip", "netns", "pids", self.host(name).name], capture_output=True, text=True, check=True)
        for pid in map(int, pids.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemons[name].wait(START_S)

    def processes(self, kind: str = "") -> list[str]:
        """Return what runs on the hosts beside their sshd, or what of it has a word in its command."""
        found = []
        for name, daemon in self.daemons.items():
            words = ["ip", "netns", "pids", self.host(name).name]
            pids = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
            for pid in pids:
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if int(pid) != daemon.pid and kind in command and command and not command.startswith("sshd"):
                        found.append(f"{name}: {command}")
        return found

    def run(self, name: str, command: str) -> str:
        """Run a command on a host; return what it prints."""
        words = ["ssh", "-F", str(self.config), name, command]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    def fence(self, name: str, dropped: str = "tcp dport != 22") -> None:
        """Let nothing but ssh pass to a host from this machine, as if it were behind NAT; hosts reach each other."""
        rules = f"""\
table inet fence {{
  chain input {{
    type filter hook input priority 0; policy accept;
    ip saddr {self.network.address} {dropped} ct state new drop
  }}
}}
"""
        words = ["ip", "netns", "exec", self.host(name).name, "nft", "-f", "-"]
        subprocess.run(words, input=rules, text=True, check=True)

    def left(self) -> list[str]:
        """Return what of ours is in the hosts' home directories."""
        walks = [found for name in self.daemons for found in os.walk(self.home(name) / ".local/share/monarch-nb")]
        files = [os.path.join(place, file) for place, _, files in walks for file in files]
        return [os.path.relpath(file, self.directory) for file in files]

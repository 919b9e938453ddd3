"""A node that runs everybody as themselves, with accounts that are made for it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import monarch_nb
from integration.hosts.lab import Lab
from integration.hosts.people import Person
from integration.live import eventually
from integration.night.warden.wardens import PYTHON, TIMEOUT_S, UNIFIED, accounts, skip_unless_possible
from monarch_nb.config import CONFIG_VARIABLE, GPU_LOCKS_VARIABLE, HOME_VARIABLE, POOL_VARIABLE
from monarch_nb.trust.pools import change_hosts, make_paths

CGROUP = UNIFIED / f"mnb-as-users-{os.getpid()}"
REPOSITORY = Path(monarch_nb.__file__).parents[1]


@dataclass
class Node:
    """A node that runs people as themselves. Its pool is the one that is meant when none is named."""

    warden: subprocess.Popen[bytes]
    words: list[str]
    directory: Path
    log: Path
    lab: Lab
    people: dict[str, Person]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.warden = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")

    def run(self, who: str, code: str) -> list[str]:
        """Run Python as a client of somebody's; return what it prints."""
        return self.people[who].run(f"import monarch_nb as nb\n{code}")

    def cell(self, who: str, code: str) -> str:
        """Run a cell on a slot that somebody reserves for it; return the value."""
        [said] = self.run(
            who, f"r = nb.reserve('one', procs=1, preload=[])\nprint(r.mesh.run({code!r}).values[0])\nr.release()"
        )
        return said


def _python(directory: Path, first: Sequence[Path]) -> Path:
    """Return a Python with our packages that every account can execute. Args: first: directories before theirs."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", directory], check=True)
    [site] = (directory / "lib").glob("python*/site-packages")
    locks = f"import os; os.environ[{GPU_LOCKS_VARIABLE!r}] = {str(directory.parent / 'gpus')!r}"
    lines = [locks, *first, REPOSITORY, *(path for path in sys.path if path.endswith("-packages"))]
    (site / "ours.pth").write_text("".join(f"{line}\n" for line in lines))
    return directory / "bin" / "python"


@contextlib.contextmanager
def node_of_people(*, python_path: Sequence[Path] = (), imports: str = "monarch_nb.allocator") -> Iterator[Node]:
    """Start a node with accounts for bob and mallory.

    Args:
        python_path: of the node, before our packages.
        imports: what other accounts must be able to import.
    """
    skip_unless_possible()
    with (
        accounts("alice", "bob", "mallory", "as-gate") as (alice, bob, mallory, gate),
        pytest.MonkeyPatch.context() as patch,
    ):
        home = Path(tempfile.mkdtemp(prefix="mnb-as-", dir="/tmp"))
        home.chmod(0o755)
        config = home / "config"
        config.mkdir(mode=0o700)
        patch.setenv(CONFIG_VARIABLE, str(config))
        patch.setenv(HOME_VARIABLE, str(home / "client"))
        patch.setenv(POOL_VARIABLE, "lab")
        lab = Lab.make(config, home, owner=alice)
        (home / "gpus").mkdir()
        (home / "gpus").chmod(0o1777)
        keys = home / "keys"
        keys.mkdir(mode=0o700)
        shutil.copy(make_paths("lab").node, keys / "node.pem")
        facts = pwd.getpwnam(gate)
        for path in (keys, keys / "node.pem"):
            os.chown(path, facts.pw_uid, facts.pw_gid)
        (home / "users.toml").write_text("")
        python = _python(home / "python", python_path)
        tried = subprocess.run([python, "-c", f"import {imports}"], user=bob, capture_output=True, cwd="/", check=False)
        if tried.returncode:
            shutil.rmtree(home)
            pytest.skip(f"other accounts can not import {imports} here: {tried.stderr.decode()[-200:]}")
        listen = f"127.0.0.1:{free_port()}"
        words = [str(python), "-P", "-m", "monarch_nb.allocator", "--as-users", "--node-id", "host1"]
        words += ["--certificate", str(keys / "node.pem"), "--listen", listen, "--procs", "6"]
        words += ["--preload", "", f"--warden=--directory={home / 'state'}", f"--warden=--gateway-user={gate}"]
        words += [f"--warden=--users={home / 'users.toml'}", *_cgroup_option()]
        change_hosts(make_paths("lab"), lambda hosts: hosts.added(listen))
        people = {}
        for kind, name in (("bob", bob), ("mallory", mallory)):
            (home / kind).mkdir(mode=0o700)
            people[kind] = Person(lab, name, home / kind)
        made = Node(None, words, home / "state", home / "log", lab, people)  # type: ignore[arg-type]
        made.start()
        try:
            eventually(lambda: serves(made))
            yield made
        finally:
            made.warden.send_signal(signal.SIGTERM)
            made.warden.wait(TIMEOUT_S)
            for group in (CGROUP / "rooms", CGROUP / "gateway", CGROUP / "warden", CGROUP):
                with contextlib.suppress(FileNotFoundError):
                    group.rmdir()
        shutil.rmtree(home)


def _cgroup_option() -> list[str]:
    if (UNIFIED / "cgroup.procs").exists() and os.access(UNIFIED, os.W_OK):
        return [f"--warden=--cgroup={CGROUP}"]
    return ["--warden=--without-cgroups"]


def serves(node: Node) -> bool:
    assert node.warden.poll() is None, node.log.read_text()
    return "serves on" in node.log.read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

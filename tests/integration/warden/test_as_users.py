"""`monarch-nb allocator --as-users` with three accounts: each person's cells run as themselves, and get nothing of the
others'."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import monarch_nb
from integration.hosts.people import Person
from integration.live import eventually
from lab import Lab
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, POOL_VARIABLE
from monarch_nb.trust.pools import change_hosts, make_paths
from wardens import PYTHON, TIMEOUT_S, accounts, skip_unless_possible

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


def _python(directory: Path) -> Path:
    """Return a Python with our packages that every account can execute."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", directory], check=True)
    [site] = (directory / "lib").glob("python*/site-packages")
    (site / "ours.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    skip_unless_possible()
    with (
        accounts("alice", "bob", "mallory", "gate") as (alice, bob, mallory, gate),
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
        keys = home / "keys"
        keys.mkdir(mode=0o700)
        shutil.copy(make_paths("lab").node, keys / "node.pem")
        facts = pwd.getpwnam(gate)
        for path in (keys, keys / "node.pem"):
            os.chown(path, facts.pw_uid, facts.pw_gid)
        (home / "users.toml").write_text("")
        python = _python(home / "python")
        listen = f"127.0.0.1:{_free_port()}"
        words = [str(python), "-P", "-m", "monarch_nb.allocator", "--as-users", "--node-id", "host1"]
        words += ["--certificate", str(keys / "node.pem"), "--listen", listen, "--procs", "6", "--gpus", "none"]
        words += ["--preload", "", f"--warden=--directory={home / 'state'}", f"--warden=--gateway-user={gate}"]
        words += [f"--warden=--users={home / 'users.toml'}", "--warden=--without-cgroups"]
        change_hosts(make_paths("lab"), lambda hosts: hosts.added(listen))
        people = {}
        for kind, name in (("bob", bob), ("mallory", mallory)):
            (home / kind).mkdir(mode=0o700)
            people[kind] = Person(lab, name, home / kind)
        made = Node(None, words, home / "state", home / "log", lab, people)  # type: ignore[arg-type]
        made.start()
        try:
            eventually(lambda: _serves(made))
            yield made
        finally:
            made.warden.send_signal(signal.SIGTERM)
            made.warden.wait(TIMEOUT_S)
        shutil.rmtree(home)


def _serves(node: Node) -> bool:
    assert node.warden.poll() is None, node.log.read_text()
    return "serves on" in node.log.read_text()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_cells_run_as_the_person_who_reserved(node: Node) -> None:
    for who in ("bob", "mallory"):
        name = node.people[who].name
        facts = pwd.getpwnam(name)
        code = "import os, pwd; (pwd.getpwuid(os.getuid()).pw_name, os.environ['HOME'], os.getgroups(), os.umask(0o77))"
        assert node.cell(who, code) == str((name, facts.pw_dir, [facts.pw_gid], 0o77)), node.log.read_text()

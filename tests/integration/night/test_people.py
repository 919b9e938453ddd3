"""Three accounts of one machine, each with an allocator of its own: none reads, signals or writes what is another's,
and of two that want one GPU one has it and the other reads who that is (docs/people.md)."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import monarch_nb
from gpus import FAKE_NVML, FakeGpus
from integration.live import TIMEOUT_S
from monarch_nb.config import GPU_LOCKS_VARIABLE

PYTHON = "/usr/bin/python3"
"""One that other accounts can execute."""
REPOSITORY = Path(monarch_nb.__file__).parents[1]

HOLDS = """
import json, os
import monarch_nb as nb
from monarch_nb.config import NodePaths, gpu_locks_directory, pool_directory
secret = "import os, pathlib; pathlib.Path.home().joinpath('secret').write_text('mine'); os.getpid()"
dev = nb.reserve("dev", preload=[], **{asked})
[rank] = dev.mesh.run(secret).values
[cell_of] = dev.mesh.run("os.getuid()").values
paths = NodePaths(pool_directory() / "node0")
allocator = json.loads(paths.facts.read_text())["pid"]
locks = [str(path) for path in gpu_locks_directory().glob("GPU-*") if path.stat().st_uid == os.getuid()]
print(json.dumps({{"cell_of": cell_of, "pids": [rank, allocator], "files": [str(paths.facts), str(paths.start)],
    "directories": [str(paths.directory), str(paths.sockets)], "socket": str(paths.allocator_socket),
    "secret": os.path.expanduser("~/secret"), "locks": locks}}))
"""

TRIES = """
import json, os, socket
theirs = json.loads({theirs!r})
def connect(path):
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
def write(path):
    open(path, "ab").close()
def move(path):
    os.rename(path, path + ".away")
    os.rename(path + ".away", path)
def make(directory):
    os.mkdir(directory + "/probe")
    os.rmdir(directory + "/probe")
attempts = [(os.kill, pid, 0) for pid in theirs["pids"]]
attempts += [(open, f"/proc/{{pid}}/{{name}}") for pid in theirs["pids"] for name in ("mem", "environ")]
attempts += [(os.listdir, f"/proc/{{pid}}/fd") for pid in theirs["pids"]]
attempts += [(do, file) for file in [*theirs["files"], theirs["secret"]] for do in (open, write)]
attempts += [(do, directory) for directory in theirs["directories"] for do in (os.listdir, make)]
attempts += [(connect, theirs["socket"])]
attempts += [(do, lock) for lock in theirs["locks"] for do in (write, move)]
got = []
for do, *arguments in attempts:
    try:
        do(*arguments)
        got.append(str(arguments))
    except OSError:
        pass
(len(attempts), got)
"""


@dataclass
class Person:
    """An account with the Python and the environment that its owner has after a login."""

    name: str
    python: Path

    @property
    def facts(self) -> pwd.struct_passwd:
        return pwd.getpwnam(self.name)

    def run(self, code: str) -> str:
        """Run a program as this person; return what it prints."""
        home, group = self.facts.pw_dir, self.facts.pw_gid
        environment = {"HOME": home, "USER": self.name, "LOGNAME": self.name, "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [self.python, "-c", code],
            user=self.name,
            group=group,
            extra_groups=[],
            umask=0o022,
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=5 * TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def holds(self, **asked: int) -> dict[str, Any]:
        """Reserve and run a cell, which keeps a secret; return what somebody could try to reach of it."""
        told: dict[str, Any] = json.loads(self.run(HOLDS.format(asked=asked)).splitlines()[-1])
        assert told["cell_of"] == self.facts.pw_uid
        return told

    def tries(self, theirs: dict[str, Any]) -> tuple[int, list[str]]:
        """Try to reach what is somebody's from a cell; return how many attempts these are, and which succeed."""
        cell = TRIES.format(theirs=json.dumps(theirs))
        said = self.run(f"import monarch_nb as nb\nprint(nb.attach('dev').mesh.run({cell!r}).values[0])")
        attempts, got = eval(said)
        return attempts, got


@pytest.fixture
def people() -> Iterator[list[Person]]:
    """Alice, bob and mallory, on a machine with one GPU."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can be another user for a while, and make accounts (with useradd)")
    names = [f"mnb-{os.getpid()}-{who}" for who in ("alice", "bob", "mallory")]
    home = Path(tempfile.mkdtemp(prefix="mnb-people-", dir="/tmp"))
    home.chmod(0o755)
    try:
        for name in names:
            subprocess.run(["useradd", "--create-home", name], check=True, capture_output=True)
            os.chmod(pwd.getpwnam(name).pw_dir, 0o700)  # useradd leaves some open: docs/people.md
        yield [Person(name, _python(home)) for name in names]
    finally:
        for name in names:
            with suppress(KeyError):
                uid = pwd.getpwnam(name).pw_uid
                shutil.rmtree(f"/tmp/monarch-nb-{uid}", ignore_errors=True)
            subprocess.run(["userdel", "--remove", "--force", name], check=False, capture_output=True)
        shutil.rmtree(home)


def _python(home: Path) -> Path:
    """Return a Python with our packages and one GPU that every account can execute; the first call makes it."""
    python = home / "python" / "bin" / "python"
    if python.exists():
        return python
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", home / "python"], check=True)
    (home / "gpus").mkdir()
    (home / "gpus").chmod(0o1777)
    FakeGpus(home / "gpus.json").set(gpus=1)
    settings = {GPU_LOCKS_VARIABLE: str(home / "gpus"), "FAKE_NVML": str(home / "gpus.json")}
    [site] = (home / "python" / "lib").glob("python*/site-packages")
    packages = [FAKE_NVML, REPOSITORY, *(path for path in sys.path if path.endswith("-packages"))]
    lines = [f"import os; os.environ.update({settings!r})", *packages]
    (site / "ours.pth").write_text("".join(f"{line}\n" for line in lines))
    tried = subprocess.run(
        [python, "-c", "import monarch_nb.allocator.node"], user="nobody", capture_output=True, cwd="/"
    )
    if tried.returncode:
        pytest.skip(f"other accounts can not import monarch_nb here: {tried.stderr.decode()[-200:]}")
    return python


@pytest.mark.slow
def test_three_accounts_have_an_allocator_each_and_nothing_of_another(people: list[Person]) -> None:
    alice, bob, mallory = people
    try:
        held = {alice.name: alice.holds(gpus=1)}
        [refused] = bob.run(
            "import monarch_nb as nb\ntry: nb.reserve('dev', gpus=1, preload=[])\n"
            "except nb.errors.CapacityError as error: print(str(error).splitlines()[1])"
        ).splitlines()
        assert refused == f"  node0: 0 of 1 gpu free; GPU 0 is held by {alice.name} (dev)"
        held |= {person.name: person.holds(procs=1) for person in (bob, mallory)}
        assert len({pid for each in held.values() for pid in each["pids"]}) == 6
        for person in people:
            for name, theirs in held.items():
                attempts, got = person.tries(theirs)
                if name == person.name:
                    assert len(got) == attempts, "the attempts are real ones"
                else:
                    assert got == [], f"{person.name} gets what is {name}'s"
        alice.run("import monarch_nb as nb\nnb.attach('dev').release()")
        bob.run("import monarch_nb as nb\nnb.attach('dev').release()\nnb.reserve('dev', gpus=1, preload=[]).release()")
    finally:
        for person in people:
            person.run("from monarch_nb.cli.main import main\nmain(['down', '--force'])")
    assert not [entry for person in people for entry in _processes_of(person.facts.pw_uid)]


def _processes_of(uid: int) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            found += [process.name] if process.stat().st_uid == uid and state != "Z" else []
    return found

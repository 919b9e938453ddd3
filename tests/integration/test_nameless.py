"""A user who has neither a name nor a home directory, as containers have them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb

UID = 54321
CELL = """
import monarch_nb as nb
dev = nb.reserve("dev", procs=2, files=False, preload=[])
print(dev.mesh.run("import os\\nos.getuid(), os.environ.get('HOME')").values[0])
dev.release()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory of that user's."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can be another user for a while")
    made = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))
    os.chown(made, UID, UID)
    yield made
    shutil.rmtree(made)
    shutil.rmtree(f"/tmp/monarch-nb-{UID}", ignore_errors=True)


def said(directory: Path, *words: str) -> str:
    """Run Python as that user, who may read our Python wherever it lies; return what it prints."""
    account = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(monarch_nb.__file__).parents[1])}
    done = subprocess.run(
        ["setpriv", *account, *reads, sys.executable, *words],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_who_has_no_name_and_no_home_works_as_everybody_does(directory: Path) -> None:
    command = ("-m", "monarch_nb.cli.main")
    assert "the pool 'local' is up: node0" in said(directory, *command, "up", "--procs", "2")
    assert said(directory, "-c", CELL).splitlines()[-1] == f"({UID}, None)"
    assert "0 of 2" in said(directory, *command, "status")
    assert said(directory, *command, "pool", "init", "lab").startswith(f"made the pool lab, in which you are {UID};")
    assert "the pool 'local' is down" in said(directory, *command, "down", "--force")

"""Hosts that have nothing of ours: Python's packages are brought there, once.

The package index has stand-ins, each of which leads to the package that this process has: to install the real ones
takes minutes and gigabytes. A host does not see this process's Python, but its packages.
"""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.night.ssh.sshd import SshLab
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import PoolError
from monarch_nb.provision.remote.environment import requirements

PYTHON = Path(sys.executable)
INSTALLED = ".local/share/monarch-nb"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A directory of wheels, one for each that monarch_nb requires."""
    directory = tmp_path / "index"
    directory.mkdir()
    for requirement in requirements():
        name, _, version = requirement.partition("==")
        plain = name.replace("-", "_")
        facts = f"{plain}-{version}.dist-info"
        with zipfile.ZipFile(directory / f"{plain}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr("of_the_tests.pth", "\n".join(path for path in sys.path if path.endswith("site-packages")))
            wheel.writestr(f"{facts}/RECORD", "")
    return directory


def base_python() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve().parent


@pytest.fixture
def make_bare(make_lab: Callable[..., SshLab], index: Path) -> Callable[..., SshLab]:
    """Makes hosts without this process's Python, whose pip knows the index of this test alone."""
    if PYTHON.parent == base_python():
        pytest.skip("this process's Python is the system's")

    def make(count: int = 1, **environment: str) -> SshLab:
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PATH": f"{base_python()}:/usr/bin:/bin"}
        return make_lab(count, hidden=(PYTHON.parent,), environment=pip | environment)

    return make


@pytest.mark.slow
def test_what_is_needed_is_brought_once(make_bare: Callable[..., SshLab]) -> None:
    lab = make_bare(1)
    said: list[str] = []
    dev = reserve("dev", procs=1, preload=[], on="ssh:lab-1", progress=said.append)
    assert any("lab-1 makes a virtual environment with " in text for text in said), said
    found = dev.mesh.run("import sys, monarch_nb\nsys.executable, monarch_nb.__file__").values[0]
    place = str(lab.home("lab-1") / INSTALLED)
    assert found[0].startswith(f"{place}/venvs/"), found
    assert found[1].startswith(f"{place}/code/"), found
    version = dev.mesh.run("import importlib.metadata\nimportlib.metadata.version('monarch-nb')").values
    assert version == [importlib.metadata.version("monarch-nb")]
    dev.release()
    said.clear()
    dev = reserve("dev", procs=1, preload=[], on="ssh:lab-1", progress=said.append)
    assert not any("virtual environment" in text for text in said), said
    dev.release()


@pytest.mark.slow
def test_what_can_not_be_installed_is_said(make_bare: Callable[..., SshLab], index: Path) -> None:
    for wheel in index.glob("cloudpickle-*"):
        wheel.unlink()
    make_bare(1)
    with pytest.raises(PoolError, match=r"(?s)lab-1: .*python failed; .*install.log ends with\n.*cloudpickle"):
        reserve("dev", procs=1, on="ssh:lab-1")


def test_no_python_of_this_version(make_bare: Callable[..., SshLab], stand_in: Callable[[str, str], str]) -> None:
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    path = stand_in(minor, "echo 3.7")
    stand_in("python3", "echo 3.7")
    stand_in("python", "echo 3.7")
    make_bare(1, PATH=f"{path.partition(':')[0]}:/usr/bin:/bin")
    with pytest.raises(PoolError, match=r"lab-1: no Python 3\.\d+ there \(in the PATH: 3.7.*\), and no uv"):
        reserve("dev", procs=1, on="ssh:lab-1")


def test_a_disk_that_is_full(make_bare: Callable[..., SshLab], stand_in: Callable[[str, str], str]) -> None:
    path = stand_in("uv", "echo 'error: failed to write: No space left on device (os error 28)'; exit 2")
    make_bare(1, PATH=f"{path.partition(':')[0]}:/usr/bin:/bin")
    with pytest.raises(PoolError, match=r"(?s)lab-1: uv failed;.*os error 28\)\nits disk is full.*--directory"):
        reserve("dev", procs=1, on="ssh:lab-1")


UV = """
case "$1 $2" in
"venv --clear") exec {base}/python3 -m venv --clear "$5" ;;
"pip install") shift 2; python=$2; shift 2; exec "$python" -m pip install "$@" ;;
esac
"""


@pytest.mark.slow
def test_uv_is_used_where_there_is_one(make_bare: Callable[..., SshLab], stand_in: Callable[[str, str], str]) -> None:
    path = stand_in("uv", UV.format(base=base_python()))
    lab = make_bare(1, PATH=f"{path.partition(':')[0]}:/usr/bin:/bin")
    said: list[str] = []
    dev = reserve(
        "dev",
        procs=1,
        preload=[],
        on="ssh:lab-1",
        on_arguments=["--directory", f"{lab.home('lab-1')}/ours"],
        progress=said.append,
    )
    assert any("lab-1 makes a virtual environment with uv" in text for text in said), said
    assert dev.mesh.run("import sys\nsys.executable").values[0].startswith(f"{lab.home('lab-1')}/ours/venvs/")
    dev.release()
    assert not list((lab.home("lab-1") / "ours" / "nodes").iterdir())

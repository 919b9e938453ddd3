"""How launchers are found: also those of others, whose code may not be in order."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

import pytest

from monarch_nb.errors import PoolError
from monarch_nb.provision import launchers
from monarch_nb.provision.kubernetes.launcher import KubernetesLauncher
from monarch_nb.provision.launchers import launcher
from monarch_nb.provision.slurm import SlurmLauncher
from monarch_nb.provision.ssh import SshLauncher


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package "their-engine" with an entry point `theirs`; returns where its module is looked for."""
    facts = tmp_path / "their_engine-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-engine\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[{launchers.ENTRY_POINTS}]\ntheirs = their_engine.nodes:Launcher\n")
    [point] = Distribution.at(facts).entry_points
    monkeypatch.setattr(launchers, "entry_points", lambda group: [point])
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("on", "kind"), [("ssh:lab", SshLauncher), ("k8s:lab", KubernetesLauncher), ("slurm", SlurmLauncher)]
)
def test_ours_are_found_by_their_entry_points(on: str, kind: type) -> None:
    assert isinstance(launcher(on), kind)


def test_one_without_its_module_is_named_with_its_package(installed: Path) -> None:
    with pytest.raises(PoolError) as raised:
        launcher("theirs")
    assert str(raised.value) == (
        "--on theirs: the entry point theirs = their_engine.nodes:Launcher of the package their-engine can not be "
        "loaded (ModuleNotFoundError: No module named 'their_engine'): pip install --force-reinstall their-engine, "
        "with what it needs, or tell whoever wrote it"
    )

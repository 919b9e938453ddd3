"""The three kinds of time, the variable that multiplies one of them, and where the configuration lies."""

import os
import pwd
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from monarch_nb import config
from monarch_nb.config import PATIENCE_VARIABLE, cadence, gap, patience
from monarch_nb.provision.daemons import daemon_environment


def test_only_patience_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "2.5")
    assert (patience(2.0), gap(2.0), cadence(2.0)) == (5.0, 2.0, 2.0)


@pytest.mark.parametrize("given", [None, ""])
def test_without_the_variable_nothing_is(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATIENCE_VARIABLE)
    if given is not None:
        monkeypatch.setenv(PATIENCE_VARIABLE, given)
    assert patience(2.0) == 2.0


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf"])
def test_nonsense_is_ignored_and_said_once(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, given)
    with pytest.warns(UserWarning, match=rf"^\$MONARCH_NB_PATIENCE is '{given}', which is no positive number"):
        assert patience(2.0) == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert patience(3.0) == 3.0


def test_processes_that_are_started_inherit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "3")
    program = "from monarch_nb.allocator.reservations.gpu_locks import TURN_WAIT_S; print(TURN_WAIT_S)"
    printed = subprocess.check_output([sys.executable, "-c", program], env=daemon_environment(), text=True, timeout=60)
    assert printed == "6.0\n"


def config_of(home: str | None, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> Path:
    """Return the configuration of a user who has no name, with a home directory or without."""

    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(config, "_temporary_root", lambda: temporary)
    for name in (config.CONFIG_VARIABLE, "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    return config.config_directory()


def test_who_has_no_home_has_a_private_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: str(path) != "/")
    found = config_of(None, monkeypatch, tmp_path / "tmp")
    assert (found, (tmp_path / "tmp").stat().st_mode & 0o777) == (tmp_path / "tmp/config", 0o700)
    assert config_of("/", monkeypatch, tmp_path / "tmp") == found, "as engines set it for a user without a name"
    assert config_of("/nobody/has/this", monkeypatch, tmp_path / "tmp") == found


def test_a_home_counts_where_the_configuration_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    own = home / ".config/monarch-nb"
    assert config_of(str(home), monkeypatch, tmp_path / "tmp") == own
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert config_of(str(home), monkeypatch, tmp_path / "tmp") == tmp_path / "tmp/config"
    own.mkdir(parents=True)
    assert config_of(str(home), monkeypatch, tmp_path / "tmp") == own, "it is there, and only read"

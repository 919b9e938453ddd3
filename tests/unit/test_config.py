"""The three kinds of time, and the variable that multiplies one of them."""

import subprocess
import sys
import warnings

import pytest

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
    program = "from monarch_nb.allocator.leases.gpu_locks import TURN_WAIT_S; print(TURN_WAIT_S)"
    printed = subprocess.check_output([sys.executable, "-c", program], env=daemon_environment(), text=True, timeout=60)
    assert printed == "6.0\n"

"""Hosts that can not be had: what is said, and that nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, eventually
from integration.night.ssh.sshd import SshLab
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.errors import PoolError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.provision import jobs, launchers
from monarch_nb.provision.remote.preparing import Preparation


def refused(on: str, nodes: int = 1, *arguments: str) -> str:
    """Return why nodes can not be had; nothing is left here."""
    with pytest.raises(PoolError) as caught:
        reserve("dev", nodes=nodes, procs=1, preload=[], on=on, on_arguments=arguments)
    assert list((Path(os.environ[CONFIG_VARIABLE]) / "pools").iterdir()) == []
    return str(caught.value)


def test_a_host_that_ssh_can_not_use_is_named_with_what_to_do(make_lab: Callable[..., SshLab]) -> None:
    lab = make_lab(1)
    assert "ssh knows no host nowhere.invalid: name one as" in refused("ssh:nowhere.invalid")
    known = (lab.directory / "known").read_text()
    (lab.directory / "known").write_text("")
    assert "its host key is not known here: run ssh lab-1 once by hand" in refused("ssh:lab-1")
    mine = (lab.directory / "me.pub").read_text()
    (lab.directory / "known").write_text(f"{lab.host('lab-1').address} {mine}")
    assert "its host key has changed" in (said := refused("ssh:lab-1"))
    assert "ssh-keygen -R lab-1" in said
    (lab.directory / "known").write_text(known)
    (lab.directory / "authorized").write_text("")
    assert "none of your keys" in (said := refused("ssh:lab-1"))
    assert "ssh-copy-id lab-1" in said


def test_all_hosts_are_had_or_none(make_lab: Callable[..., SshLab]) -> None:
    lab = make_lab(3)
    lab.cut_power("lab-2")
    said = refused("ssh:lab", 3)
    assert "1 of 3 hosts can not be used, so nothing was started:\nlab-2: ssh does not reach it" in said
    eventually(lambda: not lab.processes())
    assert lab.left() == []


def test_a_host_that_is_a_mac(make_lab: Callable[..., SshLab], stand_in: Callable[[str, str], str]) -> None:
    lab = make_lab(1, environment={"PATH": stand_in("uname", "echo Darwin")})
    assert refused("ssh:lab-1") == "lab-1: nodes run on Linux only, and this host has Darwin"
    assert lab.left() == []


def test_an_allocator_that_never_comes_up_shows_its_log(make_lab: Callable[..., SshLab]) -> None:
    lab = make_lab(1, environment={HOME_VARIABLE: "/proc/nowhere"})
    said = refused("ssh:lab-1")
    assert "lab-1: its allocator has ended; its log ends with\n    monarch-nb allocator: can not make /proc/now" in said
    assert lab.left() == []


def test_ctrl_c_while_hosts_are_prepared_leaves_nothing(
    make_lab: Callable[..., SshLab], stand_in: Callable[[str, str], str], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    waits = f'while [ -e {held} ]; do sleep 0.1; done; exec /usr/bin/setsid "$@"'
    lab = make_lab(2, environment={"PATH": stand_in("setsid", waits)})
    interrupt, ended = Interrupt(), []

    def hear(text: str) -> None:
        if text == "lab-1 starts an allocator; lab-2 starts an allocator":
            interrupt.set()

    def ask() -> None:
        with interruptible(interrupt):
            try:
                reserve("dev", nodes=2, procs=1, on="ssh:lab", progress=hear)
            except KeyboardInterrupt:
                ended.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(TIMEOUT_S)
    held.unlink()
    assert ended == [True]
    assert list((Path(os.environ[CONFIG_VARIABLE]) / "pools").iterdir()) == []
    eventually(lambda: not lab.processes() and not lab.left())


def test_whoever_prepares_can_be_killed(
    make_lab: Callable[..., SshLab],
    stand_in: Callable[[str, str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = tmp_path / "held"
    held.touch()
    waits = f'while [ -e {held} ]; do sleep 0.1; done; exec /usr/bin/setsid "$@"'
    lab = make_lab(1, environment={"PATH": stand_in("setsid", waits)})
    monkeypatch.setattr(launchers, "UNHELD_S", 10.0)

    def hear(text: str) -> None:
        if text == "lab-1 starts an allocator":
            os.kill(Preparation.load(jobs.jobs()[0].paths).pid, signal.SIGKILL)

    with pytest.raises(PoolError, match="what prepared lab-1 was killed"):
        reserve("dev", procs=1, on="ssh:lab-1", progress=hear)
    eventually(lambda: lab.left())  # the host goes on
    held.unlink()
    eventually(lambda: lab.processes("monarch_nb.allocator"))
    eventually(lambda: not lab.processes() and not lab.left())

"""`monarch-nb pool init --ssh`: hosts become nodes of a pool, once."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, eventually
from integration.night.ssh.sshd import SshLab
from leaks import wait_for_end
from monarch_nb.cli.main import main
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.trust.pools import paths_of


def pool(*words: str) -> int:
    return main(["pool", *words])


@pytest.mark.slow
def test_hosts_become_nodes_once_and_are_left_as_they_were(
    make_lab: Callable[..., SshLab], capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(2)
    status = pool("init", "--ssh", "lab-1", "lab-2")
    said = capsys.readouterr().out
    assert status == 0, said
    assert "lab-1: has an allocator at 10." in said
    assert "pool lab: 2 nodes" in said, "doctor has looked at it"
    key = lab.home("lab-1") / ".local/share/monarch-nb/nodes/lab.lab-1/node.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    running = lab.processes("monarch_nb.allocator")
    assert pool("init", "lab", "--ssh") == 0
    said = capsys.readouterr().out
    assert "lab-2: had its allocator already at 10." in said
    assert "starts an allocator" not in said
    assert said.endswith("there was nothing to do\n")
    assert lab.processes("monarch_nb.allocator") == running
    dev = reserve("dev", nodes=2, procs=1, preload=[], pool="lab")
    assert pool("remove", "lab", "lab-1") == 1
    assert "held by dev" in capsys.readouterr().err
    dev.release()
    assert pool("remove", "lab", "lab-1") == 0
    assert [process for process in lab.processes("monarch_nb.allocator") if process.startswith("lab-1")] == []
    assert pool("list", "lab") == 0
    assert "the pool lab: lab-2\n" in capsys.readouterr().out
    assert pool("remove", "lab", "--force") == 0
    assert lab.processes() == lab.left() == []


@pytest.mark.slow
def test_a_port_that_another_pool_has_is_no_place_for_a_second(
    make_lab: Callable[..., SshLab], capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(1)
    assert pool("init", "lab", "--ssh", "lab-1") == 0
    running = lab.processes("monarch_nb.allocator")
    assert pool("init", "lab2", "--ssh", "lab-1") == 1
    said = capsys.readouterr().err
    assert "the allocator of the pool lab has this port already; choose another, as in" in said
    assert "add_port.cc" not in said, "gRPC has nothing to add"
    assert not (Path(os.environ[HOME_VARIABLE]) / "lab2").exists()
    assert lab.processes("monarch_nb.allocator") == running
    assert pool("init", "lab2", "--ssh", "lab-1", "--port", "7900") == 0
    for name in ("lab", "lab2"):
        assert pool("remove", name, "--force") == 0


@pytest.mark.slow
def test_one_host_that_fails_changes_nothing_on_the_others(
    make_lab: Callable[..., SshLab], capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(3)
    assert pool("init", "lab", "--ssh", "lab-1") == 0
    running = lab.processes("monarch_nb.allocator")
    lab.cut_power("lab-3")
    assert pool("init", "lab", "--ssh", "lab-1", "lab-2", "lab-3") == 1
    said = capsys.readouterr().err
    assert "1 of 3 hosts can not be used, so nothing was started:\nlab-3: ssh does not reach it: " in said
    eventually(lambda: [each for each in lab.processes() if not each.startswith("lab-1")] == [])
    assert lab.processes("monarch_nb.allocator") == running
    assert {path.split("/")[-2] for path in lab.left() if path.endswith(".pem")} == {"lab.lab-1"}
    assert pool("remove", "lab", "--force") == 0


@pytest.mark.slow
def test_a_renewed_certificate_is_brought_to_a_node_that_runs(
    make_lab: Callable[..., SshLab], capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(1)
    assert pool("init", "lab", "--ssh", "lab-1") == 0
    running = lab.processes("monarch_nb.allocator")
    assert pool("renew", "lab") == 0
    assert "monarch-nb pool init lab --ssh brings it to hosts" in capsys.readouterr().out
    assert pool("init", "lab", "--ssh") == 0
    there = lab.home("lab-1") / ".local/share/monarch-nb/nodes/lab.lab-1/node.pem"
    assert there.read_bytes() == paths_of("lab").node.read_bytes()
    assert lab.processes("monarch_nb.allocator") == running
    assert pool("remove", "lab", "--force") == 0


SYSTEMCTL = """
unit=$HOME/.config/systemd/user/$4
case "$2" in
enable) setsid $(sed -n 's/^ExecStart=//p' "$unit") </dev/null >>"${unit%.service}.log" 2>&1 & ;;
show-environment | daemon-reload | disable) echo "$*" >>"$HOME/systemctl" ;;
esac
"""


@pytest.mark.slow
def test_systemd_keeps_a_node_where_it_may(
    make_lab: Callable[..., SshLab], stand_in: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("loginctl", "echo yes")
    lab = make_lab(1, environment={"PATH": stand_in("systemctl", SYSTEMCTL)})
    assert pool("init", "lab", "--ssh", "lab-1") == 0
    assert ", kept by systemd as monarch-nb-lab.lab-1.service" in capsys.readouterr().out
    unit = lab.home("lab-1") / ".config/systemd/user/monarch-nb-lab.lab-1.service"
    if shutil.which("systemd-analyze"):
        words = ["systemd-analyze", "verify", "--man=no", str(unit)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    assert pool("remove", "lab", "--force") == 0
    assert not unit.exists()
    assert "--user disable --now monarch-nb-lab.lab-1.service" in (lab.home("lab-1") / "systemctl").read_text()
    os.remove(lab.home("lab-1") / ".config/systemd/user/monarch-nb-lab.lab-1.log")


@pytest.mark.slow
def test_a_job_has_allocators_of_its_own_on_a_pool_s_hosts(make_lab: Callable[..., SshLab]) -> None:
    lab = make_lab(2)
    assert pool("init", "mine", "--ssh", "lab-2") == 0
    dev = reserve("dev", procs=1, preload=[], on="ssh:mine")
    assert dev.mesh.run("import os\nos.environ['HOME']").values == [str(lab.home("lab-2"))]
    dev.release()
    assert len(lab.processes("monarch_nb.allocator")) == 1, "the pool's own"
    assert pool("remove", "mine", "--force") == 0


@pytest.mark.slow
def test_a_node_that_ended_is_said_and_comes_again(
    make_lab: Callable[..., SshLab], capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(1)
    assert pool("init", "lab", "--ssh", "lab-1") == 0
    pid = int((lab.home("lab-1") / ".local/share/monarch-nb/nodes/lab.lab-1/pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_for_end(pid, TIMEOUT_S)
    capsys.readouterr()
    assert pool("list", "lab") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "no answer (its allocator has ended: monarch-nb pool init lab --ssh starts another)" in said
    assert pool("init", "lab", "--ssh") == 0
    assert "lab-1: has an allocator at 10." in capsys.readouterr().out
    assert pool("list", "lab") == 0
    assert pool("remove", "lab", "--force") == 0

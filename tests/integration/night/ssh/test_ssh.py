"""Nodes on hosts that a real sshd leads to."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.live import eventually, parent_of, pids_of
from integration.night.ssh.sshd import SshLab
from integration.ways import AnyWay
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import SSH_VARIABLE, config_directory
from monarch_nb.errors import MonarchNbError
from monarch_nb.provision import jobs
from monarch_nb.provision.remote import preparing
from monarch_nb.worker.saving.manifest import Manifest, damage


class TestSsh(AnyWay):
    """What holds for every way holds for hosts that ssh reaches."""


@pytest.mark.slow
def test_a_host_that_was_away_at_the_release_is_cleaned_up_by_the_next_job(
    make_lab: Callable[..., SshLab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "END_S", 2.0)  # what is away never says that it has ended
    monkeypatch.setattr(preparing, "SHUT_DOWN_S", 2.0)
    lab, owed = make_lab(2), config_directory() / "ssh-owed.json"
    monkeypatch.setenv(SSH_VARIABLE, f"{lab.client} -o ConnectTimeout=3")
    dev = reserve("dev", nodes=2, procs=1, preload=[], on="ssh:lab")
    lab.host("lab-2").pull_the_cable()
    [left] = dev.release()
    assert str(left) == "lab-2 does not answer: its ranks go on until the next job that reaches it ends them"
    assert owed.exists()
    lab.host("lab-2").plug_it_in()
    assert [each for each in lab.processes() if each.startswith("lab-2")] != []
    reserve("other", procs=1, preload=[], on="ssh:lab-1").release()
    eventually(lambda: not lab.processes() and not lab.left() and not owed.exists())


@pytest.mark.slow
def test_an_allocator_that_is_told_to_end_has_its_ranks_save_first(
    make_lab: Callable[..., SshLab], tmp_path: Path
) -> None:
    lab = make_lab(1)
    dev = reserve("dev", procs=2, on="ssh:lab-1")
    dev.mesh.run("step = 12")
    dev.mesh.autosave(tmp_path / "saves", at_end=True)
    [allocator] = {parent_of(parent_of(pid)) for pid in pids_of(dev.mesh).values()}
    os.kill(allocator, signal.SIGTERM)
    eventually(lambda: not lab.processes())
    [save] = [each for each in (tmp_path / "saves").iterdir() if not each.name.startswith(".")]
    manifest = Manifest.read(save)
    assert damage(save, manifest) == {}
    assert "step" in {part.name for part in manifest.parts}
    with contextlib.suppress(MonarchNbError):
        dev.release()

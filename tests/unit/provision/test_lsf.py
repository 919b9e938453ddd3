"""LSF's launcher without an LSF: the script, what the commands say, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.provision.launchers import Ask, Job, Look, flags_of, launcher
from monarch_nb.provision.lsf import (
    LsfLauncher,
    _check_arguments,
    _environment,
    _job_with,
    _refusal,
    look_of,
    options,
    parse_lost,
    parse_row,
    script,
)

HERE = Path(__file__).parent
ASK = Ask(
    "dev", "lsf-dev", 2, 0, 8, 8 * 3600.0, (), TrustPaths(Path("/home/me/.config/monarch-nb/pools/lsf-dev/jobs/1"))
)


class TestScript:
    def test_is_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/home/me/env/bin/python")
        assert script(ASK) == (HERE / "lsf_job.sh").read_text()
        subprocess.run(["bash", "-n"], input=script(ASK), text=True, check=True)

    def test_asks_for_a_slot_per_host_with_gpus_and_for_one_per_cpu_rank(self) -> None:
        assert " ".join(options(ASK)) == "-J monarch-nb-dev -n 2 -R span[ptile=1] -gpu num=8 -W 480 -o /dev/null"
        of_procs = options(replace(ASK, gpus=0, procs=4, time_s=0.0))
        assert " ".join(of_procs) == "-J monarch-nb-dev -n 8 -R span[ptile=4] -o /dev/null"

    def test_hosts_that_the_pool_has_already_are_left_out(self) -> None:
        more = replace(ASK, beside=("h1", "h2"), gpus=0, procs=4, time_s=0.0)
        wanted = "-J monarch-nb-dev -n 8 -R select[hname!=h1 && hname!=h2] span[ptile=4] -o /dev/null"
        assert " ".join(options(more)) == wanted

    def test_in_a_job_that_is_there_they_are_passed_over(self, tmp_path: Path) -> None:
        own = tmp_path / "lsf-dev" / "jobs" / "2"
        own.mkdir(parents=True)
        blaunch = tmp_path / "blaunch"
        blaunch.write_text(f"#!/bin/bash\necho $1 >> {tmp_path}/started\n")
        blaunch.chmod(0o755)
        inside = script(replace(ASK, nodes=1, beside=("h1", "h2"), paths=TrustPaths(own)))
        hosts = {"LSB_MCPU_HOSTS": "h1 4 h2 4 h3 4 h4 4", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["bash"], input=inside, text=True, env=hosts, check=True)
        assert (tmp_path / "started").read_text() == "h3\n"
        assert not (tmp_path / "lsf-dev").exists(), "the last job of a pool takes it along"


class TestArguments:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("-n", "3"), "say --nodes and --procs"),
            (("-K",), "the cell waits"),
            (("-q", "gpu", "sleep"), "'sleep' is no flag of bsub"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, words: tuple[str, ...], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            _check_arguments(words)
        _check_arguments(("-P", "lab", "-x", "-R", "select[mem>1000]"))


INSIDE = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "h1 4 h2 4", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}


def test_a_job_that_is_there_is_used_when_it_has_what_is_asked_for() -> None:
    assert _job_with(ASK, INSIDE) == "7"
    assert _job_with(replace(ASK, gpus=0, procs=4), {**INSIDE, "CUDA_VISIBLE_DEVICES": ""}) == "7"
    assert _job_with(replace(ASK, nodes=1, beside=("h1",)), INSIDE) == "7"
    for other in ({"nodes": 3}, {"gpus": 9}, {"arguments": ("-q", "gpu")}):
        assert _job_with(replace(ASK, **other), INSIDE) == ""  # type: ignore[arg-type]
    assert _job_with(ASK, {}) == ""


def test_what_is_true_of_this_process_s_own_job_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LSB_JOBID", "LSB_MCPU_HOSTS", "LS_JOBPID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LSF_ENVDIR", "/lsf/conf")
    monkeypatch.setenv("LSB_DEFAULTQUEUE", "gpu")
    kept = {name for name in _environment() if name.startswith(("LS", "CUDA"))}
    assert kept == {"LSF_ENVDIR", "LSB_DEFAULTQUEUE"}
    assert _environment(inside=True)["LSB_JOBID"] == "1"


class TestLooks:
    def look(self, line: str) -> Look:
        return look_of(parse_row(line))

    def test_waiting(self) -> None:
        look = self.look("12|PEND|-|-|480.0|-|-|-|Job slot limit reached | 4 hosts;")
        assert look == Look("waiting", "LSF job 12 waits (Job slot limit reached | 4 hosts)")
        look = self.look("12|PEND|-|-|480.0|Nov 23 14:02|-|-|New job is waiting for scheduling;")
        assert look.text.endswith("(New job is waiting for scheduling), starts at about Nov 23 14:02")
        assert self.look("12|PSUSP|-|-|-|-|-|-|The job was suspended").text.endswith("(The job was suspended)")
        assert self.look("12|PROV|-|-|-|-|-|-|-").text.endswith("waits (PROV)")

    def test_running(self) -> None:
        look = self.look("12|RUN|8*h1:8*h2|1:30 L|120.0/h1|-|-|-|-")
        assert (look.state, look.text, look.trouble) == ("running", "LSF job 12 runs on h1, h2", "")
        assert look.ends_at > 0
        assert self.look("12|RUN|h1|2:00 E|-|-|-|-|-").ends_at == 0, "an estimate is no limit"

    def test_one_that_does_not_go_on_has_trouble(self) -> None:
        look = self.look("12|UNKWN|h1|-|-|-|-|-|-")
        assert (look.state, look.trouble) == ("running", "is UNKWN, as LSF says")
        said = "HOST_NAME STATUS JL/U\nh1 ok -\nh2 unavail -\nh3 closed_Full -\n"
        assert parse_lost(said) == "h2 is unavail, as LSF says"

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("12|DONE|h1|-|-|-|-|-|-", "LSF job 12 has ended"),
            ("12|EXIT|h1|-|-|-|3|-|-", "LSF job 12 has ended (exit code 3)"),
            ("12|EXIT|h1|-|-|-|130|TERM_OWNER: by owner|-", "has ended (TERM_OWNER: by owner)"),
        ],
    )
    def test_ended(self, line: str, said: str) -> None:
        look = self.look(line)
        assert look.state == "ended"
        assert said in look.text
        assert look.trouble


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Too many processors requested. Job not submitted.", CapacityError),
        ("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", CapacityError),
        ("bsub: invalid option -- 'z'\nUsage: bsub [-h]\n            [-J job_name] [command]\n", UsageError),
        ("Failed in an LSF library call: LIM is down; try later", PoolError),
    ],
)
def test_refusals(said: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_nb.provision.lsf._queues", lambda: "")
    refused = _refusal(said)
    assert type(refused) is kind
    assert said.splitlines()[0].partition(". ")[0] in str(refused)
    assert "Usage" not in str(refused)


def test_where_lsf_is_a_form_asks_for_queue_and_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    way = launcher("lsf")
    assert isinstance(way, LsfLauncher)
    with pytest.raises(PoolError, match="LSF is not installed on this machine: there is no bjobs in the PATH"):
        way.look(Job("lsf", "12", "dev", "lsf-dev", 2, 0, 8, TrustPaths(tmp_path)))
    with pytest.raises(PoolError, match="no bsub"):
        way.options()
    (tmp_path / "bsub").touch(0o755)
    assert flags_of(way.options(), {"queue": "gpu", "project": None}) == ["-q", "gpu"]

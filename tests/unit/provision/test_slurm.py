"""Slurm's launcher without a Slurm: the script, what the commands say, what is refused."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.provision.launchers import Ask, Job, Look, flags_of, launcher
from monarch_nb.provision.slurm import (
    SlurmLauncher,
    _allocation_with,
    _environment,
    _look_of,
    parse_failed,
    parse_row,
    script,
)
from monarch_nb.times import time_of_day

HERE = Path(__file__).parent


def asked(**changes: object) -> Ask:
    paths = TrustPaths(Path("/home/me/.config/monarch-nb/pools/slurm-dev/jobs/1"))
    return replace(Ask("dev", "slurm-dev", 2, 0, 8, 8 * 3600.0, (), paths), **changes)  # type: ignore[arg-type]


def job(identifier: str = "12") -> Job:
    return Job("slurm", identifier, "dev", "slurm-dev", 2, 0, 8, TrustPaths(Path("/nowhere")), served=True)


class TestScript:
    def test_is_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/home/me/env/bin/python")
        assert script(asked()) == (HERE / "slurm_job.sh").read_text()

    def test_of_cpu_ranks_without_a_limit_whose_name_is_odd(self) -> None:
        text = script(asked(gpus=0, procs=4, time_s=0.0, reservation="it's"))
        assert "#SBATCH --cpus-per-task=4\n" in text
        assert "--gpus none --procs 4" in text
        assert not {"--time", "--gpus-per-node"} & {word.partition("=")[0] for word in text.split()}
        assert "#SBATCH '--job-name=monarch-nb-it'\"'\"'s'\n" in text

    def test_nodes_import_what_their_ranks_will_have(self) -> None:
        assert "--preload" not in script(asked()), "torch is what they import by themselves"
        assert "--preload=torch --preload=lightning " in script(asked(preload=("torch", "lightning")))
        assert "--preload= " in script(asked(preload=())), "nothing"

    def test_time_is_in_whole_minutes(self) -> None:
        for seconds, minutes in ((1.0, 1), (60.0, 1), (61.0, 2)):
            assert f"#SBATCH --time={minutes}\n" in script(asked(time_s=seconds))


class TestArguments:
    def test_flags_of_sbatch_pass(self, command: Callable[[str, str], None], tmp_path: Path) -> None:
        command("sbatch", f'echo "$*" > {tmp_path}/flags; echo "12;cluster"')
        for words in ((), ("--partition=a100",), ("-p", "a100", "--account", "lab"), ("--exclusive",)):
            assert SlurmLauncher().ask(asked(arguments=words)) == "12"
            assert " ".join(words) in (tmp_path / "flags").read_text()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--nodes=3",), "say --nodes before the --"),
            (("--array=0-3",), "a reservation is one job"),
            (("--time", "8:00"), "say --time before the --"),
            (("--partition=a100", "lab"), "'lab' is no flag of sbatch"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, words: tuple[str, ...], said: str, command: Callable[[str, str], None]
    ) -> None:
        command("sbatch", "echo 12")
        with pytest.raises(UsageError, match=said):
            SlurmLauncher().ask(asked(arguments=words))


INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8"}


class TestAllocation:
    def test_that_has_what_is_asked_for_is_used(self) -> None:
        assert _allocation_with(asked(), INSIDE) == "7"
        assert _allocation_with(asked(gpus=0, procs=4), {"SLURM_JOB_ID": "7"}) == "7"
        assert _allocation_with(asked(nodes=1, beside=("n1",)), INSIDE) == "7"
        for other in ({"nodes": 3}, {"gpus": 9}, {"nodes": 1, "beside": ("n1", "n2")}, {"arguments": ("--qos=a",)}):
            assert _allocation_with(asked(**other), INSIDE) == ""
        assert _allocation_with(asked(), {}) == ""


def test_what_is_true_of_this_process_s_own_job_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("SLURM_NTASKS", "SLURM_JOB_ID", "SQUEUE_STATES", "PMIX_RANK", "CUDA_VISIBLE_DEVICES", "SBATCH_ARRAY_INX")
    for name in ours:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    kept = {name for name in _environment() if name.startswith(("SLURM", "SQUEUE", "SBATCH", "PMI", "CUDA"))}
    assert kept == {"SLURM_CONF", "SBATCH_ACCOUNT"}
    assert _environment("12")["SLURM_JOB_ID"] == "12"


class TestLooks:
    def look(self, line: str) -> Look:
        return _look_of(parse_row(line))

    def test_waiting(self) -> None:
        look = self.look("12|PENDING|Priority|N/A|N/A|")
        assert look == Look("waiting", "Slurm job 12 waits (Priority)")
        assert self.look("12|REQUEUED|None|N/A|N/A|") == Look("waiting", "Slurm job 12 waits (REQUEUED)")
        soon, years = int(time.time()) + 3600, int(time.time()) + 400 * 24 * 3600
        assert f", starts at about {time_of_day(soon)}" in self.look(f"12|PENDING|Resources|{soon}|N/A|").text
        assert "starts" not in self.look(f"12|PENDING|Resources|{years}|N/A|").text, "behind jobs without a time limit"

    def test_waiting_for_ever_and_where_waiting_may_help(self) -> None:
        for reason in ("PartitionConfig", "BadConstraints", "QOSMaxWallDurationPerJobLimit", "InvalidAccount"):
            assert self.look(f"12|PENDING|{reason}|N/A|N/A|").trouble.startswith(reason)
        for reason in ("Resources", "QOSMaxJobsPerUserLimit", "MaxGRESPerAccount", "JobHeldUser", "PartitionDown"):
            assert self.look(f"12|PENDING|{reason}|N/A|N/A|").trouble == ""

    def test_running(self) -> None:
        look = self.look("12|RUNNING|None|1800000000|1800003600|n[1-2]")
        assert (look.state, look.text, look.ends_at) == ("running", "Slurm job 12 runs on n[1-2]", 1800003600.0)
        assert self.look("12|RUNNING|None|1800000000|NONE|n1").ends_at == 0.0

    @pytest.mark.parametrize(
        ("state", "reason", "text"),
        [
            ("PREEMPTED", "None", "Slurm job 12 has ended (PREEMPTED)"),
            ("TIMEOUT", "TimeLimit", "Slurm job 12 has ended (TIMEOUT, TimeLimit)"),
            ("COMPLETED", "None", "Slurm job 12 has ended"),
        ],
    )
    def test_ended(self, state: str, reason: str, text: str) -> None:
        look = self.look(f"12|{state}|{reason}|1800000000|1800003600|")
        assert (look.state, look.text) == ("ended", text)


def test_nodes_that_failed_are_named_once() -> None:
    said = "n1|mixed|none\nn2|down*|Not responding\nn2|down*|Not responding\nn3|allocated*|none\nn4|drained|disk\n"
    assert parse_failed(said) == "n2 is down (Not responding); n3 is not responding (none)"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("srun: error: n[1-2]: tasks 0-1: Killed\n", "the allocator of n[1-2] has ended (Killed)"),
        ("srun: error: n1: task 0: Terminated\n", ""),
        ("srun: error: Node failure on n2\nsrun: error: n2: task 1: Killed\n", "n2 is down (fire)"),
        ("n1 serves on 10.0.0.1:7878\n", ""),
    ],
)
def test_what_srun_says_in_the_log(log: str, said: str, command: Callable[[str, str], None], tmp_path: Path) -> None:
    command("squeue", 'echo "12|RUNNING|None|1800000000|1800003600|n1"')
    command("sinfo", 'case "$*" in *--nodes=n2*) echo "n2|down|fire";; *) echo "n1|mixed|none";; esac')
    (tmp_path / "job.log").write_text(log)
    assert SlurmLauncher().look(replace(job(), paths=TrustPaths(tmp_path))).trouble == said


FAILED = "sbatch: error: Batch job submission failed:"


class TestCommands:
    def test_no_slurm(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        for do in (lambda: SlurmLauncher().ask(asked()), SlurmLauncher().options):
            with pytest.raises(
                PoolError, match="Slurm is not installed on this machine: there is no sbatch in the PATH"
            ):
                do()

    def test_one_that_the_queue_has_forgotten_is_in_accounting(self, command: Callable[[str, str], None]) -> None:
        command("squeue", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
        command("sacct", 'echo "CANCELLED by 0|"')
        assert SlurmLauncher().look(job()).text == "Slurm job 12 has ended (CANCELLED)"

    def test_one_that_nobody_knows_has_ended(self, command: Callable[[str, str], None]) -> None:
        unknown = "error: Kill job error on job id 12: Invalid job id specified"
        for name in ("squeue", "scancel"):
            command(name, f"echo {unknown} >&2; exit 1")
        command("sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
        assert SlurmLauncher().look(job()).state == "ended"
        SlurmLauncher().end(job())

    def test_a_controller_that_is_away_is_no_end(self, command: Callable[[str, str], None]) -> None:
        command(
            "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
        )
        with pytest.raises(PoolError, match=r"not answer: Unable to contact slurm controller .*scontrol ping"):
            SlurmLauncher().look(job())

    def test_a_site_that_lets_nobody_extend(self, command: Callable[[str, str], None]) -> None:
        command("scontrol", "echo 'slurm_update error: Access/permission denied' >&2; exit 1")
        with pytest.raises(UsageError, match=r"does not let you extend job 12 \(Access/permission denied\).*=\+90"):
            SlurmLauncher().extend(job(), 5400.0)

    def test_a_job_that_can_not_be_ended_is_named(self, command: Callable[[str, str], None]) -> None:
        command("scancel", "echo 'scancel: error: Kill job error on job id 12: Access/permission denied' >&2; exit 1")
        with pytest.raises(PoolError, match=r"did not cancel job 12: .*Access/permission denied; later: scancel 12"):
            SlurmLauncher().end(job())

    @pytest.mark.parametrize(
        ("said", "error", "told"),
        [
            (f"{FAILED} Requested node configuration is not available", CapacityError, "there are main"),
            (f"{FAILED} Invalid account or account/partition combination", UsageError, "Invalid account"),
            ("sbatch: unrecognized option '--x=4'\nTry \"sbatch --help\"", UsageError, "unrecognized option '--x=4'$"),
            (f"{FAILED} Unable to contact slurm controller", PoolError, "scontrol ping tells which controller"),
        ],
    )
    def test_refusals(
        self, said: str, error: type[Exception], told: str, command: Callable[[str, str], None], tmp_path: Path
    ) -> None:
        (tmp_path / "said").write_text(said)
        command("sbatch", f"cat {tmp_path / 'said'} >&2; exit 1")
        command("sinfo", "echo main")
        for do in (SlurmLauncher().ask, SlurmLauncher().offer):
            with pytest.raises(error, match=told) as refused:
                do(asked())
            assert type(refused.value) is error


def test_another_engine_or_a_target_of_it_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--on slrum: there is no such engine; did you mean slurm\? installed: .*slurm"
    ):
        launcher("slrum")
    with pytest.raises(UsageError, match=r"--on slurm:lab: this engine takes no target: --on slurm$"):
        launcher("slurm:lab")


class TestForms:
    def test_partitions_are_offered_as_slurm_names_them(self, command: Callable[[str, str], None]) -> None:
        command("sbatch", "exit 1")
        command("sinfo", "echo long; echo a100; echo long")
        options = SlurmLauncher().options()
        assert options[0].choices == (("", "the default"), ("a100", "a100"), ("long", "long"))
        flags = flags_of(options, {"partition": "a100", "account": "lab", "qos": None})
        assert flags == ["--partition=a100", "--account=lab"]
        command("sinfo", "echo 'slurm_load_partitions: Unable to contact' >&2; exit 1")
        with pytest.raises(PoolError, match="which partitions"):
            SlurmLauncher().options()

    def test_an_offer_says_when_it_would_start(
        self, command: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        for later_s, said in (
            (3600, "start at about {}"),
            (400 * 24 * 3600, "wait for jobs that have no time limit, and run"),
        ):
            at = int(time.time()) + later_s
            command(
                "sbatch",
                f'[ "$1" = --test-only ] && echo "sbatch: Job 7 to start at {at} using 16 processors on nodes n[1-2] '
                'in partition main" >&2',
            )
            when = said.format(time_of_day(at))
            assert SlurmLauncher().offer(asked()).text == f"would {when} on n[1-2], partition main"

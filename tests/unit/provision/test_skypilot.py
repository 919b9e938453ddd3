"""SkyPilot's launcher without SkyPilot: what it is asked for, what it runs, and what its refusals become."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.provision.launchers import Ask, Job, Offer, flags_of, launcher
from monarch_nb.provision.skypilot import launcher as skypilot
from monarch_nb.provision.skypilot.launcher import SkyLauncher, hold_script

ASK = Ask("dev", "sky-dev", 2, 0, 8, 0.0, ("--accelerator=H100",), TrustPaths(Path("/home/me/pools/sky-dev")))
SECONDS = 30


def test_what_it_is_asked_for() -> None:
    task = skypilot._task(replace(ASK, target="aws/us-east-1"))
    assert (task["nodes"], task["accelerators"], task["infra"], task["cpus"]) == (2, {"H100": 8}, "aws/us-east-1", None)
    cpus = skypilot._task(replace(ASK, gpus=0, procs=4, arguments=("--infra=gcp", "--spot")))
    assert (cpus["cpus"], cpus["accelerators"], cpus["infra"], cpus["use_spot"]) == ("4+", None, "gcp", True)
    assert skypilot._task(replace(ASK, gpus=0, procs=4, arguments=("--instance-type=m5.large",)))["cpus"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), r"say which GPUs: ... -- --accelerator=H100 \(sky show-gpus lists them\)"),
        (("--accelerator=H100", "--infra=gcp"), "--on sky:aws says where already: leave --infra=gcp out"),
        (("--gpus=H100",), "after the -- for SkyPilot: unrecognized .*: --gpus=H100; there are --accelerator"),
        (("--accelerator=H100", "--disk-size=big"), "after the -- for SkyPilot: .*invalid int value"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        skypilot._task(replace(ASK, arguments=arguments, target="aws"))


class TestHolding:
    """What SkyPilot runs as its job."""

    @pytest.fixture
    def environment(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
        monkeypatch.setattr(skypilot, "HOLD_EVERY_S", 0.01)
        return {"PATH": os.environ["PATH"], "XDG_DATA_HOME": str(tmp_path), "SKYPILOT_NODE_RANK": "0"}

    def test_lasts_as_long_as_the_first_has_an_allocator(self, environment: dict[str, str], tmp_path: Path) -> None:
        pid = tmp_path / "monarch-nb" / "nodes" / "sky-dev.sky-dev-1f" / "pid"
        pid.parent.mkdir(parents=True)
        pid.write_text("1")
        with subprocess.Popen(["sh", "-xc", hold_script("sky-dev")], env=environment, stderr=subprocess.PIPE) as held:
            assert held.stderr
            while b"sleep 0.01" not in held.stderr.readline():
                assert held.poll() is None
            shutil.rmtree(pid.parent)
            held.stderr.read()
        assert held.returncode == 0

    def test_does_nothing_on_the_others_and_goes_when_no_allocator_comes(
        self, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        others = environment | {"SKYPILOT_NODE_RANK": "1"}
        subprocess.run(["sh", "-c", hold_script("sky-dev")], env=others, check=True, timeout=SECONDS)
        monkeypatch.setattr(skypilot, "PREPARED_S", 0)
        subprocess.run(["sh", "-c", hold_script("sky-dev")], env=environment, check=True, timeout=SECONDS)


@pytest.mark.parametrize(
    ("kind", "raised", "said"),
    [
        ("away", PoolError, r"SkyPilot's API server does not answer \(sky api info says which one it is\): as it says"),
        ("capacity", CapacityError, "SkyPilot: as it says"),
        ("usage", UsageError, "SkyPilot: as it says"),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, kind: str, raised: type[Exception], said: str) -> None:
    monkeypatch.setattr(skypilot._helper, "call", lambda facts, longest_s: {"refused": kind, "message": "as it says"})
    with pytest.raises(raised, match=said):
        SkyLauncher().offer(ASK)


def test_the_form_hears_what_it_would_be_and_what_that_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"text": "2 × p5.48xlarge on AWS", "price_per_hour": 196.64}
    monkeypatch.setattr(skypilot._helper, "call", lambda facts, longest_s: answer)
    assert SkyLauncher().offer(ASK) == Offer("would be 2 × p5.48xlarge on AWS", 196.64)


class TestInstalled:
    def test_nowhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(skypilot, "find_spec", lambda _: None)
        with pytest.raises(PoolError, match=r"not installed here: uv tool install skypilot, or pip"):
            SkyLauncher().options()

    def test_where_the_path_says(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """As uv installs tools: a link to the command beside its Python."""
        tool, linked = tmp_path / "tool", tmp_path / "bin"
        tool.mkdir()
        linked.mkdir()
        for name in ("sky", "python"):
            (tool / name).write_text("#!/bin/sh\n")
            (tool / name).chmod(0o755)
        (linked / "sky").symlink_to(tool / "sky")
        monkeypatch.setenv("PATH", str(linked))
        assert skypilot._python() == str(tool / "python")
        chosen = {"accelerator": "A100", "spot": True, "image": ""}
        assert flags_of(SkyLauncher().options(), chosen) == ["--accelerator=A100", "--spot"]


def test_what_is_known_of_nothing_has_ended(tmp_path: Path) -> None:
    way = launcher("sky")
    assert isinstance(way, SkyLauncher)
    job = Job("sky", "sky-dev-1f", "dev", "sky-dev", 2, 0, 8, TrustPaths(tmp_path))
    assert way.look(job).state == "ended"
    with pytest.raises(UsageError, match="no time limit"):
        way.extend(job, 60.0)

"""Lightning's launcher without Lightning: what machines run, what is refused, and that nobody is asked to log in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from monarch_nb.config import PATIENCE_VARIABLE, TrustPaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.provision import lightning
from monarch_nb.provision.launchers import Ask, Job, flags_of, launcher
from monarch_nb.provision.lightning import (
    LightningLauncher,
    _machine_for,
    _message,
    _package,
    _parse,
    _refusal,
    command,
    slots_of,
)

ASK = Ask("dev", "lightning-dev", 2, 0, 8, 0.0, (), TrustPaths(Path("/home/me/pools/lightning-dev")))


def test_machines_write_the_certificate_down_for_themselves_and_listen_on_their_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "5")
    text = command(ASK, "A_SECRET", "python3")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert 'printf %s "$A_SECRET" | base64 -d > "$directory/node.pem"\nunset A_SECRET\n' in text
    began = f"\nexport {PATIENCE_VARIABLE}=5\npython3 -m monarch_nb.allocator --temporary 300s --pool lightning-dev "
    assert f"{began}--certificate " in text
    assert '--node-id "$address" --listen "$address:7878" &' in text
    assert "/home/me" not in text, "nothing there is on the machines"


def test_what_it_does_not_know_is_refused() -> None:
    for word in ("--machines=2", "H100", "--machine"):
        with pytest.raises(UsageError, match=r"after the -- for Lightning: .*; there are --machine, --studio"):
            _parse([word])


def test_refusals() -> None:
    for status, said, kind in (
        (401, "who are you", PoolError),
        (503, "later", PoolError),
        (400, "insufficient credits", CapacityError),
        (400, _message(b'{"code": 3, "message": "no such image"}'), UsageError),
        (400, _message("<html>"), UsageError),
    ):
        assert type(_refusal(status, said)) is kind
        assert said in str(_refusal(status, said))
    assert _message(None) == "it says nothing"


class TestMachines:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("lightning_sdk")

    def test_are_chosen_for_cpu_ranks_and_named_for_gpus(self) -> None:
        kind = _package().Machine
        assert _machine_for(kind, None, 3, 0).name == "CPU"
        assert _machine_for(kind, "H100_X_8", 0, 8).name == "H100_X_8"
        assert _machine_for(kind, "p5.48xlarge", 0, 8) == "p5.48xlarge", "a cloud's own name"
        with pytest.raises(UsageError, match=r"say which machine: .*with 8 there are .*H100_X_8"):
            _machine_for(kind, None, 0, 8)
        with pytest.raises(CapacityError, match="H100_X_2 has 2 GPUs, not 8; with 8 there are"):
            _machine_for(kind, "H100_X_2", 0, 8)
        with pytest.raises(CapacityError, match="no machine of 500 CPUs"):
            _machine_for(kind, None, 500, 0)

    def test_have_slots(self) -> None:
        assert (slots_of("H100_X_8"), slots_of("CPU_X_4")) == ((0, 8), (4, 0))
        with pytest.raises(UsageError, match="knows no machine H1000"):
            slots_of("H1000")

    def test_nobody_is_asked_to_log_in(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("LIGHTNING_API_KEY", "LIGHTNING_AUTH_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("LIGHTNING_CREDENTIAL_PATH", str(tmp_path / "none.json"))
        way = launcher("lightning")
        assert isinstance(way, LightningLauncher)
        job = Job("lightning", "lab/research/x-1f", "dev", "x", 2, 0, 8, TrustPaths(tmp_path))
        with pytest.raises(PoolError, match="nobody is logged in to Lightning here: lightning login"):
            way.look(job)

    def test_a_service_that_can_not_be_reached_is_not_tried_for_minutes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LIGHTNING_API_KEY", "a-key")
        monkeypatch.setenv("LIGHTNING_CLOUD_URL", "http://127.0.0.1:9")
        with pytest.raises(PoolError, match=r"Lightning does not answer at http://127\.0\.0\.1:9"):
            LightningLauncher().ask(ASK)


def test_a_form_offers_it_to_who_is_logged_in_and_is_quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lightning, "_package", lambda: pytest.fail("it is slow to load"))
    monkeypatch.setattr(lightning, "find_spec", lambda _: None)
    with pytest.raises(PoolError, match="not installed"):
        LightningLauncher().options()
    monkeypatch.setattr(lightning, "find_spec", lambda name: name)
    monkeypatch.delenv("LIGHTNING_API_KEY", raising=False)
    monkeypatch.delenv("LIGHTNING_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("LIGHTNING_CREDENTIAL_PATH", str(tmp_path / "credentials.json"))
    with pytest.raises(PoolError, match="nobody is logged in"):
        LightningLauncher().options()
    monkeypatch.setenv("LIGHTNING_API_KEY", "key")
    flags = flags_of(LightningLauncher().options(), {"machine": "A100_X_8", "interruptible": True})
    assert flags == ["--machine=A100_X_8", "--interruptible"]

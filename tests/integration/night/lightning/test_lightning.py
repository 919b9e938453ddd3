"""Machines of a stand-in for Lightning: asked for, used, found again, lost, and given back without a trace."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.ways import AnyWay
from monarch_nb.client.reservations.mmt import MMT
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import TrustPaths
from monarch_nb.errors import PoolError
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import Ask, Offer
from monarch_nb.provision.lightning import LightningLauncher

if TYPE_CHECKING:
    from integration.night.lightning.conftest import Lightning


class TestLightning(AnyWay):
    """What holds for every way holds for Lightning, as far as the stand-in does what its service does."""

    is_network = False


def test_the_certificate_is_on_no_command_line_and_gone_with_the_job(way: Lightning) -> None:
    flags = ["--studio=my-studio"]
    dev = reserve("dev", procs=2, preload=[], on="lightning:lab/research", on_arguments=flags)
    assert way.service.secrets == {}, "it goes once the machines have it"
    [(name, value)] = way.service.made_secrets.items()
    [job] = way.service.jobs.values()
    assert name.startswith("MONARCH_NB_LIGHTNING_")
    assert b"PRIVATE KEY" in base64.b64decode(value)
    assert value not in str(job.told)
    assert (job.told["spec"]["cloudspaceId"], job.told["spec"]["instanceName"]) == ("cs1", "cpu-2")
    dev.release()


def test_the_price_is_what_lightning_lists(way: Lightning) -> None:
    def offered(*flags: str, gpus: int = 0) -> Offer:
        paths = TrustPaths(way.pools / "lightning-dev")
        return LightningLauncher().offer(Ask("dev", "lightning-dev", 2, 0 if gpus else 1, gpus, 0.0, flags, paths))

    assert offered() == Offer("would be 2 × CPU_SMALL", 0.5)
    assert offered("--interruptible") == Offer("would be 2 × CPU_SMALL", 0.2)
    assert offered("--cloud=gcp") == Offer("would be 2 × CPU_SMALL"), "prices of all clouds are listed"
    assert offered("--machine=m7.cpu") == Offer("would be 2 × m7.cpu", 0.5)
    assert offered("--machine=H100_X_8", gpus=8) == Offer("would be 2 × H100_X_8"), "it is not listed"
    dev = reserve("dev", procs=1, preload=[], on=way.on, on_arguments=way.flags)
    assert [job.price_per_hour for job in jobs.jobs()] == [0.25]
    dev.release()


def test_a_job_that_fails_shows_what_became_of_it_and_leaves_no_secret(way: Lightning) -> None:
    with pytest.raises(PoolError, match=r"(?s)Lightning job .* failed; its log ends with\n.*cat: "):
        reserve("dev", procs=1, on="lightning", on_arguments=[*way.flags, "--python=cat"])


def test_mmt_runs_again_on_the_same_machines(way: Lightning, tmp_path: Path) -> None:
    line = f"echo $NODE_RANK of $NNODES $GREETING >> {tmp_path}/$NODE_RANK"
    for greeting in ("hello", "again"):
        mmt = MMT("train", machine="CPU_X_2", num_machines=2, env={"GREETING": "hello"}, image="with-torch")
        assert mmt.run(line, env={} if greeting == "hello" else {"GREETING": greeting}).values == [0, 0]
    assert [(tmp_path / str(node)).read_text() for node in range(2)] == [
        f"{node} of 2 hello\n{node} of 2 again\n" for node in range(2)
    ]
    assert mmt.reservation.procs == 2
    assert len(way.service.jobs) == 1, "nothing was asked for twice"
    mmt.release()

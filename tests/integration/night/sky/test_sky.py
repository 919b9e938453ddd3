"""Machines of a stand-in for SkyPilot: launched, used, found again, lost, and taken down without a trace."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.live import eventually
from integration.ways import AnyWay
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.provision import jobs
from monarch_nb.provision.helpers import Helper
from monarch_nb.provision.launchers import Ask, Offer, launcher, offer_of
from monarch_nb.provision.remote.preparing import Preparation
from monarch_nb.provision.skypilot import launcher as skypilot

if TYPE_CHECKING:
    from integration.night.sky.conftest import Sky


class TestSky(AnyWay):
    """What holds for every way holds for SkyPilot, as far as the stand-in does what its server does."""

    is_network = False


def test_the_price_is_what_the_catalog_says(way: Sky) -> None:
    def offered(nodes: int, procs: int, gpus: int, *flags: str) -> Offer:
        return offer_of(
            launcher("sky"), Ask("dev", "sky-dev", nodes, procs, gpus, 0.0, flags, TrustPaths(way.pools / "sky-dev"))
        )

    assert offered(2, 3, 0) == Offer("would be 2 × cpu_4x_general on Lambda", 0.5)
    assert offered(1, 0, 8, "--accelerator=A100") == Offer("would be 1 × gpu_8x_a100 on Lambda", 10.32)
    with pytest.raises(CapacityError, match="H100"):
        offered(1, 0, 8, "--accelerator=H100")
    with pytest.raises(CapacityError, match="aws which is not enabled"):
        offered(1, 1, 0, "--infra=aws")
    with pytest.raises(UsageError, match="Cloud 'nowhere' is not a valid cloud"):
        offered(1, 1, 0, "--infra=nowhere")
    way.service.tell(has_clouds=False)
    with pytest.raises(PoolError, match=r"SkyPilot has no cloud that it may use \(sky check says why\)"):
        offered(1, 1, 0)


def test_the_certificate_goes_by_ssh_alone_and_the_cluster_ends_by_itself(way: Sky) -> None:
    dev = reserve("dev", procs=2, preload=[], on="sky:lambda/us-east-1")
    assert [job.price_per_hour for job in jobs.jobs()] == [0.25]
    launched = next(each for each in way.service.asked() if each.startswith("POST /launch"))
    assert "PRIVATE KEY" not in launched
    assert "idle_minutes: 5" in launched
    assert "down: true" in launched
    dev.release()
    eventually(lambda: not way.left())


def test_what_skypilot_said_is_shown_when_a_launch_fails(way: Sky) -> None:
    way.service.tell(next="Failed to acquire resources in all zones")
    with pytest.raises(CapacityError, match=r"(?s)Failed to acquire .*its log ends with.*quota of machines"):
        reserve("dev", procs=1, on="sky")
    assert way.left() == ""
    assert list(way.pools.iterdir()) == []


def test_a_launch_that_is_given_up_is_cancelled(way: Sky) -> None:
    way.service.tell(next="hang")
    with pytest.raises(KeyboardInterrupt):
        jobs.obtain("sky", _ask, "sky-dev", None, _press_ctrl_c)
    assert way.service.clusters() == {}
    assert any(each.startswith("POST /api/cancel") for each in way.service.asked())
    assert list(way.pools.iterdir()) == []


def test_when_what_prepares_is_killed_the_cluster_goes_with_the_next_look(way: Sky) -> None:
    way.service.tell(next="hang")
    with pytest.raises(PoolError, match=r"what prepared SkyPilot cluster .* was killed"):
        jobs.obtain("sky", _ask, "sky-dev", None, _kill_what_prepares)
    assert way.service.clusters() == {}
    assert list(way.pools.iterdir()) == []


def test_a_server_that_does_not_answer_is_said(way: Sky, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("sky", "python"):
        (tmp_path / name).write_text(
            (way.service.binaries / name).read_text().replace(way.service.url, "http://127.0.0.1:9")
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(skypilot, "_helper", helper := Helper("SkyPilot", skypilot._command))
    with pytest.raises(PoolError, match=r"SkyPilot's API server does not answer \(sky api info .*127\.0\.0\.1:9"):
        reserve("dev", procs=1, on="sky")
    helper._end()  # else it ends by itself, when nobody has asked for half a minute
    assert list(way.pools.iterdir()) == []


def _ask(pool: str, paths: TrustPaths) -> Ask:
    return Ask("dev", pool, 1, 1, 0, 0.0, (), paths)


def _press_ctrl_c(said: str) -> None:
    if "waiting for instances" in said:
        raise KeyboardInterrupt


def _kill_what_prepares(said: str) -> None:
    if "waiting for instances" in said:
        [job] = jobs.jobs()
        os.kill(Preparation.load(job.paths).pid, signal.SIGKILL)

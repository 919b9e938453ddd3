"""Nodes of a real Ray: asked for, waited for, used, found again, lost, and given back without a trace."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
import ray

from integration.live import TIMEOUT_S, eventually
from integration.night.ray.conftest import Ray
from integration.ways import AnyWay, interrupted_at
from leaks import processes_of, wait_for_end
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import TrustPaths
from monarch_nb.errors import PoolError
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import Ask, launcher, offer_of


class TestWay(AnyWay):
    """What holds wherever nodes come from."""


def test_gpus_are_ray_s_to_count(way: Ray) -> None:
    dev = reserve("dev", gpus=2, preload=[], on="ray")
    code = "import os\nos.environ['CUDA_VISIBLE_DEVICES'], 'RAY_JOB_ID' in os.environ, 'PYTHONBREAKPOINT' in os.environ"
    devices = dev.mesh.run(code).values
    assert devices == [("0,1", False, False)] * 2
    [group] = [one for one in way.cluster.state().placement_group_table().values() if one["state"] == "CREATED"]
    assert (group["bundles"], group["strategy"]) == ({0: {"CPU": 2.0, "GPU": 2.0}}, "STRICT_SPREAD")
    assert re.fullmatch(r"monarch-nb-\w*-?dev-[0-9a-f]{4}", group["name"])
    free = sorted(node["GPU"] for node in way.cluster.state().available_resources_per_node().values() if "CPU" in node)
    assert free == [2.0, 4.0, 4.0]
    assert secrets_seen(way) == []
    dev.release()


def secrets_seen(way: Ray) -> list[str]:
    """Return where the key of a node can be read: in command lines, environments, and files of Ray's."""
    [job] = jobs.jobs()
    key = job.paths.node.read_bytes().partition(b"PRIVATE KEY-----\n")[2].splitlines()[0]
    coded = base64.b64encode(key)[4:-4]
    places = [path for pattern in ("cmdline", "environ") for path in Path("/proc").glob(f"[0-9]*/{pattern}")]
    places += [path for path in way.cluster.directory.rglob("*") if path.is_file()]
    found = []
    for place in places:
        with contextlib.suppress(OSError):
            content = place.read_bytes()
            found += [str(place)] if key in content or coded in content else []
    return found


def test_an_actor_that_is_killed_takes_its_node_along(way: Ray) -> None:
    dev = reserve("dev", nodes=2, procs=1, preload=[], on="ray")
    dev.mesh.run("kept = 42")
    pids = dev.mesh.run("import os\nos.getpid()").values
    lost = dev.node_names[1]
    actors = [actor for actor in way.cluster.state().actor_table(None).values() if actor["State"] == "ALIVE"]
    [pid] = [actor["Pid"] for actor in actors if actor["Name"].endswith("node1")]
    assert [actor["IsDetached"] for actor in actors] == [True, True]
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pids[1], TIMEOUT_S)
    eventually(lambda: any(f"; {lost} has lost its actor (" in info.absence for info in dev.mesh.status()))
    assert dev.mesh.select([0]).run("kept").values == [42]
    dev.release()


def test_what_a_killed_allocator_has_left_is_ended(way: Ray) -> None:
    dev = reserve("dev", procs=1, preload=[], on="ray")
    [rank] = dev.mesh.run("import os\nos.getpid()").values
    [allocator] = [one.pid for one in processes_of(way.home) if "monarch_nb.allocator" in one.command]
    name = dev.node_names[0]
    os.kill(allocator, signal.SIGKILL)
    wait_for_end(rank, TIMEOUT_S)
    eventually(lambda: not way.left())  # it was the last, so the nodes are given back
    with pytest.raises(PoolError, match=r"is gone: it was removed.*: %mesh reserve dev --on ray"):
        dev.status()
    assert name not in way.left()
    dev.release()


def test_waiting_says_what_is_missing_and_ctrl_c_leaves_nothing(way: Ray) -> None:
    first = reserve("first", procs=3, preload=[], on="ray")
    for nodes, text in ((2, "would start now"), (3, "would wait: 2 nodes have 2 CPU free")):
        asked = Ask("dev", "ray-dev", nodes, 2, 0, 0.0, (), TrustPaths(way.pools / "ray-dev"))
        assert offer_of(launcher("ray"), asked).text == text
    said = interrupted_at("waits for", lambda hear: reserve("dev", nodes=3, procs=2, on="ray", progress=hear))
    assert "-dev-" not in way.left()
    assert "waits for 3 nodes with 2 CPU each: of the 3 that are as large 2 have that free; the cluster has 9" in said
    first.release()


def test_a_cluster_of_another_version_is_refused(way: Ray) -> None:
    store, place = way.cluster.store(), {"namespace": b"cluster"}
    before = store.internal_kv_get(b"CLUSTER_METADATA", **place)
    store.internal_kv_put(b"CLUSTER_METADATA", before.replace(ray.__version__.encode(), b"2.9.3"), True, **place)
    try:
        with pytest.raises(
            PoolError, match=r"has Ray 2\.9\.3 and Python .*, this environment Ray 2\.60.*pip install ray=="
        ):
            reserve("dev", procs=1, on="ray")
    finally:
        store.internal_kv_put(b"CLUSTER_METADATA", before, True, **place)

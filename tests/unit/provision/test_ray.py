"""Ray's launcher without a Ray: what it is asked for, what the cluster's tables mean, what is refused."""

from __future__ import annotations

import importlib.util
import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.provision.launchers import Ask, Job
from monarch_nb.provision.ray import launcher
from monarch_nb.provision.ray.launcher import RayLauncher, _arguments, _is_gone, check_fits, look_of, parse_flags
from unit.test_imports import modules_after

ASK = Ask("dev", "ray-dev", 2, 0, 8, 0.0, (), TrustPaths(Path("/home/me/.config/monarch-nb/pools/ray-dev")))
JOB = Job("ray", "monarch-nb-me-dev-1f2a@10.0.0.1:6379", "dev", "ray-dev", 2, 0, 8, TrustPaths(Path("/nowhere")))
BUNDLE = {"CPU": 8.0, "GPU": 8.0}


def node(name: str, alive: bool = True, why: str = "", free: float = 8.0) -> dict[str, Any]:
    facts = {"id": f"id-{name}", "name": name, "alive": alive, "why": why}
    return {**facts, "total": BUNDLE, "free": {"CPU": 8.0, "GPU": free}}


def actor(on: str, state: str = "ALIVE", why: str = "") -> dict[str, str]:
    return {"state": state, "node": f"id-{on}" if on else "", "why": why}


FACTS: dict[str, Any] = {
    "state": "CREATED",
    "bundle": BUNDLE,
    "waiting": 0,
    "placed": ["id-n1", "id-n2"],
    "actors": [actor("n1"), actor("n2")],
    "told": [{"node": "n1", "address": "10.0.0.2:7000"}, {"node": "n2", "address": "10.0.0.3:7000"}],
    "nodes": [node("n1"), node("n2"), node("n3", free=3.0)],
}


def test_the_kernel_stays_free_of_ray() -> None:
    assert "ray" not in modules_after("import monarch_nb.provision.ray.launcher")


class TestFlags:
    def test_what_a_node_takes(self) -> None:
        assert parse_flags([]).bundle(ASK) == BUNDLE
        assert parse_flags([]).bundle(replace(ASK, gpus=0, procs=4)) == {"CPU": 4.0}
        wanted = parse_flags(["--cpus=12", "--resources=accelerator_type:A100=0.001,ssd=1"])
        assert wanted.bundle(ASK) == {"CPU": 12.0, "GPU": 8.0, "accelerator_type:A100": 0.001, "ssd": 1.0}

    def test_an_address_in_the_line_comes_before_the_environment_s(self) -> None:
        assert parse_flags([], "10.0.0.1:6379").address == "10.0.0.1:6379"
        assert parse_flags(["--address=10.0.0.2:6379"], "10.0.0.1:6379").address == "10.0.0.2:6379"

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("--nodes=3", "after the -- for Ray: unrecognized arguments: --nodes=3; there are --address, --cpus"),
            ("--cpus=many", "'many' is no number"),
            ("--resources=ssd", "name a resource of the nodes"),
            ("--resources=ssd=x", "'x' is no number"),
            ("--resources=GPU=1", "name a resource of the nodes"),
            ("--address=ray://10.0.0.1:10001", "Run the notebook on a node of the cluster"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, word: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            parse_flags((word,))


def test_the_certificate_is_not_in_the_command() -> None:
    words = _arguments(ASK)
    assert "--certificate" not in words
    assert "/home/me" not in " ".join(words)
    assert words[-2:] == ["--gpus", "visible"]


def test_further_nodes_are_none_of_those_on_which_actors_of_the_reservation_live() -> None:
    helper = pytest.importorskip("monarch_nb.provision.ray.helper")
    assert helper._elsewhere([], 2) == {}
    assert helper._elsewhere(["a", "b"], 2) == {"bundle_label_selector": [{"ray.io/node-id": "!in(a,b)"}] * 2}
    named = [("dev-1f-node0", "ALIVE"), ("dev-1f-node1", "DEAD"), ("dev-2a-node0", "ALIVE"), ("dev-1f2-node0", "ALIVE")]
    actors = [{"Name": name, "State": state, "Address": {"NodeID": f"id-{name}"}} for name, state in named]
    state = SimpleNamespace(actor_table=lambda _: dict(enumerate(actors)))
    # Ray has given another node for the one that failed.
    assert helper._taken(state, ["dev-1f", "dev-2a"]) == ["id-dev-1f-node0", "id-dev-2a-node0"]
    assert helper._taken(state, []) == []


class TestFits:
    def check(self, *nodes: dict[str, Any], gpus: float = 8.0, count: int = 1, beside: Sequence[str] = ()) -> None:
        check_fits(list(nodes), {"CPU": 1.0, "GPU": gpus}, count, "10.0.0.1:6379", beside)

    def test_what_fits_on_other_nodes_is_no_help(self) -> None:
        with pytest.raises(CapacityError, match=r"never has 2 nodes with 9 GPU, 1 CPU each.*n1 8 GPU, 8 CPU; n2 8 GPU"):
            self.check(node("n2"), node("n1"), gpus=9.0, count=2)

    def test_dead_nodes_do_not_count_and_those_that_are_full_now_do(self) -> None:
        living, dead, full = node("n1"), node("n2", alive=False), node("n3", free=0.0)
        self.check(living, full, count=2)
        with pytest.raises(CapacityError):
            self.check(living, dead, count=2)
        self.check(living, full, beside=["id-n1"])
        with pytest.raises(CapacityError, match=r"never has 1 node with .* each beside n1, and no autoscaler"):
            self.check(living, dead, beside=["id-n1"])


class TestLooks:
    def test_running(self) -> None:
        look = look_of(JOB, FACTS)
        assert (look.state, look.trouble) == ("running", "")
        assert look.text == "Ray placement group monarch-nb-me-dev-1f2a runs on n1, n2"
        assert look.addresses == ("10.0.0.2:7000", "10.0.0.3:7000")

    def test_waiting(self) -> None:
        look = look_of(
            JOB, {**FACTS, "state": "PENDING", "waiting": 3, "told": [{}, {}], "actors": [actor(""), actor("")]}
        )
        assert (look.state, look.trouble, look.addresses) == ("waiting", "", ())
        assert look.text.endswith(
            "waits for 2 nodes with 8 GPU, 8 CPU each: of the 3 that are as large 2 have that free; the cluster has "
            "19 GPU, 24 CPU free of 24 GPU, 24 CPU, and 2 other placement groups waiting"
        )

    def test_what_died_is_named(self) -> None:
        actors = [actor("n1"), actor("n2", "DEAD", "No module named 'monarch_nb'")]
        nodes = [node("n1"), node("n2", alive=False, why="health check failed")]
        look = look_of(JOB, {**FACTS, "state": "RESCHEDULING", "nodes": nodes, "actors": actors})
        assert (look.state, look.trouble) == ("running", "n2 has died (health check failed)")
        look = look_of(JOB, {**FACTS, "actors": actors})
        assert look.trouble == "n2 has lost its actor (No module named 'monarch_nb')"
        look = look_of(JOB, {**FACTS, "told": [FACTS["told"][0], {"node": "n2", "ended": True}]})
        assert look.trouble == "n2 has lost its allocator, which has ended"

    def test_ended(self) -> None:
        look = look_of(JOB, {**FACTS, "actors": [actor("n1", "DEAD", "killed"), actor("n2", "DEAD")]})
        assert look.state == "ended"
        assert look.trouble == "n1 has lost its actor (killed); n2 has lost its actor (Ray does not say why)"
        assert look_of(JOB, {**FACTS, "state": "REMOVED"}).state == "ended"


def job_at(address: str, directory: Path, nodes: list[str]) -> Job:
    (directory / "pool.json").write_text(json.dumps({"nodes": nodes}))
    return replace(JOB, id=f"group@{address}", paths=TrustPaths(directory))


class TestGone:
    def test_a_cluster_whose_host_refuses_is_gone_with_its_nodes(self, tmp_path: Path) -> None:
        job = job_at(address := f"127.0.0.1:{closed_port()}", tmp_path, [f"127.0.0.1:{closed_port()}"])
        assert _is_gone(job, address)
        look = RayLauncher().look(job)
        assert (look.state, look.text) == (
            "ended",
            f"Ray placement group group has ended with its cluster at {address}",
        )

    def test_one_whose_allocators_serve_is_away(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as serving:
            own = f"127.0.0.1:{serving.getsockname()[1]}"
            job = job_at(address := f"127.0.0.1:{closed_port()}", tmp_path, [own])
            assert not _is_gone(job, address)
            with pytest.raises(PoolError, match=r"Ray does not answer: there is no Ray cluster at .*refused"):
                RayLauncher().look(job)


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_no_ray_and_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PoolError, match=r"Ray is not installed in .*: pip install 'monarch-nb\[ray\]'"):
        RayLauncher().ask(ASK)
    answer = {"refused": "none", "message": "Could not find any running Ray instance."}
    monkeypatch.setattr(launcher._helper, "call", lambda facts: answer)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with pytest.raises(PoolError, match=r"no Ray cluster to connect to \(Could not find any.*--address=HOST:6379"):
        RayLauncher().ask(ASK)

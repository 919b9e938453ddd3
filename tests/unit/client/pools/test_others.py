"""Pools that are meant, and not named."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb.client.pools.others import how_to_add, no_nodes, other_pools
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.reservations.lists import find
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, NodePaths, pool_directory
from monarch_nb.errors import PoolError
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import make_paths


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


def test_who_names_none_is_told_which_there_are() -> None:
    assert other_pools("local") == ""
    make_pool("lab", "alice")
    make_pool("cluster", "alice")
    assert other_pools("local") == "you have the pools cluster, lab: --pool cluster, or MONARCH_NB_POOL=cluster"
    assert other_pools("cluster") == "you have the pool lab: --pool lab, or MONARCH_NB_POOL=lab"


def test_the_pools_of_jobs_are_not_among_them() -> None:
    """Nobody names these."""
    make_pool("slurm-dev", "alice")
    make_paths("slurm-dev").jobs.mkdir()
    assert other_pools("local") == ""


def test_a_pool_without_nodes_says_how_it_gets_some() -> None:
    assert no_nodes("local") == "no pool 'local' is up: monarch-nb up starts one, and so does %mesh reserve"
    assert no_nodes("mine").startswith("there is no pool 'mine'; there is only local; monarch-nb up --pool mine makes")
    make_pool("lab", "alice")
    assert no_nodes("lab") == "the pool 'lab' has no nodes yet: monarch-nb pool add lab HOST says where one is"
    assert no_nodes("local").endswith("; you have the pool lab: --pool lab, or MONARCH_NB_POOL=lab")


def test_one_whose_allocators_died_is_not_said_to_be_none() -> None:
    """What they hold is there, as their ranks are."""
    for node, said in (
        ("node0", "node0 died and is not started by itself now: monarch-nb up starts it again"),
        ("node1", "node0, node1 died and are not started by themselves now: monarch-nb up starts them again"),
    ):
        paths = NodePaths(pool_directory("local") / node)
        paths.directory.mkdir(parents=True)
        paths.facts.write_text('{"pid": 1, "start_ticks": 0, "boot_id": ""}')
        assert no_nodes("local") == said
        for asked in (monarch_nb.list_reservations, partial(find, pool_object(None), "dev", None)):
            with pytest.raises(PoolError, match=said):
                asked()


def test_each_kind_of_pool_gets_nodes_in_its_way() -> None:
    make_pool("lab", "alice")
    assert how_to_add("lab", 4) == "; monarch-nb pool add lab HOST says where another one is"
    make_paths("lab").jobs.mkdir()
    assert how_to_add("lab", 4) == "", "an engine is asked"
    assert no_nodes("lab") == "no node of the pool 'lab' is there: %mesh list says what its jobs wait for"

"""Pools that are meant, and not named."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.client.pools.others import how_to_add, no_nodes, other_pools
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
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


def test_each_kind_of_pool_gets_nodes_in_its_way() -> None:
    make_pool("lab", "alice")
    assert how_to_add("lab", 4) == "; monarch-nb pool add lab HOST says where another one is"
    make_paths("lab").jobs.mkdir()
    assert how_to_add("lab", 4) == "", "an engine is asked"
    assert no_nodes("lab") == "no node of the pool 'lab' is there: %mesh list says what its jobs wait for"

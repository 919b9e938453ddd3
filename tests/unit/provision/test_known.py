"""Which names mean pools, and what is said of one that means none."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb import MonarchNbError, attach, list_reservations, reserve
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, POOL_VARIABLE
from monarch_nb.errors import NoSuchPool
from monarch_nb.provision.known import check_known, is_known, known_pools, no_such_pool
from monarch_nb.provision.local import LocalProvisioner
from monarch_nb.trust.membership import make_pool

MAKES = "makes a local pool of that name, monarch-nb pool join FILE joins one of hosts"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.delenv(POOL_VARIABLE, raising=False)
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


def is_started(home: Path, pool: str) -> None:
    """Have the directory of a local pool that is up."""
    (home / pool).mkdir()
    (home / pool / "pool.json").touch()


def test_pools_of_this_machine_are_known_while_they_are_up(home: Path) -> None:
    make_pool("lab", "alice")
    assert known_pools() == ["lab"]
    is_started(home, "mine")
    (home / "notebooks").mkdir()
    assert known_pools() == ["mine", "lab"]
    for name in ("local", "lab", "mine"):  # the default one before it is started
        check_known(name)
    assert not any(map(is_known, ("labb", "notebooks", "../home/mine", "")))


def test_the_nearest_name_is_named_and_all_that_there_are(home: Path) -> None:
    make_pool("lab", "alice")
    is_started(home, "mine")
    there = "there are local, mine, lab"
    near = f"there is no pool 'labb'; did you mean lab? {there}; monarch-nb up --pool labb {MAKES}"
    with pytest.raises(NoSuchPool) as refused:
        check_known("labb")
    assert (str(refused.value), refused.value.pool) == (near, "labb")
    assert no_such_pool("xyz") == f"there is no pool 'xyz'; {there}; monarch-nb up --pool xyz {MAKES}"


def test_a_name_that_the_environment_has_is_said_to_be_its(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POOL_VARIABLE, "labb")
    assert no_such_pool("labb").startswith("there is no pool 'labb' (MONARCH_NB_POOL names it); there is only local; ")
    with pytest.raises(NoSuchPool, match="MONARCH_NB_POOL names it"):
        reserve("dev", procs=1)


def test_nothing_is_started_under_a_misspelt_name(home: Path) -> None:
    make_pool("lab", "alice")
    for ask in (
        lambda: reserve("dev", procs=1, pool="labb"),
        lambda: reserve("dev", procs=1, pool="labb", wait=True),
        lambda: attach("dev", pool="labb"),
        lambda: list_reservations("labb"),
    ):
        with pytest.raises(MonarchNbError, match=r"there is no pool 'labb'; did you mean lab\?"):
            ask()
    with pytest.raises(NoSuchPool), LocalProvisioner().room(1, 1, 0, pool="labb"):
        pass
    assert list(home.iterdir()) == []

"""`--shared`: storage that every node sees, checked by evidence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb import config
from monarch_nb.errors import ReservationConflict, SharedStorageError
from monarch_nb.provision import Node

pytestmark = pytest.mark.usefixtures("shared_pool")
ASK = f"import os; os.environ.get({config.SHARED_VARIABLE!r})"
OF_EACH_NODE = "/proc/self/cwd"
"""A directory under the same path everywhere that is another one for every allocator: its own."""


def test_every_rank_is_told_also_after_attach_and_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    dev = monarch_nb.reserve("dev", nodes=2, procs=1, shared="data")
    try:
        there = str(tmp_path / "data")
        assert dev.shared == there
        assert dev.mesh.run(ASK).values == [there, there]
        assert list((tmp_path / "data").iterdir()) == [], "no token is left"

        again = monarch_nb.attach("dev")
        assert again.shared == there
        again.mesh.restart([1])
        assert again.mesh.run(ASK).values == [there, there]

        assert monarch_nb.reserve("dev", nodes=2, procs=1).id == dev.id, "not said again, it stays"
        with pytest.raises(ReservationConflict, match=f"already held with --shared {there}.*--replace"):
            monarch_nb.reserve("dev", nodes=2, procs=1, shared=tmp_path)
        monarch_nb.reserve("dev", nodes=2, procs=1, shared=tmp_path, replace=True)
        assert monarch_nb.attach("dev").shared == str(tmp_path)
    finally:
        monarch_nb.attach("dev").release()


def test_without_it_ranks_have_no_such_variable(shared_pool: list[Node], tmp_path: Path) -> None:
    dev = monarch_nb.reserve("dev", procs=1)
    try:
        assert (dev.shared, dev.mesh.run(ASK).values) == ("", [None])
        with pytest.raises(ReservationConflict, match="already held without --shared"):
            monarch_nb.reserve("dev", procs=1, shared=tmp_path)
    finally:
        dev.release()


def test_a_node_that_does_not_see_it_is_named_and_nothing_stays_reserved() -> None:
    with pytest.raises(SharedStorageError, match="a file that node0 writes there is not seen by node1") as refused:
        monarch_nb.reserve("dev", nodes=2, procs=1, shared=OF_EACH_NODE)
    assert refused.value.nodes == ["node1"]
    assert monarch_nb.list_reservations() == []
    assert [name for node in nodes() for name in os.listdir(node) if name.startswith(".monarch-nb-")] == []
    monarch_nb.reserve("dev", procs=1, shared=OF_EACH_NODE).release()  # one node alone shares it with itself


def nodes() -> list[Path]:
    return [path for path in config.pool_directory().iterdir() if path.is_dir()]


@pytest.mark.parametrize(("name", "why"), [("missing", "No such file or directory"), ("file", "Not a directory")])
def test_a_directory_that_is_none_is_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SharedStorageError, match=rf"node0 can not write there \({why}\)"):
        monarch_nb.reserve("dev", nodes=2, procs=1, shared=tmp_path / name)
    assert monarch_nb.list_reservations() == []
    assert not (tmp_path / "missing").exists()

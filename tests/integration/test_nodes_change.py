"""Nodes come, go and are replaced, and ranks of the others keep everything. tests/unit/cluster has every way of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import kill
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import UsageError
from monarch_nb.provision import Node

WORLD = "import os\nfrom model import width\n(rank, int(os.environ['WORLD_SIZE']), globals().get('kept'), width)"


@pytest.fixture
def held(isolated_pool: list[Node], project: Path) -> Iterator[Reservation]:
    """A rank on each of 3 nodes, which have copies of a module; a fourth node is free."""
    (project / "model.py").write_text("width = 8\n")
    reservation = reserve("held", nodes=3, procs=1, preload=[])
    reservation.mesh.run("kept = rank + 5")
    yield reservation
    reservation.release()


def test_more_nodes_come_and_go_and_main_stays_as_it_is(held: Reservation, isolated_pool: list[Node]) -> None:
    assert held.grow(4).joined == ("node3",)
    assert held.meshes["grown"].run(WORLD).values == [(rank, 4, None, 8) for rank in range(4)]
    with pytest.raises(UsageError, match=r"node3 would .* grown has ranks there"):
        held.shrink(3)
    held.meshes["grown"].select(3).run("open('last.pt', 'w').write('x')")
    held.stop_mesh("grown")
    shrunk = held.shrink(3)
    assert shrunk.left == ("node3",)
    assert [(kept.node, kept.files) for kept in shrunk.kept] == [("node3", 1)], "what its ranks wrote stays there"
    shutil.rmtree(Path(isolated_pool[3].directory, "kept"))
    assert held.mesh.run(WORLD).values == [(rank, 3, rank + 5, 8) for rank in range(3)]


def test_a_free_node_takes_the_place_of_a_lost_one(held: Reservation, isolated_pool: list[Node]) -> None:
    kill(isolated_pool[1].pid)
    [replaced] = held.replace()
    assert (replaced.old, replaced.new, replaced.ranks) == ("node1", "node3", (1,))
    assert held.mesh.run(WORLD).values == [(0, 3, 5, 8), (1, 3, None, 8), (2, 3, 7, 8)]

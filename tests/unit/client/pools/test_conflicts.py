"""When the same name is the same reservation, and what is said when it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import Asked, HeldReservation, check_same
from monarch_nb.config import SHARED_VARIABLE
from monarch_nb.errors import ReservationConflict
from monarch_nb.proto import allocator_pb2 as pb

SHAPE = Shape(1, 4, 0)


def held(nodes: int = 1, **spec: Any) -> HeldReservation:
    facts = {"python": "/opt/python", "preload": ["torch"], "directory": "/project/books", "root": "/project", **spec}
    main = pb.MeshStatus(name="main", spec=pb.SpawnRequest(name="main", ranks=4, world_size=4 * nodes, **facts))
    status = pb.ReservationStatus(name="dev", nodes=nodes, procs=4, meshes=[main])
    node: Any = object()
    return HeldReservation("id", {0: (node, status)})


def refused(reservation: HeldReservation, **asked: Any) -> str:
    """Return what differs, as it is said."""
    with pytest.raises(ReservationConflict) as raised:
        check_same(reservation, Asked(**{"shape": SHAPE, **asked}))
    text = str(raised.value)
    assert text.startswith("'dev' is already held ")
    ways = (
        ": %mesh attach dev uses it as it is; --replace releases it first (its ranks and their variables are lost), or "
        "choose another name"
    )
    assert text.endswith(ways), "what loses nothing comes first"
    return text.removeprefix("'dev' is already held ").removesuffix(ways)


def test_the_same_said_again_is_the_same(tmp_path: Path) -> None:
    said = {"python": "/opt/python", "directory": "/project/books", "files": "/project", "shared": "/data"}
    asked = Asked(SHAPE, environment={"A": "1"}, preload=("torch",), **said)  # type: ignore[arg-type]
    environment = {"A": "1", "B": "2", SHARED_VARIABLE: "/data"}
    check_same(held(environment=environment), asked)
    check_same(held(environment=environment, directory="books", in_workspace=True), asked)
    check_same(held(python="/another/python", environment={"A": "1"}, preload=["jax"]), Asked(SHAPE))  # is not said
    for name in ("python", "python3"):  # two names of one
        (tmp_path / name).symlink_to(sys.executable)
    check_same(held(python=str(tmp_path / "python3")), Asked(SHAPE, python=str(tmp_path / "python")))


def test_everything_that_differs_is_said_at_once() -> None:
    told = refused(held(), shape=Shape(2, 4, 0), python="/opt/other", preload=["torch", "numpy"])
    assert told == "with 1 node × 4 procs, with --python /opt/python, with --preload torch"
    assert refused(held(preload=[]), preload=["torch"]) == "without preload"
    assert refused(held(), shape=Shape(2, 4, 0)) == "with 1 node × 4 procs (%mesh grow dev --nodes 2 changes that)"
    assert refused(held(), shape=Shape(2, 8, 0)) == "with 1 node × 4 procs"
    told = refused(held(environment={"TOKEN": "secret"}), environment={"TOKEN": "other secret", "B": "1"})
    assert told == "with another --env TOKEN, without --env B", "values are never shown"


def test_one_that_grew_is_still_the_one_that_was_asked_for() -> None:
    grown = held()
    grown.facts.nodes = 3  # its main mesh stays on one
    for nodes in (1, 2, 3):
        check_same(grown, Asked(Shape(nodes, 4, 0)))
    assert refused(grown, shape=Shape(4, 4, 0)).startswith("with 3 nodes × 4 procs")
    assert refused(grown, shape=Shape(1, 2, 0)) == "with 3 nodes × 4 procs"
    assert refused(held(nodes=3), shape=Shape(2, 4, 0)) == "with 3 nodes × 4 procs", "its main mesh would be larger"


def test_a_variable_of_the_kernel_has_the_value_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(SHAPE, environment={"TOKEN": None})
    monkeypatch.setenv("TOKEN", "of this kernel")
    check_same(held(environment={"TOKEN": "of the first kernel"}), asked)
    assert refused(held(), environment=asked.environment) == "without --env TOKEN"
    monkeypatch.delenv("TOKEN")
    check_same(held(), asked)


def test_where_ranks_start_and_with_which_files() -> None:
    assert refused(held(), directory="/project") == "with ranks that start in /project/books"
    assert (
        refused(held(directory=".", in_workspace=True), directory="/project/x") == "with ranks that start in /project"
    )
    assert refused(held(), files="") == "with the files of /project"
    assert refused(held(root=""), files="/project") == "without files"


def test_of_one_that_is_not_ready_only_the_shape_is_known() -> None:
    half = held(nodes=2)
    check_same(half, Asked(Shape(2, 4, 0), python="/opt/other"))
    assert refused(half) == "with 2 nodes × 4 procs"

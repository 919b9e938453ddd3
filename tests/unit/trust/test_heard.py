"""What nodes said last stays known while they are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.config import TrustPaths
from monarch_nb.trust.heard import Heard, note_heard, read_heard
from monarch_nb.trust.private_files import write_private

ONE, TWO = Heard("n1", "10.0.0.1:7878", ("dev",)), Heard("n2", "10.0.0.2:7878")


@pytest.fixture
def paths(tmp_path: Path) -> TrustPaths:
    return TrustPaths(tmp_path)


def test_what_silent_nodes_said_stays(paths: TrustPaths) -> None:
    assert read_heard(paths) == {}
    note_heard(paths, {"a": ONE, "b": TWO}, [])
    note_heard(paths, {"b": Heard("n2", TWO.node_address, ("eval",))}, ["a", "c"])
    assert read_heard(paths) == {"a": ONE, "b": Heard("n2", TWO.node_address, ("eval",))}
    note_heard(paths, {"b": TWO}, [])
    assert read_heard(paths) == {"b": TWO}, "the pool has the other one no more"


def test_a_file_that_somebody_has_spoilt_is_replaced(paths: TrustPaths) -> None:
    for spoilt in (b"{", b"[]", b'{"a": 1}', b'{"a": {"held": []}}', b'{"a": {"name": "n1"}}'):
        write_private(paths.last_heard, spoilt)
        assert read_heard(paths) == {}
        note_heard(paths, {"a": ONE}, [])
        assert read_heard(paths) == {"a": ONE}

"""Files of large content are there as long as somebody needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.allocator.mail.letters import Blobs
from monarch_nb.config import NodePaths
from monarch_nb.errors import UsageError


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    paths = NodePaths(tmp_path)
    paths.mesh("m").mkdir(parents=True)
    return paths


@pytest.fixture
def blobs(paths: NodePaths) -> Blobs:
    made = Blobs(paths)
    made.begin("token")
    return made


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".token")


def test_content_goes_with_the_last_reference_but_not_what_was_given(blobs: Blobs, paths: NodePaths) -> None:
    paths.mail_of("m").mkdir()
    (paths.mail_of("m") / "0-sent-1").write_bytes(b"content")
    blob = blobs.take_over("m", "0-sent-1")
    assert (blob.path.read_bytes(), names(paths.mail_of("m"))) == (b"content", [])
    given, lent = blobs.give(blob, "m", 3), blobs.lend(blob)
    del blob
    assert names(blobs.directory) == [lent]
    assert (paths.mail_of("m") / given).read_bytes() == b"content"
    blobs.path("large").write_bytes(b"content")
    del_me = blobs.claim("large")
    del del_me
    assert names(blobs.directory) == [lent]


def test_a_rank_that_ended_leaves_nothing_and_neither_does_an_allocator(blobs: Blobs, paths: NodePaths) -> None:
    paths.mail_of("m").mkdir()
    for name in ("1-received-a", "1-sent-b", "11-received-c"):
        (paths.mail_of("m") / name).touch()
    blobs.forget_rank("m", 1)
    assert names(paths.mail_of("m")) == ["11-received-c"]
    blobs.path("left").touch()
    Blobs(paths).begin("other")
    assert names(blobs.directory) == [".other"]


def test_a_name_is_one_plain_file_name(blobs: Blobs) -> None:
    for name in ("", ".token", "../state.sqlite", "a/b"):
        with pytest.raises(UsageError):
            blobs.path(name)

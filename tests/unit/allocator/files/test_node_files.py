"""Token files: what a node does with them, and what it must not."""

import os
from pathlib import Path

import pytest

from monarch_nb.allocator.files.node_files import MAX_TOKEN_BYTES, handle
from monarch_nb.errors import UsageError
from monarch_nb.proto.files_pb2 import SeeTokenRequest

SEE, WRITE, REMOVE = SeeTokenRequest.ACTION_SEE, SeeTokenRequest.ACTION_WRITE, SeeTokenRequest.ACTION_REMOVE


def ask(path: Path | str, action: SeeTokenRequest.Action.ValueType, token: str = "secret") -> str:
    return handle(SeeTokenRequest(path=str(path), token=token, action=action))


def test_written_seen_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert ask(path, SEE) == "No such file or directory"
    assert ask(path, WRITE) == ""
    assert path.stat().st_mode & 0o777 == 0o600
    assert ask(path, SEE) == ""
    assert ask(path, SEE, "guessed") == "another file is there"
    assert ask(path, REMOVE) == ""
    assert not path.exists()
    path.write_text("x" * (MAX_TOKEN_BYTES + 100))  # which somebody needs
    assert ask(path, WRITE) == "File exists"
    assert ask(path, REMOVE) == ask(path, SEE, "x" * MAX_TOKEN_BYTES) == "another file is there"
    assert path.stat().st_size == MAX_TOKEN_BYTES + 100


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    secret = tmp_path / "file"
    secret.write_text("secret")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    assert ask(tmp_path / "link", SEE) == "Too many levels of symbolic links"
    assert ask(tmp_path / "link", REMOVE) == "Too many levels of symbolic links"
    assert ask(tmp_path / "pipe", SEE) == "another file is there", "and it does not wait for a writer"
    assert ask(tmp_path, SEE) == "another file is there"


@pytest.mark.parametrize(
    ("path", "token"), [("token", "secret"), ("/tmp/\0", "secret"), ("/tmp/t", ""), ("/tmp/t", "x" * 257)]
)
def test_nonsense_is_refused(path: str, token: str) -> None:
    for action in (SEE, WRITE, REMOVE):
        with pytest.raises(UsageError):
            ask(path, action, token)
    with pytest.raises(UsageError):
        ask("/tmp/t", SeeTokenRequest.ACTION_UNSPECIFIED)


def test_a_node_that_shares_nothing_sees_only_what_nodes_wrote(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    request = SeeTokenRequest(path=str(path), token="secret", action=SEE)
    assert handle(request, shares_nothing=True) == ""
    request.from_client = True
    assert handle(request) == ""
    assert handle(request, shares_nothing=True) == "this node shares no files with clients"

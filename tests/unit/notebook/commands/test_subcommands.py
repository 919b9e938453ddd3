"""What is read from the words of %mesh push and reserve."""

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.notebook.commands.subcommands import push_items
from monarch_nb.notebook.syntax.command_line import read_environment


def test_push_items() -> None:
    assert push_items(["x", "lr=3e-4", "d={'a': 1}", "f=a==b"]) == [
        ("x", None),
        ("lr", "3e-4"),
        ("d", "{'a': 1}"),
        ("f", "a==b"),
    ]
    for wrong in ("3", "a.b", "x=", "=", "=1", "x==1", "class"):
        with pytest.raises(UsageError, match="without blanks around ="):
            push_items([wrong])


def test_read_environment() -> None:
    assert read_environment(["A=1", "B=x=y", "C=", "HOME"]) == {"A": "1", "B": "x=y", "C": "", "HOME": None}
    for wrong in ("=1", "A-B=1", "1A"):
        with pytest.raises(UsageError, match="--env is NAME or NAME=VALUE"):
            read_environment([wrong])

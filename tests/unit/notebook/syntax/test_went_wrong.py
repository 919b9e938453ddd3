"""The flags of a cell that find out when a training went wrong."""

from __future__ import annotations

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.command_line import parse
from monarch_nb.notebook.syntax.declarations import CELL, MESH
from monarch_nb.notebook.syntax.flags import watched


def test_what_is_watched() -> None:
    for line, what in (
        ("--watch nan", ("grad",)),
        ("--watch=nan", ("grad",)),
        ("--watch nan=loss,grad", ("loss", "grad")),
        ("--watch=nan=param, -t 0", ("param",)),
    ):
        assert watched(parse(CELL, line).text("watch") or "") == what
    for text in ("nan=x", "inf"):
        with pytest.raises(UsageError, match=f"--watch is nan, or nan= and some of .*, not {text!r}"):
            watched(text)


def test_a_script_is_looked_into() -> None:
    parsed = parse(MESH.find("run"), "--watch nan --profile train.py --profile 2")
    assert (parsed.text("watch"), parsed.text("profile")) == ("nan", "torch")
    assert parsed.words == ("train.py", "--profile", "2")

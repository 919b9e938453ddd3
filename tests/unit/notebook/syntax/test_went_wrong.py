"""The flags of a cell that find out when a training went wrong."""

from __future__ import annotations

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.command_line import parse
from monarch_nb.notebook.syntax.declarations import CELL, MESH
from monarch_nb.notebook.syntax.went_wrong import determined, watched


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


def test_what_is_compared() -> None:
    assert determined(parse(CELL, "")) is None
    assert determined(parse(CELL, "--deterministic --seed 3")) == {"seed": 3, "compare_with": 0}
    assert determined(parse(CELL, "--compare-with 12")) == {"seed": None, "compare_with": 12}
    with pytest.raises(UsageError, match="the line below a --deterministic cell has it"):
        determined(parse(CELL, "--compare-with banana"))
    assert determined(parse(CELL, "--compare-with last")) == {"seed": None, "compare_with": "last"}
    with pytest.raises(UsageError, match="--seed belongs to --deterministic"):
        determined(parse(CELL, "--seed 3"))
    with pytest.raises(UsageError, match="is the number of a run"):
        determined(parse(CELL, "--compare-with first"))


def test_a_script_is_looked_into_but_compared_from_a_cell() -> None:
    parsed = parse(MESH.find("run"), "--watch nan --profile train.py --profile 2")
    assert (parsed.text("watch"), parsed.text("profile")) == ("nan", "torch")
    assert parsed.words == ("train.py", "--profile", "2")
    with pytest.raises(UsageError, match=r"has no flag --deterministic: it belongs to a cell.*train\.main"):
        parse(MESH.find("run"), "--deterministic train.py")

"""Which lines are pdb's commands, and which are Python."""

from __future__ import annotations

import pytest

from monarch_nb.ground.pdb_lines import is_command, read_as_python


@pytest.mark.parametrize(
    "line", ["n", " n ", "p x", "p(x)", "pp [1]", "p -x", "w", "where 2", "b 5", "b file.py:5", "u 2", "q", "cont", "a"]
)
def test_commands(line: str) -> None:
    assert is_command(line)


@pytest.mark.parametrize(
    "line",
    [
        *["c[0]", "n = 5", "b = 5", "p == 1", "n + 1", "s.x", "q.shape", "c < 2", "d['x']", "r(1)", "w.grad"],
        *["x", "x + 1", "", "!n", "!x = 1", "news", "1"],
    ],
)
def test_what_only_begins_with_the_word_of_a_command(line: str) -> None:
    assert not is_command(line)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        *[("x", "whole"), ("x = 1", "whole"), ("for i in x: print(i)", "unfinished"), ("if x:", "unfinished")],
        *[("(1,", "unfinished"), ("x y", "no"), ("p x", "no"), ("x\0", "no"), ("", "whole")],
    ],
)
def test_python(line: str, read: str) -> None:
    assert read_as_python(line) == read

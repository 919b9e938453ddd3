"""What can be typed at the debugger's prompt: Monarch's grammar."""

from __future__ import annotations

import pytest

from monarch_nb.client.debug.commands import parse, parse_ranks
from monarch_nb.errors import UsageError
from monarch_nb.shape import Extent

MESH = Extent({"hosts": 4, "gpus": 4})


def chosen(text: str) -> list[int]:
    ranks = parse_ranks(text)
    return [rank for rank in range(MESH.size) if ranks.has(rank, MESH.point(rank))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", [3]),
        ("1,4,6", [1, 4, 6]),
        ("1, 4 ,6", [1, 4, 6]),
        ("2:7:2", [2, 4, 6]),
        (":", list(range(16))),
        ("::", list(range(16))),
        (":3", [0, 1, 2]),
        ("14:", [14, 15]),
        ("::5", [0, 5, 10, 15]),
        ("4::4", [4, 8, 12]),
        (":9:4", [0, 4, 8]),
        ("123", []),
        ("hosts=2", [8, 9, 10, 11]),
        ("hosts=2:4, gpus=(1,3)", [9, 11, 13, 15]),
        ("hosts=(0,3),gpus=1::2", [1, 3, 13, 15]),
        ("pipeline=0", []),
    ],
)
def test_ranks(text: str, expected: list[int]) -> None:
    assert chosen(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "1,", ",1", "1,,2", "1:2:3,4", ":::", "hosts=", "hosts=(3)", "hosts=1,2", "-1", "a", "hosts=1:2:3:4", "=1"],
)
def test_ranks_that_can_not_be_read(text: str) -> None:
    with pytest.raises(UsageError, match=r"can not read ranks\("):
        parse_ranks(text)


def test_a_dimension_twice_and_a_step_of_nothing() -> None:
    with pytest.raises(UsageError, match="names hosts twice"):
        parse_ranks("hosts=1,hosts=2")
    with pytest.raises(UsageError, match="step of 0"):
        parse_ranks("1:2:0")


def test_words_and_their_short_forms() -> None:
    for line, word in [("l", "list"), ("list ", "list"), ("c", "continue"), ("q", "quit"), ("h", "help"), ("", "")]:
        assert parse(line).word == word
    attach = parse("a my-actor_1 13")
    assert (attach.word, attach.name, attach.rank) == ("attach", "my-actor_1", 13)
    cast = parse("cast debugee ranks(hosts=(0,1), gpus=1) p (a, b)")
    assert (cast.name, cast.line) == ("debugee", "p (a, b)")
    assert cast.ranks.has(5, MESH.point(5))
    assert parse("cast cell ranks( 1 )!x = 1").line == "!x = 1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("foo", "no command 'foo'"),
        ("lsit", "did you mean list?"),
        ("detach", "detach is for what is attached"),
        ("list 1", "list takes nothing"),
        ("attach", "attach is: attach NAME RANK"),
        ("attach cell 1 x", "attach is: attach NAME RANK"),
        ("attach cell 1abc", "attach is: attach NAME RANK"),
        ("cast cell p x", "cast is: cast NAME"),
        ("cast ranks(1) n", "cast is: cast NAME"),
        ("cast cell ranks(1)", "cast is: cast NAME"),
        ("cast cell ranks(1 n", "never closed"),
    ],
)
def test_lines_that_can_not_be_read(line: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(line)
    assert message in str(raised.value)

"""Numbers from many lines: the same as from each by itself, and bounded."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.lines import extraction
from monarch_nb.lines.extraction import Extraction
from monarch_nb.lines.named import LOOKED_AT_CHARACTERS, read

Values = list[tuple[int, float | None, float]]


def taken(lines: list[str], name: str, x: str = "") -> Values:
    """What is taken of one name: place, x, number."""
    found: Values = []
    for one in Extraction([name], x).take("\n".join(lines).encode()):
        for key, values in zip(one.keys, one.values, strict=True):
            assert key[0] == name
            xs: list[float | None] = [*one.x] if one.x else [None] * len(values)
            found += zip(one.places, xs, values, strict=True)
    return sorted(found)


def test_names_that_differ_in_a_digit() -> None:
    lines = ["Acc@1 75.0", "Acc@5 93.0", "Acc@1 nan", "Acc@5 94.0"]
    assert taken(lines, "Acc@5") == [(1, None, 93.0), (3, None, 94.0)]
    made = Extraction()
    made.take("\n".join(lines).encode())
    assert {name: known.count for (name, _), known in made.names().items()} == {"Acc@1": 2, "Acc@5": 2}


def test_what_is_taken_of_lines() -> None:
    elsewhere = ["rank 1 loss: 2.0", "rank loss1: .2", "rank 12 loss: 23.5"]  # of one shape, but for where digits lie
    assert taken(elsewhere, "loss") == [(0, None, 2.0), (2, None, 23.5)]
    against_a_name = ["tokens: 1,024 loss: 2.5", "loss: 2.4", "tokens: 2,048 loss: 2.25"]
    assert taken(against_a_name, "loss", "tokens") == [(0, 1024, 2.5), (2, 2048, 2.25)]
    bar = ["\x1b[32mstep: 3\x1b[0m  \x1b[1;31mloss:\x1b[0m 2.5\r 1/4 [00:00, loss=2.0]\r 2/4 [00:00, loss=1.5]"]
    assert taken(bar, "loss") == [(0, 3, 2.5), (1, 1, 2.0), (2, 2, 1.5)]


NUMBER = st.one_of(st.integers(0, 10**6).map(str), st.floats(-1e6, 1e6).map(repr), st.just("nan"))
LINES = st.lists(st.builds("step: {} loss: {} tps: {}".format, st.integers(0, 99999), NUMBER, NUMBER), min_size=1)


@given(LINES)
def test_many_lines_are_read_as_each_by_itself(lines: list[str]) -> None:
    alone = []
    for place, line in enumerate(lines):
        named = read(line)
        [value] = [field.value for field in named.fields if field.name == "loss"]
        alone.append((place, named.step.parts[0].value, value))
    together = taken(lines, "loss")
    assert [each[:2] for each in together] == [each[:2] for each in alone]
    assert all(a[2] == b[2] or (math.isnan(a[2]) and math.isnan(b[2])) for a, b in zip(alone, together, strict=True))


def test_a_million_kinds_of_lines_cost_bounded_memory_and_what_is_wanted_is_found() -> None:
    made = Extraction(["loss"])
    words = ["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(extraction.MAX_SHAPES + 500)]
    found = made.take("\n".join(f"{word} | loss: 2.5" for word in words).encode())
    assert sum(len(one.places) for one in found) == len(words)
    assert made.unlisted_lines == 500
    assert len(made._shapes) == extraction.MAX_SHAPES


def test_a_line_of_a_megabyte() -> None:
    made = Extraction(["loss"])
    [one] = made.take(b"loss: 2.5 " + b"x" * 1_000_000 + b" loss: 3.5\nloss: 1.5")[:1]
    assert one.values[0][0] in (2.5, 1.5)
    assert max(map(len, made._shapes)) <= LOOKED_AT_CHARACTERS


def test_a_traceback_has_no_numbers() -> None:
    lines = [
        "loss: 2.0",
        "Traceback (most recent call last):",
        '  File "/work/train.py", line 4, in <module>',
        "    loss = 7 + f(rate=3)",
        "               ^^^^^^^^^",
        "  [Previous line repeated 996 more times]",
        "ValueError: loss: 9 is too much",
        "loss: 1.0",
        '  File "/work/train.py", line 4',
        "    loss = 7(",
        "            ^",
        "SyntaxError: '(' was never closed",
        "  loss: 0.5",
    ]
    assert taken(lines, "loss") == [(0, None, 2.0), (7, None, 1.0), (12, None, 0.5)]
    made = Extraction()
    made.take("\n".join(lines).encode())
    assert {name for name, _ in made.names()} == {"loss"}

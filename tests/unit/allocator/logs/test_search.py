"""Which lines of a file match, whatever they hold and however they are read."""

from __future__ import annotations

import io
import json
from array import array
from pathlib import Path

import pytest

from monarch_nb.allocator.logs import search
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.search import answer, matcher, matching

TEXT = "loss 2.31\nLoss 2.30\n\n\x1b[31mlo\x1b[0mss 2.29\nÜbung \udcff\n10%\r100%\n".encode(errors="surrogateescape")


def found(text: str, data: bytes = TEXT, *, regex: bool = False, ignore_case: bool = False) -> list[int]:
    matches = matcher(text, regex=regex, ignore_case=ignore_case)
    return list(matching(io.BytesIO(data), 0, len(data), 0, matches))


@pytest.mark.parametrize("step_bytes", [1, 2, 7, 1 << 20])
def test_what_matches(monkeypatch: pytest.MonkeyPatch, step_bytes: int) -> None:
    monkeypatch.setattr(search, "_STEP_BYTES", step_bytes)
    assert found("loss") == [0, 3], "as people see it, without escape codes"
    assert found("loss", ignore_case=True) == [0, 1, 3]
    assert found("übung", ignore_case=True) == [4]
    assert found(r"\xff") == [4]
    assert found("100%") == [5]
    assert found(r"^\w+ 2\.[23]\d$", regex=True) == [0, 1, 3]
    assert found(r"^L", regex=True) == [1]
    assert found(r"^l", regex=True, ignore_case=True) == [0, 1, 3]
    assert found(r"^$", regex=True) == [2]
    assert found(r"31\s+Loss", regex=True) == [], "a line by itself"
    assert found("loss 2.3.") == [], "no regular expression unless asked for"


def test_from_the_middle_and_a_very_long_line(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = matcher("a", regex=False, ignore_case=False)
    for end, lines in ((7, [1, 3]), (3, [1])):
        assert list(matching(io.BytesIO(b"a\na\nb\na"), 2, end, 1, matches)) == lines
    monkeypatch.setattr(search, "_STEP_BYTES", 4)
    monkeypatch.setattr(search, "_LONGEST_LINE_BYTES", 10)
    data = b"x\n" + b"abc " * 20 + b"\nabc\n"
    assert (found("abc", data), found("x", data)) == ([1, 2], [0])


def test_an_answer(tmp_path: Path) -> None:
    files, gone = RankFiles(tmp_path / "runs", 1, 0), RankFiles(tmp_path, 1, 0)
    files.path("out").parent.mkdir(parents=True)
    files.path("out").write_bytes(b"a\nb\na\n")
    lines = [[str(files.path("out")), 0, 6, 5], [str(gone.path("out")), 0, 9, 0], [str(files.path("out")), 2, 4, 6]]
    asked = {"text": "a", "regex": False, "ignore_case": False, "lines": lines}
    told = answer(json.dumps(asked).encode())
    assert told[:1] == b"="
    assert list(array("Q", told[1:])) == [2, 0, 0, 5, 7]


@pytest.mark.parametrize("text", ["(", "a{9999999999}", "(?P<é", "*"])
def test_no_regular_expression(text: str) -> None:
    told = answer(json.dumps({"text": text, "regex": True, "ignore_case": False, "lines": []}).encode())
    assert told[:1] == b"!"
    assert told[1:].decode()

"""Who prints loses no line, whatever characters stdout has."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from monarch_nb.cli import main as cli
from monarch_nb.client.connections.events import Text
from monarch_nb.client.debug.answering import say
from monarch_nb.client.instruments.top import TerminalScreen
from monarch_nb.client.runs.printed import shown_here
from monarch_nb.notebook.output.publishing import printing

TEXT = "caf\u00e9 \u2713 \udc80\n"


@pytest.mark.parametrize(
    "printed",
    [
        lambda: say(TEXT),
        lambda: shown_here((0,))(Text(0, "stdout", TEXT)),
        lambda: TerminalScreen().show(TEXT),
        lambda: printing()({"text/plain": TEXT[:-1]}, False),
    ],
)
def test_what_a_stream_has_not_is_escaped(printed: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, written in (
        ("ascii", b"caf\\xe9 \\u2713 \\udc80\n"),
        ("latin-1", b"caf\xe9 \\u2713 \\udc80\n"),
        ("utf-8", "caf\u00e9 \u2713 \\udc80\n".encode()),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding, "strict")
        monkeypatch.setattr(sys, "stdout", stream)
        printed()
        assert stream.buffer.getvalue() == written  # type: ignore[attr-defined]


def test_whatever_a_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", "strict")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(cli, "VERSION", TEXT)
    assert cli.main(["version"]) == 0
    assert b"caf\\xe9 \\u2713" in stream.buffer.getvalue()  # type: ignore[attr-defined]

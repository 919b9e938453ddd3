"""The debugger's prompt, beside somebody else who answers as well."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from monarch_nb.client.debug import console
from monarch_nb.client.debug.console import Console
from monarch_nb.client.debug.debugger import StopInfo

TIMEOUT_S = 60.0
STOP = StopInfo(1, "debugee", 0, {"hosts": 0}, "localhost", "f", "f.py", 1, "", "run")


class FakeDebugger:
    """Has one rank that stops, until somebody answers elsewhere."""

    def __init__(self) -> None:
        self.there = [STOP]

    def stops(self) -> list[StopInfo]:
        return list(self.there)


class FakeDebuggerOfWords(FakeDebugger):
    """Whose rank knows no name, and of which Ctrl-C ends the waiting for `n`."""

    def cast(self, ranks: str, line: str, name: str) -> dict[int, str]:
        assert (ranks, name) == ("all", "")
        if line == "n":
            raise KeyboardInterrupt
        return {0: f"*** NameError: name '{line}' is not defined\n"}


def typed(*lines: str) -> list[str]:
    """Type lines, then quit; return what is shown."""
    debugger: Any = FakeDebuggerOfWords()
    coming = iter([*lines, "quit"])
    shown: list[str] = []
    assert Console(debugger, lambda _: next(coming), shown.append, lambda _: None).run() == "quit"
    return shown


def test_who_sits_at_the_prompt_is_told_that_somebody_else_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "ANSWERED_EVERY_S", 0.01)
    debugger: Any = FakeDebugger()
    told = threading.Event()

    def show(text: str) -> None:
        if "answered elsewhere" in text:
            told.set()

    def read(_: str) -> str:
        debugger.there.clear()  # by monarch-nb debug in a terminal
        assert told.wait(TIMEOUT_S)
        return ""

    assert Console(debugger, read, show, lambda _: None).run() == "continued", "Enter leaves the prompt"


def test_what_is_typed_after_that_reaches_nobody() -> None:
    debugger: Any = FakeDebugger()

    def read(_: str) -> str:
        debugger.there.clear()
        return "continue"

    assert Console(debugger, read, lambda _: None, lambda _: None).run() == "continued"


def test_a_word_that_no_rank_knows_is_answered_with_the_nearest_command() -> None:
    error, hint = typed("lsit")
    assert error == "[0] *** NameError: name 'lsit' is not defined\n"
    assert hint == "lsit is no command either: did you mean list?\n"
    assert len(typed("cast all lsit")) == 1, "cast sends what it is told"


def test_ctrl_c_ends_only_the_waiting_for_answers() -> None:
    assert typed("n") == ["not waited for: ranks go on executing it; list shows where they are\n"]


def test_after_the_end_of_a_run_nothing_is_said_to_go_on() -> None:
    debugger: Any = FakeDebugger()
    debugger.there = [replace(STOP, post_mortem=True, run_id="")]
    debugger.continue_all = lambda: [debugger.there.pop()]
    shown: list[str] = []
    assert Console(debugger, lambda _: "c", shown.append, lambda _: None).run() == "continued"
    assert shown == ["the error on rank 0 is left: its run has ended, and nothing goes on\n"]

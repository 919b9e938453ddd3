"""What messages advise can be done where they are read."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb.cli.main import make_parser
from monarch_nb.client.advice import IN_TERMINAL, here, in_terminal, read_in_terminal, while_busy
from monarch_nb.notebook.syntax.declarations import MESH

SOURCES = Path(monarch_nb.__file__).parent
NOT_IN_TERMINALS = {"notebook", "panel", "server"}


def messages() -> Iterator[tuple[str, str]]:
    """Yield where a text stands that people may read, and the text, with WORD for what is put in."""
    for path in SOURCES.rglob("*.py"):
        place = path.relative_to(SOURCES)
        if place.parts[0] in NOT_IN_TERMINALS or place.name == "advice.py":
            continue
        tree = ast.parse(path.read_text())
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) in documentation | parts:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "WORD" for part in node.values)
                yield f"{place}:{node.lineno}", text
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{place}:{node.lineno}", node.value


def commands() -> set[str]:
    (action,) = (each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return set(action.choices)


def test_no_message_speaks_of_magics_in_a_terminal() -> None:
    told = {place: in_terminal(text) for place, text in messages() if re.search(r"%mesh\b.", text)}
    assert len(told) > 100, "they were found"
    assert {place: text for place, text in told.items() if "%mesh" in text} == {}


def test_what_is_advised_in_a_terminal_is_there() -> None:
    assert {command.name for command in MESH.commands} & commands() == IN_TERMINAL


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("up starts one, and so does %mesh reserve", "up starts one, and so does monarch-nb reserve"),
        ("Press ■ (or %mesh interrupt) to free them", "Press Ctrl-C to free them"),
        ("Press ■ (or %mesh interrupt) to end the script.", "Press Ctrl-C to end the script."),
        ("Ctrl-C (■) ends them again; ■ ends the wait", "Ctrl-C ends them again; Ctrl-C ends the wait"),
        ("%mesh attach dev uses it as it is; or", "monarch-nb run dev SCRIPT uses it as it is; or"),
        ("bob may (%mesh attach ann/dev --pool lab)", "bob may (monarch-nb logs ann/dev --pool lab)"),
        ("%mesh attach looks again", "monarch-nb status looks again"),
        ("not published: %mesh sync --add ~/b brings it", "not published: a notebook's sync --add ~/b brings it"),
        ("not in a %%mesh cell", "not in a cell"),
    ],
)
def test_a_terminal_has_its_own_words(message: str, typed: str) -> None:
    assert in_terminal(message) == typed
    assert here(message) == message
    with read_in_terminal(["status"]):
        assert here(message) == typed
        assert while_busy([message]) == [typed]
    assert here(message) == message


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("up at 14:00: %mesh extend 1h adds to it", "monarch-nb extend dev 1h"),
        ("rank 3 died: %mesh restart --mesh judges -t 3,5-7.", "monarch-nb restart dev --mesh judges -t 3,5-7"),
        ("host1 is gone: %mesh replace dev puts a free one there", "monarch-nb replace dev"),
        ("%mesh replace asks, %mesh release works", "monarch-nb replace dev, monarch-nb release dev"),
    ],
)
def test_while_the_kernel_is_busy_others_can_do_it(message: str, typed: str) -> None:
    said = f"This kernel is busy until ■; meanwhile the panel, another notebook or a terminal ({typed}) can do that."
    assert while_busy([message, "other"], "dev") == [message, "other", said]


def test_what_the_button_does_or_what_helps_later_needs_nobody_else() -> None:
    assert while_busy(["Press ■ (or %mesh interrupt) to free them"], "dev") == ["Press ■ to free them"]
    gone = "Slurm job 12 has ended (PREEMPTED): %mesh reserve dev --on slurm asks for another"
    assert while_busy([gone], "dev") == [gone]

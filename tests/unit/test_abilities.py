"""tests/abilities.toml says what users can do. Every command has a row there, and every row a test that exists."""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.cli.main import make_parser
from monarch_nb.notebook.syntax.command_line import Command
from monarch_nb.notebook.syntax.declarations import CELL, MESH

ROOT = Path(__file__).parents[2]
FILE = tomllib.loads((ROOT / "tests" / "abilities.toml").read_text())
ROWS: list[dict[str, Any]] = FILE["ability"]
GATE = ("tests/unit/", "tests/integration/", "tests/e2e/", "labextension/tests/")


@cache
def commands() -> dict[str, set[str]]:
    """Every command that users type, as the product declares it, with its flags."""
    declared: tuple[Command, ...] = (CELL, *MESH.commands)
    magics = {each.title: {word for flag in each.flags for word in flag.spellings} for each in declared}
    return magics | dict(of_terminal(make_parser()))


def of_terminal(parser: argparse.ArgumentParser) -> Iterator[tuple[str, set[str]]]:
    """Yield the commands below a parser: `prog` is `monarch-nb pool init`. One that only holds others is none."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for each in action.choices.values():
            yield from of_terminal(each)
    if not below:
        yield parser.prog, set(parser._option_string_actions)


def is_there(typed: str) -> bool:
    """Whether the product has a command, with all flags that stand behind it."""
    name, *flags = typed.split(" --")
    return name in commands() and {f"--{flag}" for flag in flags} <= commands()[name]


@cache
def named_in(path: Path) -> set[str]:
    """The tests of a file as pytest names them; those that a class inherits from another file's are its own, too."""
    module = ast.parse(path.read_text())
    homes = {
        name.name: home
        for each in module.body
        if isinstance(each, ast.ImportFrom) and each.module
        for name in each.names
        if (home := ROOT / "tests" / f"{each.module.replace('.', '/')}.py").exists()
    }
    found = set(functions(module.body))
    for each in (each for each in module.body if isinstance(each, ast.ClassDef)):
        found |= {f"{each.name}::{name}" for name in functions(each.body)}
        for base in homes.keys() & {ast.unparse(base) for base in each.bases}:
            found |= {name.replace(f"{base}::", f"{each.name}::") for name in named_in(homes[base])}
    return found


def functions(body: list[ast.stmt]) -> Iterator[str]:
    """The names of the tests among them that are never skipped as a whole."""
    for each in body:
        is_test = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test")
        if is_test and not any("mark.skip(" in ast.unparse(mark) for mark in each.decorator_list):
            yield each.name


def exists(named: str) -> bool:
    path, _, test = named.partition("::")
    return (ROOT / path).exists() and (not test or test in named_in(ROOT / path))


def is_of_the_night(named: str) -> bool:
    return "night" in named.partition("::")[0].split("/")


def test_every_command_is_an_ability() -> None:
    named = {typed.partition(" --")[0] for row in ROWS for typed in row.get("commands", [])}
    missing = [name for name in commands() if name not in named]
    assert missing == [], "add each to the row of its ability in tests/abilities.toml, with a test"


def test_every_command_that_is_named_is_there() -> None:
    lost = [typed for row in ROWS for typed in row.get("commands", []) if not is_there(typed)]
    assert lost == [], "an ability is lost; or it is typed otherwise now: correct its row"


@pytest.mark.parametrize("row", ROWS, ids=[row["what"] for row in ROWS])
def test_every_ability_has_its_witnesses(row: dict[str, Any]) -> None:
    assert set(row) <= {"what", "commands", "gate", "night"}
    gate, night = row.get("gate", []), row.get("night", [])
    assert gate, "name a test of `make test` that asserts it"
    bad = [each for each in gate if is_of_the_night(each) or not each.startswith(GATE)]
    assert bad == [], "`gate` takes what `make test` runs"
    whole = [each for each in gate if each.endswith(".py")]
    assert whole == [], "name the test that says most, not its whole file"
    assert [each for each in night if not is_of_the_night(each)] == [], "`night` takes what lies in a folder `night`"
    gone = [each for each in (*gate, *night) if not exists(each)]
    assert gone == [], "there is no such test any more: name another one that asserts the same"


def test_the_list_can_be_read_in_one_go() -> None:
    assert 60 <= len(ROWS) <= 90
    assert [what for what, count in Counter(row["what"] for row in ROWS).items() if count > 1] == []
    typed = Counter(each for row in ROWS for each in row.get("commands", []))
    assert [each for each, count in typed.items() if count > 1] == [], "it belongs to one row"

"""Commands that are subcommands of `%mesh`, too: one declaration serves both, and `-t` and `--mesh` mean the same."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb.client.advice import in_terminal
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.command_line import Command, Flag, Parsed, Value, Words, read_value
from monarch_nb.shape import parse_targets

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation

_NAME = Words("NAME", "the reservation (default: the only one you hold)", completes="reservation")


def about(declared: Command) -> tuple[str, ...]:
    """Return what a command does, and examples."""
    lines = [line for line, _ in declared.examples if "{" not in line]  # which is a kernel's variable
    return declared.summary, *(line.removeprefix("%mesh").lstrip() for line in lines)


def add_declared(
    parser: argparse.ArgumentParser,
    declared: Command,
    *,
    without: Collection[str] = ("--pool",),
    required: str = "",
    one_of: Collection[str] = (),
) -> None:
    """Declare what a subcommand of `%mesh` takes: its reservation, its words and its flags.

    Args:
        without: flags that are not for a terminal, or there already.
        required: a flag that can not be left out here.
        one_of: words and flags that exclude each other.
    """
    parser.description = "\n".join(filter(None, [parser.description, in_terminal(declared.notes)]))
    group: Any = parser.add_mutually_exclusive_group() if one_of else parser
    words = declared.words
    names_it = words is not None and words.completes == "reservation"
    takes_name = not names_it and not any(flag.completes == "reservation" for flag in declared.flags)
    for each in filter(None, [_NAME if takes_name else None, words]):
        nargs = None if each.least else "?"
        dest = "name" if each.completes == "reservation" else each.completes
        help_text = in_terminal(each.help)
        (group if each.name in one_of else parser).add_argument(dest, nargs=nargs, metavar=each.name, help=help_text)
    for flag in declared.flags:
        if flag.name not in without:
            add_flag(group if flag.name in one_of else parser, flag, is_required=flag.name == required)


def add_flag(parser: argparse.ArgumentParser, flag: Flag, *, is_required: bool = False) -> None:
    """Declare that a command takes a flag of a magic. Its value is read as there; one that is not given is None, and
    one given without its value is True."""
    takes: dict[str, Any] = {"action": "store_true"}
    if flag.value:
        takes = {"type": partial(_read, flag), "metavar": "|".join(flag.choices) or flag.value}
        takes |= {"action": "append", "default": []} if flag.repeat else {}
        takes |= {"nargs": "?", "const": True} if flag.optional else {}
    takes |= {"required": True} if is_required else {}
    takes |= {"dest": "name"} if flag.completes == "reservation" else {}
    help_text = in_terminal(flag.help).replace("%", "%%")
    parser.add_argument(*filter(None, [flag.short, flag.name]), help=help_text, **takes)


def parsed_of(declared: Command, options: argparse.Namespace) -> Parsed:
    """Return what was typed as a notebook's line says it."""
    typed = {flag.key: getattr(options, flag.key, None) for flag in declared.flags}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in typed.items() if value}
    return Parsed(declared, (), values, tuple(options.passed_on))


def part_of(reservation: Reservation, mesh_name: str | None, targets: str | None) -> Mesh:
    """Return the ranks of a reservation that `--mesh` and `-t` mean. Asks no node about the main mesh.

    Raises:
        NoSuchMesh: the reservation has no such mesh.
    """
    mesh = reservation.mesh if mesh_name in (None, MAIN_MESH) else reservation.meshes[mesh_name]
    return mesh.select(parse_targets(targets or "all", mesh.extent))


def _read(flag: Flag, text: str) -> Value:
    try:
        return read_value(flag, text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None

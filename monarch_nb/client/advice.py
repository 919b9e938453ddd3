"""What messages advise, in the words of where they are read. Messages are written for a notebook's prompt.

    here        as it is typed where this process is read: in a notebook, or in a terminal
    while_busy  as it helps while a cell goes on: the kernel takes no `%mesh` then

The panel has words of its own. Pure, but for `read_in_terminal`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from monarch_nb.config import POOL_VARIABLE
from monarch_nb.ground.rank_sets import listed

IN_TERMINAL = frozenset(
    {"debug", "doctor", "extend", "grow", "interrupt", "list", "logs", "plot", "release", "replace", "reserve"}
    | {"restart", "run", "share", "shrink", "stacks", "status", "stop", "top"}
)
"""The subcommands of `%mesh` that `monarch-nb` has, too."""
_MEANWHILE = frozenset({"extend", "grow", "interrupt", "release", "replace", "restart", "shrink", "stacks"})
"""What people may want while a cell goes on; the panel has all of it, too."""

_COMMAND = re.compile(r"%mesh (?P<verb>[a-z]+)(?P<words>(?: (?:-t|--mesh|--nodes?) [\w=,:.+-]*\w| \d+[smhd]\b)*)")
_BUTTON_OR = re.compile(r"■ \(or %mesh \w+\)")
_TYPED = (
    (_BUTTON_OR.pattern, "Ctrl-C"),
    (r"Ctrl-C \(■\)|■(?: \(Ctrl-C\))?", "Ctrl-C"),
    (r"%%mesh --mesh (\S+) runs a cell there", r"monarch-nb run --mesh \1 SCRIPT runs a script there"),
    (r"\(default: this notebook's\)", "(default: the only one you hold)"),
    (r" \(%mesh (?:detach|help|save)\b[^)]*\)|, `%mesh show all` shows all ranks'", ""),
    (
        r"interrupt\(kill_stuck=True\) within 10 s to kill and restart (it|them)",
        r"monarch-nb restart starts \1 anew",
    ),
    (r"Another(\s+)interrupt in the next 10 s kills just these", r"monarch-nb\1restart kills these"),
    ("this kernel's value", "this shell's"),
    (r"this kernel's\)", "monarch-nb's own)"),
    (r"\(default: the notebook's project\)", "(default: the project that you are in)"),
    ("a %%mesh cell", "a cell"),
    ("%%mesh", "a notebook's cell"),
    (r"%mesh attach (looks|tries) again", r"monarch-nb status \1 again"),
    (r"%mesh attach (\S+) uses it as it is", r"monarch-nb run \1 SCRIPT uses it as it is"),
    (r"%mesh attach", "monarch-nb logs"),
)
_NAMED_POOL = re.compile(rf"--pool (\S+), or {POOL_VARIABLE}=\1")

_typed_words: list[Sequence[str]] = []


@contextmanager
def read_in_terminal(words: Sequence[str]) -> Iterator[None]:
    """Say that what this process says until the block ends is read in a terminal, where `words` were typed after
    `monarch-nb`."""
    _typed_words.append(words)
    try:
        yield
    finally:
        _typed_words.pop()


def here(text: str) -> str:
    """Return a message with what is typed where this process is read.

    Example:
        >>> with read_in_terminal(["status"]):
        ...     here("no pool 'local' is up: monarch-nb up starts one, and so does %mesh reserve")
        "no pool 'local' is up: monarch-nb up starts one, and so does monarch-nb reserve"
    """
    return in_terminal(text, _typed_words[-1]) if _typed_words else text


def named_here(reservation: str) -> str:
    """Return what names a reservation on a line that is typed, after a blank: a terminal is attached to none.

    Example:
        >>> named_here("dev")
        ''
        >>> with read_in_terminal(["run", "train.py"]):
        ...     named_here("dev")
        ' dev'
    """
    return f" {reservation}" if _typed_words else ""


def in_terminal(text: str, words: Sequence[str] = ()) -> str:
    """Return a message with what is typed in a terminal, where `words` were typed, or what a notebook can do alone."""
    for pattern, typed in _TYPED:
        text = re.sub(pattern, typed, text)
    text = re.sub(r"%mesh (\w+)", _typed, text)
    if words and not any(word.partition("=")[0] == "--pool" for word in words):
        before, after = words[0], shlex.join(words[1:])
        text = _NAMED_POOL.sub(lambda match: f"monarch-nb {before} --pool {match[1]} {after}".rstrip(), text)
    return text


def _typed(match: re.Match[str]) -> str:
    return f"monarch-nb {match[1]}" if match[1] in IN_TERMINAL else f"a notebook's {match[1]}"


def while_busy(texts: Iterable[str], reservation: str = "") -> list[str]:
    """Return the messages of a cell that goes on, and below them who can do now what they advise.

    Args:
        reservation: its name.

    Example:
        >>> while_busy(["%mesh extend 1h adds to it"], "dev")[1]
        'This kernel is busy until ■; meanwhile the panel, another notebook or a terminal (monarch-nb extend dev 1h) \
can do that.'
    """
    if _typed_words:
        return list(map(here, texts))
    said = [_BUTTON_OR.sub("■", text) for text in texts]
    advised = [match for text in said for match in _COMMAND.finditer(text) if match["verb"] in _MEANWHILE]
    if advised:
        name = f" {reservation}" if reservation else ""
        typed = listed(f"monarch-nb {match['verb']}{name}{match['words']}" for match in advised)
        ways = f"the panel, another notebook or a terminal ({typed})"
        said.append(f"This kernel is busy until ■; meanwhile {ways} can do that.")
    return said

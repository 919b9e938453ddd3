"""What is typed at `monarch_dbg> `: Monarch's commands and its grammar of ranks. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from monarch_nb.errors import UsageError

HELP = """\
monarch_dbg commands:
\tlist - list all stopped ranks
\tattach <actor_name> <rank> - talk to the pdb of a rank; detach there comes back here
\tcast <actor_name> ranks(...) <command> - send a pdb command to a set of ranks of the actor, and show their answers.
\t\tThe value inside ranks(...) can be a single rank (ranks(1)),
\t\ta list of ranks (ranks(1,4,6)), a range of ranks (ranks(start?:stop?:step?)),
\t\tor a dict of dimensions (ranks(dim1=1:5:2, dim2=3, dim4=(3,6))).
\tcontinue - clear all breakpoints and tell all ranks to continue
\tquit - leave the debugger; what has stopped stays where it is
\thelp - print this help message
The actor name is `cell` for what has stopped in a cell or a script."""

_WORDS = ("attach", "list", "cast", "continue", "quit", "help")
_SHORT = {"a": "attach", "l": "list", "c": "continue", "q": "quit", "h": "help"}
_NAME = r"[-_a-zA-Z0-9]+"
_FORMS = "ranks(3), ranks(1,4,6), ranks(2:7:2), ranks(:), ranks(hosts=0, procs=(1,3))"


@dataclass(frozen=True)
class Chosen:
    """Numbers: single ones, or a range."""

    numbers: tuple[int, ...] = ()
    start: int = 0
    stop: int | None = None
    step: int = 1

    def __contains__(self, number: int) -> bool:
        if self.numbers:
            return number in self.numbers
        in_range = self.start <= number and (self.stop is None or number < self.stop)
        return in_range and (number - self.start) % self.step == 0


@dataclass(frozen=True)
class Ranks:
    """What stands in `ranks(...)`: of ranks, or of each dimension that is named."""

    ranks: Chosen | None = None
    dimensions: Mapping[str, Chosen] | None = None

    def has(self, rank: int, coordinates: Mapping[str, int]) -> bool:
        """Return whether a rank is one of these; what lacks a dimension that is named is none."""
        if self.ranks is not None:
            return rank in self.ranks
        named = self.dimensions or {}
        return all(name in coordinates and coordinates[name] in chosen for name, chosen in named.items())


@dataclass(frozen=True)
class Command:
    """A line that was read.

    Attributes:
        word: attach, list, cast, continue, quit or help; empty for an empty line.
        name: of an actor. rank: for attach.
        ranks: for cast. line: for pdb.
    """

    word: str
    name: str = ""
    rank: int = 0
    ranks: Ranks = Ranks()
    line: str = ""


def parse(line: str) -> Command:
    """Read a line.

    Raises:
        UsageError: it can not be read; says what was expected.

    Example:
        >>> parse("attach trainers 3")
        Command(word='attach', name='trainers', rank=3, ranks=Ranks(ranks=None, dimensions=None), line='')
        >>> parse("cast cell ranks(0, 2) n").ranks.has(2, {})
        True
    """
    typed, _, rest = line.strip().partition(" ")
    word = _SHORT.get(typed, typed)
    if word == "attach":
        return _attach(rest)
    if word == "cast":
        return _cast(rest)
    if word and word not in _WORDS:
        near = difflib.get_close_matches(word, [*_WORDS, "detach"], n=1, cutoff=0.6)
        hint = "detach is for what is attached" if near == ["detach"] else f"did you mean {near[0]}?" if near else ""
        raise UsageError(f"no command {typed!r}{f': {hint}' if hint else ''}; there are {', '.join(_WORDS)}")
    if rest.strip():
        raise UsageError(f"{word} takes nothing, not {rest.strip()!r}")
    return Command(word)


def _attach(rest: str) -> Command:
    match = re.fullmatch(rf"\s*({_NAME})\s+(\d+)\s*", rest)
    if match is None:
        raise UsageError("attach is: attach NAME RANK, as in attach cell 3 (list shows names and ranks)")
    return Command("attach", match[1], int(match[2]))


def _cast(rest: str) -> Command:
    match = re.fullmatch(rf"\s*({_NAME})\s+ranks\s*\((.*)", rest)
    inside, line = _closed(match[2]) if match is not None else ("", "")
    if match is None or not re.match(r"[!\w]", line):
        raise UsageError(f"cast is: cast NAME ranks(...) COMMAND, as in cast cell ranks(:) p x; forms: {_FORMS}")
    return Command("cast", match[1], ranks=parse_ranks(inside), line=line)


def _closed(text: str) -> tuple[str, str]:
    """Return what stands before the bracket that closes, and after it."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[:place], text[place + 1 :].strip()
    raise UsageError(f"ranks( is never closed; forms: {_FORMS}")


def parse_ranks(text: str) -> Ranks:
    """Read what stands in `ranks(...)`.

    Raises:
        UsageError: it has none of the forms.
    """
    text = re.sub(r"\s+", " ", text).strip()
    if "=" not in text:
        return Ranks(ranks=_chosen(text, text))
    dimensions: dict[str, Chosen] = {}
    for part in re.split(r",(?![^(]*\))", text):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*", part)
        if match is None:
            raise _unreadable(text)
        if match[1] in dimensions:
            raise UsageError(f"ranks({text}) names {match[1]} twice")
        value = match[2]
        if value.startswith("("):
            if not value.endswith(")") or "," not in value:
                raise _unreadable(text)
            value = value[1:-1]
        elif "," in value:
            raise _unreadable(text)
        dimensions[match[1]] = _chosen(value, text)
    return Ranks(dimensions=dimensions)


def _chosen(text: str, whole: str) -> Chosen:
    if re.fullmatch(r"\d+( ?, ?\d+)*", text):
        return Chosen(numbers=tuple(int(number) for number in text.split(",")))
    match = re.fullmatch(r"(\d+)? ?: ?(\d+)?(?: ?: ?(\d+)?)?", text)
    if match is None:
        raise _unreadable(whole)
    start, stop, step = (int(number) if number else None for number in match.groups())
    if step == 0:
        raise UsageError(f"ranks({whole}) has a step of 0")
    return Chosen(start=start or 0, stop=stop, step=step or 1)


def _unreadable(text: str) -> UsageError:
    return UsageError(f"can not read ranks({text}); forms: {_FORMS}")

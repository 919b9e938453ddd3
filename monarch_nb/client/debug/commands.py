"""What is typed at `monarch_dbg> `: Monarch's commands, shorter forms of them, and lines for pdb. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from monarch_nb.client.debug.stops import StopInfo
from monarch_nb.errors import UsageError
from monarch_nb.ground.pdb_lines import COMMANDS, is_command, read_as_python

HELP = """\
monarch_dbg commands:
\tlist - list all stopped ranks
\tattach [<actor_name>] <rank> - talk to the pdb of a rank; detach there comes back here
\tcast [<actor_name>] <ranks> <command> - send a pdb command to a set of ranks of the actor, and show their answers.
\t\t<ranks> is as after -t (3 or 0,2-3 or ::2 or all or hosts=0,procs=0:2), or
\t\ta single rank (ranks(1)), a list of ranks (ranks(1,4,6)), a range of ranks (ranks(start?:stop?:step?)),
\t\tor a dict of dimensions (ranks(dim1=1:5:2, dim2=3, dim4=(3,6))).
\tcontinue - clear all breakpoints and tell all ranks to continue
\tquit - leave the debugger; stopped ranks stay where they are
\thelp - print this help message
Any other line goes to all stopped ranks: a pdb command (p x, w, n, s, b 12) or Python (x.shape, y = 1).
\tHere l is list, c and cont are continue, q and exit are quit, h is help, a is attach.
\tcast all l sends pdb's l to all ranks. !c shows a variable named c.
The actor name is `cell` for ranks that stopped in a cell or a script. You can leave it out when only one
has stopped."""

WORDS = ("attach", "list", "cast", "continue", "quit", "help")
_SAME = {
    "a": "attach",
    "l": "list",
    "c": "continue",
    "cont": "continue",
    "q": "quit",
    "quit()": "quit",
    "exit": "quit",
    "exit()": "quit",
    "EOF": "quit",
    "h": "help",
    "?": "help",
}
_CONVERSATIONS = ("commands", "debug", "interact")
"""Commands of pdb that ask for more lines, with a prompt of their own."""
_NAME = r"[-_a-zA-Z0-9]+"
_PART = r"(?:\w+\s*=\s*)?(?:-?[\d:][-\d:]*|\([^)]*\))"
_RANKS = rf"all|\[[^\]]*\]|{_PART}(?:\s*,\s*{_PART})*"
_ATTACH_FORM = "attach is: attach [NAME] RANK, as in attach 2 (list shows names and ranks)"
_CAST_FORM = (
    "cast is: cast [NAME] RANKS COMMAND, as in cast 0-3 p x, cast hosts=0 w or cast cell ranks(1,4) n; "
    "a command without cast goes to all stopped ranks"
)


@dataclass(frozen=True)
class Command:
    """A line that was read.

    Attributes:
        word: attach, cast, list, continue, quit or help; empty for an empty line.
        name: of an actor; empty when it was left out.
        ranks: for attach and cast, as `parse_targets` reads them.
        line: for pdb.
    """

    word: str
    name: str = ""
    ranks: str = ""
    line: str = ""


def parse(line: str) -> Command:
    """Read a line.

    Raises:
        UsageError: it can not be read; says what was expected.

    Example:
        >>> parse("attach trainers 3")
        Command(word='attach', name='trainers', ranks='3', line='')
        >>> parse("cast 0,2-3 p x")
        Command(word='cast', name='', ranks='0,2-3', line='p x')
        >>> parse("p x")
        Command(word='cast', name='', ranks='all', line='p x')
    """
    line = line.strip()
    typed, _, rest = line.partition(" ")
    rest, word = rest.strip(), _SAME.get(typed, typed)
    if not line:
        return Command("")
    if word not in WORDS or rest.startswith("="):
        return Command("cast", ranks="all", line=_for_all(line))
    if word == "attach":
        return _attach(rest, line)
    if word == "cast":
        return _cast(rest)
    if rest:
        whole = f"!{line}" if read_as_python(line) == "whole" else f"cast all {line}"
        raise UsageError(f"{word} takes nothing here, not {rest!r}; for pdb in all stopped ranks: {whole}")
    return Command(word)


def completions(before: str, stops: Iterable[StopInfo]) -> list[str]:
    """Return the words that can stand behind `before`, the beginning of a line: commands, names, ranks.

    Example:
        >>> completions("cast ", [])
        ['all']
    """
    words = before.split()
    if not words:
        return sorted({*WORDS, *COMMANDS})
    word, rest = _SAME.get(words[0], words[0]), words[1:]
    stops = list(stops)
    names = sorted({stop.actor for stop in stops})
    if word not in ("attach", "cast") or (rest and rest not in ([name] for name in names)):
        return []
    ranks = sorted({stop.rank for stop in stops if not rest or stop.actor == rest[0]})
    return [*([] if rest else names), *(["all"] if word == "cast" else []), *map(str, ranks)]


def meant(word: str, answers: Iterable[str]) -> str:
    """Return a hint for a word that is no command and that went to ranks as Python, where it is no variable either."""
    unknown = f"*** NameError: name {word!r} is not defined"
    if not word.isidentifier() or not all(answer.startswith(unknown) for answer in answers):
        return ""
    return f"{word} is no command either: {_advice(word)}"


def _attach(rest: str, line: str) -> Command:
    match = re.fullmatch(rf"(?:({_NAME})\s+)??({_RANKS})", rest)
    if match is None:
        is_python = not line.startswith("attach") and read_as_python(line) == "whole"
        raise UsageError(f"{_ATTACH_FORM}{f'; for pdb in all stopped ranks: !{line}' if is_python else ''}")
    return Command("attach", match[1] or "", match[2])


def _cast(rest: str) -> Command:
    if match := re.fullmatch(rf"(?:({_NAME})\s+)?ranks\s*\((.*)", rest):
        ranks, line = _closed(match[2])
    elif match := re.fullmatch(rf"(?:({_NAME})\s+)??({_RANKS})\s+(.+)", rest):
        ranks, line = match[2], match[3]
    else:
        raise UsageError(_CAST_FORM)
    if not line:
        raise UsageError(_CAST_FORM)
    return Command("cast", match[1] or "", ranks, _for_pdb(line))


def _closed(text: str) -> tuple[str, str]:
    """Return what stands before the bracket that closes, and after it."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[:place], text[place + 1 :].strip()
    raise UsageError(f"ranks( is never closed; {_CAST_FORM}")


def _for_all(line: str) -> str:
    """Return a line that begins with no command of the prompt, if pdb can execute it.

    Raises:
        UsageError: it is neither pdb's nor Python; the nearest command is suggested.
    """
    first, typed = _first(line), line.split()[0]
    if typed == "detach":
        raise UsageError("detach needs an attached rank; none is attached")
    if not is_command(first) and read_as_python(first.removeprefix("!")) == "no":
        raise UsageError(f"{line!r} is no command, and no Python: {_advice(typed)}")
    return _for_pdb(line)


def _for_pdb(line: str) -> str:
    """Return a line for pdb in several ranks.

    Raises:
        UsageError: it would wait for more lines.
    """
    first = _first(line)
    if is_command(first):
        word = first.split()[0]
        if word in _CONVERSATIONS:
            raise UsageError(f"{word} asks for more lines: attach a rank first, as in attach 0")
    elif read_as_python(first.removeprefix("!")) == "unfinished":
        raise UsageError(f"{line!r} is not finished: write it in one line, or attach a rank first, as in attach 0")
    return line


def _first(line: str) -> str:
    """Return the first of the commands that pdb finds in a line."""
    return line.partition(";;")[0].strip()


def _advice(word: str) -> str:
    if word in COMMANDS:
        return f"{word} takes nothing"
    near = difflib.get_close_matches(word, sorted({*WORDS, *COMMANDS}), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "help shows the commands"

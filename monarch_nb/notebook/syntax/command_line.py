"""The line of a magic: words, flags, help and completion, from declarations. Pure: no IPython, no client.

A magic is declared as a `Command`; `%mesh` is a `CommandSet` of them (declarations.py). Whatever can not
be read raises one UsageError that says what was meant, as far as it can be guessed.
"""

from __future__ import annotations

import itertools
import keyword
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.meant import (
    ANSWERS,
    COMMANDS,
    SCRIPT,
    as_here,
    flags_near,
    of_a_cell,
    of_a_shell,
    suggestion,
)
from monarch_nb.times import seconds_of

Value = str | int | float | bool | tuple[str, ...]
Source = Literal[
    "",
    "subcommand",
    "reservation",
    "node",
    "target",
    "run",
    "mesh",
    "kernel_name",
    "rank_name",
    "metric",
    "fold",
    "watched",
    "script",
    "module",
    "file",
]
Sources = Mapping[Source, Callable[[str], Iterable[str]]]
"""What can be completed: each maps the word typed so far to whole words that may replace it. Files are IPython's."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: with its dashes, "--nodes".
        help: what it does, in a few words.
        short: its short form, "-t"; empty when there is none.
        value: what stands after it, as help calls it ("N"); empty for a switch.
        kind: how the value is read: "count" is a whole number of at least 1, "number" one of at least 0, "seconds" are
            more than 0, "duration" is "8h" or "1h30m" and comes as seconds.
        optional: the value may be left out: of the words that follow, only what begins with a digit or is one of
            `choices` is one.
        implied: the value where an optional one is left out; empty: it is True then.
        choices: the only values allowed.
        repeat: may be given more than once; its value is then a tuple.
        negatable: a switch that also has a "--no-" form.
        completes: where its values come from.
        hidden: left out of the help, where others of its kind are spoken of together.
    """

    name: str
    help: str
    short: str = ""
    value: str = ""
    kind: Literal["text", "count", "number", "seconds", "duration"] = "text"
    optional: bool = False
    implied: str = ""
    choices: tuple[str, ...] = ()
    repeat: bool = False
    negatable: bool = False
    completes: Source = ""
    hidden: bool = False

    @property
    def key(self) -> str:
        """Its name as an identifier: "group_outputs"."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every way to write it."""
        negative = f"--no-{self.name.lstrip('-')}" if self.negatable else ""
        return tuple(spelling for spelling in (self.short, self.name, negative) if spelling)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a command that are not flags.

    Attributes:
        name: as help calls them, "NAME".
        help: what they are.
        most: how many there may be; None for any number.
        least: how many there must be.
        joined: the words are one expression: they stay as written and come as one word.
        raw: quotes belong to the words (they are Python).
        verbatim: flags belong to the words (they are another program's).
        rest: as verbatim, from the first word on: it names a program, and what follows is for that. One `--` before or
            after it is left out, as argparse does.
        completes: where they come from.
    """

    name: str
    help: str
    most: int | None = 1
    least: int = 0
    joined: bool = False
    raw: bool = False
    verbatim: bool = False
    rest: bool = False
    completes: Source = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A magic, as "%%mesh", or a subcommand of `%mesh`. What stands after a -- is another program's when `passes_on`
    says what that is; `about_unknown` is said of a flag like no other."""

    name: str
    summary: str
    usage: str = ""
    words: Words | None = None
    flags: tuple[Flag, ...] = ()
    notes: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    passes_on: str = ""
    about_unknown: str = ""

    @property
    def title(self) -> str:
        """How it is called: "%mesh reserve"."""
        return self.name if self.name.startswith("%") else f"%mesh {self.name}"


@dataclass(frozen=True, slots=True)
class CommandSet:
    """A magic with subcommands, by sections. `first` are those that help shows first."""

    name: str
    summary: str
    sections: Mapping[str, tuple[Command, ...]]
    first: tuple[Command, ...]
    examples: tuple[tuple[str, str], ...] = ()

    @property
    def commands(self) -> tuple[Command, ...]:
        """All of them."""
        return tuple(itertools.chain(*self.sections.values()))

    def find(self, word: str) -> Command:
        """Return the subcommand that `word` names, here or in other tools.

        Raises:
            UsageError: there is none; the nearest is suggested.
        """
        named = {command.name: command for command in self.commands}
        if command := named.get(COMMANDS.get(word, word)):
            return command
        near = f": {ANSWERS[word]}." if word in ANSWERS else suggestion(word, named) or "."
        raise UsageError(f"{self.name} has no subcommand {word!r}{near} {self.name} help lists all")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A line that was read: typed access to what it says. `notes` are what to say of words of other tools."""

    command: Command
    words: tuple[str, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    passed_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def word(self) -> str | None:
        """The first word, or None."""
        return self.words[0] if self.words else None

    def text(self, key: str) -> str | None:
        """Return the text of a flag, or None when it was not given."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def count(self, key: str) -> int | None:
        """Return the whole number of a flag, or None when it was not given."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def seconds(self, key: str) -> float | None:
        """Return the seconds of a flag, or None when it was not given."""
        value = self.values.get(key)
        return value if isinstance(value, float) else None

    def switch(self, key: str, default: bool = False) -> bool:
        """Return whether a switch was given; `default` when it was not."""
        value = self.values.get(key, default)
        return value if isinstance(value, bool) else default

    def many(self, key: str) -> tuple[str, ...]:
        """Return all the values of a repeatable flag."""
        value = self.values.get(key, ())
        return value if isinstance(value, tuple) else ()


def parse(command: Command, line: str) -> Parsed:
    """Read what stands after the command's name.

    Raises:
        UsageError: an unknown flag (the nearest is suggested), a missing, malformed or repeated value, or a wrong
            number of words.

    Example:
        >>> nodes = Flag("--nodes", "how many", value="N", kind="count")
        >>> reserve = Command("reserve", "hold nodes", words=Words("NAME", "its name"), flags=(nodes,))
        >>> parsed = parse(reserve, "dev --nodes 2")
        >>> parsed.word, parsed.count("nodes")
        ('dev', 2)
    """
    if command.words is not None and command.words.verbatim:
        return Parsed(command, _read_words(command, split_words(line)))
    own, passed_on = _divided(command, split_words(line))
    own, notes = as_here(own, _takes(command))
    pending = own[::-1]
    words: list[str] = []
    values: dict[str, Value] = {}
    while pending:
        word = pending.pop()
        if not _looks_like_flag(word):
            words.append(word)
            if command.words is not None and command.words.rest:
                words, pending = _program(command, command.words, words + pending[::-1]), []
            continue
        spelling, equals, attached = word.partition("=")
        flag = _find_flag(command, spelling, _of_engine(command, own, word))
        if not flag.value:
            if equals:
                raise UsageError(f"{spelling} takes no value")
            _store(values, flag, spelling, not (flag.negatable and spelling.startswith("--no-")))
            continue
        if not equals and flag.optional and not (pending and _is_value(flag, pending[-1])):
            _store(values, flag, spelling, flag.implied or True)
            continue
        if not equals:
            if not pending or _is_flag_of(command, pending[-1]):
                raise UsageError(f"{spelling} needs a value: {spelling} {flag.value}")
            attached = pending.pop()
        _store(values, flag, spelling, read_value(flag, unquote(attached)))
    return Parsed(command, _read_words(command, words), values, tuple(map(unquote, passed_on)), tuple(notes))


def _divided(command: Command, words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command, and those after -- that it passes on."""
    if not command.passes_on or "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def split_words(line: str) -> list[str]:
    """Cut `line` at blanks that are not inside quotes or brackets; a word that starts with # ends it.

    Raises:
        UsageError: a quote that is never closed.

    Example:
        >>> split_words("lr=f(1, 2) -t 0  # slower")
        ['lr=f(1, 2)', '-t', '0']
    """
    words, quote = _split(line)
    if quote:
        raise UsageError(f"a quote {quote} is never closed in: {line.strip()}")
    return words


def unquote(word: str) -> str:
    """Return `word` without its quotes, as a POSIX shell would."""
    if "'" not in word and '"' not in word:
        return word
    return "".join(shlex.split(word))


def wants_help(command: Command, line: str) -> bool:
    """Return whether a line asks for help instead of work."""
    words = split_words(line)
    if command.words is not None and command.words.verbatim:
        words = words[:1]
    words, _ = as_here(_divided(command, words)[0], _takes(command))
    if command.words is not None and command.words.rest:
        words = words[: _first_plain(command, words)]
    return any(word in ("--help", "-h") for word in words)


def read_environment(settings: Iterable[str]) -> dict[str, str | None]:
    """Return what `--env NAME[=VALUE]` sets; a name alone takes the kernel's value, which None stands for.

    Raises:
        UsageError: a name that no environment variable can have.
    """
    environment: dict[str, str | None] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name.isidentifier():
            raise UsageError(f"--env is NAME or NAME=VALUE, not {setting!r}")
        environment[name] = value if equals else None
    return environment


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of a variable."""
    return text.isidentifier() and not keyword.iskeyword(text)


def checked_name(name: str | None) -> str | None:
    """Return the value of `--out`, if it can be a variable.

    Raises:
        UsageError: it can not.
    """
    if name is not None and not is_name(name):
        raise UsageError(f"--out is the name of a variable, not {name!r}")
    return name


def complete(command: Command | CommandSet, text: str, sources: Sources) -> tuple[str, list[str] | None]:
    """Complete the last word of `text`, which is the line up to the cursor, without the magic's name.

    Args:
        sources: what can be completed besides subcommands and flags.

    Returns:
        The word typed so far, and the words that may replace it, in order; None where IPython knows them.
    """
    words, _ = _split(text)
    fragment = words.pop() if words and not text[-1:].isspace() else ""
    if isinstance(command, CommandSet):
        names = [each.name for each in command.commands]
        if not words:
            return fragment, _starting_with(fragment, [*names, "--help"])
        if COMMANDS.get(words[0], words[0]) not in names:
            return fragment, []
        command, words = command.find(words[0]), words[1:]
    return _complete_word(command, words, fragment, sources)


def overview(commands: CommandSet) -> str:
    """Return the help of a magic with subcommands."""
    width = max(len(command.name) for command in commands.commands) + 2

    def rows(of: Iterable[Command]) -> list[str]:
        return [f"  {command.name:<{width}}{command.summary}" for command in of]

    lines = [f"{commands.name}  {commands.summary}", "", "Most used", *rows(commands.first)]
    lines += ["", "Examples", *_columns(commands.examples)]
    for section, group in commands.sections.items():
        lines += ["", section, *rows(command for command in group if command not in commands.first)]
    lines += ["", f"{commands.name} help SUBCOMMAND says more; Tab completes every name."]
    return "\n".join(lines)


def help_text(command: Command) -> str:
    """Return the help of one command."""
    lines = [f"{command.title} {command.usage}".rstrip(), "", f"  {command.summary}"]
    lines += [f"  {line}" for line in command.notes.splitlines()]
    rows: list[tuple[str, str]] = []
    if command.words is not None:
        rows.append((command.words.name, command.words.help))
    rows += [(_spell(flag), flag.help) for flag in command.flags if not flag.hidden]
    rows += [("-- ...", command.passes_on)] if command.passes_on else []
    if rows:
        lines += ["", *_columns(rows)]
    if command.examples:
        lines += ["", "Examples", *_columns(command.examples)]
    return "\n".join(lines)


def _spell(flag: Flag) -> str:
    spellings = [flag.short, flag.name, f"--no-{flag.name[2:]}" if flag.negatable else ""]
    value = "|".join(flag.choices) if flag.choices else flag.value
    value = f"[{value}]" if flag.optional else value
    return f"{', '.join(filter(None, spellings))} {value}".rstrip()


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(rows)
    width = max((len(left) for left, _ in rows), default=0) + 2
    return [f"  {left:<{width}}{right}".rstrip() for left, right in rows]


def _split(line: str) -> tuple[list[str], str]:
    """Return the words of `line` and the quote that is still open at its end."""
    words: list[str] = []
    word, quote, depth, escaped = "", "", 0, False
    for character in line:
        if quote:
            word += character
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
            continue
        if character.isspace() and depth == 0:
            if word:
                words.append(word)
            word = ""
            continue
        if character == "#" and not word and depth == 0:
            break
        if character in "'\"":
            quote = character
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        word += character
    return words + [word] * bool(word), quote


def _looks_like_flag(word: str) -> bool:
    return (word.startswith("--") and len(word) > 2) or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


def _program(command: Command, rule: Words, words: list[str]) -> list[str]:
    """Return a program's name and its arguments, without the one `--` that divides them from what stands before.

    Raises:
        UsageError: a script's line has a word that only a shell reads.
    """
    if rule.name == SCRIPT and (why := of_a_shell(words)):
        raise UsageError(f"{command.title} {why}")
    if words[0] == "--" or rule.joined:
        return words[words[0] == "--" :]
    return [words[0], *(words[2:] if words[1:2] == ["--"] else words[1:])]


def _is_flag_of(command: Command, word: str) -> bool:
    spelling = word.partition("=")[0]
    return word.startswith("--") or any(spelling in flag.spellings for flag in command.flags)


def _of_engine(command: Command, words: Iterable[str], unknown: str) -> str:
    """Return where a flag stands that only the engine of --on can know; empty when none is asked."""
    if not command.passes_on or not any(word.partition("=")[0] == "--on" for word in words):
        return ""
    return f"; flags for the engine of --on go after --, as in -- {unknown}"


def _find_flag(command: Command, spelling: str, hint: str = "") -> Flag:
    for flag in command.flags:
        if spelling.replace("_", "-") in flag.spellings:
            return flag
    flags = {flag.spellings: not flag.hidden for flag in command.flags}
    near = flags_near(spelling, flags, f"%mesh help {command.name}")
    if spelling == "--on" and any("--targets" in flag.spellings for flag in command.flags):
        near = ": -t T chooses ranks, and %mesh attach NAME another reservation"
    elif not near.startswith(":"):  # it is like none of them
        near = "" if hint else f"{near}{command.about_unknown}"
    raise UsageError(f"{command.title} has no flag {spelling}{near}{hint}")


def _takes(command: Command) -> dict[str, bool]:
    """Return what `as_here` must know of a command."""
    takes = {each: bool(flag.value) and not flag.optional for flag in command.flags for each in flag.spellings}
    return takes | ({command.words.name: False} if command.words is not None else {})


def _store(values: dict[str, Value], flag: Flag, spelling: str, value: Value) -> None:
    if flag.repeat:
        before = values.get(flag.key, ())
        values[flag.key] = (*(before if isinstance(before, tuple) else ()), str(value))
        return
    if flag.key in values:
        raise UsageError(f"{spelling} is given twice")
    values[flag.key] = value


def read_value(flag: Flag, text: str) -> Value:
    """Return what was typed as the value of a flag, as its kind.

    Raises:
        UsageError: it is no such value.
    """
    if flag.choices and text not in flag.choices:
        *others, last = flag.choices
        meant = suggestion(text, flag.choices)
        raise UsageError(f"{flag.name} is {', '.join(others)} or {last}, not {text!r}{meant}")
    if flag.kind in ("count", "number"):
        least = 1 if flag.kind == "count" else 0
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
            raise UsageError(f"{flag.name} is a whole number of at least {least}, not {text!r}")
        if int(text) < least:
            raise UsageError(f"{flag.name} is at least {least}, not {text}")
        return int(text)
    if flag.kind == "seconds":
        return _read_above_0(flag, text)
    if flag.kind == "duration":
        return seconds_of(text, flag.name)
    if not text:
        raise UsageError(f"{flag.name} needs a value: {flag.name} {flag.value}")
    return text


def _read_above_0(flag: Flag, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(f"{flag.name} is a number of seconds above 0, not {text!r}")
    return number


def _read_words(command: Command, words: list[str]) -> tuple[str, ...]:
    rule = command.words
    if rule is None:
        if words:
            way = of_a_cell(words[0]) if command.title == "%%mesh" else ""
            way = way or f"type {command.title} {command.usage or 'alone'}"
            raise UsageError(f"{command.title} takes no {' '.join(words)!r}: {way}")
        return ()
    if rule.joined and words:
        words = [" ".join(words)]
    if len(words) < rule.least:
        raise UsageError(f"{command.title} needs {rule.name}: {command.title} {command.usage}")
    if rule.most is not None and len(words) > rule.most:
        raise UsageError(f"{command.title} takes one {rule.name}, not {len(words)}: {' '.join(words)}")
    return tuple(words) if rule.raw or rule.joined else tuple(map(unquote, words))


def _complete_word(command: Command, words: list[str], fragment: str, sources: Sources) -> tuple[str, list[str] | None]:
    words, _ = as_here(words, _takes(command))
    if command.words is not None and command.words.rest and _first_plain(command, words) < len(words):
        return fragment, None  # the program's
    if command.passes_on and "--" in words:
        return fragment, None
    if fragment.startswith("--") and "=" in fragment:
        spelling, _, value = fragment.partition("=")
        return value, _values(command, spelling, value, sources)
    if words and _takes_value(command, words[-1], fragment):
        return fragment, _values(command, words[-1], fragment, sources)
    if fragment.startswith("-"):
        given = {word.partition("=")[0] for word in words}
        flags = [flag for flag in command.flags if flag.repeat or not given & set(flag.spellings)]
        spellings = [each for flag in flags for each in flag.spellings if each.startswith("--") or each == fragment]
        return fragment, _starting_with(fragment, [*spellings, "--help"])
    rule = command.words
    plain = len(_plain_words(command, words))
    if rule is None or (rule.most is not None and plain >= rule.most):
        return fragment, []
    if rule.raw and "=" in fragment:
        return fragment, None  # the kernel's expression
    is_module = rule.completes == "script" and not {"-m", "--module"}.isdisjoint(words)
    return fragment, _from_source("module" if is_module else rule.completes, fragment, sources)


def _is_value(flag: Flag, word: str) -> bool:
    """Whether a word is the value of a flag that can do without."""
    return word[:1].isdigit() or word in flag.choices


def _takes_value(command: Command, word: str, following: str) -> bool:
    return any(
        word.replace("_", "-") in flag.spellings and flag.value and (not flag.optional or _is_value(flag, following))
        for flag in command.flags
    )


def _plain_words(command: Command, words: list[str]) -> list[int]:
    """Return where words stand that are neither flags nor values of flags."""
    plain, value_follows = [], False
    for index, word in enumerate(words):
        if not value_follows and not _looks_like_flag(word):
            plain.append(index)
        following = words[index + 1] if index + 1 < len(words) else ""
        value_follows = not value_follows and _takes_value(command, word, following)
    return plain


def _first_plain(command: Command, words: list[str]) -> int:
    return next(iter(_plain_words(command, words)), len(words))


def _values(command: Command, spelling: str, fragment: str, sources: Sources) -> list[str] | None:
    for flag in command.flags:
        if spelling in flag.spellings:
            if flag.choices:
                return _starting_with(fragment, flag.choices)
            return _from_source(flag.completes, fragment, sources)
    return []


def _from_source(source: Source, fragment: str, sources: Sources) -> list[str] | None:
    if source == "file":
        return None
    return list(sources[source](fragment)) if source in sources else []


def _starting_with(fragment: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(fragment)]

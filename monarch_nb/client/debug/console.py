"""The prompt: reads commands, prints answers. Whoever opens it says how lines are read and texts are shown."""

from __future__ import annotations

import contextlib
import difflib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from monarch_nb.client.debug.debugger import Attached, Debugger, StopInfo, folded, stops_table
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.interrupting import kernel_ends
from monarch_nb.ground.pdb_lines import COMMANDS, is_command, read_as_python
from monarch_nb.ground.rank_sets import name_ranks

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


PROMPT = "monarch_dbg> "
Left = Literal["quit", "continued", "nothing stopped"]
ANSWERED_EVERY_S = cadence(2.0)
"""So often it is looked whether somebody else has answered."""


class Console:
    """One opened prompt.

    Args:
        debugger: of the mesh.
        read: returns the line that is typed at a prompt; raises EOFError when there is no more to come, and
            KeyboardInterrupt after Ctrl-C.
        show: shows text, which ends with a newline.
        show_table: shows where ranks have stopped; as text when not said.
    """

    def __init__(
        self,
        debugger: Debugger,
        read: Callable[[str], str],
        show: Callable[[str], None],
        show_table: Callable[[Sequence[StopInfo]], None] | None = None,
    ) -> None:
        self._debugger, self._read, self._show = debugger, read, show
        self._show_table = show_table or (lambda stops: show(f"{stops_table(stops)}\n"))

    def run(self) -> Left:
        """Show what has stopped, and do what is typed until everything goes on, or whoever types leaves.

        Raises:
            KeyboardInterrupt: Ctrl-C at the prompt.
        """
        stops = self._debugger.stops()
        if not stops:
            return "nothing stopped"
        self._show_table(stops)
        while True:
            try:
                with self._told_when_answered():
                    line = self._read(PROMPT)
            except EOFError:
                return "quit"
            try:
                command = parse(line)
                if command.word == "quit":
                    return "quit"
                if not self._debugger.stops():
                    return "continued"
                if command.word:
                    self._do(command, line.strip())
            except MonarchNbError as error:
                self._show(f"{error}\n")
                continue
            if command.word in ("continue", "attach", "cast"):
                stops = self._debugger.stops()
                if not stops:
                    return "continued"
                if command.word == "continue":  # to the next breakpoint
                    self._show_table(stops)

    @contextlib.contextmanager
    def _told_when_answered(self) -> Iterator[None]:
        """Say so when somebody else lets the ranks go on. The prompt itself can not be taken away: what ends a kernel's
        `input()` is an interrupt, and that could hit what comes after it. In JupyterLab our extension presses Enter
        when it reads this (labextension/src/lab/prompts.ts)."""
        typed = threading.Event()

        def look() -> None:
            while not typed.wait(ANSWERED_EVERY_S):
                with contextlib.suppress(MonarchNbError):
                    if not self._debugger.stops() and not typed.is_set():
                        self._show("answered elsewhere: nothing waits here any more (Enter leaves this prompt)\n")
                        return

        watch = threading.Thread(target=look, name="answered-elsewhere", daemon=True)
        watch.start()
        try:
            yield
        finally:
            typed.set()

    def _do(self, command: Command, typed: str) -> None:
        match command.word:
            case "list":
                self._show_table(self._debugger.stops())
            case "help":
                self._show(f"{HELP}\n")
            case "continue":
                self._show(f"{_continued(self._debugger.continue_all())}\n")
            case "cast":
                self._cast(command, typed)
            case "attach":
                self._attach(self._debugger.attach(command.ranks, command.name))

    def _cast(self, command: Command, typed: str) -> None:
        """Show what ranks answer within a time that is bounded; Ctrl-C ends only the waiting."""
        try:
            answers = self._debugger.cast(command.ranks, command.line, command.name)
        except KeyboardInterrupt:
            if kernel_ends():
                raise
            self._show("not waited for: ranks go on executing it; list shows where they are\n")
            return
        self._show(f"{folded(answers)}\n")
        if typed == command.line and (hint := meant(typed, answers.values())):
            self._show(f"{hint}\n")

    def _attach(self, attached: Attached) -> None:
        stop = attached.stop
        who = f"{stop.actor} {stop.rank} ({stop.host})"
        self._show(f"Attached to debug session for {who}\n")
        text = attached.look()
        if "-> " not in text and attached.state == "asks":  # its last words were about something else
            name = stop.function.rpartition(".")[2] if "." in stop.function else "<module>"
            text = f"> {stop.file}({stop.line_number}){name}()\n-> {stop.line}\n"
        while True:
            text = self._wait(attached, text)
            if attached.state != "asks":
                break
            try:
                line = self._read(attached.prompt)
            except EOFError:
                break
            if line.strip() == "detach":
                break
            text = attached.send(line)
        after = _left([stop]) if stop.is_after_run else "it goes on"
        self._show(f"Detached from debug session for {who}{f': {after}' if attached.state == 'gone' else ''}\n")

    def _wait(self, attached: Attached, text: str) -> str:
        """Show what pdb says until it asks for the next line; Ctrl-C ends only the waiting."""
        self._say(text)
        try:
            while attached.state == "executes":
                self._say(attached.look())
        except KeyboardInterrupt:
            if kernel_ends():
                raise
            self._show(f"rank {attached.stop.rank} still executes it: attach waits for it again\n")
        return ""

    def _say(self, text: str) -> None:
        if text:
            self._show(text if text.endswith("\n") else f"{text}\n")


def _continued(stops: list[StopInfo]) -> str:
    told = {stop.rank for stop in stops if not stop.is_after_run}
    said = [f"{name_ranks(told)} told to continue"] if told else []
    if after := [stop for stop in stops if stop.is_after_run]:
        said.append(_left(after))
    return "; ".join(said or ["no rank has stopped"])


def _left(stops: Sequence[StopInfo]) -> str:
    """Return what became of ranks whose run was over before."""
    return f"the error on {name_ranks({stop.rank for stop in stops})} is left: its run has ended, and nothing goes on"

"""What can be typed at the debugger's prompt: Monarch's forms, shorter ones, and lines for pdb."""

from __future__ import annotations

import pytest

from monarch_nb.client.debug.console import WORDS, completions, meant, parse
from monarch_nb.client.debug.debugger import StopInfo
from monarch_nb.errors import UsageError


def stop(actor: str, rank: int) -> StopInfo:
    return StopInfo(1, actor, rank, {"hosts": rank}, "localhost", "f", "f.py", 1, "", "run")


def test_words_and_their_short_forms() -> None:
    words = {"list": ("l", "list "), "continue": ("c", "cont"), "help": ("h", "?"), "": ("", "  ")}
    for word, lines in {**words, "quit": ("q", "exit", "exit()", "quit()")}.items():
        assert [parse(line).word for line in lines] == [word] * len(lines)


@pytest.mark.parametrize(
    ("line", "name", "ranks"),
    [
        ("attach 2", "", "2"),
        ("attach hosts=1, procs=0", "", "hosts=1, procs=0"),
        ("a my-actor_1 13", "my-actor_1", "13"),
        ("attach 3 2", "3", "2"),
        ("attach trainers hosts=1,procs=0", "trainers", "hosts=1,procs=0"),
    ],
)
def test_attach(line: str, name: str, ranks: str) -> None:
    command = parse(line)
    assert (command.word, command.name, command.ranks) == ("attach", name, ranks)


@pytest.mark.parametrize(
    ("line", "name", "ranks", "sent"),
    [
        ("cast 0,2 p x", "", "0,2", "p x"),
        ("cast [0, 2] p x", "", "[0, 2]", "p x"),
        ("cast ::2 w", "", "::2", "w"),
        ("cast all p x", "", "all", "p x"),
        ("cast hosts=2:4, procs=(1,3) p x", "", "hosts=2:4, procs=(1,3)", "p x"),
        ("cast ranks(0-3) p x", "", "0-3", "p x"),
        ("cast all ranks(0) n", "all", "0", "n"),
        ("cast debugee ranks(hosts=(0,1), gpus=1) p (a, b)", "debugee", "hosts=(0,1), gpus=1", "p (a, b)"),
        ("cast cell ranks( 1 )!x = 1", "cell", " 1 ", "!x = 1"),
    ],
)
def test_cast(line: str, name: str, ranks: str, sent: str) -> None:
    command = parse(line)
    assert (command.word, command.name, command.ranks, command.line) == ("cast", name, ranks, sent)


def test_any_other_line_is_for_all_that_have_stopped() -> None:
    for line in (
        *("p x", "w", "bt", "n", "b 12", "p (1,", "x", "x + 1", "x.shape", "x = 1", "print(x)", "[i for i in x]"),
        *("!x", "!c", "c = 5", "c[0]", "list = 3", "l == 2", "a.mean()", "p x ;; n", "'a', 2", "-x", "args"),
    ):
        command = parse(f" {line} ")
        assert (command.word, command.name, command.ranks, command.line) == ("cast", "", "all", line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("atach 2", "'atach 2' is no command, and no Python: did you mean attach?"),
        ("next 5", "no command, and no Python: next takes nothing"),
        ("detach", "detach needs an attached rank"),
        ("list 1", "list takes nothing here, not '1'; for pdb in all stopped ranks: cast all list 1"),
        ("c + 1", "for pdb in all stopped ranks: !c + 1"),
        ("interact", "interact asks for more lines: attach a rank first"),
        ("for i in x:", "is not finished"),
        ("cast 0-3 for i in x:", "is not finished"),
        ("attach cell 1abc", "attach is: attach [NAME] RANK"),
        ("cast cell p x", "cast is: cast [NAME] RANKS COMMAND"),
        ("cast p x", "a command without cast goes to all stopped ranks"),
        ("cast cell ranks(1)", "cast is: cast [NAME]"),
        ("cast cell ranks(1 n", "never closed"),
    ],
)
def test_lines_that_can_not_be_read(line: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(line)
    assert message in str(raised.value)


def test_a_word_that_no_rank_knows_may_have_been_meant_for_the_prompt() -> None:
    unknown = "*** NameError: name 'lsit' is not defined\n"
    assert meant("lsit", [unknown, unknown]) == "lsit is no command either: did you mean list?"
    assert "help shows the commands" in meant("xyz", ["*** NameError: name 'xyz' is not defined\n"])
    assert meant("lsit", [unknown, "5\n"]) == ""
    assert meant("x.y", ["*** NameError: name 'x' is not defined\n"]) == ""


def test_tab_knows_commands_names_and_ranks() -> None:
    stops = [stop("cell", 0), stop("cell", 2), stop("trainers", 3)]
    assert {*WORDS, "where", "pp"} <= set(completions("", stops))
    assert completions("attach ", stops) == ["cell", "trainers", "0", "2", "3"]
    assert completions("a cell ", stops) == ["0", "2"]
    assert completions("cast ", stops) == ["cell", "trainers", "all", "0", "2", "3"]
    assert completions("cast trainers ", stops) == ["all", "3"]
    assert completions("cast all ", stops) == []
    assert completions("p ", stops) == []

"""The line of the magics: words, flags, help, completion. Pure."""

import doctest

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax import command_line, declarations, holding
from monarch_nb.notebook.syntax.command_line import (
    Sources,
    complete,
    help_text,
    overview,
    parse,
    wants_help,
)


def test_a_value_that_may_be_left_out() -> None:
    for line, word, wait in (
        ("dev --wait --procs 2", "dev", True),
        ("--wait dev --procs 2", "dev", True),
        ("dev --wait 10m --procs 2", "dev", 600.0),
        ("--wait=1h dev --procs 2", "dev", 3600.0),
        ("dev --procs 2", "dev", None),
    ):
        parsed = parse(holding.RESERVE, line)
        assert (parsed.word, parsed.values.get("wait"), parsed.count("procs")) == (word, wait, 2)


def test_a_value_that_may_be_left_out_and_makes_no_sense() -> None:
    for line in ("--wait 10", "--wait=soon", "--wait 1x", "--wait --wait"):
        with pytest.raises(UsageError, match=r"--wait is (a time such as|given twice)"):
            parse(holding.RESERVE, line)


def test_what_follows_a_value_that_may_be_left_out_is_completed() -> None:
    sources: Sources = {"reservation": lambda fragment: ["dev"]}
    assert complete(holding.RESERVE, "--wait --pro", sources) == ("--pro", ["--procs"])
    assert complete(holding.RESERVE, "--wait ", sources) == ("", ["dev"])
    assert complete(holding.RESERVE, "dev --wait 1", sources) == ("1", [])
    assert complete(holding.RESERVE, "--wait 1h ", sources) == ("", ["dev"])


def test_a_choice_that_may_be_left_out_is_then_implied() -> None:
    for line, profile in (("--profile", "torch"), ("--profile=python", "python"), ("--profile python -t 0", "python")):
        assert parse(declarations.CELL, line).text("profile") == profile
    with pytest.raises(UsageError, match=r"--profile is torch or python, not 'pithon': did you mean python\?"):
        parse(declarations.CELL, "--profile=pithon")
    assert complete(declarations.CELL, "--profile=p", {}) == ("p", ["python"])
    assert "--profile [torch|python]" in help_text(declarations.CELL)


def names(*candidates: str) -> Sources:
    """Every source offers `candidates`."""

    def offer(fragment: str) -> list[str]:
        return [each for each in candidates if each.startswith(fragment)]

    return {"reservation": offer, "target": offer, "kernel_name": offer, "rank_name": offer, "subcommand": offer}


def test_docstring_examples() -> None:
    assert doctest.testmod(command_line).failed == 0


def test_targets_are_values_even_when_they_look_odd() -> None:
    for targets in ("-1", "::2", "4:", "hosts=0,procs=0:2", "[0, 1]", "'0, 2'"):
        assert parse(declarations.CELL, f"-t {targets}").text("targets") == targets.strip("'")


def test_bad_lines_get_one_clear_message() -> None:
    for command, line, message in (
        (holding.RESERVE, "--node 2", "%mesh reserve has no flag --node: did you mean --nodes?"),
        (holding.RESERVE, "--zzz", "%mesh reserve has no flag --zzz; %mesh help reserve lists all"),
        (
            holding.RESERVE,
            "dev --on slurm --partition=main",
            "has no flag --partition; flags for the engine of --on go after --, as in -- --partition=main",
        ),
        (holding.RESERVE, "--on=slurm --node 2", "did you mean --nodes?; flags for the engine of --on"),
        (holding.RESERVE, "--nodes 0", "--nodes is at least 1, not 0"),
        (holding.RESERVE, "--nodes two", "--nodes is a whole number of at least 1, not 'two'"),
        (holding.RESERVE, "--nodes ²", "not '²'"),
        (holding.RESERVE, "--nodes", "--nodes needs a value: --nodes N"),
        (holding.RESERVE, "--nodes --procs 4", "--nodes needs a value: --nodes N"),
        (holding.RESERVE, "--nodes 1 --nodes 2", "--nodes is given twice"),
        (holding.RESERVE, "--replace=yes", "--replace takes no value"),
        (holding.RESERVE, "a b", "%mesh reserve takes one NAME, not 2: a b"),
        (holding.RESERVE, "'dev", "a quote ' is never closed"),
        (holding.RESERVE, "--pool ''", "--pool needs a value"),
        (declarations.LOGS, "-n -1", "--lines is at least 0, not -1"),
        (declarations.STATUS, "x", "%mesh status takes no 'x': type %mesh status [--mesh NAME]"),
        (declarations.DOCTOR, "12", "%mesh doctor takes no '12': type %mesh doctor alone"),
        (declarations.PULL, "", "%mesh pull needs EXPRESSION"),
        (declarations.CELL, "--timeout soon", "--timeout is a number of seconds above 0, not 'soon'"),
        (declarations.CELL, "--timeout 0", "not '0'"),
        (
            declarations.CELL,
            "dev",
            "%%mesh takes no 'dev': %mesh attach dev has cells go to that reservation",
        ),
        (declarations.CELL, "--on 0", "%%mesh has no flag --on: -t T chooses ranks, and %mesh attach NAME another"),
        (
            declarations.CELL,
            "--group-outputs ranks",
            "--group-outputs is order, rank or type, not 'ranks': did you mean rank?",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            parse(command, line)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_unknown_subcommand_suggests_the_nearest() -> None:
    for word, nearest in (("resreve", "reserve"), ("int", "interrupt"), ("atach", "attach")):
        with pytest.raises(UsageError, match=f"no subcommand '{word}': did you mean {nearest}"):
            declarations.MESH.find(word)


def test_a_word_like_nothing_suggests_nothing() -> None:
    for word in ("xyzzy", "plugh", "unplug"):
        with pytest.raises(UsageError, match=rf"no subcommand '{word}'\. %mesh help lists all"):
            declarations.MESH.find(word)


def test_what_is_another_programs_is_left_to_it() -> None:
    line = "install -U 'torch>=2' --index-url https://x/y#z --help -t dir"
    words = ("install", "-U", "torch>=2", "--index-url", "https://x/y#z", "--help", "-t", "dir")
    assert parse(declarations.PIP, line).words == words
    assert not wants_help(declarations.PIP, line)
    assert wants_help(declarations.PIP, "--help")
    with pytest.raises(UsageError, match=r"%mesh pip needs ARGUMENTS"):
        parse(declarations.PIP, "")


def test_help_names_everything_and_is_aligned() -> None:
    text = overview(declarations.MESH)
    for command in declarations.MESH.commands:
        assert f"  {command.name}" in text
        assert command.summary in text
        for flag in command.flags:
            assert flag.hidden or flag.name in help_text(command)
    widths = [
        len(line)
        for line in "\n".join([text, *map(help_text, [*declarations.MESH.commands, declarations.CELL])]).splitlines()
    ]
    assert max(widths) <= 110


def test_help_begins_with_the_ten_most_used_commands_and_names_each_once() -> None:
    first, *others = overview(declarations.MESH).split("\n\n")[1:-1]
    title, *rows = first.splitlines()
    assert title == "Most used"
    assert [row.split()[0] for row in rows] == [command.name for command in declarations.MESH.first]
    assert len(rows) == 10
    assert others[0].startswith("Examples")
    more = [row.split()[0] for section in others[1:] for row in section.splitlines()[1:]]
    assert sorted([row.split()[0] for row in rows] + more) == sorted(each.name for each in declarations.MESH.commands)


def test_completion_of_the_line() -> None:
    for text, fragment, offered in (
        ("", "", " ".join([*(command.name for command in declarations.MESH.commands), "--help"])),
        ("reserve --no", "--no", "--nodes"),
        ("reserve --nodes 2 --no", "--no", ""),
        ("reserve --env A=1 --en", "--en", "--env"),
        ("reserve d", "d", "dev"),
        ("reserve --nodes ", "", ""),
        ("attach dev ", "", ""),
        ("attach --noblock d", "d", "dev"),
        ("release ", "", "dev main"),
        ("stacks --targets=d", "d", "dev"),
        ("push dev m", "m", "main"),
        ("xyzzy ", "", ""),
        ("reserve 'de", "'de", ""),
    ):
        assert complete(declarations.MESH, text, names("dev", "main")) == (fragment, offered.split())


def test_files_and_expressions_are_completed_by_ipython() -> None:
    for text in ("reserve --shared=/da", "sync --add ", "push lr=ba", "pip install -r "):
        assert complete(declarations.MESH, text, names("dev", "main"))[1] is None


def test_completion_of_the_cell_line() -> None:
    assert complete(declarations.CELL, "--group-outputs ", {}) == ("", ["order", "rank", "type"])
    assert complete(declarations.CELL, "--on-error=w", {}) == ("w", ["wait"])
    assert complete(declarations.CELL, "-t 0 --no", {}) == ("--no", ["--noblock", "--no-stream", "--no-sync"])
    assert "--targets" not in (complete(declarations.CELL, "-t 0 --", {})[1] or [])
    assert complete(declarations.CELL, "-o l", {"kernel_name": lambda _: ["losses"]}) == ("l", ["losses"])


class TestPassedOn:
    def test_what_stands_after_two_dashes_is_for_another_program(self) -> None:
        parsed = parse(holding.RESERVE, "dev --procs 2 --on slurm -- --nodes=3 -p 'a 100'  # later")
        assert (parsed.word, parsed.count("nodes"), parsed.text("on")) == ("dev", None, "slurm")
        assert parsed.passed_on == ("--nodes=3", "-p", "a 100")
        assert parse(holding.RESERVE, "dev --procs 2").passed_on == ()
        assert not wants_help(holding.RESERVE, "dev -- --help")
        assert wants_help(holding.RESERVE, "--help -- --partition=a100")
        assert complete(declarations.MESH, "reserve dev -- --par", {}) == ("--par", None)


class TestRest:
    """A program's name, and what is for that."""

    def test_what_follows_the_name_is_the_programs(self) -> None:
        """As torchrun's parser does: what argparse gives for these lines was looked at."""
        for line, words in (
            ("train.py --lr 3e-4 -t 0 --help", ["train.py", "--lr", "3e-4", "-t", "0", "--help"]),
            ("-m scripts.base_train -- --depth=4 -- x", ["scripts.base_train", "--depth=4", "--", "x"]),
            ("train.py x -- --depth", ["train.py", "x", "--", "--depth"]),
            ("train.py -- -- y", ["train.py", "--", "y"]),
            ("-- train.py -- y", ["train.py", "--", "y"]),
            ("--nnodes 2 -- -m y", ["-m", "y"]),
            ("--nproc_per_node=4 train.py --nproc_per_node=2", ["train.py", "--nproc_per_node=2"]),
            ("train.py --name 'a b' --layers [1, 2]", ["train.py", "--name", "a b", "--layers", "[1, 2]"]),
        ):
            assert list(parse(declarations.RUN, line).words) == words

    def test_a_command_of_the_shell_stays_as_it_is_written(self) -> None:
        for line, command in (
            ("-t 0 torchrun train.py -t 1", "torchrun train.py -t 1"),
            ("echo 'a  b' \"$HOME\" | wc -l", "echo 'a  b' \"$HOME\" | wc -l"),
            ("--beside -- --odd -- x", "--odd -- x"),
            ("ls -- -x", "ls -- -x"),
        ):
            assert parse(declarations.SH, line).words == (command,)

    def test_what_can_not_be_read(self) -> None:
        for line, said in (
            ("", "%mesh run needs SCRIPT"),
            ("--", "%mesh run needs SCRIPT"),
            (
                "--use-env train.py",
                r"has no flag --use-env; nearest: --env; %mesh help run lists all\. torchrun's flags are known up to ",
            ),
            ("--nproc 4 train.py", "did you mean --nproc-per-node\\?$"),
            ("-r3 train.py", "has no flag -r3"),
        ):
            with pytest.raises(UsageError, match=said):
                parse(declarations.RUN, line)

    def test_help_is_asked_before_the_name(self) -> None:
        assert wants_help(declarations.RUN, "--nnodes 2 --help train.py")
        assert wants_help(declarations.RUN, "-h")
        assert not wants_help(declarations.RUN, "--nnodes 2 train.py --help")
        assert not wants_help(declarations.RUN, "-m pkg -h")

    def test_tab(self) -> None:
        assert complete(declarations.RUN, " --nn", {}) == ("--nn", ["--nnodes"])
        files: Sources = {"script": lambda _: ["train.py"], "module": lambda _: ["train"]}
        assert complete(declarations.RUN, " --nnodes 2 tr", files) == ("tr", ["train.py"])
        assert complete(declarations.RUN, " -m tr", files) == ("tr", ["train"])
        assert complete(declarations.RUN, " train.py --nn", {}) == ("--nn", None)
        assert complete(declarations.RUN, " -t ", {"target": lambda _: ["all"]}) == ("", ["all"])

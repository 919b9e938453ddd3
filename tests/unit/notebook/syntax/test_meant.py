"""Words of other tools, in lines of `%mesh` and of `monarch-nb`, and the flags that are named for a wrong one. Pure."""

import doctest
from collections.abc import Iterator

import pytest

from monarch_nb.cli.main import make_parser
from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax import declarations, flags, holding, meant
from monarch_nb.notebook.syntax.command_line import Command, complete, parse, wants_help

COMMANDS = {command.name: command for command in (*declarations.MESH.commands, declarations.CELL)}


def test_docstring_examples() -> None:
    assert doctest.testmod(meant).failed == 0


def test_each_word_means_something_somewhere() -> None:
    """A row whose word a command has taken meanwhile, or whose meaning is gone, is left over."""
    for word, command in meant.COMMANDS.items():
        assert word not in COMMANDS
        assert declarations.MESH.find(word) is COMMANDS[command]
    for word in meant.ANSWERS:
        assert word not in {*COMMANDS, *meant.COMMANDS}
    has = [{each for flag in command.flags for each in flag.spellings} for command in COMMANDS.values()]
    for flag, here in meant.FLAGS.items():
        for each in here:
            assert each == meant.NAME or any(each in flags and flag not in flags for flags in has), (flag, each)


def test_the_ranks_have_one_more_name_in_each_command() -> None:
    for command in COMMANDS.values():
        if "--targets" in (flag.name for flag in command.flags) and command is not declarations.RUN:
            for flag in ("--rank", "--ranks", "-r"):
                if command.words is None or not command.words.least:
                    assert parse(command, f"{flag} 0-1").text("targets") == "0-1", command.name
    for flag in ("-t", "-r", "--ranks", "--targets"):
        assert parse(declarations.FETCH, f"a.pt {flag} 4").text("rank") == "4"
        assert parse(declarations.LS, f"{flag}=4").count("rank") == 4


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("dev --nproc-per-node 4 --nnodes 2", {"procs": 4, "nodes": 2}),
        ("dev --nproc_per_node=4 --nnodes=2", {"procs": 4, "nodes": 2}),
        ("--name dev -n 4 -N 2", {"procs": 4, "nodes": 2}),
        ("dev --ntasks 4 --nodes=2", {"procs": 4, "nodes": 2}),
        ("-J dev --gpus-per-node=8 -t 1-00:00:00", {"gpus": 8, "time": 86400.0}),
        ("--job-name=dev --procs 4 --time 01:00:00", {"procs": 4, "time": 3600.0}),
    ],
)
def test_what_one_reserves_with_elsewhere(line: str, values: dict[str, object]) -> None:
    parsed = parse(holding.RESERVE, line)
    assert (parsed.words, parsed.values) == (("dev",), values)


def test_what_may_mean_something_else_elsewhere_is_said() -> None:
    """torchrun's processes have GPUs where there are some; Slurm's -n counts those of all nodes."""
    for flag in ("-n", "--ntasks", "--nproc-per-node"):
        (note,) = parse(holding.RESERVE, f"dev {flag} 4").notes
        assert note.startswith(f"{flag} is --procs here: CPU ranks on each node; --gpus is")
    assert parse(holding.RESERVE, "dev --procs 4 -N 2").notes == ()


def test_a_flag_that_a_command_has_keeps_its_meaning() -> None:
    assert parse(declarations.LOGS, "-n 20 -r 3").values == {"lines": 20, "targets": "3"}
    assert parse(declarations.RUN, "-r 3 -t 0 train.py").values == {"redirects": "3", "targets": "0"}
    assert parse(declarations.RUN, "--nnodes 2 train.py").values == {"nnodes": "2"}
    assert parse(flags.TOP, "-t 0").values == {"targets": "0"}


def test_a_value_is_no_flag_and_a_word_no_name_of_one() -> None:
    assert parse(holding.RESERVE, "dev --procs 1 --env -n").values["env"] == ("-n",)
    assert parse(holding.RELEASE, "NAME").word == "NAME"
    assert meant.as_here(["-N", "2", "--", "-N", "2"], {"--nodes": True})[0] == ["--nodes", "2", "--", "-N", "2"]
    assert parse(holding.RESERVE, "dev --procs 1 --on slurm -- -N 2 --name x").passed_on == ("-N", "2", "--name", "x")


class TestScripts:
    @pytest.mark.parametrize(
        ("line", "words", "values", "left_out"),
        [
            ("torchrun --nproc-per-node 4 a.py --rank 0", "a.py --rank 0", {"nproc_per_node": "4"}, "torchrun"),
            ("/usr/bin/torchrun a.py torchrun", "a.py torchrun", {}, "/usr/bin/torchrun"),
            ("python a.py -u", "a.py -u", {}, "python"),
            ("python3.11 -u -m pkg.train -N 2", "pkg.train -N 2", {"module": True}, "python3.11"),
            (
                "python -m torch.distributed.run --nnodes=2 a.py",
                "a.py",
                {"nnodes": "2"},
                "python torch.distributed.run",
            ),
            ("-n 2 a.py", "a.py", {"ntasks": "2"}, ""),
            ("mpirun -np 4 python a.py", "a.py", {"ntasks": "4"}, "mpirun python"),
            ("srun --nodes=2 --ntasks=4 a.py", "a.py", {"ntasks": "4", "nnodes": "2"}, "srun"),
            (
                "/usr/bin/srun -n 2 --ntasks-per-node=1 torchrun --nproc-per-node 4 a.py",
                "a.py",
                {"nproc_per_node": "4", "nnodes": "2"},
                "/usr/bin/srun torchrun",
            ),
            ("srun -N 2 -r 3 torchrun a.py", "a.py", {"nnodes": "2", "redirects": "3"}, "srun torchrun"),
            ("-t 0 python a.py", "a.py", {"targets": "0"}, "python"),
            ("A=1 B='x y' torchrun a.py C=1", "a.py C=1", {"env": ("A=1", "B=x y")}, "torchrun"),
            ("--env A=1 a.py python", "a.py python", {"env": ("A=1",)}, ""),
            ("--no-python python -c 1", "python -c 1", {"no_python": True}, ""),
            ("-- python a.py", "python a.py", {}, ""),
        ],
    )
    def test_what_starts_one_elsewhere_is_left_out(
        self, line: str, words: str, values: dict[str, object], left_out: str
    ) -> None:
        parsed = parse(declarations.RUN, line)
        assert (" ".join(parsed.words), parsed.values) == (words, values)
        assert parsed.notes == ((f"{left_out} is left out: run starts the script itself",) if left_out else ())

    def test_a_command_is_no_script(self) -> None:
        for line in ("torchrun a.py --rank 0 > out", "python -u a.py -N 2", "A=1 env"):
            parsed = parse(declarations.SH, line)
            assert (parsed.words, parsed.values, parsed.notes) == ((line,), {}, ())

    def test_what_only_a_shell_reads_is_explained(self) -> None:
        for line, word, instead in (
            ("a.py --lr 1 > log.txt", ">", "monarch-nb run … > FILE"),
            ("a.py >>log.txt", ">>log.txt", "monarch-nb run"),
            ("a.py 2>&1 | tee log", "2>&1", "monarch-nb run"),
            ("-m pkg | tee log", "|", "monarch-nb run"),
            ("python a.py &", "&", "--noblock goes on at once"),
        ):
            with pytest.raises(UsageError) as caught:
                parse(declarations.RUN, line)
            assert f"is no shell: {word} would be an argument of " in str(caught.value)
            assert instead in str(caught.value)
            assert str(caught.value).endswith(f"write '{word}'")
        for words in (["a.py", "--filter", ">"], ["a.py", "--where", ">=2", "a|b", "<pad>", "x>y"]):
            line = " ".join(f"'{word}'" if word == ">" else word for word in words)
            assert list(parse(declarations.RUN, line).words) == words

    def test_help_and_tab_see_what_is_meant(self) -> None:
        assert wants_help(declarations.RUN, "torchrun --help")
        assert not wants_help(declarations.RUN, "torchrun a.py --help")
        assert complete(declarations.RUN, " torchrun tr", {"script": lambda _: ["train.py"]}) == ("tr", ["train.py"])
        assert complete(declarations.MESH, "torchrun tr", {"script": lambda _: ["train.py"]}) == ("tr", ["train.py"])
        assert complete(declarations.CELL, "--rank ", {"target": lambda _: ["all"]}) == ("", ["all"])


class TestWrongFlags:
    @pytest.mark.parametrize(
        ("command", "flag", "said"),
        [
            (declarations.CELL, "--kill-on-error", ["has no flag --kill-on-error: did you mean --on-error?"]),
            (declarations.CELL, "--quiet", ["; nearest: --out (-o); %mesh help %%mesh lists all"]),
            (declarations.CELL, "-s", ["--show", "--stream", "--sync", "--scale", "lists all"]),
            (declarations.CELL, "--xyzzy", ["has no flag --xyzzy; %mesh help %%mesh lists all"]),
            (declarations.STACKS, "--xyzzy", ["has no flag --xyzzy; it has --targets (-t), --mesh"]),
            (declarations.INTERRUPT, "-t", ["has no flag -t; it has none"]),
            (declarations.RUN, "-u a.py", ["has no flag -u; %mesh help run lists all"]),
            (declarations.STACKS, "-t0", ["has no flag -t0: write -t 0"]),
            (holding.RESERVE, "-p", ["it is Slurm's, and goes after --: --on slurm -- -p …"]),
            (holding.RESERVE, "--partition=a", ["it is Slurm's, and goes after --: --on slurm -- --partition …"]),
        ],
    )
    def test_the_nearest_are_named(self, command: Command, flag: str, said: list[str]) -> None:
        with pytest.raises(UsageError) as caught:
            parse(command, flag)
        for each in said:
            assert each in str(caught.value)

    def test_never_more_than_six_nor_a_hidden_one(self) -> None:
        for command in COMMANDS.values():
            if command.words is not None and command.words.verbatim:
                continue
            hidden = {each for flag in command.flags if flag.hidden for each in flag.spellings}
            for wrong in wrong_flags(command):
                with pytest.raises(UsageError) as caught:
                    parse(command, wrong)
                said = str(caught.value).partition(f"has no flag {wrong}")[2].partition("; %mesh help")[0]
                named = [each.strip(" ,;?") for each in said.split() if each.strip(" ,;?").startswith("--")]
                assert len(named) <= 6, caught.value
                assert "did you mean" in said or not hidden & set(named)


def wrong_flags(command: Command) -> Iterator[str]:
    """Yield flags that a command does not have, more and less like those that it has."""
    known = {each for flag in command.flags for each in flag.spellings} | meant.FLAGS.keys()
    likely = [
        "--xyzzy",
        "--no",
        "--in",
        "--sho-all",
        "-z",
        *(f"--{each.name[2:5]}{each.name[2:4]}" for each in command.flags),
    ]
    yield from (each for each in likely if each not in known)


def test_a_terminal_reads_the_same_words() -> None:
    parser = make_parser()
    for line, values in (
        ("up --nnodes 2 --nproc_per_node=4", {"nodes": 2, "procs": 4}),
        ("logs dev --rank 3 -n 20", {"name": "dev", "targets": "3", "lines": 20}),
        ("top dev -r 3", {"targets": "3"}),
        ("run -N 2 -n 4 train.py -n 5", {"nnodes": "2", "ntasks": "4", "arguments": ["-n", "5"]}),
        ("run python -u train.py", {"script": "train.py", "arguments": []}),
        ("run -r 3 dev train.py", {"redirects": "3", "script": "dev"}),
        ("grow dev --nnodes 4", {"nodes": "4"}),
    ):
        options = vars(parser.parse_args(line.split()))
        assert {name: options[name] for name in values} == values

"""`monarch-nb run` on a real pool, as a user types it: what it prints, its exit status, and that it gives back."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb
from integration.terminals import AtTerminal
from monarch_nb.provision import Node
from monarch_nb.shape import Extent, parse_targets

HELLO = "import os, sys\nprint('hello', sys.argv[1:], os.environ['WORLD_SIZE'], os.path.basename(os.getcwd()))\n"


class Terminal:
    """Runs `monarch-nb` in a directory with scripts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "monarch_nb.cli.main", "run", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=os.environ | environment,
        )

    def run(self, *words: str, **environment: str) -> tuple[int, str, str]:
        """Return the exit status, stdout and stderr."""
        process = self.start(*words, **environment)
        out, errors = process.communicate(timeout=100)
        return process.returncode, out, errors


def rows(out: str) -> dict[str, list[int]]:
    """Return what was printed, and by which ranks. In a pipe a line is printed soon, for the ranks that have it then:
    equal ones may be several rows."""
    ranks: dict[str, list[int]] = {}
    for row in out.splitlines():
        named = re.fullmatch(r"\[([\d,-]+)\] (.*)", row)
        line, some = (named[2], parse_targets(named[1], Extent({"ranks": 4}))) if named else (row, [])
        ranks[line] = sorted([*ranks.get(line, []), *some])
    return ranks


@pytest.fixture
def terminal(shared_pool: list[Node], tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "hello.py").write_text(HELLO)
    yield Terminal(tmp_path)
    assert monarch_nb.list_reservations() == [], "it gives back what it has reserved"


def test_ranks_are_reserved_for_the_scripts_time(terminal: Terminal) -> None:
    name = terminal.directory.name
    shape = ("--nodes", "2", "--procs", "2")
    status, out, errors = terminal.run(*shape, "--nproc_per_node=auto", "--log_dir=logs", "hello.py", "--lr", "3e-4")
    assert (status, rows(out)) == (0, {f"hello ['--lr', '3e-4'] 4 {name}": [0, 1, 2, 3]}), errors
    assert "--log-dir: ignored" in errors
    status, out, errors = terminal.run(*shape, "hello.py", PET_NNODES="4")
    assert status == 2
    assert "leasing" not in errors, "nothing is reserved in vain"
    assert "PET_NNODES=4 (in the environment)" in errors
    assert "monarch-nb run --nodes 4 --procs 2 holds that many" in errors
    status, out, errors = terminal.run("--nnodes", "2", "--nproc-per-node", "2", "hello.py")
    assert (status, rows(out)) == (0, {f"hello [] 4 {name}": [0, 1, 2, 3]}), errors
    (terminal.directory / "fails.py").write_text("import os, sys\nsys.exit(7 if os.environ['RANK'] == '1' else 0)\n")
    status, out, errors = terminal.run("--procs", "2", "fails.py")
    assert (status, out) == (7, "")
    assert "exited with code 7" in errors
    assert "\x1b" not in errors, "no colours in a pipe"
    assert terminal.run("--procs", "1", "--no-python", "sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL


def test_scripts_of_two_terminals_do_not_meet(terminal: Terminal) -> None:
    (terminal.directory / "waits.py").write_text(
        "import os, time\nprint('waits', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    )
    first = terminal.start("--nproc-per-node", "1", "waits.py")
    assert first.stdout is not None
    assert first.stdout.readline() == "waits\n"
    status, out, errors = terminal.run("--nproc-per-node", "2", "hello.py")
    (terminal.directory / "go").touch()
    assert first.wait(60) == 0
    assert status == 0, errors
    assert "hello [] 2" in out


def test_it_has_the_terminals_environment(terminal: Terminal) -> None:
    names = ["FOO", "BAR", "RANK", "MASTER_PORT", "PATH", "HOME", "MONARCH_NB_POOL"]
    (terminal.directory / "shows.py").write_text(
        f"import os\nprint([os.environ.get(name) for name in {names}])\nopen('private', 'w')\n"
    )
    words = ("--procs", "1", "--env", "BAR=from the flag", "--env", "HOME", "shows.py")
    said = {"FOO": "1 = {x} $y\nz", "BAR": "2", "RANK": "7", "MASTER_PORT": "80", "PATH": "/mine", "HOME": "/tmp"}
    usual = os.umask(0o027)
    status, out, errors = terminal.run(*words, **said)
    os.umask(usual)
    assert status == 0, errors
    assert (terminal.directory / "private").stat().st_mode & 0o777 == 0o640
    [line] = rows(out)
    foo, bar, rank, port, *others = ast.literal_eval(line)
    assert (foo, bar, rank, others) == (said["FOO"], "from the flag", "0", ["/mine", "/tmp", None])
    assert port != "80"
    dev = monarch_nb.reserve("dev", procs=1, directory=terminal.directory)
    try:
        assert "have their environment already" in terminal.run("-i", "--env", "BAR=2", "shows.py")[2]
        assert terminal.run("-i", "shows.py", **said)[0] == 0
    finally:
        dev.release()


SAVES = """
import os, signal, sys, time
def save(number, frame):
    while os.environ["RANK"] == "1" and not os.path.exists("saved by rank 0"): time.sleep(0.01)
    time.sleep(1.5 * int(os.environ["RANK"]))  # longer than others are left alone after a failure
    open(f"saved by rank {os.environ['RANK']}", "w")
    print("SIGTERM: saving", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
"""


@pytest.mark.parametrize(("begins", "status", "saved"), [("", 143, 0), (SAVES, 7, 2)])
def test_sigterm_is_handed_on_and_ranks_are_given_back(
    begins: str, status: int, saved: int, terminal: Terminal
) -> None:
    (terminal.directory / "endless.py").write_text(
        f"{begins}\nimport time\nprint('under way', flush=True)\ntime.sleep(600)\n"
    )
    process = terminal.start("--procs", "2", "--max-restarts", "1", "endless.py")
    assert process.stdout is not None
    out = process.stdout.readline()
    while rows(out) != {"under way": [0, 1]}:
        more = process.stdout.readline()
        assert more, out
        out += more
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=100)
    assert (process.returncode, out.count("SIGTERM: saving")) == (status, saved), errors


def test_a_reader_that_has_enough_ends_the_script(terminal: Terminal) -> None:
    (terminal.directory / "endless.py").write_text("n = 0\nwhile True:\n    n += 1\n    print(n, flush=True)\n")
    process = terminal.start("--procs", "1", "endless.py")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "1\n"
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(100), "BrokenPipe" in said) == (128 + signal.SIGPIPE, False), said


def test_an_output_that_is_closed_or_full(terminal: Terminal) -> None:
    (terminal.directory / "prints.py").write_text("print('x')\nopen('came', 'w')\n")
    for to, status, said in ((">&-", 0, ""), ("> /dev/full", 1, "can not be written here: [Errno 28] No space left")):
        line = f"exec {sys.executable} -m monarch_nb.cli.main run --procs 1 prints.py {to}"
        done = subprocess.run(["bash", "-c", line], cwd=terminal.directory, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
        assert said in done.stderr
    assert (terminal.directory / "came").exists()


@pytest.mark.parametrize(
    "program",
    [
        ["--no-python", "bash", "-c", "trap 'echo saved; exit 3' INT; echo under way; while :; do sleep 0.1; done"],
        ["saves.py"],
    ],
    ids=["bash", "python"],
)
def test_who_handles_ctrl_c_has_its_own_exit_status(program: list[str], terminal: Terminal) -> None:
    (terminal.directory / "saves.py").write_text(
        "import sys, time\ntry:\n    print('under way', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('saved')\n    sys.exit(3)\n"
    )
    process = terminal.start("--procs", "1", *program)
    assert process.stdout is not None
    assert process.stdout.readline() == "under way\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=100)
    assert (out, process.returncode) == ("saved\n", 3), errors


def test_on_what_is_held(terminal: Terminal) -> None:
    dev = monarch_nb.reserve("dev", nodes=2, procs=2, directory=terminal.directory)
    try:
        name = terminal.directory.name
        status, out, _ = terminal.run("hello.py")
        assert (status, rows(out)) == (0, {f"hello [] 4 {name}": [0, 1, 2, 3]})
        status, out, errors = terminal.run("dev", "-t", "hosts=1", "hello.py", "dev")
        assert (status, rows(out)) == (0, {f"hello ['dev'] 2 {name}": [2, 3]})
        assert "ranks 2-3 of the mesh are the script's ranks 0-1" in errors
        (terminal.directory / "part").mkdir()
        (terminal.directory / "part" / "there.py").write_text(HELLO)
        inside = Terminal(terminal.directory / "part")
        status, out, errors = inside.run("dev", "there.py")
        assert (status, rows(out), errors) == (0, {"hello [] 4 part": [0, 1, 2, 3]}, ""), "where the terminal is"
        assert f"there is no {inside.directory}/nope.py" in inside.run("dev", "nope.py")[2]
        status, out, errors = inside.run("dev", "-i", "there.py")
        assert (status, rows(out)) == (0, {f"hello [] 4 {name}": [0, 1, 2, 3]})
        assert f"it runs in {terminal.directory}, where the ranks of dev work" in errors
        other = monarch_nb.reserve("other", procs=1, directory=terminal.directory)
        assert "say which: monarch-nb run dev -t 0 hello.py" in terminal.run("-t", "0", "hello.py")[2]
        status, out, errors = terminal.run("--nproc-per-node", "1", "hello.py")
        assert (status, rows(out), errors) == (0, {f"hello [] 1 {name}": []}, "on other\n")
        other.release()
        assert dev.mesh.run("sys.argv").failures == []
    finally:
        dev.release()


def test_a_script_that_stops_asks_at_a_terminal(terminal: Terminal) -> None:
    (terminal.directory / "stops.py").write_text(
        "import os\nrank = int(os.environ['RANK'])\nx = rank * 10\nif rank:\n    breakpoint()\nprint('end', x)\n"
    )
    words = (sys.executable, "-m", "monarch_nb.cli.main", "run", "--procs", "2")
    at = AtTerminal([*words, "stops.py"], terminal.directory)
    assert at.shows("monarch_dbg> ").count("| cell ") == 1
    at.type("attach cell 1")
    at.shows("(Pdb) ")
    at.type("x = 25")
    at.shows("(Pdb) ")
    at.type("detach")
    at.shows("monarch_dbg> ")
    at.type("continue")
    at.shows("end 25")
    assert at.end() == 0
    assert terminal.run("--procs", "2", "--on-breakpoint=error", "stops.py")[0] == 1


def test_pipes_have_what_one_rank_writes_as_python_would(terminal: Terminal) -> None:
    code = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')\nsys.exit('four')\n"
    (terminal.directory / "both.py").write_text(code)
    status, out, errors = terminal.run("--procs", "1", "both.py")
    assert (status, out) == (1, "one\nthree\n")
    assert errors.partition("starting 1 rank\n")[2].startswith("two\nfour\n")


def test_in_a_pipe_every_line_is_whole_also_where_stdout_has_few_characters(terminal: Terminal) -> None:
    code = "print('caf\\u00e9 \\u2713')\nprint('x' * 300_000)\nfor n in range(20_000): print('line', n)\n"
    (terminal.directory / "few.py").write_text(code)
    status, out, errors = terminal.run("--nodes", "1", "--procs", "1", "few.py", PYTHONIOENCODING="ascii")
    lines = ["caf\\xe9 \\u2713", "x" * 300_000, *(f"line {n}" for n in range(20_000))]
    assert (status, out) == (0, "".join(f"{line}\n" for line in lines)), errors
    (terminal.directory / "floods.py").write_text("import os\nos.write(1, (b'y' * 99 + b'\\n') * 300_000)\n")
    status, out, errors = terminal.run("--nodes", "1", "--procs", "1", "floods.py")
    assert (status, len(out)) == (0, 30_000_000), errors

"""Programs of strangers (`tests/strangers/KIND/NAME.py`): each does on ranks what it does under `python` or torchrun.

A case is a program; nothing of it is about monarch_nb. Comments at its head say how it is run:

    # What the case is about, in one line.
    # procs: 2               ranks; more than 1 are compared with torchrun's (default: 1)
    # env: TZ=Asia/Tokyo     a variable of its environment (repeatable)
    # args: --lr 0.1         its arguments, as a shell splits them
    # ways: script live cell fresh processes, in live ranks, a %%mesh cell (default: script)
    # press: ready          Ctrl-C when this line is on stdout (repeatable; of one rank)

Compared are the output of each rank, the exit status and the files that it leaves. What differs by nature is left out:
the directory's name, tracebacks (the cell has them, not stderr), and of torchrun's exit status all but whether it is 0.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Recorder
from monarch_nb.cli.run import exit_status
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.runs.run import Run
from monarch_nb.client.scripts.script import Script

STRANGERS = Path(__file__).resolve().parents[1] / "strangers"
TRACEBACK = re.compile(
    r"^(?:(?: +[+] Exception Group )?Traceback \(most recent call last\):|  File \".*)\n(?:[ \t].*\n)+"
    r"(?:(?:\w+\.)*\w+(?::.*)?\n)?"
    r"(?:\n(?:During handling of|The above exception was) .*\n\n)?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Case:
    """A program and how it is run."""

    path: Path
    ways: tuple[str, ...] = ("script",)
    procs: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    presses: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Case:
        """Read a case's head."""
        lines = re.match(r"(#.*\n)*", path.read_text())[0].splitlines()
        told = re.findall(r"^# (procs|env|args|ways|press): (.*)$", "\n".join(lines), re.MULTILINE)
        one = dict(told)
        environment = [tuple(value.split("=", 1)) for key, value in told if key == "env"]
        return cls(
            path,
            tuple(one.get("ways", "script").split()),
            int(one.get("procs", "1")),
            tuple(environment),
            tuple(shlex.split(one.get("args", ""))),
            tuple(value for key, value in told if key == "press"),
        )


@dataclass
class Ended:
    """What is seen of a program that has ended: output by rank."""

    status: int
    stdout: list[str]
    stderr: list[str]
    files: dict[str, str]


CASES = [Case.read(path) for path in sorted(STRANGERS.glob("*/*.py"))]
TRIALS = [
    pytest.param(case, way, id=f"{case.path.parent.name}/{case.path.stem}-{way}") for case in CASES for way in case.ways
]


@pytest.mark.usefixtures("dev")  # so that it is kept when a trial has failed
@pytest.mark.parametrize(("case", "way"), TRIALS)
def test_it_does_what_it_does_elsewhere(
    case: Case, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    directory = tmp_path / case.path.stem
    expected = in_copy(case, directory, lambda: by_torchrun(case) if case.procs > 1 else by_python(case), monkeypatch)
    directory.rename(tmp_path / "elsewhere")
    seen = in_copy(case, directory, lambda: RUN[way](case, request), monkeypatch)
    if case.procs > 1:
        seen.status = min(seen.status, 1)
    assert seen == expected


def in_copy(
    case: Case, directory: Path, run: Callable[[], tuple[int, list[str], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> Ended:
    """Run a case in a directory of its own."""
    directory.mkdir()
    (directory / case.path.name).write_bytes(case.path.read_bytes())
    monkeypatch.chdir(directory)
    status, stdout, stderr = run()

    def plain(text: str) -> str:
        return text.replace(str(directory), "DIRECTORY")

    files = {
        str(path.relative_to(directory)): plain(path.read_text(errors="backslashreplace"))
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    return Ended(
        status,
        [plain(text) for text in stdout],
        [TRACEBACK.sub("", plain(text)) for text in stderr],
        files,
    )


# ---- elsewhere; -u as by torchrun ----


def by_python(case: Case) -> tuple[int, list[str], list[str]]:
    words = [sys.executable, "-u", case.path.name, *case.arguments]
    done = started(words, case)
    return 128 - done.returncode if done.returncode < 0 else done.returncode, [done.stdout], [done.stderr]


def by_torchrun(case: Case) -> tuple[int, list[str], list[str]]:
    logs = Path.cwd().parent / "torchrun"
    flags = ["--standalone", f"--nproc-per-node={case.procs}", "--redirects=3", f"--log-dir={logs}"]
    done = started([sys.executable, "-m", "torch.distributed.run", *flags, case.path.name, *case.arguments], case)

    def texts(stream: str) -> list[str]:
        found = sorted(logs.glob(f"*/*/*/{stream}.log"), key=lambda path: int(path.parent.name))
        return [path.read_text(errors="backslashreplace") for path in found]

    return done.returncode, texts("stdout"), texts("stderr")


def started(words: list[str], case: Case) -> subprocess.CompletedProcess[str]:
    environment, seen = os.environ | dict(case.environment), b""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a shell's `&` ignores
    ) as process:
        assert process.stdout is not None
        for text in case.presses:  # a terminal sends it to the whole group
            while f"{text}\n".encode() not in seen:
                more = os.read(process.stdout.fileno(), 1 << 16)
                assert more, f"it ended before {text!r}: {process.communicate()}"
                seen += more
            os.killpg(process.pid, signal.SIGINT)
        rest, told = process.communicate(timeout=TIMEOUT_S)
    stdout, stderr = (text.decode(errors="backslashreplace") for text in (seen + rest, told))  # with its \r
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


# ---- on ranks ----


def as_script(case: Case, request: pytest.FixtureRequest) -> tuple[int, list[str], list[str]]:
    dev: Reservation = request.getfixturevalue("dev")
    mesh = dev.mesh.select(range(case.procs))
    script = Script(case.path.name, case.arguments, environment=dict(case.environment), directory=os.getcwd())
    return ended(case, mesh, lambda mesh, told: mesh.start_script(script, listener=told))


def in_live_ranks(case: Case, request: pytest.FixtureRequest) -> tuple[int, list[str], list[str]]:
    script = Script(case.path.name, case.arguments, in_place=True)
    return ended(case, live(case, request), lambda mesh, told: mesh.start_script(script, listener=told))


def in_a_cell(case: Case, request: pytest.FixtureRequest) -> tuple[int, list[str], list[str]]:
    code = case.path.read_text()
    return ended(case, live(case, request), lambda mesh, told: mesh.submit(code, listener=told, on_error="abort"))


def live(case: Case, request: pytest.FixtureRequest) -> Mesh:
    hold = request.getfixturevalue("hold")
    held: Reservation = hold("strangers", procs=case.procs, env=dict(case.environment), directory=os.getcwd())
    return held.mesh


def ended(case: Case, mesh: Mesh, start: Callable[[Mesh, Recorder], Run]) -> tuple[int, list[str], list[str]]:
    told = Recorder()
    run = start(mesh, told)
    for text in case.presses:
        told.wait_for_text(f"{text}\n")
        threading.Thread(target=run.interrupt).start()  # it waits until the ranks are free
    assert run.wait(TIMEOUT_S)
    return (
        exit_status(run, is_interrupted=bool(case.presses)),
        [told.text(rank) for rank in mesh.ranks],
        [told.text(rank, "stderr") for rank in mesh.ranks],
    )


RUN = {"script": as_script, "live": in_live_ranks, "cell": in_a_cell}

pytestmark = pytest.mark.shape(nodes=1, procs=4)

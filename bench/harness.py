"""What every row of the table needs: pools of its own, rivals to compare with, and medians."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import psutil

from bench.rivals import rival_python
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision.local import LocalProvisioner

PROGRAMS = Path(__file__).parent / "programs"
RANKS = 8
PROGRAM_TIMEOUT_S = 180.0

Say = Callable[[str], None]


class Shape(NamedTuple):
    """A pool's nodes, ranks per node, and whether its nodes share no files with anybody."""

    nodes: int
    procs: int
    isolate: bool = False


ONE_NODE = Shape(1, RANKS)


class CannotRun(Exception):
    """A row can not be measured here; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """What a row found.

    Attributes:
        measured, beside: as the table shows them; `beside` is the rival.
        ratio: how they compare.
        reached: whether the goal is.
    """

    measured: str
    reached: bool
    beside: str = "–"
    ratio: str = "–"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: for `--only`.
        what, goal: as the table shows them.
        how: it is measured, for the docs.
        shape: of the pool that it uses; rows of one shape run one after the other.
    """

    name: str
    what: str
    goal: str
    how: str
    measure: Callable[[Bench], Outcome]
    shape: Shape = ONE_NODE


@dataclass
class Bench:
    """One run of the benchmarks, in a temporary directory.

    Args:
        quick: fewer repeats.
        say: told what is being done.
    """

    quick: bool
    say: Say
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp")))
    _shape: Shape | None = None

    def __enter__(self) -> Bench:
        self._home_before = os.environ.get(HOME_VARIABLE)
        os.environ[HOME_VARIABLE] = str(self.directory / "h")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._down()
        if self._home_before is None:
            del os.environ[HOME_VARIABLE]
        else:
            os.environ[HOME_VARIABLE] = self._home_before
        shutil.rmtree(self.directory, ignore_errors=True)

    def repeats(self, full: int, quick: int) -> int:
        """Return how often to measure."""
        return quick if self.quick else full

    # ---- ours ----

    def warm_pool(self, nodes: int, procs: int, *, isolate: bool = False) -> str:
        """Return the name of a pool of that shape with nothing in it; one pool is up at a time."""
        shape = Shape(nodes, procs, isolate)
        if self._shape != shape:
            self._down()
            self.say(f"starting a pool of {nodes} × {procs}{', isolated' if isolate else ''}")
            LocalProvisioner().up(nodes, procs, gpus="none", isolate=isolate, pool=_pool_name(shape))
            self._shape = shape
        return _pool_name(shape)

    @contextmanager
    def reserved(
        self, nodes: int = 1, procs: int = RANKS, *, isolate: bool = False, directory: Path | None = None
    ) -> Iterator[Reservation]:
        """Reserve a whole pool of that shape for the time of a `with` block; its ranks start in `directory`."""
        pool = self.warm_pool(nodes, procs, isolate=isolate)
        reservation = reserve("bench", nodes=nodes, procs=procs, pool=pool, directory=directory)
        try:
            yield reservation
        finally:
            reservation.release()

    def _down(self) -> None:
        if self._shape is not None:
            LocalProvisioner().down(force=True, pool=_pool_name(self._shape))
            self._shape = None

    # ---- rivals ----

    @contextmanager
    def start_torchrun(self, program: str, ranks: int = RANKS) -> Iterator[subprocess.Popen[str]]:
        """Start a program of ours under torchrun; its output is to be read from `stdout`."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-port", str(free_port()), str(PROGRAMS / program)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with _bounded(command, stderr=subprocess.DEVNULL, env=environment) as process:
            yield process

    def torchrun(self, program: str, word: str, ranks: int = RANKS) -> list[float]:
        """Run a program under torchrun; return the number that each rank printed after `word`."""
        with self.start_torchrun(program, ranks) as process:
            text = process.communicate()[0]
        numbers = numbers_after(word, text)
        if len(numbers) != ranks:
            raise CannotRun(f"torchrun ended with {process.returncode}: {len(numbers)} of {ranks} ranks finished")
        return numbers

    @cached_property
    def ipyparallel(self) -> dict[str, list[float]]:
        """Times of ipyparallel: `call_s` and `push_s`."""
        profile = str(self.directory / "ipyparallel")
        return self._rival("ipyparallel", "ipyparallel_engines.py", RANKS, self.repeats(200, 30), self.pushes, profile)

    @cached_property
    def monarch(self) -> dict[str, list[float]]:
        """Times of PyTorch Monarch: `call_s` and `push_s`."""
        return self._rival("torchmonarch", "monarch_procs.py", RANKS, self.repeats(1000, 100), self.pushes)

    @property
    def pushes(self) -> int:
        return self.repeats(9, 3)

    def _rival(self, package: str, program: str, *arguments: object) -> dict[str, list[float]]:
        self.say(f"measuring {package}")
        times: dict[str, list[float]] = self.rival(package, program, *arguments)
        return times

    def rival(self, package: str, program: str, *arguments: object) -> Any:
        """Return what a rival's program has printed last, as JSON."""
        return self._told(package, rival_python(self.say), program, *arguments)

    def actors(self, package: str, what: str, ranks: int, times: int) -> list[float]:
        """Return what `bench/programs/actors.py` measures; on the warm pool, if `package` uses one."""
        python = Path(sys.executable) if package == "monarch_nb" else rival_python(self.say)
        pool = _pool_name(self._shape) if package in ("monarch_nb", "held") and self._shape is not None else "-"
        seconds_: list[float] = self._told(package, python, "actors.py", package, pool, what, ranks, times)
        return seconds_

    def _told(self, package: str, python: Path, program: str, *arguments: object) -> Any:
        """Return what a program has printed last, as JSON. How it ends does not matter: Monarch aborts at times."""
        command = [str(python), str(PROGRAMS / program), *map(str, arguments)]
        with _bounded(command, stderr=subprocess.PIPE, cwd=self.directory) as process:
            text, errors = process.communicate()
        try:
            return json.loads(text.splitlines()[-1])
        except (IndexError, ValueError) as error:
            told = (errors.strip() or text.strip())[-300:]
            raise CannotRun(f"{package} ended with {process.returncode}: {told}") from error


@contextmanager
def _bounded(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command; it ends, with everything that it started, in bounded time and with the `with` block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)

    def kill() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            for one in [*root.children(recursive=True), root]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()

    watchdog = threading.Timer(PROGRAM_TIMEOUT_S, kill)
    watchdog.start()
    try:
        with process:
            try:
                yield process
            finally:
                kill()
    finally:
        watchdog.cancel()


def program(name: str) -> str:
    """Return the text of a program, to be run as a cell."""
    return (PROGRAMS / name).read_text()


def first_and_second_s(way: str, nodes: int, procs: int, name: str) -> tuple[float, float]:
    """Return how long a program takes on nodes that an engine is asked for first, and again in the same ranks."""
    text = program(name)
    began_s = time.perf_counter()
    reservation = reserve("bench", nodes=nodes, procs=procs, on=way)
    try:
        reservation.mesh.run(text)
        first_s = time.perf_counter() - began_s
        return first_s, seconds(lambda: reservation.mesh.run(text))
    finally:
        reservation.release()


def numbers_after(word: str, text: str) -> list[float]:
    """Return the numbers of the lines that consist of `word` and one."""
    lines = [line.split() for line in text.splitlines()]
    return [float(line[1]) for line in lines if len(line) == 2 and line[0] == word]


def alternately(bench: Bench, ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float]:
    """Return the medians; alternating, because other load on the machine comes and goes."""
    our_s, their_s = [], []
    for _ in range(bench.repeats(3, 1)):
        our_s += [ours() for _ in range(3)]
        bench.say(f"ours {', '.join(map(duration, our_s[-3:]))}; now torchrun")
        their_s.append(theirs())
    return median(our_s), median(their_s)


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began_s = time.perf_counter()
    function()
    return time.perf_counter() - began_s


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def duration(seconds_: float) -> str:
    """Return a readable duration: `41 µs`, `0.92 ms`, `1.7 ms`, `24 ms`, `0.31 s`, `9.7 s`."""
    if seconds_ < 0.0001:
        return f"{seconds_ * 1e6:.0f} µs"
    if seconds_ < 0.001:
        return f"{seconds_ * 1e3:.2f} ms"
    if seconds_ < 0.01:
        return f"{seconds_ * 1e3:.1f} ms"
    if seconds_ < 0.1:
        return f"{seconds_ * 1e3:.0f} ms"
    return f"{seconds_:.2f} s" if seconds_ < 2 else f"{seconds_:.1f} s"


def compared(ours: float, rivals: float) -> str:
    """Return how a time of ours compares with a rival's."""
    if ours <= rivals:
        return f"{rivals / ours:.{1 if rivals / ours < 10 else 0}f} times faster"
    return f"{ours / rivals:.1f} times slower"


def _pool_name(shape: Shape) -> str:
    return f"{shape.nodes}x{shape.procs}{'i' if shape.isolate else ''}"


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port

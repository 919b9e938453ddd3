"""The notebook's files: what a sync costs, beside rsync over a local pipe."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from bench.harness import Bench, CannotRun, Outcome, Row, Shape, compared, duration, median, seconds
from monarch_nb.client.reservations.reserve import reserve

FILES = 10_000
TYPICAL_BYTES = 14_500
"""The median size of a file; with the spread below the files have 200 MB together."""
SPREAD = 0.8
FIRST_SYNCS = 3
MANY, FEW = Shape(16, 1, isolate=True), Shape(4, FIRST_SYNCS, isolate=True)
CHANGED_FILES, CHANGED_BYTES = 20, 20_000_000
PAUSE_S = 0.5
"""Between two edits; nobody is faster."""
EDIT_GOAL_S = 0.07
EDITED = Path("package7/part3/module5.py")
_IN_PACKAGE, _IN_PART = 500, 25
_PYPROJECT = '[tool.monarch_nb]\nmax-file-size = "2 GB"\n'


# ---- what is synced ----


@cache
def _sources() -> bytes:
    """Return Python's own library, one module after the other."""
    return b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py")))


def _project(directory: Path, seed: int = 0) -> Path:
    """Write 10,000 files of Python source text, 200 MB together; other text with each seed."""
    chosen, text = random.Random(seed), _sources()
    for number in range(FILES):
        within = directory / f"package{number // _IN_PACKAGE}" / f"part{number // _IN_PART % (_IN_PACKAGE // _IN_PART)}"
        within.mkdir(parents=True, exist_ok=True)
        size_bytes = int(TYPICAL_BYTES * chosen.lognormvariate(0, SPREAD))
        start = chosen.randrange(len(text) - size_bytes)
        module = b"# %d of %d\n" % (number, seed) + text[start : start + size_bytes]
        (within / f"module{number % _IN_PART}.py").write_bytes(module)
    (directory / "pyproject.toml").write_text(_PYPROJECT)
    os.sync()  # else it is written while something is measured
    return directory


def _known_project(bench: Bench) -> Path:
    """Return a project that several rows use."""
    directory = bench.directory / "project"
    return directory if directory.exists() else _project(directory)


# ---- rsync ----


class _Rsync:
    """rsync from one directory to others; client and server talk through a pipe, as they would through ssh."""

    def __init__(self, bench: Bench) -> None:
        if shutil.which("rsync") is None:
            raise CannotRun("rsync is not installed")
        self._shell = bench.directory / "local-shell"
        self._shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
        self._shell.chmod(0o700)

    def __call__(self, source: Path, target: Path) -> str:
        command = ["rsync", "-a", "-e", str(self._shell), f"{source}/", f"here:{target}/"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _many(rsync: _Rsync, source: Path, targets: list[Path], change: Callable[[], None]) -> float:
    """Return how long rsync takes to bring a change to all targets: one by one or all at once, whatever is faster."""
    change()
    one_by_one_s = seconds(lambda: [rsync(source, target) for target in targets])
    change()
    with ThreadPoolExecutor(len(targets)) as threads:
        at_once_s = seconds(lambda: list(threads.map(lambda target: rsync(source, target), targets)))
    return min(one_by_one_s, at_once_s)


# ---- the rows ----


def unchanged(bench: Bench) -> Outcome:
    with bench.reserved(*FEW[:2], isolate=True, directory=_known_project(bench)) as reservation:
        mesh = reservation.mesh
        for _ in range(20):
            mesh.run("pass")
        count = bench.repeats(300, 50)
        pairs = [
            (seconds(lambda: mesh.run("pass")), seconds(lambda: mesh.run("pass", sync=False))) for _ in range(count)
        ]
    added = median([synced - plain for synced, plain in pairs])
    plain = median([plain for _, plain in pairs])
    return Outcome(duration(max(added, 0)), added <= 0.005, f"the cell without it {duration(plain)}")


def edit(bench: Bench) -> Outcome:
    project, rsync = _known_project(bench), _Rsync(bench)
    copies = _copies(bench.directory / "copies", rsync, project)
    module, numbers = ".".join(EDITED.with_suffix("").parts), itertools.count()

    def change() -> int:
        text = f"def function():\n    return {(number := next(numbers))}\n"
        (project / EDITED).write_text(text + "# 'padding' as long as other modules\n" * (TYPICAL_BYTES // 37))
        return number

    our_s, their_s = [], []
    with bench.reserved(*MANY[:2], isolate=True, directory=project) as reservation:
        mesh = reservation.mesh
        change()
        mesh.run(f"import {module}")
        for repeat in range(bench.repeats(15, 3)):
            time.sleep(PAUSE_S)
            number, found = change(), list[object]()
            our_s.append(seconds(lambda: found.extend(mesh.run(f"{module}.function()").values)))  # noqa: B023
            if found != [number] * MANY.nodes:
                raise CannotRun(f"ranks ran something else: {found}")
            if repeat % 5 == 0:
                bench.say(f"ours {duration(our_s[-1])}; now rsync")
                their_s.append(_many(rsync, project, copies, change))
                mesh.run("pass")
    ours, theirs = median(our_s), median(their_s)
    reached = ours <= EDIT_GOAL_S and theirs / ours >= 20
    return Outcome(duration(ours), reached, f"{MANY.nodes} × rsync {duration(theirs)}", compared(ours, theirs))


def _copies(directory: Path, rsync: _Rsync, project: Path) -> list[Path]:
    """Return as many copies of a project as there are nodes. They share what they have: rsync replaces files."""
    copies = [directory / str(number) for number in range(MANY.nodes)]
    directory.mkdir()
    rsync(project, copies[0])
    for copy in copies[1:]:
        shutil.copytree(copies[0], copy, copy_function=os.link)
    return copies


def first_sync(bench: Bench) -> Outcome:
    """Nothing is removed in between: ext4 is slow to make files for half a minute after it removed many."""
    rsync, our_s, their_s = _Rsync(bench), list[float](), list[float]()
    pool = bench.warm_pool(*FEW[:2], isolate=True)
    with ExitStack() as stack:
        for repeat in range(bench.repeats(FIRST_SYNCS, 1)):
            project = _project(bench.directory / f"first{repeat}", seed=repeat + 1)
            reservation = reserve(f"bench{repeat}", nodes=FEW.nodes, procs=1, pool=pool, directory=project)
            stack.callback(reservation.release)
            our_s.append(seconds(reservation.sync))
            os.sync()
            their_s.append(seconds(lambda: rsync(project, bench.directory / f"target{repeat}")))  # noqa: B023
            os.sync()
            bench.say(f"ours {duration(our_s[-1])}, rsync {duration(their_s[-1])}")
    ours, theirs = median(our_s), median(their_s)
    return Outcome(duration(ours), ours <= 2 * theirs, f"rsync to one {duration(theirs)}", compared(ours, theirs))


def client_bytes(bench: Bench) -> Outcome:
    project = bench.directory / "noise"
    project.mkdir()
    noise = random.Random(0).randbytes(CHANGED_BYTES)  # which can not be compressed
    with bench.reserved(*MANY[:2], isolate=True, directory=project) as reservation:
        reservation.sync()
        size_bytes = CHANGED_BYTES // CHANGED_FILES
        for number in range(CHANGED_FILES):
            (project / f"noise{number}.bin").write_bytes(noise[number * size_bytes : (number + 1) * size_bytes])
        report = reservation.sync()
    times = report.sent_bytes / CHANGED_BYTES
    return Outcome(f"{times:.3f} times", 1 < times <= 2, f"rsync {MANY.nodes} times")


ROWS = [
    Row(
        "unchanged",
        f"files: nothing changed among {FILES:,}, added to a cell",
        "at most 5 ms",
        f'The median of 300 differences between `mesh.run("pass")` and `mesh.run("pass", sync=False)`, in turns, '
        f"on {FEW.nodes} nodes that have copies.",
        unchanged,
        FEW,
    ),
    Row(
        "edit",
        f"files: one of {FILES:,} changed, {MANY.nodes} nodes, from `mesh.run` to the value of a function in it",
        f"at most {duration(EDIT_GOAL_S)}, and at least 20 times faster than {MANY.nodes} runs of rsync",
        "The bench writes a module that every rank has imported, and then calls "
        f'`mesh.run("module.function()")` and checks the values, median of 15. The rival is `rsync -a` to {MANY.nodes} '
        "copies through a local pipe, one after the other or all at once, whichever is faster, median of 3. "
        f"{MANY.nodes} allocators, as many ranks and the client share this machine's cores.",
        edit,
        MANY,
    ),
    Row(
        "first-sync",
        f"files: first sync of {FILES:,} files of Python source text, 200 MB together, to {FEW.nodes} nodes",
        "at most twice what rsync needs for one of them",
        "The time of `reservation.sync()` on nodes that have nothing, in turns with `rsync -a` through a local pipe to "
        f"an empty directory, median of {FIRST_SYNCS}, with other files each time. {FEW.nodes} allocators and the "
        "client share this machine's cores. Nothing is removed meanwhile, because ext4 is slow to make files after "
        "that.",
        first_sync,
        FEW,
    ),
    Row(
        "client-bytes",
        f"files: bytes that leave the client for {MANY.nodes} nodes",
        "at most twice the changed bytes",
        f"The bench makes {CHANGED_FILES} new files of random bytes, {CHANGED_BYTES / 1e6:.0f} MB together, and counts "
        "the bytes that the client sends, with its messages about the files.",
        client_bytes,
        MANY,
    ),
]

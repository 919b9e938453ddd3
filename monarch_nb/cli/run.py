"""`monarch-nb run`: a script on ranks that are held, or on some that are reserved for its time, from a terminal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb.cli.declared import add_flag, part_of
from monarch_nb.client.scripts.torchrun_flags import FLAGS, Launch, held_by, held_in, read
from monarch_nb.config import MAIN_MESH, OnBreakpoint, default_pool, gap
from monarch_nb.errors import RunFailed, UsageError
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.notebook.syntax.command_line import read_environment
from monarch_nb.notebook.syntax.declarations import RUN
from monarch_nb.notebook.syntax.holding import CPUS, MEMORY
from monarch_nb.shape import Extent, parse_targets

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.client.runs.run import Run

SUMMARY = "run a script on ranks, as torchrun does, but warm"
EXAMPLES = (
    "run dev train.py --lr 3e-4",
    "run --nodes 2 --procs 4 train.py --lr 3e-4",
    "run dev -t hosts=0 -m scripts.base_train -- --depth=4",
)
ABANDONED_AFTER_S = gap(60.0)
"""What was reserved for a script is given back so long after it when this process was killed."""
_AS_IN_A_CELL = ("--targets", "--mesh", "--in-place", "--beside", "--on-breakpoint")
_SHOWN_FLAGS = ("--max-restarts", "--module")
_RESERVE = "monarch-nb run"
_INTERRUPTED = 128 + signal.SIGINT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `monarch-nb run` takes."""
    parser.usage = "monarch-nb run [NAME | [--nodes N] --procs N | --gpus N] [options] SCRIPT ..."
    parser.description = (
        "Run a script on ranks as torchrun does, but warm: in fresh processes that have torch imported.\n"
        "NAME is a reservation (default: the only one you hold). With --procs or --gpus, ranks are reserved\n"
        "while the script runs. The exit status is the script's: 0, or the status of the rank that failed\n"
        "first (1 for an exception, 128 + N for signal N)."
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes to reserve (default: 1)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--procs", type=int, metavar="N", help="CPU ranks to reserve per node")
    kind.add_argument("--gpus", type=int, metavar="N", help="GPUs to reserve per node, with one rank each")
    for declared in (MEMORY, CPUS):
        add_flag(parser, declared)
    for declared in RUN.flags:
        if declared.name in _AS_IN_A_CELL:
            add_flag(parser, declared)
    parser.add_argument(
        "--env", metavar="NAME[=VALUE]", action="append", default=[], help="a variable of the script (repeatable)"
    )
    for flag in FLAGS:
        shown = flag.help if flag.name in _SHOWN_FLAGS else argparse.SUPPRESS
        takes: dict[str, Any] = {"metavar": flag.value} if flag.value else {"action": "store_true"}
        parser.add_argument(*filter(None, [flag.short, flag.name]), help=shown, **takes)
        if (spelling := f"--{flag.name[2:].replace('-', '_')}") != flag.name:
            parser.add_argument(spelling, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **takes)
    script = "a file on this computer; a word without .py and / counts as NAME (write ./train for a file)"
    parser.add_argument("script", metavar="SCRIPT", help=script)
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.epilog = (
        "torchrun's other flags (--nnodes, --nproc-per-node, --standalone, ...) and PET_* variables are\n"
        f"checked against the reservation: docs/scripts.md has a table. -t is --targets.\n\n{parser.epilog}"
    )


def run(options: argparse.Namespace) -> int:
    """Run the script; return its exit status."""
    from monarch_nb.client.reservations.known.lists import pool_of

    name = take_name(options)
    if options.pool is None:
        options.pool = pool_of(name, default_pool()) if name else default_pool()
    with _signals_as_ctrl_c() as signals, _held(options, name) as reservation:
        mesh = part_of(reservation, options.mesh, options.targets)
        launch = read(vars(options), os.environ, held_by(mesh, _RESERVE))
        path, directory = _place(options, launch, mesh)
        script = launch.script(
            path,
            options.arguments,
            in_place=options.in_place,
            beside=options.beside,
            directory=directory,
            environment=_environment(options, mesh),
        )
        for note in launch.notes:
            _say(note)
        submit = partial(mesh.start_script, script, on_breakpoint=options.on_breakpoint)
        status = _run(mesh, submit, launch.shown_ranks(mesh), options.on_breakpoint)
    return 128 + signals[0] if signals and status == _INTERRUPTED else status


def take_name(options: argparse.Namespace) -> str | None:
    """Return the NAME that stands before the script; read what stands after it."""
    word = options.script
    if options.module or options.no_python or "/" in word or word.endswith(".py"):
        return None
    if not options.arguments:
        if word in _held_by_me(options.pool):
            raise UsageError(f"name the script too: monarch-nb run {word} train.py")
        raise UsageError(f"there is no reservation {word}; a script of that name is ./{word}")
    options.parser.parse_args(options.arguments, namespace=options)
    name: str = word
    return name


def _held_by_me(pool: str | None) -> list[str]:
    from monarch_nb import list_reservations

    return [info.name for info in list_reservations(pool) if info.held_by_me]


@contextmanager
def _held(options: argparse.Namespace, name: str | None) -> Iterator[Reservation]:
    """Yield what the script runs on; what was reserved for it is given back."""
    from monarch_nb import attach, reserve
    from monarch_nb.client.reservations.known.lists import elsewhere

    shape = {"procs": options.procs, "gpus": options.gpus}
    if name and (options.memory or options.cpus):
        raise UsageError(f"{name} is held already: leave out --memory and --cpus, or leave out {name}")
    if name and (options.nodes or any(shape.values())):
        raise UsageError(f"{name} is held already: leave out --nodes, --procs and --gpus, or leave out {name}")
    if not any(shape.values()):
        if options.nodes or options.memory or options.cpus:
            raise UsageError("say how many ranks per node: --procs N or --gpus N")
        mine = [] if name else _held_by_me(options.pool)
        if not name and not mine:
            there = elsewhere(None, options.pool)
            held = f"nothing is held in the pool {options.pool}; {there}; or" if there else "nothing is held:"
            raise UsageError(f"{held} --nodes 2 --procs 4 reserves ranks for the script's time")
        if len(mine) > 1:
            raise UsageError(f"you hold {', '.join(mine)}: say which: monarch-nb run {mine[0]} {options.script}")
        yield attach(name, pool=options.pool)
        return
    if options.mesh not in (None, MAIN_MESH):
        raise UsageError(
            f"--mesh {options.mesh} needs a reservation that you hold: leave out --nodes, --procs and --gpus, or --mesh"
        )
    _check_flags(options)
    reservation = reserve(
        f"run-{uuid.uuid4().hex[:8]}",
        nodes=options.nodes or 1,
        pool=options.pool,
        directory=os.getcwd(),
        idle=ABANDONED_AFTER_S,
        memory=options.memory,
        cpus=options.cpus,
        progress=_say,
        **shape,
    )
    try:
        yield reservation
    finally:
        for kept in reservation.release():
            _say(str(kept))


def _check_flags(options: argparse.Namespace) -> None:
    """Refuse what contradicts the shape that is asked for, before anything is reserved."""
    kind = "gpus" if options.gpus else "procs"
    per_node = options.gpus or options.procs
    if per_node > 0 and (nodes := options.nodes or 1) > 0:
        ranks = parse_targets(options.targets or "all", Extent({"hosts": nodes, kind: per_node}))
        read(vars(options), os.environ, held_in(ranks, per_node, kind, _RESERVE))


def _place(options: argparse.Namespace, launch: Launch, mesh: Mesh) -> tuple[str, str]:
    """Return the script's path, and where it runs: here, as with torchrun, where the nodes see this directory; else,
    and in the live ranks, where those have started ("")."""
    from monarch_nb.client.connections.bridge import call
    from monarch_nb.client.scripts.finding import nodes_see

    path: str = options.script
    reservation, here = mesh.reservation, os.getcwd()
    there = reservation.status(memory=False).directory
    if here == there:
        return path, ""
    if not (options.in_place or reservation.files.copies) and call(nodes_see(mesh, here)):
        return path, here
    _say(f"it runs in {there}, where the ranks of {reservation.name} work")
    is_file = not (launch.module or launch.executable) and os.path.exists(path)
    return os.path.abspath(path) if is_file else path, ""


def _environment(options: argparse.Namespace, mesh: Mesh) -> dict[str, str]:
    """Return what the script has of this terminal's environment, and what --env says."""
    from monarch_nb.client.reservations.reserving.arguments import environment_option
    from monarch_nb.client.scripts.terminal_environment import passed_on

    said = environment_option(read_environment(options.env))
    if options.in_place:  # the live ranks have theirs
        return said
    is_here = all(mesh.core.connection_of(rank).is_local for rank in mesh.ranks)
    return passed_on(os.environ, to_other_hosts=not is_here) | said


def _run(
    mesh: Mesh, submit: Callable[..., Run], shown: Collection[int] | None, on_breakpoint: OnBreakpoint | None
) -> int:
    from monarch_nb.client.debug.answering import Answering
    from monarch_nb.client.debug.terminal import SCREEN
    from monarch_nb.notebook.cells.following import wait_for
    from monarch_nb.notebook.output.publishing import call_later, printing
    from monarch_nb.notebook.output.view import RunView

    publish = printing(colours=sys.stdout.isatty())
    with at_waits():  # from here on Ctrl-C is for the ranks
        view = RunView(
            mesh.ranks,
            publish,
            call_later,
            show_failures=True,
            terminal=True,
            whole=not sys.stdout.isatty(),
            logs="monarch-nb logs",
            shown=shown,
        )
        try:
            script = submit(listener=view.on_event)
            interrupts = wait_for(script, None, view.on_event, Answering(script, SCREEN, on_breakpoint))
        finally:
            view.close()
    script.collected()
    return exit_status(script, is_interrupted=interrupts is not None)


def exit_status(run: Run, *, is_interrupted: bool = False) -> int:
    """Return the exit status of a script's run: 0, that of the rank that failed first, or after Ctrl-C that with which
    a rank has answered, else 130.

    Raises:
        MonarchNbError: it was not started.
    """
    try:
        run.raise_failures()
    except RunFailed:
        statuses = dict(zip(run.ranks, run.kept_values, strict=True))
        for result in run.results.values():  # in the order in which they came
            failure = result.failure
            if failure is None:
                continue
            status = failure.exit_code or statuses[failure.rank] or 1
            if is_interrupted and not failure.signal and status != 1:  # else the next Ctrl-C killed it, or a peer's end
                return status
            if not is_interrupted and failure.kind in ("error", "died"):
                return 128 + failure.signal if failure.signal else status
        return _INTERRUPTED
    return 0 if run.done else _INTERRUPTED


@contextmanager
def _signals_as_ctrl_c() -> Iterator[list[int]]:
    """Let a terminal that closes, and kill, end the script as Ctrl-C does; yield the signals that came."""
    came: list[int] = []

    def interrupt(number: int, _: object) -> None:
        came.append(number)
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

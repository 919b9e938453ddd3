"""`monarch-nb run`: a script on ranks that are held, or on some that are reserved for its time, from a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb.cli.declared import add_flag, part_of
from monarch_nb.cli.saying import say, say_step
from monarch_nb.client.scripts.torchrun_flags import FLAGS, Launch, Node, asked_shape, held_by, held_in, of_all, read
from monarch_nb.config import HANDLES_S, MAIN_MESH, OnBreakpoint, default_pool, gap
from monarch_nb.errors import MonarchNbError, NodeUnreachable, RunFailed, UsageError
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.ground.printing import discard
from monarch_nb.notebook.syntax.command_line import read_environment
from monarch_nb.notebook.syntax.declarations import RUN
from monarch_nb.shape import Extent, parse_targets
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.infos import ReservationInfo
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.client.runs.run import Run
    from monarch_nb.client.scripts.script import ScriptRun

SUMMARY = "run a script on ranks, as torchrun does, but warm"
EXAMPLES = (
    "run dev train.py --lr 3e-4",
    "run --nodes 2 --procs 4 train.py --lr 3e-4",
    "run --nproc-per-node 4 train.py --lr 3e-4",
    "run dev -t hosts=0 -m scripts.base_train -- --depth=4",
)
ABANDONED_AFTER_S = gap(60.0)
"""What was reserved for a script is given back so long after it when this process was killed."""
_AS_IN_A_CELL = ("--targets", "--mesh", "--in-place", "--beside", "--env", "--on-breakpoint")
_SHOWN_FLAGS = ("--max-restarts", "--module")
_RESERVE = "monarch-nb run"
_INTERRUPTED, _KILLED = 128 + signal.SIGINT, 128 + signal.SIGKILL
_OF_A_RUN = re.compile(r"run-[0-9a-f]{8}")
"""The name of what is reserved for the time of one script, and of no other."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `monarch-nb run` takes."""
    parser.usage = "monarch-nb run [NAME | [--nodes N] --procs N | --gpus N] [options] SCRIPT ..."
    parser.description = (
        "Run a script on ranks as torchrun does, but warm: in fresh processes that have torch imported.\n"
        "NAME is a reservation (default: the only one you hold, or the only one that torchrun's --nnodes and\n"
        "--nproc-per-node fit). With --procs or --gpus, ranks are reserved while the script runs, and with\n"
        "these two flags when you hold none.\n"
        "The exit status is the script's: 0, or the status of the rank that failed first (1 for an exception,\n"
        "128 + N for signal N)."
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes to reserve (default: 1)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--procs", type=int, metavar="N", help="CPU ranks to reserve per node")
    kind.add_argument("--gpus", type=int, metavar="N", help="GPUs to reserve per node, with one rank each")
    for declared in RUN.flags:
        if declared.name in _AS_IN_A_CELL:
            add_flag(parser, declared)
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
        "torchrun's --nnodes, --nproc-per-node and --standalone, and PET_* variables, are checked against\n"
        "what is held; flags that mean nothing here are named: docs/scripts.md has a table.\n"
        f"-t is --targets.\n\n{parser.epilog}"
    )


def run(options: argparse.Namespace) -> int:
    """Run the script; return its exit status."""
    from monarch_nb.client.reservations.lists import pool_of

    name = take_name(options)
    if options.pool is None:
        options.pool = pool_of(name, default_pool()) if name else default_pool()
    with _signals_end_it() as signals, _held(options, name) as reservation:
        mesh = part_of(reservation, options.mesh, options.targets)
        held = partial(held_by, reserve=_RESERVE, room=partial(_has_room, options.pool))
        ranks, note = of_all(vars(options), mesh.ranks, mesh.core.ranks_per_node, held(mesh))
        if note:
            say(note)
            mesh = mesh.select(ranks)
        launch = read(vars(options), os.environ, held(mesh))
        path, directory = _place(options, launch, mesh)
        script = launch.script(
            path,
            options.arguments,
            in_place=options.in_place,
            beside=options.beside,
            directory=directory,
            environment=_environment(options, mesh),
        )
        os.umask(umask := os.umask(0o077))
        script = replace(script, umask=umask)
        if launch.note:
            say(launch.note)
        submit = partial(mesh.start_script, script, on_breakpoint=options.on_breakpoint)
        with _while_read(signals):
            status = _run(mesh, submit, launch.shown_ranks(mesh), options.on_breakpoint, signals)
    return 128 + signals.came[0] if signals.came and status in (_INTERRUPTED, _KILLED) else status


def take_name(options: argparse.Namespace) -> str | None:
    """Return the NAME that stands before the script; read what stands after it."""
    word = options.script
    if options.module or options.no_python or "/" in word or word.endswith(".py"):
        return None
    if not options.arguments:
        if word in [info.name for info in _held_by_me(options.pool)]:
            raise UsageError(f"name the script too: monarch-nb run {word} train.py")
        raise UsageError(f"there is no reservation {word}; a script of that name is ./{word}")
    options.parser.parse_args(options.arguments, namespace=options)
    name: str = word
    return name


def _held_by_me(pool: str | None) -> list[ReservationInfo]:
    from monarch_nb import list_reservations

    return [info for info in list_reservations(pool) if info.held_by_me]


@contextmanager
def _held(options: argparse.Namespace, name: str | None) -> Iterator[Reservation]:
    """Yield what the script runs on; what was reserved for it is given back."""
    from monarch_nb import attach, reserve
    from monarch_nb.client.reservations.lists import elsewhere

    if name and (options.nodes or options.procs or options.gpus):
        raise UsageError(f"{name} is held already: leave out --nodes, --procs and --gpus, or leave out {name}")
    asks = name or options.nodes or options.procs or options.gpus
    mine = [] if asks else [each for each in _held_by_me(options.pool) if not _OF_A_RUN.fullmatch(each.name)]
    if not name and not mine:
        _read_shape(options)
    if not (options.procs or options.gpus):
        if options.nodes:
            raise UsageError("say how many ranks per node: --procs N or --gpus N")
        if not name and not mine:
            there = elsewhere(None, options.pool)
            held = f"you hold nothing in the pool {options.pool}; {there}; or" if there else "you hold no ranks:"
            so = "reserves ranks for the script's time, and so does --nnodes 2 --nproc-per-node 4"
            raise UsageError(f"{held} --nodes 2 --procs 4 {so}")
        yield attach(name or _only_one(options, mine), pool=options.pool)
        return
    if options.mesh not in (None, MAIN_MESH):
        raise UsageError(
            f"--mesh {options.mesh} needs a reservation that you hold: leave out --nodes, --procs and --gpus, or --mesh"
        )
    if (per_node := options.gpus or options.procs) > 0 and (nodes := options.nodes or 1) > 0:
        _check_flags(options, nodes, "gpus" if options.gpus else "procs", per_node)
    reservation = reserve(
        f"run-{uuid.uuid4().hex[:8]}",
        nodes=options.nodes or 1,
        pool=options.pool,
        directory=os.getcwd(),
        idle=ABANDONED_AFTER_S,
        progress=say_step,
        procs=options.procs,
        gpus=options.gpus,
    )
    try:
        yield reservation
    finally:
        for kept in reservation.release():
            say(str(kept))


def _only_one(options: argparse.Namespace, mine: Sequence[ReservationInfo]) -> str:
    """Return the name of the only reservation, or of the only one that has what the line asks for, and say so."""
    if len(mine) == 1:
        return mine[0].name
    fitting = [info for info in mine if _fits(options, info)]
    if len(fitting) == 1:
        say(f"on {fitting[0].name}")
        return fitting[0].name
    held = ", ".join(f"{info.name} ({info.shape})" for info in mine)
    again = shlex.join(options.words[1:])  # as it was typed, behind "run"
    raise UsageError(f"you hold {held}: say which: monarch-nb run {(fitting or mine)[0].name} {again}")


def _fits(options: argparse.Namespace, info: ReservationInfo) -> bool:
    per_node = info.gpus or info.procs
    with contextlib.suppress(MonarchNbError):
        _check_flags(options, info.size // per_node, "gpus" if info.gpus else "procs", per_node)
        return True
    return False


def _read_shape(options: argparse.Namespace) -> None:
    """Take what torchrun's flags say of nodes and ranks where ours say nothing."""
    given = vars(options) | ({"nnodes": str(options.nodes)} if options.nodes and options.ntasks else {})
    asked = asked_shape(given, os.environ, partial(_node_of, options.pool))
    if asked is not None:
        nodes, kind, per_node = asked
        options.nodes = options.nodes or nodes
        if not (options.procs or options.gpus):
            setattr(options, kind, per_node)


def _node_of(pool: str) -> Node:
    """Return what the largest node of a pool has; of a local one that is not up what this machine has."""
    from monarch_nb.allocator.readings.gpus import discover_gpus
    from monarch_nb.ground.cpus import usable_cpus
    from monarch_nb.provision import provisioner_of
    from monarch_nb.provision.daemons import describe

    described = []
    for node in provisioner_of(pool).nodes(pool=pool):
        with contextlib.suppress(NodeUnreachable):
            described.append(describe(node.address, identity=node.identity))
    if not described:
        return Node(usable_cpus(), len(discover_gpus()))
    return Node(max(each.procs for each in described), max(len(each.gpus) for each in described), len(described))


def _check_flags(options: argparse.Namespace, nodes: int, kind: str, per_node: int) -> None:
    """Refuse what contradicts a shape that is asked for, before anything is reserved, or that is held."""
    held = partial(held_in, ranks_per_node=per_node, kind=kind, reserve=_RESERVE, room=partial(_has_room, options.pool))
    ranks = parse_targets(options.targets or "all", Extent({"hosts": nodes, kind: per_node}))
    ranks, _ = of_all(vars(options), ranks, per_node, held(ranks))
    read(vars(options), os.environ, held(ranks))


def _has_room(pool: str, nodes: int, ranks_per_node: int, kind: str) -> bool:
    from monarch_nb.client.reservations.taking import has_room

    return has_room(pool, nodes, ranks_per_node, kind)


def _place(options: argparse.Namespace, launch: Launch, mesh: Mesh) -> tuple[str, str]:
    """Return the script's path, and where it runs: here, as with torchrun, where the nodes see this directory; else,
    and in the live ranks, where those have started ("")."""
    from monarch_nb.client.connections.bridge import call
    from monarch_nb.client.scripts.script import nodes_see

    path: str = options.script
    reservation, here = mesh.reservation, os.getcwd()
    there = reservation.status(memory=False).directory
    if here == there:
        return path, ""
    if not (options.in_place or reservation.files.copies) and call(nodes_see(mesh, here)):
        return path, here
    say(f"it runs in {there}, where the ranks of {reservation.name} work")
    is_file = not (launch.module or launch.executable) and os.path.exists(path)
    return os.path.abspath(path) if is_file else path, ""


def _environment(options: argparse.Namespace, mesh: Mesh) -> dict[str, str]:
    """Return what the script has of this terminal's environment, and what --env says."""
    from monarch_nb.client.reservations.taking import environment_option, unset_note
    from monarch_nb.client.scripts.script import passed_on

    chosen = read_environment(options.env)
    said = environment_option(chosen)
    if note := unset_note(chosen):
        say(note)
    if options.in_place:  # the live ranks have theirs
        return said
    is_here = all(mesh.core.connection_of(rank).is_local for rank in mesh.ranks)
    return passed_on(os.environ, to_other_hosts=not is_here) | said


def _run(
    mesh: Mesh,
    submit: Callable[..., Run],
    shown: Collection[int] | None,
    on_breakpoint: OnBreakpoint | None,
    signals: _Signals,
) -> int:
    from monarch_nb.client.debug.answering import SCREEN, Answering
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
            shown=shown,
        )
        try:
            script = signals.script = submit(listener=view.on_event)
            interrupts = wait_for(script, None, view.on_event, Answering(script, SCREEN, on_breakpoint))
            script.collected()  # before the last lines, which a terminal that has closed does not take
        finally:
            view.close()
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


@dataclass
class _Signals:
    """Those that came and end the script, once it has begun."""

    came: list[int] = field(default_factory=list)
    script: Run | None = None

    def end(self, number: int, _: object) -> None:
        """Hand SIGTERM on to the script, as torchrun does; the next one, and a terminal that closes, are Ctrl-C."""
        from monarch_nb.client.scripts.script import ScriptRun

        is_first = not self.came
        self.came.append(number)
        if number == signal.SIGTERM and is_first and isinstance(self.script, ScriptRun):
            threading.Thread(target=_hand_on, args=[self.script]).start()
        else:
            signal.raise_signal(signal.SIGINT)


def _hand_on(script: ScriptRun) -> None:
    from monarch_nb.client.connections.bridge import call

    say(f"SIGTERM: the script was sent it, and has {duration(HANDLES_S)} to end")
    call(script.send_sigterm())


@contextmanager
def _signals_end_it() -> Iterator[_Signals]:
    """Let a terminal that closes, and kill, end the script; yield the signals that came."""
    signals = _Signals()
    before = {number: signal.signal(number, signals.end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _while_read(signals: _Signals) -> Iterator[None]:
    """Let the end of who reads our output (head, less) end the script as Ctrl-C does, and note SIGPIPE: each rank would
    have got it, had it written there itself. What is printed afterwards goes nowhere.

    Raises:
        MonarchNbError: the output can not be written, as on a full disk.
    """
    main, stdout = threading.get_ident(), sys.stdout
    why: list[OSError] = []

    def end(error: OSError) -> None:
        discard(stdout)
        if isinstance(error, BrokenPipeError):
            signals.came.append(signal.SIGPIPE)
        else:
            why.append(error)
        signal.pthread_kill(main, signal.SIGINT)

    sys.stdout = _ReadStream(stdout, end)
    try:
        yield
    except KeyboardInterrupt:
        if not why:
            raise
    finally:
        sys.stdout = stdout
    if why:
        raise MonarchNbError(f"the script was ended, because its output can not be written here: {why[0]}")


class _ReadStream:
    """A stream, and what is done when nothing can be written there any more."""

    def __init__(self, stream: Any, end: Callable[[OSError], None]) -> None:
        self._stream, self._end = stream, end

    def write(self, text: str) -> None:
        with self._read():
            self._stream.write(text)

    def flush(self) -> None:
        with self._read():
            self._stream.flush()

    @contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._end(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

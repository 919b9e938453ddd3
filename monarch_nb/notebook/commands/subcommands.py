"""The subcommands of `%mesh`: each reads its line, makes one or two calls of the client, and shows what came of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.reservations.jobs import end_job_of
from monarch_nb.errors import MonarchNbError, PickleError, RunFailed, UsageError
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.notebook.cells.cell import CellRunner, others_kept
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.commands.debugging import debug
from monarch_nb.notebook.commands.files import FileCommands, placed_line
from monarch_nb.notebook.commands.scripts import run_script
from monarch_nb.notebook.mode import MeshMode
from monarch_nb.notebook.output.actors import actors_table
from monarch_nb.notebook.output.logs import nothing_line, shown_logs
from monarch_nb.notebook.output.tables import (
    calm_line,
    diagnosis_view,
    is_notebook,
    preformatted,
    reservations_table,
    show,
    stacks_view,
    status_table,
)
from monarch_nb.notebook.panels.showing import Panels
from monarch_nb.notebook.session import Session, attached_line, divided, shape, unseen_line
from monarch_nb.notebook.syntax import declarations
from monarch_nb.notebook.syntax.command_line import (
    Command,
    Parsed,
    checked_name,
    help_text,
    is_name,
    overview,
    parse,
    wants_help,
)
from monarch_nb.times import duration, seconds_of, time_of_day

if TYPE_CHECKING:
    from monarch_nb.client.reservations.reservation import Reservation


class Subcommands:
    """`%mesh SUBCOMMAND …`."""

    def __init__(
        self,
        shell: InteractiveShell,
        session: Session,
        mode: MeshMode,
        cells: CellRunner,
        files: FileCommands,
        panels: Panels,
    ) -> None:
        self._panels = panels
        self._shell, self._session, self._mode, self._cells = shell, session, mode, cells
        self._handlers: dict[Command, Callable[[Parsed], Any]] = {
            declarations.RESERVE: self._reserve,
            declarations.ATTACH: self._attach,
            declarations.DETACH: self._detach,
            declarations.RELEASE: self._release,
            declarations.EXTEND: self._extend,
            declarations.SHARE: self._share,
            declarations.LIST: self._list,
            declarations.RUN: partial(run_script, session, cells),
            declarations.PANEL: self._panel,
            declarations.STATUS: self._status,
            declarations.STACKS: self._stacks,
            declarations.ACTORS: self._actors,
            declarations.LOGS: self._logs,
            declarations.DEBUG: partial(debug, session, shell),
            declarations.DOCTOR: self._doctor,
            declarations.PUSH: self._push,
            declarations.PULL: self._pull,
            declarations.SYNC: files.sync,
            declarations.FETCH: files.fetch,
            declarations.LS: files.list,
            declarations.PIP: self._pip,
            declarations.INTERRUPT: self._interrupt,
            declarations.RESTART: self._restart,
            declarations.ON: self._on,
            declarations.OFF: self._off,
            declarations.HELP: self._help,
        }

    def run(self, line: str) -> Any:
        """Do what stands after `%mesh`; returns what the magic evaluates to.

        Raises:
            UsageError: the line can not be read, or makes no sense now.
            MonarchNbError: what the client raises.
        """
        name, _, rest = line.strip().partition(" ")
        if not name:
            return self._bare()
        if name in ("--help", "-h"):
            return self._help(Parsed(declarations.HELP))
        command = declarations.MESH.find(name)
        if wants_help(command, rest):
            show(preformatted(help_text(command)))
            return None
        return self._handlers[command](parse(command, rest))

    def _bare(self) -> None:
        if self._session.reservation is None:
            show(preformatted(overview(declarations.MESH)))
        else:
            self._status(Parsed(declarations.STATUS))

    def _reserve(self, parsed: Parsed) -> None:
        gpus, procs = parsed.count("gpus"), parsed.count("procs")
        if gpus is None and procs is None:
            raise UsageError("say how many ranks per node: --gpus N, or --procs N for CPU ranks")
        if gpus is not None and procs is not None:
            raise UsageError("say --gpus N or --procs N, not both: one mesh has one kind of rank")
        with Progress(is_notebook(self._shell)) as progress:
            try:
                reservation = self._asked_for(parsed, gpus, procs, progress)
            except KeyboardInterrupt:
                had_begun = bool(progress.messages)
                what = "nothing is reserved" if had_begun else "nothing has changed"
                raise RunInterrupted(f"interrupted: {what}") from None
            self._session.hold(reservation, parsed.text("pool"))
            steps = [message for message in progress.messages if not _is_to_be_read(message)]
            took = duration(progress.elapsed_s)
            lines = [_reserved_line(reservation, steps, took), _files_line(reservation, parsed.text("files"))]
            if (reload := parsed.text("reload")) and not steps:
                lines.append(f"reload: {reload} from now on")
            lines += filter(_is_to_be_read, progress.messages)
            progress.done("\n".join(lines))

    def _asked_for(self, parsed: Parsed, gpus: int | None, procs: int | None, progress: Progress) -> Reservation:
        return self._session.client.reserve(
            parsed.word,
            nodes=parsed.count("nodes") or 1,
            procs=procs,
            gpus=gpus,
            pool=parsed.text("pool"),
            on=parsed.text("on"),
            on_arguments=parsed.passed_on,
            python=parsed.text("python"),
            env=read_environment(parsed.many("env")) or None,
            preload=parsed.many("preload") or None,
            files=_files_option(parsed.text("files")),
            reload={"auto": True, "off": False}.get(parsed.text("reload") or ""),
            shared=parsed.text("shared"),
            time=parsed.seconds("time"),
            idle=parsed.seconds("idle"),
            force_busy=parsed.switch("force_busy"),
            wait=parsed.seconds("wait") or parsed.switch("wait"),
            replace=parsed.switch("replace"),
            share=_shares(parsed.many("share")) or None,
            notebook=self._session.notebook,
            progress=progress,
        )

    def _attach(self, parsed: Parsed) -> None:
        before = self._session.reservation
        reservation = self._session.attach(parsed.word, parsed.text("pool"))
        number, from_start = parsed.count("run"), parsed.switch("from_start")
        runs, others = divided(self._session.open_runs(), self._session.notebook)
        if number:
            runs, others = [self._session.run_numbered(number)], []
        same = before is not None and before.id == reservation.id
        said = same and (bool(runs) or self._session.reattached_in == self._shell.execution_count)
        if not said:  # `%load_ext` has said it, in a cell above or in this one
            show(calm_line(attached_line(reservation)))  # runs follow, each with a line of its own
        if not runs and (last := self._session.last_cell()):
            if from_start:
                runs = [last]
            else:
                show(calm_line(f"{last} was shown to the end: %mesh attach --from-start shows it again"))
        if others:
            show(calm_line(unseen_line(others)))
            self._session.seen += [info.run_id for info in others]  # said once
        self._cells.follow(runs, from_start=from_start or bool(number), block=not parsed.switch("noblock"))

    def _detach(self, _: Parsed) -> None:
        name = self._session.current().name
        self._session.detach()
        self._mode.stop()
        show(calm_line(f"detached from {name}; it stays held: %mesh attach {name} returns to it"))

    def _release(self, parsed: Parsed) -> None:
        if parsed.switch("all") and parsed.word:
            raise UsageError(f"%mesh release {parsed.word} or %mesh release --all, not both")
        if parsed.switch("all"):
            names = self._session.names(parsed.text("pool"))
            if not names:
                show(calm_line("nothing to release"))
        else:
            names = [parsed.word or self._session.current().name]
        errors: list[MonarchNbError] = []
        for name in names:
            try:
                self._release_one(name, parsed.text("pool"))
            except MonarchNbError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else MonarchNbError("\n".join(map(str, errors)))

    def _release_one(self, name: str, pool: str | None) -> None:
        current = self._session.reservation
        mine = current is not None and current.name == name and pool in (None, current.pool)
        pool = pool or self._session.pool
        with Progress(is_notebook(self._shell)) as progress:
            progress(f"releasing {name}")
            progress.done(self._end(current if mine else None, name, pool, progress))
        if mine:
            self._session.released()
            self._mode.stop()

    def _end(self, current: Reservation | None, name: str, pool: str | None, progress: Progress) -> str:
        """Release a reservation, or end the job of one whose nodes are gone or were never there; return what to say."""
        try:
            reservation = current or self._session.client.attach(name, pool=pool)
        except MonarchNbError:
            if not end_job_of(name, pool, progress):
                raise
            return f"{name}: none of its nodes answered; its job has ended"
        kept = reservation.release()
        line = f"{name}: released {shape(reservation)} in {duration(progress.elapsed_s)}"
        return "\n".join([line, *map(str, kept)])

    def _extend(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        by_s = seconds_of(parsed.words[0], "TIME")
        left_s = reservation.extend(by_s)
        at = time_of_day(time.time() + left_s)
        show(calm_line(f"{reservation.name}: {duration(by_s)} more, {duration(left_s)} left: released at {at}"))

    def _share(self, parsed: Parsed) -> None:
        to = parsed.text("to")
        if sum(map(parsed.switch, ("read", "run", "end"))) > 1:
            raise UsageError("say one of --read, --run and --end")
        if not to and any(map(parsed.switch, ("read", "run", "end"))):
            raise UsageError("say whom: --to NAME, as the pool's certificates have it")
        held = self._session.client.attach(parsed.word, pool=self._session.pool) if parsed.word else None
        reservation = held or self._session.current()
        if not to:
            shares = ", ".join(f"{name} ({right})" for name, right in reservation.shares.items())
            show(calm_line(f"{reservation.name}: shared with {shares or 'nobody'}"))
        elif parsed.switch("end"):
            reservation.unshare(to)
            show(calm_line(f"{reservation.name}: {to} may not use it any more"))
        else:
            right = "run" if parsed.switch("run") else "read"
            doubtful = reservation.share(to, right)
            may = "run cells on it" if right == "run" else "see what runs on it"
            line = f"{reservation.name}: {to} may {may} (%mesh attach {reservation.name} --pool {reservation.pool})"
            show(calm_line("\n".join(filter(None, [line, doubtful]))))

    def _panel(self, parsed: Parsed) -> None:
        held = self._session.client.attach(parsed.word, pool=self._session.pool) if parsed.word else None
        show(self._panels.panel(held))

    def _list(self, _: Parsed) -> None:
        current = self._session.reservation
        held = self._session.client.list_everywhere()
        show(reservations_table(held, current.id if current else None))

    def _status(self, _: Parsed) -> None:
        reservation = self._session.current()
        info = reservation.status(memory=False)
        mesh = reservation.mesh
        actors = [info for info in reservation.actor_infos() if info.mesh == mesh.name]
        show(status_table(reservation, mesh.status(), self._session.open_runs(), info.left, actors, info.waiting))

    def _stacks(self, parsed: Parsed) -> None:
        show(stacks_view(self._session.mesh(parsed.text("targets")).stacks().groups))

    def _actors(self, _: Parsed) -> None:
        reservation = self._session.current()
        show(actors_table(reservation.name, reservation.actor_infos()))

    def _logs(self, parsed: Parsed) -> None:
        mesh = self._session.mesh(parsed.text("targets"))
        follow = parsed.switch("follow")
        with contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext():
            line = ""
            for line in shown_logs(mesh, parsed.count("lines"), parsed.count("run"), follow=follow):
                sys.stdout.write(f"{line}\n")
            if not line:
                show(calm_line(nothing_line(mesh, parsed.count("run"))))

    def _doctor(self, _: Parsed) -> None:
        show(diagnosis_view(self._session.current().doctor()))

    def _push(self, parsed: Parsed) -> None:
        values = {name: self._evaluate(name, expression) for name, expression in push_items(parsed.words)}
        mesh = self._session.mesh(parsed.text("targets"))
        mesh.push(values)
        show(calm_line(f"pushed {', '.join(values)} to {name_ranks(mesh.ranks)}"))

    def _evaluate(self, name: str, expression: str | None) -> Any:
        if expression is not None:
            evaluate: Any = self._shell.ev  # IPython's has no types
            return evaluate(expression)
        if name not in self._shell.user_ns:
            raise UsageError(f"this kernel has no variable {name!r}; a value is pushed as {name}=EXPRESSION")
        return self._shell.user_ns[name]

    def _pull(self, parsed: Parsed) -> list[Any] | None:
        out = checked_name(parsed.text("out"))
        mesh = self._session.mesh(parsed.text("targets"))
        if out is None:
            return mesh.pull(parsed.words[0])
        try:
            self._shell.user_ns[out] = mesh.pull(parsed.words[0])
        except (RunFailed, PickleError) as error:
            if error.run is None:
                raise
            self._shell.user_ns[out] = kept = error.run.kept_values
            if isinstance(error, PickleError):
                raise others_kept(error, out, kept) from None
            error.kept_in = out
            raise
        return None

    def _pip(self, parsed: Parsed) -> None:
        report = self._session.current().pip(*parsed.words, run=self._cells.run_code)
        show(calm_line(str(report)))

    def _interrupt(self, _: Parsed) -> None:
        show(calm_line(str(self._session.mesh().interrupt(kill_stuck=True))))

    def _restart(self, parsed: Parsed) -> None:
        mesh = self._session.mesh()
        targets = parsed.text("targets")
        ranks = None if targets is None else self._session.mesh(targets).ranks
        with Progress(is_notebook(self._shell)) as progress:
            chosen = mesh.ranks if ranks is None else ranks
            progress(f"restarting {name_ranks(chosen)}")
            mesh.restart(ranks)
            progress.done(_restarted_line(chosen, mesh.ranks, progress.elapsed_s))

    def _on(self, parsed: Parsed) -> None:
        targets = parsed.text("targets")
        mesh = self._session.mesh(targets)
        self._mode.start(targets)
        name = self._session.current().name
        show(
            calm_line(
                f"every following cell runs on mesh {name}, {name_ranks(mesh.ranks)}; "
                "%%local at a cell's top runs it in the kernel, %mesh off ends this"
            )
        )

    def _off(self, _: Parsed) -> None:
        was_on = self._mode.on
        self._mode.stop()
        show(calm_line("cells run in the kernel again" if was_on else "cells run in the kernel already"))

    def _help(self, parsed: Parsed) -> None:
        if parsed.word is None:
            show(preformatted(overview(declarations.MESH)))
        elif parsed.word.lstrip("%") in ("cell", "mesh"):
            show(preformatted(help_text(declarations.CELL)))
        else:
            show(preformatted(help_text(declarations.MESH.find(parsed.word))))


def _files_option(chosen: str | None) -> str | bool:
    return True if chosen is None else False if chosen == "none" else chosen


def read_environment(settings: Iterable[str]) -> dict[str, str | None]:
    """Return what `--env NAME[=VALUE]` sets; a name alone takes the kernel's value, which None stands for.

    Raises:
        UsageError: a name that no environment variable can have.
    """
    environment: dict[str, str | None] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name.isidentifier():
            raise UsageError(f"--env is NAME or NAME=VALUE, not {setting!r}")
        environment[name] = value if equals else None
    return environment


def push_items(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return the names that `%mesh push` sets, each with its expression; None stands for the kernel's variable.

    Raises:
        UsageError: something that is neither a name nor NAME=EXPRESSION.
    """
    items: list[tuple[str, str | None]] = []
    for word in words:
        name, equals, expression = word.partition("=")
        if not is_name(name) or (equals and not expression) or expression.startswith("="):
            raise UsageError(f"%mesh push takes NAME or NAME=EXPRESSION without blanks around =, not {word!r}")
        items.append((name, expression if equals else None))
    return items


def _shares(texts: Iterable[str]) -> dict[str, str]:
    """Read what `--share WHO[:run]` grants, by name."""
    return {to: right or "read" for to, _, right in (text.partition(":") for text in texts)}


def _is_to_be_read(message: str) -> bool:
    """Whether what was said while something was reserved is not only a step of it: files that were kept, names to which
    it is shared that nobody may have, and a certificate that expires."""
    return message.startswith(("kept ", "no certificate ", "whether anybody ")) or " for the pool " in message


def _reserved_line(reservation: Reservation, steps: Sequence[str], took: str) -> str:
    mesh = reservation.mesh
    ranks = counted(len(mesh.ranks), "rank")
    if not steps:  # nothing had to be done
        dead = [info.rank for info in mesh.status() if info.state == "dead"]
        alive = (
            f"{ranks} alive" if not dead else f"{name_ranks(dead)} dead, the others alive: %mesh restart -t {dead[0]}"
        )
        left = reservation.status(memory=False).left
        return f"{reservation.name}: already held, {alive}{f', {left} left' if left else ''}"
    line = f"{reservation.name}: {shape(reservation)}, {ranks} ready in {took}"
    if left := reservation.status(memory=False).left:
        line += f", {left} left"
    for message in steps:
        if message.startswith("local pool ready"):
            line += " (started a local pool; monarch-nb down ends it)"
        elif message.startswith("the local pool "):
            line += f" ({message})"
    return line


def _files_line(reservation: Reservation, asked: str | None) -> str:
    """Return where ranks have their files: what they read and write is there."""
    files = reservation.files
    if not files.root and asked != "none":
        return (
            "no files: your home directory is never copied whole; put the notebook into a directory of its project, "
            "or name one: %mesh reserve --replace --files DIR"
        )
    return placed_line(reservation)


def _restarted_line(ranks: Sequence[int], everyone: Sequence[int], elapsed_s: float) -> str:
    lost = f"{name_ranks(ranks)} restarted in {duration(elapsed_s)}: variables and imports are gone"
    if len(ranks) == len(everyone):
        return lost
    return f"{lost} there, the others keep theirs; call dist.init_process_group() on all ranks again"

"""The subcommands of `%mesh`: each reads its line, makes one or two calls of the client, and shows what came of it."""

from __future__ import annotations

import ast
import contextlib
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.meshes import looking
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.reservations.meshes import restarted_line, stopped_line
from monarch_nb.client.reservations.reserve import DEFAULT_NAME
from monarch_nb.client.reservations.sharing import Grant, granted_line
from monarch_nb.client.reservations.taking import unset_note
from monarch_nb.config import POOL_READY
from monarch_nb.errors import (
    MonarchNbError,
    PickleError,
    PoolError,
    RunFailed,
    UsageError,
)
from monarch_nb.ground.rank_sets import counted, listed, name_ranks
from monarch_nb.notebook.cells.cell import CellRunner, others_kept
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.cells.resuming import checked_plan
from monarch_nb.notebook.cells.sent_files import heal
from monarch_nb.notebook.commands.files import FileCommands, placed_line
from monarch_nb.notebook.commands.looking import debug, diff, fold, memory, show_ranks, top
from monarch_nb.notebook.commands.printed import logs, plot
from monarch_nb.notebook.commands.saving import end, last_save_line, list_saves, load, save
from monarch_nb.notebook.commands.scripts import run_command, run_script
from monarch_nb.notebook.mode import MeshMode
from monarch_nb.notebook.output.actors import actors_table
from monarch_nb.notebook.output.tables import (
    Shown,
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
from monarch_nb.notebook.session import (
    ResumePlan,
    Session,
    attached_line,
    divided,
    mesh_called,
    other_notebooks,
    shape,
    unseen_line,
)
from monarch_nb.notebook.syntax import declarations, flags, holding
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
from monarch_nb.provision import jobs
from monarch_nb.times import duration, seconds_of, time_of_day

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.infos import ReservationInfo
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
        self._told_shown: set[str] = set()
        """The runs of which it was said that they were shown to the end: once is enough."""
        self._shell, self._session, self._mode, self._cells = shell, session, mode, cells
        self._handlers: dict[Command, Callable[[Parsed], Any]] = {
            holding.RESERVE: self._reserve,
            holding.ATTACH: self._attach,
            holding.DETACH: self._detach,
            holding.RELEASE: self._release,
            holding.REPLACE: self._replace,
            holding.GROW: self._grow,
            holding.SHRINK: self._shrink,
            holding.STOP: self._stop,
            holding.EXTEND: self._extend,
            holding.SHARE: self._share,
            holding.LIST: self._list,
            declarations.RUN: partial(run_script, session, cells),
            declarations.SH: partial(run_command, session, cells),
            declarations.PANEL: self._panel,
            declarations.STATUS: self._status,
            declarations.STACKS: self._stacks,
            flags.TOP: partial(top, session, shell, panels),
            declarations.ACTORS: self._actors,
            declarations.LOGS: partial(logs, session),
            declarations.FOLD: partial(fold, session),
            declarations.SHOW: partial(show_ranks, session),
            declarations.PLOT: partial(plot, session),
            declarations.DIFF: partial(diff, session, shell),
            flags.MEMORY: partial(memory, session, shell),
            declarations.DEBUG: partial(debug, session, shell),
            declarations.DOCTOR: self._doctor,
            declarations.PUSH: self._push,
            declarations.PULL: self._pull,
            declarations.SAVE: partial(save, session, shell),
            declarations.LOAD: partial(load, session, shell),
            declarations.SAVES: partial(list_saves, session),
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
        parsed = parse(command, rest)
        if parsed.notes:
            show(calm_line("\n".join(parsed.notes)))
        heal(self._session)
        return self._handlers[command](parsed)

    def _bare(self) -> None:
        if self._session.reservation is None:
            show(preformatted(overview(declarations.MESH)))
        else:
            heal(self._session)
            self._status(Parsed(declarations.STATUS))

    def _reserve(self, parsed: Parsed) -> None:
        pool = parsed.text("pool")
        held = holding.held_as(parsed, parsed.word or DEFAULT_NAME, pool, self._session.client.list_everywhere)
        asked, pool = holding.asked_for(parsed, held), pool or (held.pool if held else None)
        reserve = partial(
            self._session.client.reserve,
            parsed.word,
            **asked,
            pool=pool,
            notebook=self._session.notebook,
        )
        plan = self._resume_plan(parsed, reserve)
        before = self._session.reservation
        with Progress(is_notebook(self._shell)) as progress:
            try:
                reservation = reserve(progress=partial(_say, progress))
            except KeyboardInterrupt as interrupt:
                had_begun = bool(progress.messages)
                what = "nothing is reserved" if had_begun else "nothing has changed"
                raise _interrupted(what, interrupt) from None
            self._session.hold(reservation, pool)
            self._session.resume = plan
            steps = [message for message in progress.messages if not _is_to_be_read(message)]
            took = duration(progress.elapsed_s)
            lines = [_reserved_line(reservation, steps, took), _files_line(reservation, parsed.text("files"))]
            if (reload := parsed.text("reload")) and not steps:
                lines.append(f"reload: {reload} from now on")
            if before is not None and before.full_name != reservation.full_name:
                lines.append(f"cells go to {reservation.name} now; {self._session.what_became(before)}")
            lines += filter(None, [unset_note(asked["env"]), *filter(_is_to_be_read, progress.messages)])
            if directory := parsed.text("save"):
                lines.append(str(reservation.mesh.autosave(directory, at_end=True)))
            if steps:  # it is a new one
                lines += [] if parsed.word else self._beside(reservation, before)
                lines += filter(None, [self._session.take_not_left()])
                lines += last_save_line(reservation, parsed.text("save"))
            progress.done("\n".join(lines))

    def _beside(self, reservation: Reservation, before: Reservation | None) -> list[str]:
        """Return a line that says what else of its shape is held, if that is one: the same may have been meant.

        Args:
            before: which cells went to until now; it is said already what goes back to that.
        """
        with contextlib.suppress(MonarchNbError):
            infos = self._session.client.list_reservations(reservation.pool)
            mine = [info for info in infos if info.held_by_me and info.reservation_id != reservation.id]
            alike = [info.name for info in mine if shape(info) == shape(reservation)]
            if len(alike) == 1:
                is_said = before is not None and before.full_name == alike[0]
                uses = "" if is_said else f" (%mesh attach {alike[0]} uses that)"
                return [f"no name was given: this is {reservation.name}, beside {alike[0]} of the same shape{uses}"]
        return []

    def _resume_plan(self, parsed: Parsed, reserve: Callable[..., Reservation]) -> ResumePlan | None:
        """Return how a cell goes on when the engine takes the nodes back, where it was said that it does."""
        tags = parsed.many("setup")
        if not parsed.switch("resume"):
            if tags:
                raise UsageError("--setup names the cells that --resume runs: say --resume, too")
            return None
        plan = ResumePlan(reserve, parsed.text("save") or "", tuple(tags))
        return checked_plan(plan, self._session.notebook, on=parsed.text("on"))

    def _attach(self, parsed: Parsed) -> None:
        before = self._session.reservation
        reservation = self._session.attach(parsed.word, parsed.text("pool"))
        number, from_start = parsed.count("run"), parsed.switch("from_start")
        on = self._session.mesh(name=parsed.text("mesh")) if parsed.text("mesh") else None
        runs, others = divided(self._session.open_runs(on), self._session.notebook)
        if number:
            runs, others = [self._session.run_numbered(number, parsed.text("mesh"))], []
        same = before is not None and before.id == reservation.id
        said = same and (bool(runs) or self._session.reattached_in == self._shell.execution_count)
        if not said:  # `%load_ext` has said it, in a cell above or in this one
            line = attached_line(reservation)  # runs follow, each with a line of its own
            show(calm_line("\n".join(filter(None, [line, self._session.take_not_left()]))))
        if not runs and (last := self._session.last_cell(on)):
            if last.was_cancelled:
                show(calm_line(f"{last} never ran: it was removed from the queue"))
            elif from_start:
                runs = [last]
            elif last.run_id not in self._told_shown:
                show(calm_line(f"{last} was shown to the end: %mesh attach --from-start shows it again"))
                self._told_shown.add(last.run_id)
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
        if parsed.word == "all" and "all" not in self._session.names(parsed.text("pool")):
            raise UsageError("nothing of yours is called 'all': %mesh release --all releases everything that you hold")
        if parsed.switch("all"):
            _revive(parsed.text("pool") or self._session.pool)
            names = self._session.names(parsed.text("pool"))
            if not names:
                show(calm_line("you hold nothing: there is nothing to release"))
        elif parsed.word:
            names = [parsed.word]
        else:
            names = [self._session.current().full_name]
        errors: list[MonarchNbError] = []
        for name in names:
            try:
                self._release_one(name, parsed.text("pool"), saves=parsed.switch("save"))
            except MonarchNbError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else MonarchNbError("\n".join(map(str, errors)))

    def _release_one(self, name: str, pool: str | None, *, saves: bool) -> None:
        current = self._session.reservation
        is_current = current is not None and is_called(current, name) and pool in (None, current.pool)
        pool = pool or self._session.pool
        _revive(current.pool if current is not None and is_current else pool)
        with Progress(is_notebook(self._shell)) as progress:
            progress.done(end(self._session, current if is_current else None, name, pool, progress, saves=saves))
        if is_current:
            self._session.released()
            self._mode.stop()

    def _replace(self, parsed: Parsed) -> None:
        reservation = self._named(parsed.word)
        wait = parsed.seconds("wait") or parsed.switch("wait")
        with Progress(is_notebook(self._shell)) as progress:
            try:
                time_s = parsed.seconds("time")
                replaced = reservation.replace(*parsed.many("node"), wait=wait, time=time_s, progress=progress)
            except KeyboardInterrupt as interrupt:
                raise _interrupted("%mesh status says which nodes there are", interrupt) from None
            others = "the other ranks keep theirs; call dist.init_process_group() on all ranks again"
            took = duration(progress.elapsed_s)
            progress.done("\n".join([f"{reservation.name}: replaced in {took}", *map(str, replaced), others]))

    def _grow(self, parsed: Parsed) -> None:
        nodes = parsed.text("nodes")
        if nodes is None:
            raise UsageError("give the number of nodes: --nodes 4, or --nodes +2 for two more")
        wait, time_s = parsed.seconds("wait") or parsed.switch("wait"), parsed.seconds("time")
        self._resize(
            parsed,
            lambda held, say: held.grow(
                nodes,
                mesh=parsed.text("mesh") or "",
                wait=wait,
                time=time_s,
                progress=say,
            ),
        )

    def _shrink(self, parsed: Parsed) -> None:
        nodes, named = parsed.text("nodes"), parsed.many("node")
        self._resize(
            parsed,
            lambda held, say: held.shrink(nodes, node=named, progress=say),
        )

    def _stop(self, parsed: Parsed) -> None:
        name, reservation = parsed.words[0], self._named(parsed.text("of"))
        show(calm_line(stopped_line(reservation.name, name, reservation.stop_mesh(name))))

    def _resize(self, parsed: Parsed, change: Callable[[Reservation, Progress], object]) -> None:
        reservation = self._named(parsed.word)
        with Progress(is_notebook(self._shell)) as progress:
            try:
                progress.done(str(change(reservation, progress)))
            except KeyboardInterrupt as interrupt:
                raise _interrupted("%mesh status says which nodes there are", interrupt) from None

    def _mesh(self, parsed: Parsed) -> Mesh:
        """Return the part of a mesh that a command is for."""
        return self._session.mesh(parsed.text("targets"), parsed.text("mesh"))

    def _named(self, name: str | None) -> Reservation:
        """Return the reservation of a name, else the notebook's."""
        return self._session.client.attach(name, pool=self._session.pool) if name else self._session.current()

    def _extend(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        if not parsed.words:
            left = reservation.status(memory=False).left
            said = f"{left} left; %mesh extend 2h adds two hours" if left else "held until it is released"
            show(calm_line(f"{reservation.name}: {said}"))
            return
        by_s = seconds_of(parsed.words[0], "TIME")
        left_s = reservation.extend(by_s)
        at = time_of_day(time.time() + left_s)
        show(calm_line(f"{reservation.name}: {duration(by_s)} more, {duration(left_s)} left: released at {at}"))

    def _share(self, parsed: Parsed) -> None:
        to = parsed.text("to")
        if sum(map(parsed.switch, ("read", "run", "end"))) > 1:
            raise UsageError("say one of --read, --run and --end")
        if not to and any(map(parsed.switch, ("read", "run", "end"))):
            raise UsageError("name the user: --to NAME, as in the pool's certificates")
        reservation = self._named(parsed.word)
        if not to:
            shares = ", ".join(f"{name} ({right})" for name, right in reservation.shares.items())
            show(calm_line(f"{reservation.name}: shared with {shares or 'nobody'}"))
        elif parsed.switch("end"):
            reservation.unshare(to)
            show(calm_line(f"{reservation.name}: {to} may not use it any more"))
        else:
            right: Grant = "run" if parsed.switch("run") else "read"
            doubtful = reservation.share(to, right)
            line = granted_line(reservation.owner, reservation.name, reservation.pool, to, right)
            show(calm_line("\n".join(filter(None, [line, doubtful]))))

    def _panel(self, parsed: Parsed) -> None:
        held = self._session.client.attach(parsed.word, pool=self._session.pool) if parsed.word else None
        show(self._panels.panel(held))

    def _list(self, _: Parsed) -> None:
        current = self._session.reservation
        held = self._session.client.list_everywhere()
        mine = [info for info in held.reservations if info.held_by_me]
        costs = {info.reservation_id: _price(info) for info in mine}
        show(reservations_table(held, current.id if current else None, costs))

    def _status(self, parsed: Parsed) -> None:
        reservation, mesh = self._session.current(), self._mesh(parsed)
        try:
            info = reservation.status(memory=False)
        except PoolError:
            if (known := self._known(mesh)) is None:
                raise
            show(known)
            return
        actors = [info for info in reservation.actor_infos() if info.mesh == mesh.name]
        price = _price(info) if info.held_by_me else 0.0
        job = jobs.title_of_pool(info.pool)
        runs = self._session.open_runs(mesh)
        others = [other for other in reservation.meshes.now() if other.id != mesh.id]
        who = info.waiting, price, job, info.absences, info.nodes_without_main
        way_on = mesh.core.way_on("; ".join(info.absences))
        saves = str(mesh.autosave_status() or "")
        said = partial(status_table, way_on=way_on, saves=saves)
        show(said(mesh, mesh.status(), runs, others, info.left, actors, *who))
        for line in other_notebooks(info):
            show(calm_line(line))

    def _known(self, mesh: Mesh) -> Shown | None:
        """Return what this kernel knows while no node answers; None when one does, or their job has ended."""
        said, is_over = jobs.what_became(mesh.reservation.pool)
        ranks, runs = looking.known(mesh)
        if is_over or not ranks:
            return None
        job = jobs.title_of_pool(mesh.reservation.pool)
        return status_table(mesh, ranks, runs, job=job, absences=[said] if said else [], way_on=mesh.core.way_on(said))

    def _stacks(self, parsed: Parsed) -> None:
        show(stacks_view(self._mesh(parsed).stacks().groups))

    def _actors(self, _: Parsed) -> None:
        reservation = self._session.current()
        show(actors_table(reservation.name, reservation.actor_infos()))

    def _doctor(self, _: Parsed) -> None:
        show(diagnosis_view(self._session.current().doctor()))

    def _push(self, parsed: Parsed) -> None:
        values = {name: self._evaluate(name, expression) for name, expression in push_items(parsed.words)}
        mesh = self._mesh(parsed)
        mesh.push(values)
        show(calm_line(f"pushed {', '.join(values)} to {name_ranks(mesh.ranks)}"))

    def _evaluate(self, name: str, expression: str | None) -> Any:
        if expression is not None:
            try:
                return self._shell.ev(expression)
            except Exception as error:
                *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
                if innermost.f_code.co_filename != "<string>" and not isinstance(error, SyntaxError):
                    raise  # from a function that the expression calls, whose frames help
                said = f"%mesh push {name}={expression}: {type(error).__name__}: {error}"
                if isinstance(error, NameError):
                    said += f" in this kernel; {name} = {expression} in a %%mesh cell takes the names of the ranks"
                raise UsageError(said) from None
        if name not in self._shell.user_ns:
            raise UsageError(f"this kernel has no variable {name!r}; a value is pushed as {name}=EXPRESSION")
        return self._shell.user_ns[name]

    def _pull(self, parsed: Parsed) -> list[Any] | None:
        out = checked_name(parsed.text("out"))
        mesh = self._mesh(parsed)
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
        part = self._mesh(parsed)
        with Progress(is_notebook(self._shell)) as progress:
            progress(f"restarting {name_ranks(part.ranks)}")
            part.restart()
            progress.done(restarted_line(part, progress.elapsed_s))

    def _on(self, parsed: Parsed) -> None:
        mesh = self._mesh(parsed)
        self._mode.start(parsed.text("targets"), parsed.text("mesh"))
        show(
            calm_line(
                f"every following cell runs on mesh {mesh_called(mesh)}, {name_ranks(mesh.ranks)}; "
                "%%local at a cell's top runs it in the kernel, %mesh off ends this"
            )
        )

    def _off(self, _: Parsed) -> None:
        was_on = self._mode.on
        self._mode.stop()
        show(
            calm_line(
                "cells run in the kernel again"
                if was_on
                else "cells run in the kernel already: %mesh on sends them to the ranks"
            )
        )

    def _help(self, parsed: Parsed) -> None:
        if parsed.word is None:
            show(preformatted(overview(declarations.MESH)))
        elif parsed.word.lstrip("%") in ("cell", "mesh"):
            show(preformatted(help_text(declarations.CELL)))
        else:
            show(preformatted(help_text(declarations.MESH.find(parsed.word))))


def _revive(pool: str | None) -> None:
    """Start the allocators of a local pool again that died, and say so: what their ranks hold is released by them."""
    pool_object(pool).revive(lambda line: show(calm_line(line)))


def _price(info: ReservationInfo) -> float:
    """Return what a reservation costs in an hour: where a node is lost, its job may have ended."""
    ended = jobs.ended_in(info.pool) if info.nodes_answering < info.nodes else ()
    return jobs.price_per_hour(info.pool, info.name, ended)


def _interrupted(what: str, interrupt: KeyboardInterrupt) -> RunInterrupted:
    """Return what is raised after Ctrl-C, with what there is to say of a job that was asked for."""
    return RunInterrupted("; ".join(filter(None, [f"interrupted: {what}", str(interrupt)])))


def push_items(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return the names that `%mesh push` sets, each with its expression; None stands for the kernel's variable.

    Raises:
        UsageError: something that is neither a name nor NAME=EXPRESSION.
    """
    items: list[tuple[str, str | None]] = []
    for index, word in enumerate(words):
        name, equals, expression = word.partition("=")
        if not is_name(name) or (equals and not expression) or expression.startswith("="):
            told = f"%mesh push takes NAME or NAME=EXPRESSION without blanks around =, not {word!r}"
            if meant := next(filter(None, (_in_parentheses(words[at:]) for at in range(index, -1, -1))), ""):
                told += f"; parentheses keep blanks together: {meant}"
            raise UsageError(told)
        items.append((name, expression if equals else None))
    return items


def _in_parentheses(words: Sequence[str]) -> str:
    """Return an assignment that was cut at its blanks as one word; empty when it is none."""
    name, _, expression = map(str.strip, " ".join(words).partition("="))
    with contextlib.suppress(SyntaxError):
        ast.parse(expression, mode="eval")
        if is_name(name):
            return f"{name}=({expression})" if " " in expression else f"{name}={expression}"
    return ""


def is_called(reservation: Reservation, name: str) -> bool:
    """Whether a name means a reservation: NAME alone is one's own."""
    return name in (reservation.full_name, f"{reservation.owner}/{reservation.name}")


def _say(progress: Progress, message: str) -> None:
    """Say what goes on; what makes people press ■ before it is too late stays beside it."""
    if " share this machine's " in message:
        show(calm_line(message))
    else:
        progress(message)


def _is_to_be_read(message: str) -> bool:
    """Whether what was said while something was reserved is not only a step of it: files that were kept, names to which
    it is shared that nobody may have, a certificate that expires, nodes that are called alike, left out or told
    later, and other pools that may have been meant."""
    return message.startswith(("kept ", "no certificate ", "whether anybody ", "without ")) or any(
        words in message
        for words in (" for the pool ", " nodes are called ", "; you have the pool", ": its ranks go on ")
    )


def _reserved_line(reservation: Reservation, steps: Sequence[str], took: str) -> str:
    mesh = reservation.mesh
    ranks = counted(len(mesh.ranks), "rank")
    job = jobs.title_of_pool(reservation.pool)
    where = f" ({job})" if job else ""
    if not steps:  # nothing had to be done
        dead = [info.rank for info in mesh.status() if info.state == "dead"]
        alive = f"{ranks} alive{where}"
        if dead:
            alive = f"{name_ranks(dead)} dead, the others alive{where}: %mesh restart -t {dead[0]}"
        held = reservation.status(memory=False)
        _, *others = reservation.meshes.now()
        beside = f", and beside {mesh.name} {listed(other.name for other in others)}" if others else ""
        line = f"{reservation.name}: already held, {alive}{beside}{f', {held.left} left' if held.left else ''}"
        return "\n".join([line, *other_notebooks(held)])
    line = f"{reservation.name}: {shape(reservation)}, {ranks} ready in {took}{where}"
    if left := reservation.status(memory=False).left:
        line += f", {left} left"
    for message in steps:
        if message.startswith(POOL_READY):
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

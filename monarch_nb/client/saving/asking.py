"""One question to all ranks of a mesh that save or load, and what came of it; and which directory is meant."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb.client.connections import events
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.pools.infos import RunInfo
from monarch_nb.client.presenting import name_here
from monarch_nb.client.runs.run import Run
from monarch_nb.client.runs.waits import explain_waits
from monarch_nb.errors import MonarchNbError, NodeUnreachable, RunFailed, SaveError, UsageError
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.ground.rank_sets import listed, name_ranks
from monarch_nb.proto import run_pb2
from monarch_nb.worker.saving.asked import NOT_KNOWN, STOPPED, UNCHANGED, near

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation


def directory_of_saves(reservation: Reservation, directory: str | os.PathLike[str]) -> str:
    """Return the absolute path, on the ranks, of a directory of saves.

    A relative one is the notebook's own where nodes see it. Where nodes have copies of the notebook's files, which go
    with the reservation, it is one of the shared storage.

    Raises:
        UsageError: there is no storage that outlives the reservation.
    """
    path = os.path.expanduser(directory)
    if os.path.isabs(path):
        return os.path.normpath(path)
    if not reservation.files.copies:
        return os.path.abspath(path)
    if reservation.shared:
        return os.path.normpath(os.path.join(reservation.shared, path))
    raise UsageError(
        f"{path}: nodes have copies of the notebook's files, which go with the reservation. Name a directory on "
        f"storage that all nodes see, as in /data/me/{path}, or name that storage (%mesh reserve … --shared /data/me). "
        "Without such storage, --bring keeps the save on this computer"
    )


_saved_in: dict[str, None] = {}
"""Where this process has had ranks save, in the order in which it was named last."""
_MOST_NAMED = 2


def note_directory(directory: str) -> None:
    """This process has ranks save in a directory, now or by themselves."""
    _saved_in.pop(directory, None)
    _saved_in[directory] = None


def saved_elsewhere(directory: str, armed: str = "") -> str:
    """Return in which other directories ranks have saved last, and what lists those saves; empty when there are none.

    Args:
        directory: where there are no saves. armed: where the ranks save by themselves; empty when they do not.
    """
    newest = (each for each in (armed, *reversed(_saved_in)) if each and each != os.path.abspath(directory))
    others = [*dict.fromkeys(map(near, newest))][:_MOST_NAMED]
    ways = listed(f"%mesh saves {each}" for each in others)
    lists = "lists" if len(others) == 1 else "list"
    return f"ranks have saved in {listed(others)}: {ways} {lists} that" if others else ""


_ENTRY = "__import__('monarch_nb.worker.saving.entry').worker.saving.entry"
_INTERRUPTED = {
    "save": "nothing was saved, and the saves before are whole",
}

Progress = Callable[[int, int], None]
"""Called with the bytes that the first rank has written, and those that it writes in all."""


def ask(
    mesh: Mesh,
    what: str,
    request: Mapping[str, Any],
    *,
    actor: str = "",
    cell_number: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Have all ranks of a mesh save or load; return the report of the first.

    Raises:
        SaveError: they could not, or ranks are busy.
        RunFailed, RankDead, NodeUnreachable: as of any run.
    """
    check_free(mesh)
    asked = {
        "what": what,
        "request": dict(request),
        "ranks": list(mesh.ranks),
        "actor": actor,
    }
    code = _code(f"{what} {near(request['directory'])}", f"run({json.dumps(asked)!r})")
    heard = _Listener(progress)
    try:
        answers = _values(mesh, code, cell_number, heard, what)
    except RunFailed as error:
        if not (died := [rank for rank, failure in error.failures.items() if failure.kind == "died"]):
            raise
        became = "earlier saves are whole; %mesh saves lists this one if it is whole, too"
        if what == "load":
            living = [rank for rank in mesh.ranks if rank not in died]
            said = {**heard.lines(), **_refusals(error.run, living)}
            became = became_of_load(living, [*error.failures, *said], said)
            anew = f"%mesh restart -t {','.join(map(str, died))}"
            became += f"; what {name_ranks(died)} held is gone: {anew}, and load again"
        raise SaveError(f"{name_ranks(died)} died meanwhile: {became}") from error
    failures = [MonarchNbError.from_facts(each) for each in answers if "error" in each]
    if failures:
        own = [each for each in failures if not getattr(each, "of_others", False)]
        raise (own or failures)[0]
    report: dict[str, Any] = answers[0]["report"]
    mesh.core.saves_behind = bool(report.get("background"))
    return report


def names_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a caller means, who may give one as a text. Pure.

    Example:
        >>> names_of("model"), names_of(["model", "step"])
        (('model',), ('model', 'step'))
    """
    return (names,) if isinstance(names, str) else tuple(names)


def finish_behind(mesh: Mesh) -> str:
    """Wait until what this process has ranks save in the background is on disk; return what became of it, if nobody was
    told. Ranks that run something are left alone: they may hang."""
    if not mesh.core.saves_behind or _running(mesh):
        return ""
    mesh.core.saves_behind = False
    with contextlib.suppress(MonarchNbError):  # a rank is dead: then there is no save
        return next(filter(None, _values(mesh, _code("wait for the save", "wait()"), 0)), "")
    return ""


def ask_first(mesh: Mesh, call_: str) -> Any:
    """Have the first rank call a function of the entry; return its value, which is JSON."""
    return _values(mesh.select(mesh.ranks[0]), _code("look for saves", call_), 0)[0]


def missing_names(mesh: Mesh, names: Iterable[str]) -> dict[str, str]:
    """Return the names of these that no rank has, with what is said of each; none while ranks run something."""
    wanted = list(names)
    if not wanted or _running(mesh):
        return {}
    first, *others = _values(mesh, _code("look for names", f"missing({wanted!r})"), 0)
    return {name: why for name, why in first.items() if all(name in each for each in others)}


def _code(title: str, call_: str) -> str:
    """Return code that calls a function of the entry, in a run that is called by its first line."""
    return f"{title!r}\n{_ENTRY}.{call_}"


def check_free(mesh: Mesh) -> None:
    """Refuse at once where ranks run something: they would save when it is done, or never.

    Raises:
        SaveError: they do. It says who waits for whom, or where they are.
    """
    busy = _running(mesh)
    if not busy:
        return
    if stopped := _stopped(mesh, busy):
        raise SaveError(f"nothing was begun: {stopped}")
    where = call(mesh.core.where(mesh.ranks))
    if len(where) == len(mesh.ranks) and all(each.state == run_pb2.Where.STATE_IDLE for each in where.values()):
        return  # a client was killed while it told nodes of a run: some never hear of it
    if waits := explain_waits({}, where):
        raise SaveError(f"nothing was begun. {waits}")
    run, verb = busy[0], "computes" if len(busy[0].ranks) == 1 else "compute"
    name = name_here(run.number, run.cell_number, run.notebook, run.owner)
    raise SaveError(
        f"nothing was begun: {name_ranks(run.ranks)} {verb} ({name}): wait for it, or interrupt it (%mesh interrupt)"
    )


def _stopped(mesh: Mesh, runs: Iterable[RunInfo]) -> str:
    """Return which ranks stand at breakpoints in these runs, and how they go on; empty when none does."""
    ids = {run.run_id for run in runs}
    places: dict[str, list[int]] = {}
    for stop in Debugger(mesh).stops():
        if stop.run_id in ids:
            places.setdefault(stop.place, []).append(stop.rank)
    if not places:
        return ""
    where = "; ".join(f"{name_ranks(ranks)} stopped at a breakpoint ({place})" for place, ranks in places.items())
    return f"{where}: `c` at the prompt of %mesh debug lets them go on, %mesh interrupt ends what they run"


def _running(mesh: Mesh) -> list[RunInfo]:
    """Return what a save would wait for. A local pool whose allocator has just died heals itself."""
    try:
        unfinished = mesh.unfinished()
    except NodeUnreachable:
        mesh._check_nodes()
        unfinished = mesh.unfinished()
    return [run for run in unfinished if run.holds_ranks]


def became_of_load(ranks: Sequence[int], failed: Collection[int], lines: Mapping[int, str]) -> str:
    """Return what a load that stopped has left on each rank. Pure.

    Args:
        ranks: those that live. failed: those that did not end it. lines: what ranks said when they stopped.

    Example:
        >>> became_of_load([0, 1, 2], [1, 2], {1: "nothing has changed"})
        'rank 0: all is loaded, rank 1: nothing has changed, rank 2: what is loaded is not known; load again'
    """
    said: dict[str, list[int]] = {}
    for rank in ranks:
        what = lines.get(rank, NOT_KNOWN) if rank in failed else "all is loaded"
        said.setdefault(what, []).append(rank)
    if list(said) == [UNCHANGED]:
        return "nothing has changed on the others"
    return ", ".join(f"{name_ranks(those)}: {what}" for what, those in said.items())


def _refusals(run: Run, ranks: Sequence[int]) -> dict[int, str]:
    """Return what those ranks say whose part of a load failed because of others."""
    told = {rank: json.loads(run.kept_values[run.ranks.index(rank)] or "{}") for rank in ranks}
    errors = {rank: str(MonarchNbError.from_facts(each)) for rank, each in told.items() if "error" in each}
    return {rank: _left(text) for rank, text in errors.items()}


def _left(text: str) -> str:
    """Return what a load that stopped has left, of what a rank says of it."""
    return text.rpartition(": ")[2] if STOPPED in text else UNCHANGED


def _values(mesh: Mesh, code: str, cell_number: int, heard: _Listener | None = None, what: str = "") -> Sequence[Any]:
    with at_waits():
        secret = {"of_exchange": secrets.token_hex()}
        run = mesh.submit(code, on_error="abort", cell_number=cell_number, sync=False, listener=heard, secret=secret)
        run.join()
    if not run.is_collected:
        run.collected()
    failures = run.failures
    if failures and all(failure.kind == "interrupted" for failure in failures):
        became = _INTERRUPTED.get(what, "nothing has changed")
        if what == "load" and heard is not None:
            became = became_of_load(mesh.ranks, [failure.rank for failure in failures], heard.lines())
        raise SaveError(f"interrupted: {became}")
    run.raise_failures()
    return [json.loads(each) for each in run.values]


class _Listener:
    """Reads from what the first rank prints how far it is, and from what each prints why it stopped."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._texts: dict[int, str] = {}

    def __call__(self, event: events.Event) -> None:
        if not isinstance(event, events.Text):
            return
        if event.stream == "stderr":
            self._texts[event.rank] = self._texts.get(event.rank, "") + event.text
        elif self._progress is not None:
            for line in event.text.splitlines():
                words = line.split()
                if len(words) == 5 and words[0] == "saving" and words[1].isdigit() and words[3].isdigit():
                    self._progress(int(words[1]), int(words[3]))

    def lines(self) -> dict[int, str]:
        """Return what ranks said of a load that stopped, by rank."""
        found = {rank: text.rpartition(STOPPED)[2].partition("\n")[0] for rank, text in self._texts.items()}
        return {rank: line for rank, line in found.items() if STOPPED in self._texts[rank]}

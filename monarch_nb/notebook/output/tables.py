"""What `%mesh` shows besides the output of runs: calm lines, tables, stacks and logs, as HTML and as plain text."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from monarch_nb.client.pools.infos import line_sentence
from monarch_nb.ground import escapes
from monarch_nb.ground.code_names import run_names
from monarch_nb.ground.rank_sets import counted, format_ranks, name_ranks
from monarch_nb.notebook.session import mesh_called, shape, unseen_line
from monarch_nb.provision.launchers import priced
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.doctor.diagnosis import Diagnosis
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.actor_infos import ActorInfo
    from monarch_nb.client.pools.infos import RankInfo, RunInfo
    from monarch_nb.client.reservations.lists import Holdings

_MUTED = "color:var(--jp-ui-font-color2,#666)"
_ALARM = "color:var(--jp-error-color1,#b00020)"
_MAX_DEATH_CHARACTERS = 48
_MONO = "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)"


@dataclass(frozen=True, slots=True)
class Shown:
    """Something to display: text for terminals and files, HTML for notebooks."""

    plain: str
    html: str

    def __repr__(self) -> str:
        return self.plain

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.plain, "text/html": self.html}


_display: Any = display  # IPython's has no types


def is_notebook(shell: InteractiveShell) -> bool:
    """Return whether displays can be updated in place: a kernel serves a front end; else it is a terminal."""
    return getattr(shell, "kernel", None) is not None


def show(shown: object) -> None:
    """Display it in the cell that executes now."""
    _display(shown)


def show_updatable(shown: object) -> Any:
    """As `show`; the handle's `update` replaces it."""
    return _display(shown, display_id=True)


def calm_line(text: str) -> Shown:
    """Return one quiet line (or a few)."""
    return Shown(text, f'<div style="{_MUTED};font-size:90%;white-space:pre-wrap">{html.escape(text)}</div>')


def preformatted(text: str) -> Shown:
    """Return text whose columns must stay aligned."""
    style = f"{_MONO};line-height:1.4;margin:0;white-space:pre-wrap"
    return Shown(text, f'<pre style="{style}">{html.escape(text)}</pre>')


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], notes: Iterable[str] = ()) -> Shown:
    """Return a table with a title above it and notes below it; columns that are empty everywhere are left out."""
    kept = [column for column, _ in enumerate(headers) if any(row[column] for row in rows)]
    headers = [headers[column] for column in kept]
    rows = [[row[column] for column in kept] for row in rows]
    notes = list(notes)
    widths = [max(len(line[column]) for line in (headers, *rows)) for column in range(len(headers))]
    lines = [title] if title else []
    for line in (headers, *rows) if rows else ():
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        lines.append(("  " + "  ".join(cells)).rstrip())
    return Shown("\n".join([*lines, *notes]), _table_html(title, headers, rows, notes))


def status_table(
    mesh: Mesh,
    ranks: Sequence[RankInfo],
    runs: Sequence[RunInfo],
    others: Sequence[Mesh] = (),
    left: str = "",
    actors: Sequence[ActorInfo] = (),
    waiting: Sequence[str] = (),
    price_per_hour: float = 0.0,
    job: str = "",
    absences: Sequence[str] = (),
    bare: Sequence[str] = (),
    way_on: str = "",
    saves: str = "",
) -> Shown:
    """Return what the ranks of a mesh do, and why any of them died: equal ranks once.

    Args:
        runs: those that go on or that nobody has seen.
        others: the other meshes of the reservation.
        left: how much time is left, if it is limited.
        actors: those that live on these ranks.
        waiting: who waits for such nodes, as `ReservationInfo.waiting` has it.
        price_per_hour: in US dollars, 0 when it is not known.
        job: whose nodes these are, as in "Slurm job 12"; empty when they are of no job.
        absences: what there is to say of nodes of the reservation that do not answer, also where the mesh is not.
        bare: what there is to say of nodes that have no ranks of the main mesh.
        way_on: what to do about nodes that do not answer, if there are any.
        saves: what there is to say of saves that ranks make by themselves.
    """
    ranks = with_processes(ranks, actors)
    titles = run_names(runs)
    at_work = {info.rank: info for info in sorted(actors, key=lambda info: info.running_s) if info.running}
    groups: dict[tuple[str, str], list[RankInfo]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        groups.setdefault((rank.host, _state(rank, titles, at_work.get(rank.rank))), []).append(rank)
    rows = [
        [
            format_ranks(rank.rank for rank in group),
            host,
            state,
            _longest([seconds for rank in group if (seconds := _running_s(rank, at_work.get(rank.rank)))]),
            ",".join(str(index) for rank in group for index in rank.gpu_indices),
            _memory(group),
        ]
        for (host, state), group in groups.items()
    ]
    headers = ["ranks", "host", "state", "for", "GPUs", "memory per rank"]
    dead_ranks = [rank for rank in ranks if rank.state == "dead"]
    dead = [rank.rank for rank in dead_ranks]
    notes = [*_causes(dead_ranks), *_last_words(dead_ranks)]
    notes += [f"rank {rank.rank}: {rank.trouble}" for rank in ranks if rank.trouble]
    fresh = f"starts {'a fresh' if len(dead) == 1 else 'fresh'} {name_ranks(dead)}; other ranks keep their variables"
    notes += [f"%mesh restart{mesh.flag} -t {format_ranks(dead)} {fresh}"] if dead else []
    notes += [_queued_note(run, titles[run.run_id]) for run in runs if run.queued]
    notes += [unseen_line(unseen)] if (unseen := [run for run in runs if run.done]) else []
    away = sorted({rank.absence for rank in ranks if rank.state == "unreachable"})
    notes += [*away, *(text for text in absences if not any(said.startswith(text) for said in away))]
    notes += [way_on] if way_on and (away or absences) else []
    notes += [*(_other_line(other) for other in others), *bare]
    if waiting:
        notes.append(line_sentence(waiting))
    notes += [*saves.splitlines(), *process_notes(ranks, actors)]
    alive = sum(rank.is_alive for rank in ranks)
    reservation = mesh.reservation
    whose = "" if reservation.is_mine else f" of {reservation.owner}"
    size = "" if mesh.flag else f" · {shape(reservation)}"
    is_away = all(rank.state == "unreachable" for rank in ranks)
    lives = "no node answers" if is_away else f"{alive} of {len(ranks)} ranks alive"
    title = f"{mesh_called(mesh)}{whose}{size} · {lives}"
    if job:
        title += f" · {job}"
    if left:
        title += f" · {left} left"
    if price_per_hour:
        title += f" · {priced(price_per_hour)}"
    return table(title, headers, rows, notes)


def with_processes(ranks: Sequence[RankInfo], actors: Sequence[ActorInfo]) -> list[RankInfo]:
    """Return ranks with the memory of the processes that they have started for Monarch's own engine."""
    memory = {(info.rank, info.pid): info.memory_bytes for info in actors if info.pid}
    more = {rank: sum(size for (of, _), size in memory.items() if of == rank) for rank, _ in memory}
    return [replace(info, memory_bytes=info.memory_bytes + more.get(info.rank, 0)) for info in ranks]


def process_notes(ranks: Sequence[RankInfo], actors: Sequence[ActorInfo]) -> list[str]:
    """Return what Monarch's own processes hold, node by node."""
    notes = []
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        mine = [info for info in actors if info.rank == rank.rank and info.pid]
        if mine:
            memory = {info.pid: info.memory_bytes for info in mine}
            of_name: dict[tuple[str, str, str], list[int]] = {}
            for info in mine:
                of_name.setdefault((info.name, info.class_label, info.uid), []).append(info.actor_rank)
            names = ", ".join(f"{key[0]} {format_ranks(of_name[key])} ({key[1]})" for key in sorted(of_name))
            processes = f"{len(memory)} process{'' if len(memory) == 1 else 'es'}"
            size_mib = f"{sum(memory.values()) / 2**20:,.0f}"
            notes.append(f"{rank.host}: Monarch has {processes} with {names}; they take {size_mib} MiB of the memory")
    return notes


def _other_line(mesh: Mesh) -> str:
    return f"{mesh.name}: {counted(mesh.extent.size, 'rank')} more (%mesh status{mesh.flag})"


def reservations_table(held: Holdings, current: str | None, prices: Mapping[str, float] | None = None) -> Shown:
    """Return every reservation, with its pool when several were asked; the one named by the id `current` is marked.

    Args:
        prices: by id, in US dollars per hour, of those where it is known.
    """
    infos = held.reservations
    if not infos:
        nothing = "nobody holds anything: %mesh reserve NAME --nodes 1 --procs 4"
        return calm_line("\n".join([nothing, *held.besides, *held.notes]))
    rows = [
        [
            f"{info.name}{' *' if info.reservation_id == current else ''}",
            info.pool if len(held.pools) > 1 else "",
            shape(info),
            info.mesh_names,
            info.alive_of_all,
            info.holder,
            duration(max(0.0, time.time() - info.created_at)),
            info.left,
            priced((prices or {}).get(info.reservation_id, 0.0)),
            info.notebook,
        ]
        for info in sorted(infos, key=lambda info: (not info.held_by_me, info.name))
    ]
    notes = ["* this notebook's"] if any(info.reservation_id == current for info in infos) else []
    notes += [f"{info.name}: {bare}" for info in infos for bare in info.nodes_without_main]
    notes += [*held.besides, *held.notes]
    headers = ["name", "pool", "shape", "meshes", "ranks alive", "held by", "for", "time left", "costs", "notebook"]
    return table("", headers, rows, notes)


def stacks_view(groups: Sequence[tuple[Sequence[int], str]]) -> Shown:
    """Return the stacks of ranks, each with the ranks that have it; the largest group first."""
    known = ((ranks, text.rstrip() or "no answer: the process is stuck or gone") for ranks, text in groups)
    ordered = sorted(known, key=lambda group: (-len(group[0]), min(group[0])))
    plain = "\n\n".join(f"{name_ranks(ranks)}\n{_indent(text)}" for ranks, text in ordered)
    parts = [
        f"<details{' open' if len(ordered) <= 4 else ''}><summary><b>{html.escape(name_ranks(ranks))}</b> "
        f'<span style="{_MUTED}">{html.escape(_last_line(text))}</span></summary>'
        f'<pre style="{_MONO};margin:0 0 8px 16px;white-space:pre-wrap">{html.escape(text)}</pre></details>'
        for ranks, text in ordered
    ]
    return Shown(plain, "".join(parts))


def diagnosis_view(diagnosis: Diagnosis) -> Shown:
    """Return what differs between the kernel and the nodes, in detail, and what is fine in one line."""
    headers = ["differs", "here", "there", "what to do"]
    return table(diagnosis.title, headers, diagnosis.rows(), diagnosis.lines())


def _table_html(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    cell = "text-align:left;padding:2px 16px 2px 0;vertical-align:top;border:0;background:none"
    head = "".join(f'<th style="{cell};{_MUTED};font-weight:normal">{html.escape(each)}</th>' for each in headers)
    body = ""
    for row in rows:
        alarm = f";{_ALARM}" if any(each.startswith("dead") for each in row) else ""
        cells = (f'<td style="{cell}{alarm}">{html.escape(each)}</td>' for each in row)
        body += f"<tr>{''.join(cells)}</tr>"
    parts = [f"<div><b>{html.escape(title)}</b></div>" if title else ""]
    if rows:
        parts.append(f'<table style="margin:4px 0;border-collapse:collapse;border:0"><tr>{head}</tr>{body}</table>')
    parts += [f'<div style="{_MUTED};font-size:90%;white-space:pre-wrap">{html.escape(note)}</div>' for note in notes]
    return "".join(parts)


def _running_s(rank: RankInfo, at_work: ActorInfo | None) -> float:
    if rank.run_id:
        return rank.running_s
    return at_work.running_s if at_work is not None else 0.0


def _state(rank: RankInfo, titles: dict[str, str], at_work: ActorInfo | None) -> str:
    if rank.state == "dead":
        return f"dead: {_how(rank)}" if rank.death else "dead"
    if rank.run_id:
        was = "unreachable, was " if rank.state == "unreachable" else ""
        return f"{was}running {titles.get(rank.run_id, '')}".rstrip()
    if rank.state == "idle" and at_work is not None:
        return f"running {at_work.name}.{at_work.running}"
    return rank.state


def _how(dead: RankInfo) -> str:
    """Return how it ended, without the likely cause: a table has no room for that."""
    how = (dead.death or "").partition(": ")[0]
    return how if len(how) <= _MAX_DEATH_CHARACTERS else f"{how[: _MAX_DEATH_CHARACTERS - 1]}…"


def _causes(dead: Sequence[RankInfo]) -> list[str]:
    """Return how dead ranks ended, in full, where the table does not say all."""
    groups: dict[str, list[int]] = {}
    for rank in dead:
        if rank.death and rank.death != _how(rank):
            groups.setdefault(rank.death, []).append(rank.rank)
    return [f"{name_ranks(ranks)}: {death}" for death, ranks in groups.items()]


def _longest(running_s: Sequence[float]) -> str:
    return duration(max(running_s)) if running_s else ""


def _last_words(dead: Sequence[RankInfo]) -> list[str]:
    """Return what dead ranks said last, equal words once."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in dead:
        if rank.stderr_tail:
            groups.setdefault(rank.stderr_tail, []).append(rank.rank)
    return [
        "\n".join([f"last words of {name_ranks(ranks)}:", *(f"    {escapes.strip(line)}" for line in tail)])
        for tail, ranks in groups.items()
    ]


def _queued_note(run: RunInfo, name: str) -> str:
    return f"queued: {name} · {name_ranks(run.ranks)} · {duration(max(0.0, time.time() - run.submitted_at))}"


def _memory(group: Sequence[RankInfo]) -> str:
    known = [rank.memory_bytes for rank in group if rank.memory_bytes]
    least, most = (f"{bound(known, default=0) / 2**20:,.0f}" for bound in (min, max))
    return "" if not known else f"{most} MiB" if least == most else f"{least} to {most} MiB"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""

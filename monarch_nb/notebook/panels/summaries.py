"""What stands in the place of a live panel: a reservation or a pool as it was, in HTML and in plain text.

It is made of the same View as the panel (see monarch_nb.panel.shown.view). The HTML reads well where styles are
stripped: states are written as words, and marked with the shapes that the panel has.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.client.pools.facts.choosing import Shape
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.notebook.output.tables import Shown
from monarch_nb.panel.shown.view import Json
from monarch_nb.sizes import size
from monarch_nb.times import duration, time_of_day

_SHAPES = {
    "idle": "○",
    "running": "▶",
    "waiting": "‖",
    "starting": "…",
    "failed": "△",
    "dead": "✕",
    "unreachable": "?",
}
"""Every state of a rank has its own, so that colours need not be seen."""
_COLOURS = {
    "running": "var(--jp-brand-color1,#1976d2)",
    "waiting": "var(--jp-warn-color1,#b25000)",
    "failed": "var(--jp-error-color1,#c62828)",
    "dead": "var(--jp-error-color1,#c62828)",
    "unreachable": "var(--jp-error-color1,#c62828)",
}
_ORDER = ("dead", "failed", "unreachable", "waiting", "running", "starting", "idle")
_MAX_CELLS = 64
"""More ranks are told in words: a saved notebook should not grow by a page for a glance."""
_MUTED = "color:var(--jp-ui-font-color2,#666)"
_FONT = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:var(--jp-ui-font-size1,13px)"
_LINE = "1px solid var(--jp-border-color2,#ccc)"
_CELL = "padding:2px 0;text-align:left;vertical-align:top;border:0;background:none"


@dataclass(frozen=True, slots=True)
class Part:
    """Which ranks are meant: some of a mesh's."""

    mesh_id: str
    ranks: Sequence[int]


def reservation_summary(view: Json, reservation_id: str, heading: str, part: Part | None = None) -> Shown:
    """Return a reservation as the view has it, or what became of it.

    Args:
        heading: what to call it when it is not there any more.
        part: the ranks to show; by default all of its main mesh.
    """
    held = view["reservations"].get(reservation_id)
    if held is None:
        ended = next((one["text"] for one in view["ended"] if one["id"] == reservation_id), "")
        text = ended or view["pool"]["message"] or "it has been released"
        return _block(heading, text, [], [])
    mesh = next(
        (each for each in held["meshes"] if (each["id"] == part.mesh_id if part else each["name"] == "main")), None
    )
    ranks = [rank for rank in mesh["ranks"] if part is None or rank["rank"] in part.ranks] if mesh else []
    name = held["name"] if mesh is None or mesh["name"] == "main" else f"{held['name']}/{mesh['name']}"
    chosen = f", {name_ranks(part.ranks)}" if part and mesh and len(ranks) < len(mesh["ranks"]) else ""
    aside = " · ".join([f"{_shape(held)}{chosen}", *_time(held)])
    return _block(name, aside, ranks, _notes(ranks, mesh["runs"] if mesh else [], view["now"]))


def pool_summary(view: Json) -> Shown:
    """Return what a pool has and who holds what."""
    pool = view["pool"]
    nodes = " · ".join(_node(node) for node in view["nodes"].values())
    parts = [_block(f"pool {pool['name']}", nodes or pool["message"] or "", [], [])]
    parts += [reservation_summary(view, held, "") for held, facts in view["reservations"].items() if facts["mine"]]
    others = [
        f"{held['name']}: {_shape(held)}, held by {held['owner']}"
        for held in view["reservations"].values()
        if not held["mine"]
    ]
    parts += [_block("", "\n".join(others), [], [])] if others else []
    return Shown("\n\n".join(part.plain for part in parts), "".join(part.html for part in parts))


def _shape(held: Json) -> str:
    return str(Shape(held["nodes"], held["procs"], held["gpus"]))


def _time(held: Json) -> list[str]:
    parts = [f"{duration(held['time_left_s'])} left"] if held["time_left_s"] is not None else []
    if held["idle_s"] is not None:
        parts.append(f"released after {duration(held['idle_s'])} without use")
    return parts


def _node(node: Json) -> str:
    kinds = [
        f"{node[kind]['free']} of {node[kind]['total']} {kind} free"
        for kind in ("gpus", "procs")
        if node[kind]["total"]
    ]
    state = "" if node["state"] == "ok" else f" ({node['state']})"
    return f"{node['id']}{state}: {', '.join(kinds) or 'nothing'}"


def _notes(ranks: Sequence[Json], runs: Sequence[Json], now: float) -> list[str]:
    details: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        if rank["detail"]:
            details.setdefault((rank["state"], rank["detail"]), []).append(rank["rank"])
    notes = [f"{name_ranks(chosen)} {_saying(state, detail)}" for (state, detail), chosen in details.items()]
    begun = {rank["run"] for rank in ranks}
    for run in runs:
        if run["id"] in begun:
            name = f"cell {run['cell_number']}" if run["cell_number"] else f"run {run['number']}"
            notes.append(f"{name} runs for {duration(run['running_s'] or 0.0)}: {run['title']}")
    memory = sum(rank["memory"] or 0 for rank in ranks)
    if ranks:
        notes.append(f"{f'{size(memory)} in memory · ' if memory else ''}as of {time_of_day(now)}")
    return notes


def _saying(state: str, detail: str) -> str:
    return detail if state in ("waiting", "dead") else f"{state}: {detail}"


def _block(name: str, aside: str, ranks: Sequence[Json], notes: Sequence[str]) -> Shown:
    by_node: dict[str, list[Json]] = {}
    for rank in ranks:
        by_node.setdefault(rank["node"] or "?", []).append(rank)
    tally = _tally(ranks)
    lines = [" · ".join(filter(None, (name, aside, tally)))]
    width = max(map(len, by_node), default=0)
    lines += [f"  {node.ljust(width)}  {_states(on_node)}" for node, on_node in by_node.items()]
    lines += [f"  {note}" for note in notes]
    head = f"<b>{html.escape(name)}</b> " if name else ""
    parts = [f'<div>{head}<span style="{_MUTED};white-space:pre-line">{html.escape(aside)}</span></div>']
    if by_node:
        rows = "".join(_row(node, on_node, len(ranks) <= _MAX_CELLS) for node, on_node in by_node.items())
        parts.append(f'<table style="border-collapse:collapse;border:0;margin:6px 0">{rows}</table>')
        parts.append(f"<div>{_tally_html(ranks)}</div>")
    if notes:
        text = html.escape("\n".join(notes))
        parts.append(f'<div style="{_MUTED};font-size:90%;white-space:pre-line;margin-top:4px">{text}</div>')
    return Shown("\n".join(lines), f'<div style="{_FONT};line-height:1.5;margin:2px 0 10px">{"".join(parts)}</div>')


def _row(node: str, ranks: Sequence[Json], in_cells: bool) -> str:
    cells = " ".join(map(_rank, ranks)) if in_cells else html.escape(_states(ranks))
    return (
        f'<tr style="background:none"><td style="{_CELL};padding-right:12px;{_MUTED};line-height:24px">'
        f'{html.escape(node)}</td><td style="{_CELL}">{cells}</td></tr>'
    )


def _rank(rank: Json) -> str:
    title = ", ".join(filter(None, (f"rank {rank['rank']}: {rank['state']}", rank["detail"])))
    return (
        f'<span title="{html.escape(title)}" style="display:inline-block;min-width:26px;padding:0 4px;margin:1px;'
        f'border:{_LINE};border-radius:3px;text-align:center;white-space:nowrap">'
        f"{_mark(rank['state'])} {rank['rank']}</span>"
    )


def _mark(state: str) -> str:
    colour = _COLOURS.get(state, "var(--jp-ui-font-color2,#666)")
    return f'<span style="color:{colour}">{_SHAPES[state]}</span>'


def _counts(ranks: Iterable[Json]) -> Mapping[str, int]:
    states = [rank["state"] for rank in ranks]
    return {state: states.count(state) for state in _ORDER if state in states}


def _tally(ranks: Iterable[Json]) -> str:
    return ", ".join(f"{count} {state}" for state, count in _counts(ranks).items())


def _tally_html(ranks: Iterable[Json]) -> str:
    return " &nbsp;".join(f"{_mark(state)} {count} {state}" for state, count in _counts(ranks).items())


def _states(ranks: Iterable[Json]) -> str:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(rank["state"], []).append(rank["rank"])
    return ", ".join(f"{format_ranks(chosen)} {state}" for state, chosen in groups.items())

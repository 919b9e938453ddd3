"""From what allocators say to what the panel shows: one JSON value. Pure."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch_nb.allocator.state.lease import Limits, how_it_ended, why_not_free
from monarch_nb.client.pools.infos import RIGHTS, RankInfo, infos_of_node, run_infos
from monarch_nb.client.reservations.memory import Memory, choose
from monarch_nb.client.saving.autosaves import when_saved
from monarch_nb.config import default_pool
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.panel.shown.ranks import MEMORY_STEP_BYTES, Hangs, actors_of, rank_shown, rounded, runs_shown, work_of
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.times import time_of_day

_FOR_ITS_HOLDER = ("restart", "resize")
_NEED_A_NODE = ("attach", *_FOR_ITS_HOLDER)


def refusals(held: Mapping[str, Any], ending: Collection[str] = ()) -> dict[str, str]:
    """Return why actions would be refused, by action. What is missing can be tried.

    Args:
        held: a reservation, as the view has it.
        ending: the ids of reservations that are released already, as far as nodes say.

    Example:
        >>> refusals({"id": "a", "name": "dev", "mine": True, "nodes_answering": 0})["attach"]
        'no node of dev answers: this can be done again as soon as one does'
    """
    name = held["name"]
    if held["id"] in ending:
        return dict.fromkeys(_NEED_A_NODE, f"{name} is being released")
    if not held["nodes_answering"]:
        away = f"no node of {name} answers: this can be done again as soon as one does"
        return dict.fromkeys(_NEED_A_NODE, away) | _of_others(held)
    return _of_others(held)


def _of_others(held: Mapping[str, Any]) -> dict[str, str]:
    return {} if held["mine"] else dict.fromkeys(_FOR_ITS_HOLDER, only_its_holder(held))


def only_its_holder(held: Mapping[str, Any]) -> str:
    """Return why somebody else's reservation is not changed."""
    return f"{held['name']} is held by {held['owner']}, and only its holder can do this"


Json = dict[str, Any]

_NODE_MEMORY_STEP_BYTES = 50_000_000


@dataclass
class NodeAnswer:
    """What is known of a node.

    Attributes:
        alive: whether its allocator lives. served: whether it ever did; if not, it is being started.
        reply: the newest that it said; None when it never answered.
        silent_s: how long it has been asked in vain; 0 when it answers.
        error: why it does not answer, when it said so.
        away_since: when that was noticed, in seconds since the epoch; 0 when it answers.
    """

    node_id: str
    alive: bool = True
    served: bool = True
    reply: pb.StatusReply | None = None
    silent_s: float = 0.0
    error: str = ""
    away_since: float = 0.0

    @property
    def answers(self) -> bool:
        return self.alive and self.reply is not None and not self.silent_s and not self.error

    @property
    def is_starting(self) -> bool:
        """Whether it has not answered yet, and there is no reason to think that it will not."""
        return not self.served or (self.alive and self.reply is None and not self.silent_s and not self.error)

    @property
    def absence(self) -> str:
        """That it does not answer, and since when."""
        since = f" since {time_of_day(self.away_since)}" if self.away_since else ""
        return f"{self.node_id} unreachable{since}"


@dataclass
class CpuSlots:
    """Which reservation is drawn in which CPU slots of each node, so that none moves when another one goes.

    Allocators only count CPU slots: which is whose is a matter of drawing.
    """

    of_node: dict[str, list[str | None]] = field(default_factory=dict)

    def assign(self, node: str, total: int, held: Mapping[str, int]) -> list[str | None]:
        """Return the reservation of each slot; `held` says how many each holds, oldest first."""
        slots = self.of_node.get(node, [])[:total]
        slots += [None] * (total - len(slots))
        for index, holder in enumerate(slots):
            if holder is not None and holder not in held:
                slots[index] = None
        free = [index for index, holder in enumerate(slots) if holder is None]
        for reservation, count in held.items():
            for _ in range(min(count - slots.count(reservation), len(free))):
                slots[free.pop(0)] = reservation
        self.of_node[node] = slots
        return slots


@dataclass
class Before:
    """What a view needs to know of those before it."""

    slots: CpuSlots = field(default_factory=CpuSlots)
    hangs: Hangs = field(default_factory=Hangs)


@dataclass(frozen=True)
class Notebooks:
    """What is known of notebooks.

    Attributes:
        root: below which they are named as Jupyter's contents API names them; "" for nowhere.
        memories: what they last held.
    """

    root: str = ""
    memories: Sequence[Memory] = ()


NOWHERE = Notebooks()


def build_view(
    pool: str,
    answers: Iterable[NodeAnswer],
    owner: str,
    now: float,
    before: Before,
    notebooks: Notebooks = NOWHERE,
) -> Json:
    """Return the View.

    Args:
        now: seconds since the epoch.
        before: what the views before have left; kept up to date.
    """
    answers = list(answers)
    reservations = _reservations(answers, owner, notebooks.root)
    ending = {one.reservation_id for answer in answers if answer.reply for one in answer.reply.ended}
    for held in reservations.values():
        held["refusals"] = refusals(held, ending)
    _note_users(pool, reservations, notebooks)
    _note_hangs(answers, reservations, before.hangs, now)
    return {
        "pool": _pool(pool, answers),
        "pools": [],
        "owner": owner,
        "now": now,
        "nodes": _nodes(answers, reservations, before.slots),
        "reservations": reservations,
        "ended": _ended(answers, owner),
    }


def no_view(pool: str, owner: str, now: float, message: str) -> Json:
    """Return the View when nothing can be known of the pool."""
    told = {"name": pool, "state": "silent", "message": message, "nodes": 0}
    return {"pool": told, "owner": owner, "now": now, "nodes": {}, "reservations": {}, "ended": [], "pools": []}


def _pool(name: str, answers: list[NodeAnswer]) -> Json:
    state, message = "up", None
    if not any(answer.alive or not answer.served for answer in answers):
        state, message = "down", f"no pool {name!r} is up"
        if answers:
            message = f"the allocators of the pool {name!r} died; starting it again adopts their ranks"
    elif not any(answer.answers or answer.is_starting for answer in answers):
        state, message = "silent", f"no node of the pool {name!r} answers"
        whys = {answer.error for answer in answers if _says_more(answer)}
        if len(whys) == 1:  # as when one's certificate was revoked
            message = f"{message}: {whys.pop()}"
    return {"name": name, "state": state, "message": message, "nodes": len(answers)}


# ---- nodes ----


def _nodes(answers: Iterable[NodeAnswer], reservations: Mapping[str, Json], slots: CpuSlots) -> dict[str, Json]:
    placed: dict[tuple[str, str], list[Json]] = {}
    for reservation in reservations.values():
        for mesh in reservation["meshes"]:
            for rank in mesh["ranks"] if mesh["name"] == "main" else ():
                placed.setdefault((reservation["id"], rank["node"]), []).append(rank)
    return {answer.node_id: _node(answer, placed, slots) for answer in answers}


def _node(
    answer: NodeAnswer,
    placed: Mapping[tuple[str, str], list[Json]],
    slots: CpuSlots,
) -> Json:
    """Return a node as it is shown.

    Args:
        placed: the main mesh's ranks of each reservation on each node.
    """
    state, message = _node_state(answer)
    reply = answer.reply or pb.StatusReply()
    node, readings = reply.node, reply.readings if answer.answers else pb.NodeReadings()
    return {
        "id": answer.node_id,
        "hostname": node.hostname,
        "state": state,
        "message": message,
        "since": time_of_day(answer.away_since) if answer.away_since else None,
        "startable": answer.served and not answer.alive,
        "procs": {"total": node.procs, "free": node.procs_free},
        "gpus": {"total": len(node.gpus), "free": node.gpus_free},
        "memory": _memory(readings, _NODE_MEMORY_STEP_BYTES),
        "cpu": round(readings.cpu, 2) if readings.HasField("cpu") else None,
        "slots": [*_gpu_slots(answer, readings), *_cpu_slots(answer, placed, slots)],
    }


def _node_state(answer: NodeAnswer) -> tuple[str, str | None]:
    if answer.is_starting:
        return "starting", None
    if not answer.alive:
        return "dead", "its allocator died: starting the pool again adopts its ranks"
    if not answer.answers:
        return "silent", answer.error if _says_more(answer) else None
    assert answer.reply is not None
    if error := answer.reply.node.template_error:
        return "dead", f"ranks can not be started: {error}"
    return ("ok", None) if answer.reply.node.template_ready else ("starting", "it imports torch")


def _says_more(answer: NodeAnswer) -> bool:
    """Whether a node's error says more than that it does not answer."""
    silences = ("does not answer", "did not answer in time")
    return bool(answer.error) and answer.error not in [f"{answer.node_id} {silence}" for silence in silences]


def _slot(kind: str, index: int, name: str, reservation: str | None, rank: int | None) -> Json:
    return {
        "kind": kind,
        "index": index,
        "name": name,
        "utilisation": None,
        "memory": None,
        "temperature_c": None,
        "power_w": None,
        "power_limit_w": None,
        "error": None,
        "note": "",
        "reservation": reservation,
        "rank": rank,
    }


def _gpu_slots(answer: NodeAnswer, readings: pb.NodeReadings) -> Iterator[Json]:
    if answer.reply is None:
        return
    ids = {(status.name, status.owner): status.reservation_id for status in answer.reply.reservations}
    holders: dict[int, tuple[str | None, int | None]] = {
        index: (ids.get((holder.reservation, holder.owner)), None)  # also others', whose ranks are not told
        for holder in answer.reply.node.holders
        for index in holder.gpu_indices
    }
    holders |= {
        index: (status.reservation_id, rank.rank)
        for status in answer.reply.reservations
        for mesh in status.meshes
        if mesh.name == "main"
        for rank in mesh.ranks
        for index in rank.gpu_indices
    }
    read = {reading.index: reading for reading in readings.gpus}
    for gpu in answer.reply.node.gpus:
        slot = _slot("gpu", gpu.index, gpu.name, *holders.get(gpu.index, (None, None)))
        if reading := read.get(gpu.index):
            slot["utilisation"] = round(reading.utilisation, 2) if reading.HasField("utilisation") else None
            slot["memory"] = _memory(reading, MEMORY_STEP_BYTES)
            for key in ("temperature_c", "power_w", "power_limit_w"):
                slot[key] = round(getattr(reading, key)) if reading.HasField(key) else None
            slot["error"] = reading.error or None
        slot["note"] = "" if gpu.trouble else why_not_free(gpu)
        if slot["memory"] is None and gpu.memory_bytes:
            slot["memory"] = {"used": None, "total": gpu.memory_bytes}
        yield slot


def _memory(reading: pb.NodeReadings | pb.GpuReading, step_bytes: int) -> Json | None:
    if not reading.HasField("memory_total_bytes"):
        return None
    used = rounded(reading.memory_used_bytes, step_bytes) if reading.HasField("memory_used_bytes") else None
    return {"used": used, "total": reading.memory_total_bytes}


def _cpu_slots(answer: NodeAnswer, placed: Mapping[tuple[str, str], list[Json]], slots: CpuSlots) -> Iterator[Json]:
    if answer.reply is None:
        return
    statuses = sorted(answer.reply.reservations, key=lambda status: status.created_at)
    held = {status.reservation_id: status.procs for status in statuses if status.procs}
    drawn: dict[str, int] = {}
    for index, reservation in enumerate(slots.assign(answer.node_id, answer.reply.node.procs, held)):
        slot = _slot("cpu", index, "", reservation, None)
        if reservation is not None:
            place = drawn[reservation] = drawn.get(reservation, -1) + 1
            ranks = placed.get((reservation, answer.node_id), ())
            if place < len(ranks):
                rank = ranks[place]
                slot["rank"], slot["utilisation"] = rank["rank"], rank["cpu"]
                slot["memory"] = None if rank["memory"] is None else {"used": rank["memory"], "total": None}
        yield slot


# ---- reservations ----


_Part = tuple[NodeAnswer, pb.ReservationStatus]
"""What a node says of a reservation."""


def _reservations(answers: Collection[NodeAnswer], owner: str, root: str) -> dict[str, Json]:
    parts: dict[str, list[_Part]] = {}
    for answer in answers:
        for status in answer.reply.reservations if answer.reply else ():
            parts.setdefault(status.reservation_id, []).append((answer, status))
    there = {answer.reply.node.address for answer in answers if answer.answers and answer.reply}
    told = {
        reservation_id: _reservation(reservation_id, found, owner, root)
        for reservation_id, found in parts.items()
        if not _was_released(found, there)
    }
    return dict(sorted(told.items(), key=lambda item: item[1]["created_at"]))


def _was_released(parts: list[_Part], there: Collection[str]) -> bool:
    """Whether only nodes tell of a reservation that do not answer now, while others that had a place of it do.

    Args:
        there: addresses of the nodes that answer.
    """
    if any(answer.answers for answer, _ in parts):
        return False
    return any(peer.address in there for _, status in parts for peer in status.members)


def _places(parts: list[_Part]) -> dict[int, tuple[str, _Part | None]]:
    """Return the nodes that a reservation has now, by number: what each is called and, if it has told, what. One that
    lost its place while it was away says what was."""
    newest = max((status for _, status in parts), key=lambda status: (status.revision, len(status.members)))
    if not newest.members:
        return {
            part[1].node_rank: (part[0].node_id, part) for part in sorted(parts, key=lambda part: part[1].node_rank)
        }
    told = {part[0].reply.node.address or part[0].node_id: part for part in parts if part[0].reply}
    by_place = {number: told.get(peer.address) or told.get(peer.node_id) for number, peer in enumerate(newest.members)}
    return {
        number: (part[0].node_id if part else newest.members[number].node_id, part) for number, part in by_place.items()
    }


def _reservation(reservation_id: str, parts: list[_Part], owner: str, root: str) -> Json:
    places = _places(parts)
    nodes = [part for _, part in places.values() if part] or parts
    facts = max((status for _, status in nodes), key=lambda status: status.revision)
    statuses = [status for answer, status in nodes if answer.answers] or [facts]
    confirmed = all(status.confirmed for status in statuses)  # before that, no time runs
    limits = Limits(max(status.time_s for status in statuses))
    time_left_s = min(status.time_left_s for status in statuses) if facts.time_s and confirmed else None
    return {
        "id": reservation_id,
        "name": facts.name,
        "owner": facts.owner,
        "mine": facts.owner == owner,
        "nodes": facts.nodes,
        "procs": facts.procs,
        "gpus": facts.gpus,
        "node_ids": [name for name, _ in places.values()],
        "nodes_answering": sum(answer.answers for answer, _ in nodes),
        "notebook": facts.notebook,
        "notebook_path": below(root, facts.notebook),
        "used_by": [],
        "remembered_by": [],
        "created_at": facts.created_at,
        "time_s": limits.time_s or None,
        "time_left_s": time_left_s,
        "idle_s": facts.idle_s or None,
        "idle_left_s": max(status.idle_left_s for status in statuses) if facts.idle_s and confirmed else None,
        "nearly_up": time_left_s is not None and time_left_s <= limits.warn_before_s,
        "price_per_hour": None,
        "right": "own" if facts.owner == owner else RIGHTS.get(facts.right, ""),
        "meshes": [_mesh(mesh_id, nodes, owner) for mesh_id in _mesh_ids(nodes)],
        "actors": actors_of(_answering_meshes(nodes)),
        "refusals": {},
    }


@dataclass(frozen=True)
class _Held:
    """As `choose` wants it."""

    reservation_id: str
    notebook: str
    created_at: float
    held_by_me: bool
    right: str


def _note_users(pool: str, reservations: Mapping[str, Json], notebooks: Notebooks) -> None:
    """Say of each reservation which notebooks, below the root, use it now, and which would: a kernel that has
    not loaded the extension, or has ended, uses nothing."""
    held = [
        _Held(each["id"], each["notebook"], each["created_at"], each["mine"], each["right"])
        for each in reservations.values()
    ]
    memories = {memory.notebook: memory for memory in notebooks.memories}
    for notebook in sorted({*memories, *(each.notebook for each in held)}):
        memory, path = memories.get(notebook), below(notebooks.root, notebook)
        if not path or (memory and (memory.pool or default_pool()) != pool):
            continue
        if found := choose(held, notebook, memory):
            uses = memory is not None and memory.is_current and memory.reservation_id == found.reservation_id
            reservations[found.reservation_id]["used_by" if uses else "remembered_by"].append(path)


def below(root: str, path: str) -> str:
    """Return a notebook's path below the root, with "/" between names; "" when it is not there."""
    if not root or not path or os.path.commonpath([root, path]) != root:
        return ""
    return Path(path).relative_to(root).as_posix()


def _mesh_ids(nodes: list[_Part]) -> list[str]:
    """Return all meshes of a reservation, the main one first."""
    names = {mesh.mesh_id: mesh.name for _, status in nodes for mesh in status.meshes}
    return sorted(names, key=lambda mesh_id: names[mesh_id] != "main")


def _answering_meshes(nodes: list[_Part]) -> list[tuple[str, str, Iterable[pb.Rank]]]:
    """Return id, name and ranks of each mesh; what ranks do whose node does not answer is not known."""
    answering = [mesh for answer, status in nodes if answer.answers for mesh in status.meshes]
    names = {mesh.mesh_id: mesh.name for mesh in answering}
    return [
        (mesh_id, name, [rank for mesh in answering if mesh.mesh_id == mesh_id for rank in mesh.ranks])
        for mesh_id, name in names.items()
    ]


def _mesh(mesh_id: str, nodes: list[_Part], owner: str) -> Json:
    parts = [(answer, mesh) for answer, status in nodes for mesh in status.meshes if mesh.mesh_id == mesh_id]
    spec = parts[0][1].spec
    work = {rank.rank: work_of(rank.actors) for _, mesh in parts for rank in mesh.ranks}
    ranks = {
        info.rank: rank_shown(info, "" if answer.answers else answer.absence, work[info.rank])
        for answer, mesh in parts
        for info in infos_of_node(answer.node_id, mesh)
    }
    for rank in range(spec.world_size):
        if rank not in ranks:
            ranks[rank] = rank_shown(RankInfo(rank, "", 0, "unreachable"), "its node has not answered yet", work=None)
    return {
        "id": mesh_id,
        "name": parts[0][1].name,
        "extent": {axis.name: axis.size for axis in spec.extent},
        "ranks": [ranks[rank] for rank in sorted(ranks)],
        "runs": runs_shown(run_infos(((answer.node_id, mesh) for answer, mesh in parts), owner), ranks),
        "saves": _saves(part for _, part in parts),
        "hang": None,
    }


def _saves(parts: Iterable[pb.MeshStatus]) -> Json | None:
    """Return when the ranks of a mesh save by themselves, and where."""
    armed = next((part.saves for part in parts if part.HasField("saves")), None)
    return None if armed is None else {"when": when_saved(armed), "directory": armed.directory}


def _note_hangs(answers: list[NodeAnswer], reservations: Mapping[str, Json], hangs: Hangs, now: float) -> None:
    """Say of each mesh who waits in vain."""
    parts: dict[str, list[tuple[str, pb.MeshStatus]]] = {}
    for answer in answers:
        for status in answer.reply.reservations if answer.answers and answer.reply else ():
            for mesh in status.meshes:
                parts.setdefault(mesh.mesh_id, []).append((answer.node_id, mesh))
    runs: list[str] = []
    for reservation in reservations.values():
        for mesh in reservation["meshes"]:
            if not any(rank["state"] == "waiting" for rank in mesh["ranks"]):
                continue  # most of the time, and there may be thousands
            told = parts.get(mesh["id"], [])
            ranks = {info.rank: info for node, part in told for info in infos_of_node(node, part)}
            infos = run_infos(told)
            runs += [run.run_id for run in infos]
            if hang := hangs.find(ranks, infos, now):
                mesh["hang"] = {"text": hang.text, "ranks": format_ranks(hang.ranks)}
    hangs.keep(runs)


def _ended(answers: Iterable[NodeAnswer], owner: str) -> list[Json]:
    ended = {
        one.reservation_id: one
        for answer in answers
        for one in (answer.reply.ended if answer.reply else ())
        if one.owner == owner
    }
    return [
        {
            "id": one.reservation_id,
            "name": one.name,
            "ended_at": one.ended_at,
            "why": one.why,
            "by": one.by,
            "text": how_it_ended(one),
        }
        for one in sorted(ended.values(), key=lambda one: one.ended_at)
    ]

"""What the panel does: reserve, start a pool, release, extend, restart, interrupt, stacks; and what it would do."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools import pool as pools
from monarch_nb.client.pools.choosing import Shape, choose_nodes, who_holds
from monarch_nb.client.pools.pool import HeldReservation
from monarch_nb.client.pools.releasing import release
from monarch_nb.client.reservations.arguments import checked_name
from monarch_nb.client.reservations.reservation import Reservation, reserve
from monarch_nb.client.reservations.waiting import fits_when_idle
from monarch_nb.errors import CapacityError, ReservationNotFound, TargetError, UsageError
from monarch_nb.ground.code_names import run_name
from monarch_nb.ground.rank_sets import counted, format_ranks, name_ranks
from monarch_nb.panel.forms import Form, extend_form, reserve_form, up_form
from monarch_nb.panel.hints import clickable
from monarch_nb.panel.jobs import Jobs, Say, Work
from monarch_nb.panel.live import Live
from monarch_nb.panel.refusal import Refused
from monarch_nb.panel.view import Json
from monarch_nb.provision import Provisioner, jobs, provisioner_of
from monarch_nb.shape import Extent, parse_targets
from monarch_nb.sizes import size
from monarch_nb.times import duration


@dataclass(frozen=True)
class Place:
    """Where something is to be reserved from.

    Attributes:
        notebook: path of the notebook that is to hold it; empty for none.
        python: the ranks' python; None for this process's.
    """

    notebook: str = ""
    python: str | None = None


class Actions:
    """The actions on one pool. Methods run on the background loop and return at once; what takes long is a job."""

    def __init__(self, live: Live, jobs: Jobs) -> None:
        self._live, self._jobs, self._pool = live, jobs, live.pool

    @property
    def _provisioner(self) -> Provisioner:
        return provisioner_of(self._pool.name)

    # ---- forms ----

    def forms(self, view: Json) -> dict[str, Form]:
        """Return the forms by action."""
        return {
            "reserve": reserve_form(view),
            "up": up_form(self._provisioner, self._pool.name),
            "extend": extend_form(),
        }

    def check(self, view: Json, action: str, values: object) -> Json:
        """Return whether an action can be done as things are, and why not."""
        forms = self.forms(view)
        if action not in forms:
            raise Refused(404, f"there is no form {action!r}")
        try:
            if action == "reserve":
                return {"ok": True, "message": self._fit(view, self._read_reserve(view, values))}
            forms[action].read(values)
            return {"ok": True, "message": ""}
        except Refused as refused:
            return {"ok": False, "message": refused.message, "errors": refused.errors}

    def _read_reserve(self, view: Json, values: object) -> Json:
        """Return what a form says, or raise Refused; it may have been opened while there was a pool."""
        if view["pool"]["state"] == "down" and isinstance(values, Mapping) and values.get("kind") == "gpus":
            text = "the pool is not up any more: start one first, then its GPUs can be reserved"
            raise Refused(409, text, {"kind": text})
        form = reserve_form(view)
        if isinstance(values, Mapping) and "force_busy" not in [field.name for field in form.fields]:
            values = {name: value for name, value in values.items() if name != "force_busy"}  # there were GPUs
        return form.read(values)

    def _fit(self, view: Json, values: Json) -> str:
        """Return where a reservation would be, or raise Refused."""
        shape = _shape(values)
        try:
            name = checked_name(values["name"])
        except UsageError as error:
            raise Refused(400, str(error), {"name": str(error)}) from None
        for held in view["reservations"].values():
            if held["mine"] and held["name"] == name:
                has = Shape(held["nodes"], held["procs"], held["gpus"])
                if has == shape:
                    return f"you hold {name} already, with {has}"
                text = f"{name} is held already, with {has}: choose another name, or release it first"
                raise Refused(409, text, {"name": text})
        if view["pool"]["state"] == "down":
            return f"no pool is up: a local one, {shape}, will be started"
        replies = self._live.replies()
        nodes = [reply.node for _, reply in replies]
        try:
            chosen = choose_nodes(shape, nodes, force_busy=_forces(values))
        except CapacityError as error:
            if prospect := self._provisioner.prospect(shape.nodes, shape.procs, nodes, pool=self._pool.name):
                return f"the {self._provisioner.title} will become {prospect} for it"
            if values["wait"] and (error.waiting_helps or fits_when_idle(self._pool.name, shape, nodes)):
                return f"waits in line: {who_holds(shape, nodes)}"
            raise Refused(409, str(error), {_short_of(view, shape): _in_short(error)}) from None
        left = sum(node.gpus_free if shape.gpus else node.procs_free for node in nodes) - shape.nodes * shape.per_node
        return (
            f"fits: {', '.join(nodes[index].node_id for index in chosen)}; {counted(left, shape.kind)} free after that"
        )

    # ---- pools ----

    def up(self, view: Json, values: object) -> Json:
        """Start a pool."""
        options = self.forms(view)["up"].read(values)
        was_down = view["pool"]["state"] == "down" and not view["nodes"]

        def work(say: Say) -> Json:
            try:
                nodes = self._provisioner.up(**options, pool=self._pool.name, progress=say)
            except KeyboardInterrupt:
                if was_down:
                    say("ending what was started")
                    self._provisioner.down(pool=self._pool.name, progress=say)
                raise
            return {"nodes": len(nodes)}

        return self._start("up", f"Starting a {self._provisioner.title}", work)

    def down(self, values: Mapping[str, object]) -> Json:
        """End a pool."""
        force = values.get("force") is True

        def work(say: Say) -> Json:
            return {"nodes": self._provisioner.down(force, pool=self._pool.name, progress=say)}

        return self._start("down", f"Ending the {self._provisioner.title}", work)

    # ---- reservations ----

    def reserve(self, view: Json, values: object, place: Place) -> Json:
        """Reserve."""
        read = self._read_reserve(view, values)
        self._fit(view, read)
        shape = _shape(read)
        is_held = any(held["mine"] and held["name"] == read["name"] for held in view["reservations"].values())

        def work(say: Say) -> Json:
            reservation = reserve(
                read["name"],
                nodes=shape.nodes,
                procs=shape.procs or None,
                gpus=shape.gpus or None,
                pool=self._pool.name,
                time=read["time"],
                idle=read["idle"],
                wait=read["wait"],
                force_busy=_forces(read),
                notebook=place.notebook or None,
                python=None if is_held else place.python,  # nobody asked for it: the kernel's is the default
                progress=say,
            )
            reservation.detach()  # else it would never be idle
            return {"reservation": reservation.id}

        return self._start("reserve", f"Reserving {read['name']}", work)

    def release(self, held: Json) -> Json:
        """Release a reservation, also when some of its nodes do not answer."""

        def work(_: Say) -> Json:
            found = self._find(held)
            released = call(release([connection for connection, _ in found.nodes.values()], held["id"]))
            for error in released.failed:
                raise error
            if job := jobs.job_of_pool(self._pool.name):
                jobs.end(job)
            return {"text": "\n".join(map(str, released.kept))}  # where what ranks wrote is now

        return self._start("release", f"Releasing {held['name']}", work)

    def extend(self, held: Json, values: object) -> Json:
        """Add to a reservation's time."""
        by_s = extend_form().read(values)["by"]
        if held["time_s"] is None:
            text = f"{held['name']} has no time limit: it is held until it is released"
            raise Refused(409, text, {"by": text})

        def work(_: Say) -> Json:
            with self._attached(held) as reservation:
                return {"time_left_s": reservation.extend(by_s)}

        return self._start("extend", f"Extending {held['name']}", work)

    def restart(self, held: Json, mesh: Json, ranks: tuple[int, ...]) -> Json:
        """Replace ranks by fresh ones."""

        def work(say: Say) -> None:
            with self._attached(held) as reservation:
                say(f"starting {len(ranks)} rank{'' if len(ranks) == 1 else 's'}")
                _mesh(reservation, mesh, ranks).restart()

        return self._start("restart", f"Restarting {name_ranks(ranks)} of {held['name']}", work)

    def interrupt(self, held: Json, mesh: Json, ranks: tuple[int, ...]) -> Json:
        """Interrupt what runs on ranks; nothing in memory is lost."""

        def work(_: Say) -> Json:
            with self._attached(held) as reservation:
                return {"text": clickable(str(_mesh(reservation, mesh, ranks).interrupt()))}

        return self._start("interrupt", f"Interrupting {name_ranks(ranks)} of {held['name']}", work)

    def stacks(self, held: Json, mesh: Json, ranks: tuple[int, ...]) -> Json:
        """Ask where ranks are."""

        def work(_: Say) -> Json:
            with self._attached(held) as reservation:
                groups = _mesh(reservation, mesh, ranks).stacks().groups
            return {"groups": [{"ranks": format_ranks(chosen), "stack": clickable(stack)} for chosen, stack in groups]}

        return self._start("stacks", f"Stacks of {held['name']}", work)

    def lost(self, held: Json, mesh: Json | None, ranks: tuple[int, ...]) -> str:
        """Return what would be lost, a line each, and what stays.

        Args:
            mesh: of which `ranks` would be restarted; None: everything would be released.
        """
        meshes = held["meshes"] if mesh is None else [mesh]
        alive = [
            rank
            for each in meshes
            for rank in each["ranks"]
            if rank["state"] != "dead" and (mesh is None or rank["rank"] in ranks)
        ]
        runs = [
            run
            for each in meshes
            for run in each["runs"]
            if run["state"] != "finished" and (mesh is None or not self._unfinished(each, run).isdisjoint(ranks))
        ]
        lines = [*_variables(alive), *_runs(runs)]
        if mesh is None:
            lines.append("what was printed: the logs go with it")
            return _losing(lines, "Files that ranks wrote stay on their nodes; it will be said where.")
        others = [rank for rank in mesh["ranks"] if rank["state"] != "dead" and rank["rank"] not in ranks]
        kept = "Logs and files stay."
        if others and alive:
            keep = "The other rank keeps its" if len(others) == 1 else f"The other {len(others)} ranks keep their"
            kept += f" {keep} variables; process groups have to be made again."
        return _losing(lines, kept) if lines else f"Nothing is lost: none of these ranks lives. {kept}"

    def attach_lines(self, held: Json) -> str:
        """Return the code that attaches a notebook."""
        return f"%load_ext monarch_nb\n%mesh attach {shlex.quote(held['name'])}"

    # ---- helpers ----

    def _unfinished(self, mesh: Json, run: Json) -> set[int]:
        """Return the ranks on which a run has not ended."""
        ended = self.ranks(mesh, run["finished"]) if run["finished"] else ()
        return set(self.ranks(mesh, run["ranks"])).difference(ended)

    def held(self, view: Json, reservation_id: object, *, to_look: bool = False) -> Json:
        """Return one's own reservation, or raise Refused.

        Args:
            to_look: nothing is changed, so one that others share will do.
        """
        held: Json | None = view["reservations"].get(reservation_id)
        if held is None and view["pool"]["state"] != "up":
            raise Refused(503, view["pool"]["message"])
        if held is None:
            gone = [one["text"] for one in view["ended"] if one["id"] == reservation_id]
            raise Refused(404, gone[0] if gone else "there is no such reservation (any more)")
        if not (held["mine"] or (to_look and held["right"])):
            raise Refused(403, f"{held['name']} is held by {held['owner']}")
        return held

    def mesh(self, held: Json, mesh_id: object) -> Json:
        """Return a mesh of a reservation, its main one by default, or raise Refused."""
        for mesh in held["meshes"]:
            if mesh["id"] == mesh_id or (mesh_id is None and mesh["name"] == "main"):
                return dict(mesh)
        raise Refused(404, f"{held['name']} has no such mesh (any more)")

    def ranks(self, mesh: Json, targets: object) -> tuple[int, ...]:
        """Return the ranks that are named, all by default, or raise Refused."""
        extent = Extent(mesh["extent"])
        if targets is None:
            return tuple(range(extent.size))
        if not isinstance(targets, str):
            raise Refused(400, f"ranks are a text such as 0-3,6, not {targets!r}", {"ranks": "as in 0-3,6"})
        try:
            return parse_targets(targets, extent)
        except TargetError as error:
            raise Refused(400, str(error), {"ranks": str(error)}) from None

    def _start(self, action: str, title: str, work: Work) -> Json:
        return self._jobs.start(action, title, work, done=self._live.wake)

    def _find(self, held: Json) -> HeldReservation:
        for found in call(self._pool.reservations()):
            if found.reservation_id == held["id"]:
                return found
        raise ReservationNotFound(f"{held['name']} was released meanwhile")

    @contextlib.contextmanager
    def _attached(self, held: Json) -> Iterator[Reservation]:
        """Use a reservation for a moment."""
        found = self._find(held)
        if not found.usable:
            raise pools.not_whole(found, self._pool.name)
        reservation = Reservation(self._pool, found)
        try:
            yield reservation
        finally:
            reservation.detach()


def _variables(alive: Sequence[Json]) -> Iterator[str]:
    """Yield what ranks have in their memory."""
    if alive:
        memory = sum(rank["memory"] or 0 for rank in alive)
        yield f"the variables of {counted(len(alive), 'rank')}" + (f", {size(memory)} in memory" if memory else "")


def _runs(runs: Iterable[Json]) -> Iterator[str]:
    """Yield what runs, and what waits to."""
    for run in runs:
        name = run_name(run["number"], run["cell_number"], run["title"], owner=run["owner"])
        if run["state"] == "running":
            yield f"{name}, which has run for {duration(run['running_s'])}"
        else:
            yield f"{name}, which waits its turn"


def _losing(lines: Iterable[str], kept: str) -> str:
    return "\n".join(["You lose:", *(f"• {line}" for line in lines), kept])


def _short_of(view: Json, shape: Shape) -> str:
    """Return the field that asks for too much: more than any node has, or more nodes than can take that."""
    most = max((node[f"{shape.kind}s"]["total"] for node in view["nodes"].values()), default=0)
    return "per_node" if shape.per_node > most else "nodes"


def _in_short(error: CapacityError) -> str:
    """Return what is missing and what helps: a field has little room, and the nodes are in sight."""
    first, *more = str(error).split("\n")
    return first.rstrip(":") + (f"; {re.split('[;:]', more[-1])[0]}" if more else "")


def _forces(values: Json) -> bool:
    """Return whether GPUs may be taken on which others compute; a pool without any has no such field."""
    return values["kind"] == "gpus" and bool(values.get("force_busy"))


def _shape(values: Json) -> Shape:
    procs = values["per_node"] if values["kind"] == "procs" else 0
    return Shape(values["nodes"], procs, 0 if procs else values["per_node"])


def _mesh(reservation: Reservation, mesh: Json, ranks: tuple[int, ...]) -> Mesh:
    connections = reservation.mesh.core.connections
    return Mesh(mesh["id"], mesh["name"], Extent(mesh["extent"]), reservation, connections).select(ranks)

"""What the panel does: reserve, start a pool, release, extend, resize, replace, restart, interrupt; and what it would
do."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.choosing import Shape, choose_nodes, who_holds
from monarch_nb.client.pools.held import HeldReservation, not_whole
from monarch_nb.client.pools.leasing import ReleasedLater, not_released, release
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.client.reservations.taking import checked_name, fits_when_idle
from monarch_nb.config import default_pool
from monarch_nb.errors import (
    CapacityError,
    MonarchNbError,
    NodeUnreachable,
    ReservationNotFound,
    TargetError,
    UsageError,
)
from monarch_nb.ground.code_names import run_name
from monarch_nb.ground.rank_sets import counted, format_ranks, name_ranks
from monarch_nb.panel.forms import HERE, Form, Resize, extend_form, reserve_form, resize_form, shape_of, up_form
from monarch_nb.panel.jobs import Jobs, Say, Work
from monarch_nb.panel.live import Live
from monarch_nb.panel.refusal import Refused, clickable, in_short
from monarch_nb.panel.shown.view import Json, only_its_holder
from monarch_nb.panel.ways import Request, Way, names_in_use, recall, remember, ways
from monarch_nb.provision import Provisioner, jobs, provisioner_of
from monarch_nb.provision.known import check_known
from monarch_nb.shape import Extent, parse_targets
from monarch_nb.sizes import size
from monarch_nb.times import duration


@dataclass(frozen=True)
class Origin:
    """Where something is reserved from.

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
        self._ways: dict[str, Way] | None = None

    @property
    def _provisioner(self) -> Provisioner:
        return provisioner_of(self._pool.name)

    # ---- forms ----

    async def forms(self, view: Json) -> dict[str, Form]:
        """Return the forms by action, as what can be asked for is now: without one that starts a pool where people
        start its nodes."""
        self._ways = {way.name: way for way in await ways()}
        forms = {"reserve": self._reserve_form(view), "extend": extend_form(), "resize": resize_form()}
        if self._provisioner.options(pool=self._pool.name):
            forms["up"] = self._up_form()
        return forms

    def _reserve_form(self, view: Json) -> Form:
        last = recall()
        places = [way.place(last) for way in (self._ways or {}).values()]
        return reserve_form(view, places, last.where, names_in_use())

    def _up_form(self) -> Form:
        return up_form(self._provisioner, self._pool.name)

    async def check(self, view: Json, action: str, values: object, held: Json | None) -> Json:
        """Return whether an action can be done as things are, and why not.

        Args:
            held: the reservation that it is about, if it is about one.
        """
        forms = {"up": self._up_form, "extend": extend_form}
        if action not in ("reserve", "resize", *forms):
            raise Refused(404, f"there is no form {action!r}")
        try:
            if action == "reserve":
                return {"ok": True, "message": await self._check_reserve(view, values)}
            if action == "resize":
                return {"ok": True, "message": self._check_resize(view, held, values)}
            forms[action]().read(values)
            return {"ok": True, "message": ""}
        except MonarchNbError as error:
            refused = Refused.of(error)
        except Refused as error:
            refused = error
        return {"ok": False, "message": refused.message, "errors": refused.errors}

    async def _check_reserve(self, view: Json, values: object) -> str:
        read = await self._read_reserve(view, values)
        if request := self._request(read):
            return await asyncio.to_thread(request.prospect)
        return self._fit(view, read)

    async def _read_reserve(self, view: Json, values: object) -> Json:
        """Return what a form says, or raise Refused; it may have been opened while there was a pool."""
        if self._ways is None:
            await self.forms(view)  # the server was restarted meanwhile
        where, kind = (values.get("where", HERE), values.get("kind")) if isinstance(values, Mapping) else (HERE, None)
        if view["pool"]["state"] == "down" and (where, kind) == (HERE, "gpus"):
            text = "the pool is no longer up: start one first, then reserve its GPUs"
            raise Refused(409, text, {"kind": text})
        form = self._reserve_form(view)
        if isinstance(values, Mapping) and "force_busy" not in [field.name for field in form.fields]:
            values = {name: value for name, value in values.items() if name != "force_busy"}  # there were GPUs
        return form.read(values)

    def _check_resize(self, view: Json, held: Json | None, values: object) -> str:
        if held is None:
            raise Refused(400, "reservation is missing", {"reservation": "a text"})
        replies = [reply for _, reply in self._live.replies()]
        return _resize(view, held, values).prospect(replies, self._provisioner, self._pool.name)

    def _request(self, read: Json) -> Request | None:
        """Return what is asked of an engine; None when the pool is meant."""
        _checked_name(read)
        where = read.get("where", HERE)
        return None if where == HERE else (self._ways or {})[where].request(read)

    def _fit(self, view: Json, values: Json) -> str:
        """Return where a reservation would be, or raise Refused."""
        shape, name = shape_of(values), values["name"]
        for held in view["reservations"].values():
            if held["mine"] and held["name"] == name:
                has = Shape(held["nodes"], held["procs"], held["gpus"])
                if has == shape:
                    return f"you hold {name} already, with {has}"
                text = f"{name} is held already, with {has}: choose another name, or release it first"
                raise Refused(409, text, {"name": text})
        if view["pool"]["state"] == "down":
            check_known(self._pool.name)
            return f"no pool is up: a local one, {shape}, starts first"
        replies = self._live.replies()
        nodes = [reply.node for _, reply in replies]
        try:
            chosen = choose_nodes(shape, nodes, force_busy=_forces(values))
        except CapacityError as error:
            if prospect := self._provisioner.prospect(shape.nodes, shape.procs, nodes, pool=self._pool.name):
                return f"the {self._provisioner.title} becomes {prospect} for it"
            if view["pool"]["state"] == "silent":
                text = f"{view['pool']['message']}: nothing can be reserved there until one does"
                raise Refused(409, text, {"nodes": text}) from None
            if values["wait"] and (error.waiting_helps or fits_when_idle(self._pool.name, shape, nodes)):
                return f"waits in line: {who_holds(shape, nodes)}"
            raise Refused(409, str(error), {_short_of(view, shape): in_short(error)}) from None
        left = sum(node.gpus_free if shape.gpus else node.procs_free for node in nodes) - shape.nodes * shape.per_node
        return (
            f"fits: {', '.join(nodes[index].node_id for index in chosen)}; {counted(left, shape.kind)} free after that"
        )

    # ---- pools ----

    def up(self, view: Json, values: object) -> Json:
        """Start a pool."""
        options = self._up_form().read(values)
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

    # ---- reservations ----

    async def reserve(self, view: Json, values: object, origin: Origin) -> Json:
        """Reserve."""
        read = await self._read_reserve(view, values)
        request = self._request(read)
        if request is None:
            self._fit(view, read)
        title = f"Reserving {read['name']}"
        if any(job["title"] == title for job in self._jobs.running()):
            text = f"{read['name']} is being reserved, or waits in line, already: wait for it, or cancel that first"
            raise Refused(409, text, {"name": text})
        if isinstance(values, Mapping):
            remember(recall().after(values))
        mine = (held["name"] for held in view["reservations"].values() if held["mine"])
        is_held = read["name"] in (names_in_use() if request else mine)
        shape = shape_of(read)

        def work(say: Say) -> Json:
            reservation = reserve(
                read["name"],
                nodes=shape.nodes,
                procs=shape.procs or None,
                gpus=shape.gpus or None,
                pool=None if request else self._pool.name,
                on=request.on if request else None,
                on_arguments=request.arguments if request else (),
                time=read["time"],
                idle=read["idle"],
                wait=read.get("wait", False),
                force_busy=_forces(read),
                notebook=origin.notebook or None,
                python=None if is_held else origin.python,  # nobody asked for it: the kernel's is the default
                progress=say,
            )
            reservation.detach()  # else it would never be idle
            return {"reservation": reservation.id, "pool": reservation.pool}

        return self._start("reserve", title, work)

    def release(self, held: Json) -> Json:
        """Release a reservation, also when some of its nodes do not answer."""

        def work(say: Say) -> Json:
            self._provisioner.revive(pool=self._pool.name, progress=say)
            found = self._found(held)
            released = call(release(found.connections.values(), held["id"], by="in the panel"))
            left = released.leftovers
            if (job := jobs.job_of_pool(self._pool.name)) and job.reservation == held["name"]:
                left = [*released.kept, *map(ReleasedLater, jobs.end_all(job.pool))]  # which ends what does not answer
            elif released.failed:
                raise not_released(held["name"], released.failed[0])
            return {"text": "\n".join(map(str, left))}  # where what ranks wrote is now, and who could not be told

        return self._start("release", f"Releasing {held['name']}", work)

    def extend(self, held: Json, values: object) -> Json:
        """Add to a reservation's time."""
        by_s = extend_form().read(values)["by"]
        if held["time_s"] is None:
            text = f"{held['name']} has no time limit: it is held until it is released"
            raise Refused(409, text, {"by": text})

        def work(reservation: Reservation, _: Say) -> Json:
            return {"time_left_s": reservation.extend(by_s)}

        return self._start_on(held, "extend", f"Extending {held['name']}", work)

    def resize(self, view: Json, held: Json, values: object) -> Json:
        """Have more nodes, or give some back."""
        resize = _resize(view, held, values)

        def work(reservation: Reservation, say: Say) -> Json:
            if not resize.is_growing:
                return {"text": str(reservation.shrink(resize.nodes, progress=say))}
            return {"text": str(reservation.grow(resize.nodes, mesh=resize.mesh, progress=say))}

        doing = "Growing" if resize.is_growing else "Shrinking"
        return self._start_on(held, "resize", f"{doing} {held['name']} to {counted(resize.nodes, 'node')}", work)

    def restart(self, held: Json, mesh: Json, ranks: tuple[int, ...]) -> Json:
        """Replace ranks by fresh ones."""

        def work(reservation: Reservation, say: Say) -> None:
            say(f"starting {counted(len(ranks), 'rank')}")
            _mesh(reservation, mesh, ranks).restart()

        return self._start_on(held, "restart", f"Restarting {name_ranks(ranks)} of {held['name']}", work)

    def replace(self, held: Json) -> Json:
        """Put free nodes in the places of those that do not answer."""

        def work(reservation: Reservation, say: Say) -> Json:
            return {"text": "\n".join(map(str, reservation.replace(progress=say)))}

        return self._start_on(held, "replace", f"Replacing nodes of {held['name']}", work)

    def interrupt(self, held: Json, mesh: Json, ranks: tuple[int, ...]) -> Json:
        """Interrupt what runs on ranks; nothing in memory is lost."""

        def work(reservation: Reservation, _: Say) -> Json:
            return {"text": clickable(str(_mesh(reservation, mesh, ranks).interrupt()))}

        return self._start_on(held, "interrupt", f"Interrupting {name_ranks(ranks)} of {held['name']}", work)

    def stacks(self, held: Json, mesh: Json, ranks: tuple[int, ...]) -> Json:
        """Ask where ranks are."""

        def work(reservation: Reservation, _: Say) -> Json:
            groups = _mesh(reservation, mesh, ranks).stacks().groups
            return {"groups": [{"ranks": format_ranks(chosen), "stack": clickable(stack)} for chosen, stack in groups]}

        return self._start_on(held, "stacks", f"Stacks of {held['name']}", work)

    def lost(self, held: Json, mesh: Json | None, ranks: tuple[int, ...], *, kept: str = "Logs and files stay.") -> str:
        """Return what would be lost, a line each, and what stays.

        Args:
            mesh: of which `ranks` would be started anew; None: everything would be released.
            kept: what stays of these ranks.
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
            return _losing(lines, "Files that ranks wrote stay on their nodes; the panel says where.")
        others = [rank for rank in mesh["ranks"] if rank["state"] != "dead" and rank["rank"] not in ranks]
        if others and alive:
            keep = "The other rank keeps its" if len(others) == 1 else f"The other {len(others)} ranks keep their"
            kept += f" {keep} variables; process groups have to be made again."
        return _losing(lines, kept) if lines else f"Nothing is lost: none of these ranks lives. {kept}"

    def lost_by_resize(self, view: Json, held: Json, values: object) -> str:
        """Return what would be lost."""
        gone = ", ".join(_resize(view, held, values).leaving)
        kept = f"Logs of ranks on {gone} are deleted. Files that they wrote are kept, and the panel says where."
        return f"Nothing is lost: all ranks stay as they are. {kept}"

    def attach_lines(self, view: Json, held: Json) -> str:
        """Return the code that attaches a notebook."""
        whose = "" if held["mine"] else f"{held['owner']}/"
        words = ["%mesh", "attach", shlex.quote(whose + held["name"])]
        may_look_elsewhere = len(view["pools"]) > 1 or self._pool.name != default_pool()
        words += ["--pool", self._pool.name] if may_look_elsewhere else []
        return f"%load_ext monarch_nb\n{' '.join(words)}"

    # ---- helpers ----

    def _unfinished(self, mesh: Json, run: Json) -> set[int]:
        """Return the ranks on which a run has not ended."""
        ended = self.ranks(mesh, run["finished"]) if run["finished"] else ()
        return set(self.ranks(mesh, run["ranks"])).difference(ended)

    def held(self, view: Json, reservation_id: object, *, right: str = "own", action: str = "") -> Json:
        """Return a reservation with which one may do something, or raise Refused.

        Args:
            right: "own", or what will do of those that others share: "run" cells there, or "read".
            action: what it is for, where that may not be possible now.
        """
        held: Json | None = view["reservations"].get(reservation_id)
        if held is None and view["pool"]["state"] != "up":
            raise Refused(503, view["pool"]["message"])
        if held is None:
            gone = [one["text"] for one in view["ended"] if one["id"] == reservation_id]
            raise Refused(404, gone[0] if gone else "there is no such reservation (any more)")
        if _RIGHTS.index(held["right"]) < _RIGHTS.index(right):
            raise Refused(403, only_its_holder(held))
        if why := held["refusals"].get(action):
            raise Refused(409, why)
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

    def _found(self, held: Json) -> HeldReservation:
        """Return a reservation, also one of which no node answers."""
        try:
            return self._find(held)
        except (NodeUnreachable, ReservationNotFound):
            told = self._live.held(held["id"])
            if not told.nodes or not all(self._live.is_silent(node.name) for node, _ in told.nodes.values()):
                raise
            return told

    def _find(self, held: Json) -> HeldReservation:
        for found in call(self._pool.reservations()):
            if found.reservation_id == held["id"]:
                return found
        raise ReservationNotFound(f"{held['name']} was released meanwhile")

    def _start_on(self, held: Json, action: str, title: str, work: Callable[[Reservation, Say], object]) -> Json:
        """Start what uses a reservation for a moment."""

        def attached(say: Say) -> object:
            found = self._find(held)
            if not found.usable:
                raise not_whole(found, self._pool.name)
            reservation = Reservation(self._pool, found)
            try:
                return work(reservation, say)
            finally:
                reservation.detach()

        return self._start(action, title, attached)


_RIGHTS = ("", "read", "run", "own")
"""What people may do with a reservation; each has those before it."""


def _resize(view: Json, held: Json, values: object) -> Resize:
    read = resize_form().read(values)
    return Resize.of(view, held, read["nodes"], read["mesh"])


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


def _forces(values: Json) -> bool:
    """Return whether GPUs may be taken on which others compute; a pool without any has no such field."""
    return values["kind"] == "gpus" and bool(values.get("force_busy"))


def _checked_name(values: Json) -> None:
    """Raise Refused when the name that was entered is none."""
    try:
        checked_name(values["name"])
    except UsageError as error:
        raise Refused(400, str(error), {"name": str(error)}) from None


def _mesh(reservation: Reservation, mesh: Json, ranks: tuple[int, ...]) -> Mesh:
    """Return a part of a mesh, which may be on other nodes than the main one, or raise Refused."""
    for there in reservation.meshes.now():
        if there.id == mesh["id"]:
            return there.select(ranks)
    raise Refused(404, f"{reservation.name} has no {mesh['name']} any more")

"""Forms: declared once, shown by the panel and the widget, and read back with a message for each field. Also what would
become of a reservation with more nodes, or fewer. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from monarch_nb.client.pools.choosing import Shape, choose_nodes, lacking
from monarch_nb.client.reservations.growing import GROWN, places_to_leave
from monarch_nb.errors import CapacityError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.panel.refusal import Refused, in_short
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import MOST_NODES, MOST_PROCS, Option, Provisioner, jobs
from monarch_nb.times import seconds_of

HERE = "here"
"""The value of the field "where" that means the pool that is shown; the others are names of engines."""

FieldType = Literal["integer", "text", "duration", "choice", "boolean"]


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        name: its key in the values. label, help, placeholder: for people.
        default: what it has at first; None is empty.
        choices: of a choice, each {"value", "label"}.
        where: the place that it is asked for: shown, and read, when that is the value of the field "where".
    """

    name: str
    label: str
    type: FieldType
    default: Any = None
    minimum: int | None = None
    maximum: int | None = None
    choices: Sequence[Mapping[str, str]] = ()
    placeholder: str = ""
    help: str = ""
    required: bool = True
    where: str = ""

    @classmethod
    def of(cls, option: Option) -> Field:
        """Return the field for what a provisioner declares."""
        return cls(
            option.name,
            option.label,
            option.kind,
            option.default,
            option.minimum,
            option.maximum,
            [{"value": value, "label": label} for value, label in option.choices],
            help=option.help,
        )

    def read(self, value: object) -> Any:
        """Return what was filled in: durations in seconds; None when nothing was.

        Raises:
            UsageError: it makes no sense; the text goes below the field.
        """
        if value is None or (isinstance(value, str) and not value.strip()):
            if self.required:
                raise UsageError("fill this in")
            return None
        if self.type == "integer":
            return self._integer(value)
        if self.type == "duration":
            return seconds_of(value if not isinstance(value, bool) else None, "this")
        if self.type == "boolean":
            if not isinstance(value, bool):
                raise UsageError(f"true or false, not {value!r}")
            return value
        if not isinstance(value, str):
            raise UsageError(f"a text, not {value!r}")
        if self.type == "choice" and value not in [choice["value"] for choice in self.choices]:
            raise UsageError(f"{value!r} is none of {', '.join(each['value'] for each in self.choices)}")
        return value.strip()

    def _integer(self, value: object) -> int:
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if type(number) is not int:
            raise UsageError(f"a whole number, not {value!r}")
        if self.minimum is not None and number < self.minimum:
            raise UsageError(f"at least {self.minimum}")
        if self.maximum is not None and number > self.maximum:
            raise UsageError(f"at most {self.maximum}")
        return number


@dataclass(frozen=True)
class Place:
    """Where nodes come from: the value of the field "where", what people read, and what is asked for there alone."""

    value: str
    label: str
    fields: Sequence[Field] = ()


@dataclass(frozen=True)
class Form:
    """What an action is asked for."""

    action: str
    title: str
    submit: str
    fields: Sequence[Field]

    def to_json(self) -> Json:
        return asdict(self)

    def read(self, values: object) -> Json:
        """Return every field's value by name.

        Raises:
            Refused: something is missing, out of range or unknown: a message for each field.
        """
        if not isinstance(values, Mapping):
            raise Refused(400, "values are missing")
        fields = self._fields_at(values.get("where"))
        read, errors, labels = {}, {}, {field.name: field.label for field in fields}
        for field in fields:
            try:
                read[field.name] = field.read(values.get(field.name, field.default))
            except UsageError as error:
                errors[field.name] = str(error)
        for name in values.keys() - labels.keys():
            errors[str(name)] = f"there is no field {name!r}"
        if errors:
            first, text = next(iter(errors.items()))
            raise Refused(400, f"{labels.get(first, first)}: {text}", errors)
        return read

    def _fields_at(self, chosen: object) -> list[Field]:
        """Return those of a place, of the first one by default."""
        default = next((field.default for field in self.fields if field.name == "where"), "")
        return [field for field in self.fields if field.where in ("", chosen or default)]


def reserve_form(view: Json, engines: Sequence[Place] = (), where: str = HERE, taken: Collection[str] = ()) -> Form:
    """Return the form for reservations. What this pool has is no limit: it may take another shape.

    Args:
        engines: that can be asked for nodes besides. where: which place it has at first.
        taken: names not to suggest.
    """
    nodes = view["nodes"].values()
    most = {kind: max((node[kind]["total"] for node in nodes), default=0) for kind in ("gpus", "procs")}
    kinds = [{"value": "procs", "label": "CPU ranks"}]
    if most["gpus"]:
        kinds.insert(0, {"value": "gpus", "label": "GPUs"})
    free = max((node[kinds[0]["value"]]["free"] for node in nodes), default=0)
    held = {*taken, *(one["name"] for one in view["reservations"].values() if one["mine"])}
    name = next(each for each in ["main", *(f"main-{number}" for number in range(2, 1000))] if each not in held)
    places = [Place(HERE, f"this pool, {view['pool']['name']}"), *engines]
    default = where if where in [place.value for place in places] else HERE
    choices = [{"value": place.value, "label": place.label} for place in places]
    asks = Field("where", "Where", "choice", default, choices=choices, help="where the nodes come from")
    here = [
        Field("nodes", "Nodes", "integer", 1, 1, max(len(nodes), MOST_NODES)),
        Field("kind", "Kind", "choice", kinds[0]["value"], choices=kinds),
        Field("per_node", "Per node", "integer", free or 1, 1, max(*most.values(), MOST_PROCS)),
        time_field(),
        idle_field(),
        Field("wait", "Wait in line", "boolean", False, help="wait for what others hold: first come, first served"),
        *([_FORCE_BUSY] if most["gpus"] else []),
    ]
    others = [field for place in places for field in place.fields]
    return Form(
        "reserve",
        "Reserve",
        "Reserve",
        [
            *([asks] if engines else []),
            Field("name", "Name", "text", name, help="the name by which you find it again"),
            *(replace(field, where=HERE if engines else "") for field in here),
            *others,
        ],
    )


def time_field() -> Field:
    """Return what a time limit is asked by."""
    return Field(
        "time",
        "Time",
        "duration",
        placeholder="8h; empty: no limit",
        help="8h, 90m or 2d: then it is released, also while a cell runs",
        required=False,
    )


def idle_field() -> Field:
    """Return what a limit for doing nothing is asked by."""
    return Field(
        "idle",
        "Idle",
        "duration",
        placeholder="2h; empty: for ever",
        help="released when no cell runs and no notebook is attached for so long",
        required=False,
    )


def shape_of(values: Json) -> Shape:
    """Return what a form for reservations asks for."""
    procs = values["per_node"] if values["kind"] == "procs" else 0
    return Shape(values["nodes"], procs, 0 if procs else values["per_node"])


_FORCE_BUSY = Field(
    "force_busy",
    "Use busy GPUs",
    "boolean",
    False,
    help="also take GPUs on which other programs compute, when no others are free; they share memory and time",
)


def up_form(provisioner: Provisioner, pool: str) -> Form:
    """Return the form that starts a pool: what its provisioner declares."""
    fields = [Field.of(option) for option in provisioner.options(pool=pool)]
    return Form("up", f"Start a {provisioner.title}", "Start", fields)


def extend_form() -> Form:
    """Return the form that adds to a reservation's time."""
    by = Field("by", "Add", "duration", "1h", placeholder="1h, 30m, 2d", help="to its time limit")
    return Form("extend", "Extend", "Extend", [by])


def resize_form() -> Form:
    """Return the form that gives a reservation more nodes, or fewer."""
    nodes = Field("nodes", "Nodes", "integer", 1, 1, MOST_NODES, help="how many nodes to hold")
    mesh = Field("mesh", "Mesh", "text", GROWN, help="the name of the new mesh over all nodes, when you grow")
    return Form("resize", "Resize", "Resize", [nodes, mesh])


@dataclass(frozen=True)
class Resize:
    """A reservation that is to have another number of nodes.

    Attributes:
        held: the reservation, as the view has it.
        away: the names of its nodes that do not answer.
        nodes: how many nodes to hold.
        mesh: the name of the new mesh that is to be over all of them, when there are more.
    """

    held: Json
    away: frozenset[str]
    nodes: int
    mesh: str

    @classmethod
    def of(cls, view: Json, held: Json, nodes: int, mesh: str) -> Resize:
        """Return it, or raise Refused: there are so many, or ranks are to start where nobody answers, or are where
        nodes are to be given back."""
        nowhere = {"state": "silent"}
        away = frozenset(name for name in held["node_ids"] if view["nodes"].get(name, nowhere)["state"] != "ok")
        resize = cls(held, away, nodes, mesh)
        if nodes == held["nodes"]:
            raise _refused(f"{held['name']} has {counted(nodes, 'node')} already")
        resize._check_meshes()
        if away and resize.is_growing:
            are = "does" if len(away) == 1 else "do"
            raise _refused(f"{', '.join(sorted(away))} {are} not answer: Replace nodes… first, or have fewer nodes")
        return resize

    @property
    def is_growing(self) -> bool:
        return self.nodes > int(self.held["nodes"])

    @property
    def leaving(self) -> list[str]:
        """The names of the nodes that are given back."""
        if self.is_growing:
            return []
        names = self.held["node_ids"]
        away = [place for place, name in enumerate(names) if name in self.away]
        return [names[place] for place in places_to_leave(dict(enumerate(names)), away, self.nodes, ())]

    def prospect(self, replies: Iterable[pb.StatusReply], provisioner: Provisioner, pool: str) -> str:
        """Return what would become of the reservation, or raise Refused.

        Args:
            replies: of the nodes that answer.
        """
        if not self.is_growing:
            return f"{', '.join(self.leaving)} given back"
        main = self.held["meshes"][0]
        ranks = counted(self.nodes * len(main["ranks"]) // len(self._nodes_of(main)), "rank")
        return f"{self._more(list(replies), provisioner, pool)}; {self.mesh} has {ranks} then, others stay"

    def _more(self, asked: list[pb.StatusReply], provisioner: Provisioner, pool: str) -> str:
        """Return which nodes come, or raise Refused."""
        others = [reply.node for reply in asked if self.held["id"] not in _held_on(reply)]
        shape = Shape(self.nodes - self.held["nodes"], self.held["procs"], self.held["gpus"])
        try:
            chosen = choose_nodes(shape, others, besides=len(asked) - len(others))
        except CapacityError as error:
            if job := jobs.job_of_pool(pool):
                return f"asks {job.on} for {counted(lacking(shape, others), 'node')} more"
            nodes, own = [reply.node for reply in asked], (self.held["name"], self.held["owner"])
            if becomes := provisioner.prospect(shape.nodes, shape.procs, nodes, pool=pool, but=own):
                return f"the {provisioner.title} becomes {becomes} for it"
            text = in_short(error) if others else "the pool has no other node that answers"
            if not others and provisioner.options(pool=pool):
                text += ": Add nodes… (at Nodes) makes it larger"
            raise _refused(text) from None
        return f"{', '.join(others[index].node_id for index in chosen)} besides"

    def _check_meshes(self) -> None:
        """Raise Refused when a mesh has ranks on nodes that are to be given back."""
        there = [mesh["name"] for mesh in self.held["meshes"] if not self._nodes_of(mesh).isdisjoint(self.leaving)]
        if there:
            have = f"{' and '.join(there)} {'has' if len(there) == 1 else 'have'} ranks on {', '.join(self.leaving)}"
            way = "main stays on its nodes" if "main" in there else f"%mesh stop {there[0]} ends them first"
            raise _refused(f"{have}: {way}")

    def _nodes_of(self, mesh: Json) -> set[str]:
        """Return the names of the nodes that a mesh has ranks on."""
        names = {rank["node"] for rank in mesh["ranks"]}
        return names - {""} | (set(self.away) if "" in names else set())  # of a node that has not told since


def _held_on(reply: pb.StatusReply) -> list[str]:
    return [status.reservation_id for status in reply.reservations]


def _refused(text: str) -> Refused:
    return Refused(409, text, {"nodes": text})

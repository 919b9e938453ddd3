"""Forms: declared once, shown by the panel and the widget, and read back with a message for each field. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from monarch_nb.errors import UsageError
from monarch_nb.panel.refusal import Refused
from monarch_nb.panel.view import Json
from monarch_nb.provision import MOST_NODES, MOST_PROCS, Provisioner
from monarch_nb.times import seconds_of

FieldType = Literal["integer", "text", "duration", "choice", "boolean"]


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        name: its key in the values. label, help, placeholder: for people.
        default: what it has at first; None is empty.
        choices: of a choice, each {"value", "label"}.
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
        read, errors, labels = {}, {}, {field.name: field.label for field in self.fields}
        for field in self.fields:
            try:
                read[field.name] = field.read(values.get(field.name, field.default))
            except UsageError as error:
                errors[field.name] = str(error)
        for name in values.keys() - {field.name for field in self.fields}:
            errors[str(name)] = f"there is no field {name!r}"
        if errors:
            first, text = next(iter(errors.items()))
            raise Refused(400, f"{labels.get(first, first)}: {text}", errors)
        return read


def reserve_form(view: Json) -> Form:
    """Return the form for reservations. What this pool has is no limit: it may take another shape."""
    nodes = view["nodes"].values()
    most = {kind: max((node[kind]["total"] for node in nodes), default=0) for kind in ("gpus", "procs")}
    kinds = [{"value": "procs", "label": "CPU ranks"}]
    if most["gpus"]:
        kinds.insert(0, {"value": "gpus", "label": "GPUs"})
    free = max((node[kinds[0]["value"]]["free"] for node in nodes), default=0)
    held = [one["name"] for one in view["reservations"].values() if one["mine"]]
    name = next(each for each in ["main", *(f"main-{number}" for number in range(2, 1000))] if each not in held)
    return Form(
        "reserve",
        "Reserve",
        "Reserve",
        [
            Field("name", "Name", "text", name, help="how it is found again"),
            Field("nodes", "Nodes", "integer", 1, 1, max(len(nodes), MOST_NODES)),
            Field("kind", "Kind", "choice", kinds[0]["value"], choices=kinds),
            Field("per_node", "Per node", "integer", free or 1, 1, max(*most.values(), MOST_PROCS)),
            Field(
                "time",
                "Time",
                "duration",
                placeholder="8h; empty: no limit",
                help="8h, 90m or 2d: then it is released, also while a cell runs",
                required=False,
            ),
            Field(
                "idle",
                "Idle",
                "duration",
                placeholder="2h; empty: for ever",
                help="released when no cell runs and no notebook is attached for so long",
                required=False,
            ),
            Field("wait", "Wait in line", "boolean", False, help="for what others hold: who came first is first"),
            *([_FORCE_BUSY] if most["gpus"] else []),
        ],
    )


_FORCE_BUSY = Field(
    "force_busy",
    "Use busy GPUs",
    "boolean",
    False,
    help="also those on which other programs compute, where no others are free: memory and time are shared then",
)


def up_form(provisioner: Provisioner, pool: str) -> Form:
    """Return the form that starts a pool: what its provisioner declares."""
    fields = [
        Field(
            option.name,
            option.label,
            option.kind,
            option.default,
            option.minimum,
            option.maximum,
            [{"value": value, "label": label} for value, label in option.choices],
            help=option.help,
        )
        for option in provisioner.options(pool=pool)
    ]
    return Form("up", f"Start a {provisioner.title}", "Start", fields)


def extend_form() -> Form:
    """Return the form that adds to a reservation's time."""
    by = Field("by", "Add", "duration", "1h", placeholder="1h, 30m, 2d", help="to its time limit")
    return Form("extend", "Extend", "Extend", [by])

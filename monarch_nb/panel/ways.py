"""Where nodes come from besides the pool that is shown: what can be asked of each engine, as a part of the form, and
what was entered last.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monarch_nb.client.pools.choosing import Shape
from monarch_nb.config import TrustPaths, config_directory, patience
from monarch_nb.errors import MonarchNbError, TrustError, UsageError
from monarch_nb.panel.forms import HERE, Field, Place, idle_field, shape_of, time_field
from monarch_nb.panel.refusal import Refused
from monarch_nb.panel.shown.view import Json
from monarch_nb.provision import MOST_NODES, MOST_PROCS, Option, jobs
from monarch_nb.provision.launchers import (
    Ask,
    Job,
    flags_of,
    launcher,
    launcher_names,
    offer_of,
    options_of,
    priced,
    target_of,
)
from monarch_nb.trust.pools import pools_directory
from monarch_nb.trust.private_files import read_private, write_private

OPTIONS_S = patience(5.0)
"""So long an engine may take to say what can be chosen; one that takes longer is asked by flags alone."""
_KINDS = ({"value": "gpus", "label": "GPUs"}, {"value": "procs", "label": "CPU ranks"})


@dataclass(frozen=True)
class Way:
    """An engine that can be asked for nodes here.

    Attributes:
        name: as in `--on`. title: what its jobs are called.
        targets: what can stand after its name; empty for nothing.
        options: what people choose.
    """

    name: str
    title: str
    targets: str = ""
    options: tuple[Option, ...] = ()

    def place(self, last: Last) -> Place:
        """Return its part of the form, with what was entered last."""
        return Place(self.name, self.name, [*self._filled(last.values.get(self.name, {}))])

    def _filled(self, last: Mapping[str, Any]) -> Iterator[Field]:
        for one in self._fields():
            try:
                one.read(last[one.name])
            except (KeyError, UsageError):  # a choice that is no more
                yield one
            else:
                yield replace(one, default=last[one.name])

    def _fields(self) -> Iterator[Field]:
        where = self.name
        if self.targets:
            note = f"the target, after --on {self.name}:"
            yield Field(
                f"{where}.target", "Target", "text", placeholder=self.targets, help=note, required=False, where=where
            )
        for option in self.options:
            yield replace(Field.of(option), name=f"{where}.{option.name}", required=False, where=where)
        yield Field("nodes", "Nodes", "integer", 1, 1, MOST_NODES, where=where)
        yield Field("kind", "Kind", "choice", "gpus", choices=_KINDS, where=where)
        yield Field("per_node", "Per node", "integer", 1, 1, MOST_PROCS, where=where)
        yield replace(time_field(), where=where)
        yield replace(idle_field(), where=where)
        yield Field(
            f"{where}.flags",
            "Flags",
            "text",
            placeholder="--name=value …",
            help="flags for the engine, as after -- in %mesh reserve",
            required=False,
            where=where,
        )

    def request(self, values: Json) -> Request:
        """Return what is asked, given what was read from the form.

        Raises:
            Refused: the flags can not be read.
        """
        try:
            flags = shlex.split(values[f"{self.name}.flags"] or "")
        except ValueError as error:
            raise Refused(400, f"Flags: {error}", {f"{self.name}.flags": str(error)}) from None
        chosen = {option.name: values[f"{self.name}.{option.name}"] for option in self.options}
        target = values.get(f"{self.name}.target")
        on = f"{self.name}:{target}" if target else self.name
        return Request(
            self.title, on, values["name"], shape_of(values), values["time"], (*flags_of(self.options, chosen), *flags)
        )


@dataclass(frozen=True)
class Request:
    """What is asked of an engine.

    Attributes:
        title: what its jobs are called. on: it, with its target.
        time_s: None for as long as it gives.
        arguments: for it alone.
    """

    title: str
    on: str
    name: str
    shape: Shape
    time_s: float | None
    arguments: tuple[str, ...]

    def prospect(self) -> str:
        """Return what the engine would do. It is asked; that may take a while.

        Raises:
            Refused: the name has a job of another shape. MonarchNbError: the engine would refuse.
        """
        pool, shape = jobs.pool_name(self.on, self.name), self.shape
        if (job := jobs.job_of_pool(pool)) and not jobs.what_became(pool)[1]:
            return self._known(job)
        paths = TrustPaths(TrustPaths(pools_directory() / pool).jobs / "1")
        sizes = shape.nodes, shape.procs, shape.gpus
        ask = Ask(self.name, pool, *sizes, self.time_s or 0.0, self.arguments, paths, target_of(self.on))
        offer = offer_of(launcher(self.on), ask)
        price = priced(offer.price_per_hour)
        return "; ".join(filter(None, [f"asks {self.on} for {shape}", offer.text, price]))

    def _known(self, job: Job) -> str:
        if (job.nodes, job.procs, job.gpus) == (self.shape.nodes, self.shape.procs, self.shape.gpus):
            return f"{self.title} {job.id} is there for it already"
        has = Shape(job.nodes, job.procs, job.gpus)
        text = f"{self.name} has {self.title} {job.id} already, with {has}: choose another name, or release it first"
        raise Refused(409, text, {"name": text})


async def ways() -> list[Way]:
    """Return the engines that can be asked here, each with what it offers now."""
    asked = {name: asyncio.create_task(asyncio.to_thread(_way, name)) for name in launcher_names()}
    if asked:
        await asyncio.wait(asked.values(), timeout=OPTIONS_S)
    found = (task.result() if task.done() else Way(name, name) for name, task in asked.items())
    return [way for way in found if way]


def _way(name: str) -> Way | None:
    """Return an engine; None where it, or the package that it needs, is not there."""
    try:
        engine = launcher(name)
        return Way(name, engine.title, getattr(engine, "targets", ""), tuple(options_of(engine)))
    except (MonarchNbError, ImportError):
        return None


def names_in_use() -> Collection[str]:
    """Return the reservations that have a job."""
    return {job.reservation for job in jobs.jobs()}


# ---- what was entered last ----


@dataclass(frozen=True)
class Last:
    """What was entered last: where, and for each engine the values of its fields."""

    where: str = HERE
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def after(self, values: Mapping[str, Any]) -> Last:
        """Return the same when a form was submitted."""
        where = str(values.get("where", HERE))
        if where == HERE:
            return replace(self, where=HERE)
        kept = {name: value for name, value in values.items() if name not in ("name", "where")}
        return Last(where, {**self.values, where: kept})


def _file() -> Path:
    return config_directory() / "panel.json"


def recall() -> Last:
    """Return what was entered last; what can not be read is forgotten."""
    try:
        last = json.loads(read_private(_file()))
        return Last(str(last["where"]), {where: dict(values) for where, values in last["values"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TrustError):
        return Last()


def remember(last: Last) -> None:
    """Keep it for the next form. A disk that refuses costs only that comfort."""
    path = _file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps({"where": last.where, "values": last.values}, indent=2).encode() + b"\n")
    except (OSError, TrustError):
        return

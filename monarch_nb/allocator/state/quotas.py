"""Limits of fairness: how much of a pool a person or a group may hold at a time. Pure.

A reservation counts with all nodes that it has or is about to have, whoever of them answers. What is held on several
nodes is told by these: `pb.Held` for each part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from monarch_nb.errors import LimitReached
from monarch_nb.ground.rank_sets import counted
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.toml_lines import Problems, parse_toml

KINDS = {"nodes": "node", "gpus": "GPU"}
"""What can be limited, and what one of it is called."""

GroupsOf = Callable[[str], Collection[str]]
"""Returns the groups of a person that have limits."""


@dataclass(frozen=True)
class Entry:
    """Who may have how much at most.

    Attributes:
        name: of a person or a group; `*` in it stands for any characters.
        most: by kind; infinity where it is said that there is no limit.
        members: of a group, names or patterns; None: those of the Unix group.
    """

    name: str
    most: Mapping[str, float]
    members: tuple[str, ...] | None = None

    def means(self, name: str) -> bool:
        return fnmatchcase(name, self.name)

    @property
    def closeness(self) -> tuple[bool, int]:
        """The entry that says most of a name is the closest: the name itself, then the longest pattern."""
        return "*" not in self.name, len(self.name) - self.name.count("*")


@dataclass(frozen=True)
class Quotas:
    """The limits of a pool.

    Attributes:
        contact: who can raise limits; may be empty.
        nodes: where the pool's nodes are, in words of `monarch-nb pool add`.
    """

    people: tuple[Entry, ...] = ()
    groups: tuple[Entry, ...] = ()
    contact: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def group_names(self) -> list[str]:
        """Those that have limits of their own; patterns say what these have besides."""
        return [entry.name for entry in self.groups if "*" not in entry.name]

    def listed_groups(self, person: str) -> set[str]:
        """Return the groups whose members the file lists, and a person is one of."""
        return {
            entry.name
            for entry in self.groups
            if entry.members is not None and any(fnmatchcase(person, member) for member in entry.members)
        }

    def limits_of(self, who: str, *, is_group: bool) -> dict[str, tuple[float, str]]:
        """Return the most that somebody may have, by kind, and whose entry says so: of those that mean them the closest
        that says something of the kind."""
        entries = [entry for entry in (self.groups if is_group else self.people) if entry.means(who)]
        found: dict[str, tuple[float, str]] = {}
        for entry in sorted(entries, key=lambda entry: entry.closeness):
            found |= {kind: (most, entry.name) for kind, most in entry.most.items()}
        return {kind: limit for kind, limit in found.items() if limit[0] != float("inf")}


@dataclass
class Reserved:
    """A reservation, put together from its parts.

    Attributes:
        gpus: on each node.
    """

    owner: str
    name: str
    nodes: int
    gpus: int

    def amount(self, kind: str) -> int:
        """Return how much it holds."""
        return self.nodes * (self.gpus if kind == "gpus" else 1)


def put_together(parts: Iterable[pb.Held]) -> dict[str, Reserved]:
    """Return reservations by id. A part that is to take another one's place counts with that one."""
    by_id: dict[str, list[pb.Held]] = {}
    for part in parts:
        by_id.setdefault(part.reservation_id, []).append(part)
    return {reservation_id: _reserved(parts) for reservation_id, parts in by_id.items()}


def _reserved(parts: list[pb.Held]) -> Reserved:
    places = {part.node_rank for part in parts if part.confirmed}
    coming = Counter(part.node_rank for part in parts if not part.confirmed)
    nodes = sum(part.confirmed for part in parts) + sum(n - (place in places) for place, n in coming.items())
    return Reserved(
        parts[0].owner, parts[0].name, max(nodes, *(part.nodes for part in parts), 1), max(part.gpus for part in parts)
    )


@dataclass
class Holdings:
    """What people hold of a pool: reservations, by id."""

    reserved: dict[str, Reserved] = field(default_factory=dict)

    @classmethod
    def told(cls, replies: Iterable[pb.UsageReply]) -> Holdings:
        """Put together what nodes tell."""
        return cls(put_together(part for reply in replies for part in reply.held))

    def amount(self, kind: str, people: Collection[str]) -> int:
        """Return what some people have together."""
        return sum(each.amount(kind) for each in self.reserved.values() if each.owner in people)

    @property
    def people(self) -> set[str]:
        return {each.owner for each in self.reserved.values()}


def check(quotas: Quotas, holdings: Holdings, reservation_id: str, groups_of: GroupsOf, file: str, node: str) -> None:
    """Let a reservation that is among those held stay, or raise.

    Args:
        file, node: where the limits are said, for the message.

    Raises:
        LimitReached: somebody would have more than they may.
    """
    asked = holdings.reserved[reservation_id]
    for who, is_group in [(asked.owner, False), *((group, True) for group in sorted(groups_of(asked.owner)))]:
        people = [one for one in holdings.people if who in groups_of(one)] if is_group else [who]
        for kind, (most, entry) in quotas.limits_of(who, is_group=is_group).items():
            wants, total = asked.amount(kind), holdings.amount(kind, people)
            if wants and total > most:
                whose = f"the group {who}" if is_group else who
                of_entry = "" if entry == who else f', as the limit of "{entry}" says'
                limit = f"{whose} may have {amount_of(kind, most)} at most{of_entry}"
                held = [
                    f"{one.name}{f' ({one.owner})' if is_group else ''} {amount_of(kind, one.amount(kind))}"
                    for one in holdings.reserved.values()
                    if one is not asked and one.owner in people and one.amount(kind)
                ]
                has, less = "", "ask for less"
                if held:
                    has = f" holds {amount_of(kind, total - wants)} ({', '.join(held)}),"
                    less = "release what is not needed, or ask for less"
                who_can = f"{quotas.contact or 'whoever runs the allocators'} can raise the limit, in {file} on {node}"
                why = f"{limit},{has} and {asked.name} takes {amount_of(kind, wants)}: {less}; {who_can}"
                raise LimitReached(why, who, kind, most, total - wants)


def amount_of(kind: str, amount: float) -> str:
    """Return "8 GPUs" or "1 node"."""
    return counted(int(amount), KINDS[kind])


def standings(quotas: Quotas, holdings: Holdings, groups_of: GroupsOf, people: Iterable[str] = ()) -> list[pb.Standing]:
    """Return how near people and groups are to their limits.

    Args:
        people: those to name besides who holds something.
    """
    named = {entry.name for entry in quotas.people if "*" not in entry.name}
    known = holdings.people | named | set(people)
    found = []
    for who, is_group in [*((one, False) for one in sorted(known)), *((one, True) for one in quotas.group_names)]:
        members = [one for one in known if who in groups_of(one)] if is_group else [who]
        for kind, (most, entry) in quotas.limits_of(who, is_group=is_group).items():
            has = holdings.amount(kind, members)
            found.append(pb.Standing(who=who, is_group=is_group, kind=kind, most=most, held=has, entry=entry))
    return found


NO_LIMIT = "none"
"""As a limit: what another entry says of it does not hold here."""
_NAME = re.compile(r"[A-Za-z0-9_.@+*-]{1,64}")
_TOP = ("contact", "nodes", "people", "groups")


def read_quotas(text: str) -> tuple[Quotas, list[str]]:
    """Return what a file says, and what is wrong with it: "line 3: ...", in the order of the lines. What is wrong
    limits nothing."""
    try:
        content = parse_toml(text)
    except ValueError as error:
        return Quotas(), [str(error)]
    reader = _Reader(text)
    return reader.quotas(content), reader.told()


class _Reader(Problems):
    """Reads one file, and collects what is wrong."""

    def quotas(self, content: Mapping[str, Any]) -> Quotas:
        for key in content:
            if key not in _TOP:
                self.add((key,), f"there is no {key!r}: a file has {', '.join(_TOP)}")
        return Quotas(
            people=self._entries(content, "people"),
            groups=self._entries(content, "groups"),
            contact=self._text(content.get("contact", "")),
            nodes=self._words(("nodes",), content.get("nodes", [])),
        )

    def _entries(self, content: Mapping[str, Any], section: str) -> tuple[Entry, ...]:
        entries = content.get(section, {})
        if not isinstance(entries, dict):
            self.add((section,), f'{section} is a table of names, as in [{section}."alice"]')
            return ()
        return tuple(entry for name, told in entries.items() if (entry := self._entry(section, name, told)))

    def _entry(self, section: str, name: str, told: Any) -> Entry | None:
        if not _NAME.fullmatch(name):
            self.add((section, name), f"{name!r} is no name: letters, digits and _.@+-, and * for any of them")
            return None
        if not isinstance(told, dict):
            self.add((section, name), f'{name} is a table of limits, as in [{section}."{name}"]')
            return None
        members = None
        if section == "groups" and "members" in told:
            members = self._words((section, name, "members"), told["members"])
        most = {}
        for key, value in told.items():
            if key == "members" and section == "groups":
                continue
            if key not in KINDS:
                can_be = ", ".join([*KINDS, *(["members"] if section == "groups" else [])])
                self.add((section, name, key), f"there is no {key!r}: limits are {can_be}")
            elif value == NO_LIMIT:
                most[key] = float("inf")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                self.add((section, name, key), f'{key} is a number of at least 0, or "{NO_LIMIT}", not {value!r}')
            else:
                most[key] = float(value)
        return Entry(name, most, members)

    def _text(self, told: Any) -> str:
        if isinstance(told, str):
            return told
        self.add(("contact",), f"contact is a text, not {told!r}")
        return ""

    def _words(self, path: tuple[str, ...], told: Any) -> tuple[str, ...]:
        if isinstance(told, list) and all(isinstance(word, str) for word in told):
            return tuple(told)
        self.add(path, f"{path[-1]} is a list of texts, not {told!r}")
        return ()

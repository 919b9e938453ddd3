"""`monarch-nb pool limits` and `monarch-nb pool usage`: who may have how much of a pool, and who has had how much."""

from __future__ import annotations

import argparse
import grp
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.cli.tables import print_json, print_table
from monarch_nb.config import default_pool, local_limits, patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable, PoolError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Node, provisioner_of
from monarch_nb.provision.known import check_known
from monarch_nb.times import duration, seconds_of, time_of_day
from monarch_nb.toml_lines import lines_of
from monarch_nb.trust import membership
from monarch_nb.trust.pools import is_pool, paths_of

if TYPE_CHECKING:
    from monarch_nb.allocator.state.quotas import Quotas
    from monarch_nb.proto import allocator_pb2 as pb

HOUR_S = 3600.0
ANSWER_S = patience(10.0)
"""Longer than a node waits for other nodes that are away."""
IDLE = "idle: no cell, script or call ran on the ranks, and no GPU of theirs computed; nodes look every 15 s"


# ---- limits ----


def limits(options: argparse.Namespace) -> int:
    """Show a pool's limits and who is at which; return 1 when something is wrong with a file."""
    pool = options.name or default_pool()
    if options.file is not None:
        return _check_alone(options.file, options.name)
    check_known(pool)
    own = paths_of(pool).limits if is_pool(pool) else local_limits()
    problems = _checked(own, pool) if own.exists() else []
    told, silent = _ask(pool, lambda node, is_first: _usage(node, 0.0, standings=is_first))
    first = next((reply for reply in told if reply.standings), told[0] if told else None)
    problems += _differences(told)
    if options.json:
        print_json(
            {
                "pool": pool,
                "file": first.limits_file if first else "",
                "standings": [_standing(one) for one in first.standings] if first else [],
                "problems": problems,
                "silent": silent,
            }
        )
    else:
        _print_limits(pool, own, first, problems, silent)
    return 1 if problems or (silent and not told) else 0


def _print_limits(
    pool: str, own: Path, first: pb.UsageReply | None, problems: Sequence[str], silent: Mapping[str, str]
) -> None:
    if first is not None and first.limits_file:
        print(f"the limits of the pool {pool} are in {first.limits_file} on {first.node_id}")
        _print_standings(first)
        if not first.asks_others:
            print(f"\n{first.node_id} knows no other nodes: it counts what is held there alone (docs/pools.md: nodes)")
        _print_silent(dict.fromkeys(first.silent, "did not answer"), f"\nnot counted by {first.node_id}")
    elif own.exists():
        print(f"no node that answers follows {own}: nodes take it from beside their certificate, or --limits FILE")
    else:
        print(f"the pool {pool} has no limits; nodes take them from {own.name} beside their certificate")
    for problem in problems:
        print(f"\n{problem}")
    _print_silent(silent, "\nno answer")


def _print_standings(reply: pb.UsageReply) -> None:
    rows = [
        (
            f"group {one.who}" if one.is_group else one.who,
            f"{one.kind}{f' in {duration(one.window_s)}' if one.window_s else ''}",
            _number(one.held),
            _number(one.most),
            "at the limit" if one.held >= one.most else "",
            "" if one.entry == one.who else f'"{one.entry}"',
        )
        for one in reply.standings
    ]
    if rows:
        print()
        print_table(("who", "limit", "has", "may have", "", "says the entry"), rows)


def _standing(one: pb.Standing) -> dict[str, Any]:
    return {
        "who": one.who,
        "group": one.is_group,
        "limit": one.kind,
        "has": one.held,
        "most": one.most,
        "entry": one.entry,
        "window_s": one.window_s,
    }


def _differences(told: Iterable[pb.UsageReply]) -> list[str]:
    """Return what is wrong with the files of nodes, and that they do not all say the same."""
    found, by_digest = [], dict[str, list[str]]()
    for reply in told:
        found += [f"{reply.limits_file} on {reply.node_id}: {problem}" for problem in reply.problems]
        by_digest.setdefault(reply.limits_digest, []).append(reply.node_id)
    if len(by_digest) > 1:
        same = "; ".join(", ".join(names) + ("" if digest else " (none)") for digest, names in by_digest.items())
        found.append(f"nodes follow different limits: {same}: each refuses what its own file says")
    return found


def _check_alone(path: Path, pool: str | None) -> int:
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    problems = _checked(path, pool)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{path} is in order")
    return 1 if problems else 0


def _checked(path: Path, pool: str | None) -> list[str]:
    """Return what is wrong with a file, as "FILE, line 3: ..."."""
    from monarch_nb.allocator.state.quotas_file import read_quotas

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return [f"{path} can not be read: {error}"]
    quotas, problems = read_quotas(text)
    return [f"{path}, {problem}" for problem in [*problems, *_unknown(quotas, text, pool)]]


def _unknown(quotas: Quotas, text: str, pool: str | None) -> list[str]:
    """Return which names nobody has, as far as that can be known here."""
    lines = lines_of(text)
    is_there, where = _known_people(pool)
    found = [
        (lines.get(("people", entry.name), 1), f"nobody is called {entry.name} {where}")
        for entry in quotas.people
        if not is_there(entry.name)
    ]
    for entry in quotas.groups:
        line = lines.get(("groups", entry.name), 1)
        found += [(line, f"nobody is called {one} {where}") for one in entry.members or () if not is_there(one)]
        if entry.members is None and "*" not in entry.name and not _is_there(grp.getgrnam, entry.name):
            found.append((line, f"there is no Unix group {entry.name} on this computer: name its members"))
    return [f"line {line}: {problem}" for line, problem in sorted(found)]


def _known_people(pool: str | None) -> tuple[Callable[[str], bool], str]:
    """Return whether there is a person of a name, and where that is known from."""
    if pool is None or is_pool(pool):
        names: set[str] = set()
        if pool is not None and paths_of(pool).issued.exists():
            names = {one.facts.name for one in membership.standings(pool) if not one.state}
        return (
            lambda name: "*" in name or not names or name in names,
            f"in the pool {pool}: no certificate has the name",
        )
    return lambda name: "*" in name or _is_there(pwd.getpwnam, name), "on this computer"


def _is_there(look: Callable[[str], object], name: str) -> bool:
    try:
        look(name)
    except KeyError:
        return False
    return True


# ---- usage ----


@dataclass
class Hours:
    """What somebody has held.

    Attributes:
        idle_nodes, idle_gpus: hours of these in which nobody used them.
    """

    nodes: float = 0.0
    gpus: float = 0.0
    idle_nodes: float = 0.0
    idle_gpus: float = 0.0
    groups: set[str] = field(default_factory=set)

    def add(self, used: pb.Used) -> None:
        self.nodes += used.node_s / HOUR_S
        self.gpus += used.gpu_s / HOUR_S
        self.idle_nodes += used.idle_node_s / HOUR_S
        self.idle_gpus += used.idle_gpu_s / HOUR_S
        self.groups.update(used.groups)

    @property
    def idle(self) -> str:
        """How much of it nobody used: of GPUs, where there were any."""
        of, idle = (self.gpus, self.idle_gpus) if self.gpus else (self.nodes, self.idle_nodes)
        return f"{idle / of:.0%}" if of else ""

    def facts(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "node_hours": self.nodes,
            "gpu_hours": self.gpus,
            "idle_node_hours": self.idle_nodes,
            "idle_gpu_hours": self.idle_gpus,
        }


def usage(options: argparse.Namespace) -> int:
    """Show who has held how much; return 1 when no node answers."""
    pool, now = options.name or default_pool(), time.time()
    since = now - seconds_of(options.since, "--since")
    check_known(pool)
    told, silent = _ask(pool, lambda node, _: _usage(node, since))
    people, groups = dict[str, Hours](), dict[str, Hours]()
    for used in (used for reply in told for used in reply.used):
        people.setdefault(used.owner, Hours()).add(used)
        for group in used.groups:
            groups.setdefault(group, Hours()).add(used)
    if options.json:
        print_json(
            {
                "pool": pool,
                "since": since,
                "until": now,
                "people": [{**hours.facts(name), "groups": sorted(hours.groups)} for name, hours in _sorted(people)],
                "groups": [hours.facts(name) for name, hours in _sorted(groups)],
                "nodes": [{"name": reply.node_id, "known_since": reply.known_since or None} for reply in told],
                "silent": silent,
            }
        )
        return 0 if told else 1
    rows = [(name, ", ".join(sorted(each.groups)), *_hours(each)) for name, each in _sorted(people)]
    rows += [(f"group {name}", "", *_hours(each)) for name, each in _sorted(groups)]
    if rows:
        print_table(("who", "groups", "node-hours", "GPU-hours", "idle"), rows)
        print(f"\nsince {time_of_day(since)}, on {counted(len(told), 'node')}\n{IDLE}")
    elif told:
        print(f"nobody has held anything since {time_of_day(since)}, on {counted(len(told), 'node')}")
    late = [
        f"{reply.node_id} ({time_of_day(reply.known_since)})" for reply in told if reply.known_since > since + HOUR_S
    ]
    if late:
        print(f"the record begins later: {', '.join(late)}")
    _print_silent(silent, "no answer")
    return 0 if told else 1


def _sorted(hours: Mapping[str, Hours]) -> list[tuple[str, Hours]]:
    """Return people or groups, who has had most first."""
    return sorted(hours.items(), key=lambda one: (-one[1].gpus, -one[1].nodes, one[0]))


def _hours(hours: Hours) -> tuple[str, str, str]:
    return f"{hours.nodes:,.1f}", f"{hours.gpus:,.1f}" if hours.gpus else "", hours.idle


# ---- nodes ----


def _usage(node: Node, since: float, *, standings: bool = False) -> pb.UsageReply:
    from monarch_nb.provision.daemons import usage as usage_of

    return usage_of(node.address, since, node.identity, ANSWER_S, standings=standings)


def _ask(pool: str, ask: Callable[[Node, bool], pb.UsageReply]) -> tuple[list[pb.UsageReply], dict[str, str]]:
    """Ask every node, the first that answers as the first; return what they say, each once, and why others do not.

    Raises:
        PoolError: there are none.
    """
    nodes = [node for node in provisioner_of(pool).nodes(pool=pool) if node.alive]
    if not nodes:
        raise PoolError(f"the pool {pool} has no nodes that could be asked (monarch-nb up, monarch-nb pool add)")
    silent: dict[str, str] = {}

    def told(node: Node, *, is_first: bool = False) -> pb.UsageReply | None:
        try:
            return ask(node, is_first)
        except NodeUnreachable:
            silent[node.node_id or node.address] = "does not answer"
        except MonarchNbError as error:
            silent[node.node_id or node.address] = str(error)
        return None

    replies: dict[str, pb.UsageReply] = {}
    while nodes and not replies:
        if first := told(nodes.pop(0), is_first=True):
            replies[first.token] = first
    with ThreadPoolExecutor(max_workers=16) as threads:
        for reply in threads.map(told, nodes):
            if reply is not None:
                replies.setdefault(reply.token, reply)
    return list(replies.values()), silent


def _print_silent(silent: Mapping[str, str], title: str) -> None:
    if silent:
        print(f"{title}: {', '.join(f'{name} ({why})' for name, why in sorted(silent.items()))}")


def _number(amount: float) -> str:
    return f"{amount:,.1f}".removesuffix(".0")

"""`monarch-nb pool limits`: who may have how much of a pool, and who has how much."""

from __future__ import annotations

import argparse
import grp
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.cli.saying import print_json, print_table
from monarch_nb.config import default_pool, local_limits, patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable, PoolError, UsageError
from monarch_nb.provision import Node, provisioner_of
from monarch_nb.provision.known import check_known
from monarch_nb.toml_lines import lines_of
from monarch_nb.trust import membership
from monarch_nb.trust.pools import is_pool, paths_of

if TYPE_CHECKING:
    from monarch_nb.allocator.state.quotas import Quotas
    from monarch_nb.proto import allocator_pb2 as pb

ANSWER_S = patience(10.0)
"""Longer than a node waits for other nodes that are away."""


def limits(options: argparse.Namespace) -> int:
    """Show a pool's limits and who is at which; return 1 when something is wrong with a file."""
    pool = options.name or default_pool()
    if options.file is not None:
        return _check_alone(options.file, options.name)
    check_known(pool)
    own = paths_of(pool).limits if is_pool(pool) else local_limits()
    problems = _checked(own, pool) if own.exists() else []
    told, silent = _ask(pool)
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
            one.kind,
            f"{one.held:,}",
            f"{one.most:,.0f}",
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
    from monarch_nb.allocator.state.quotas import read_quotas

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


# ---- nodes ----


def _ask(pool: str) -> tuple[list[pb.UsageReply], dict[str, str]]:
    """Ask every node who holds what, and the first that answers who is at which limit; return what they say, each once,
    and why others do not.

    Raises:
        PoolError: there are none.
    """
    from monarch_nb.provision.daemons import usage

    nodes = [node for node in provisioner_of(pool).nodes(pool=pool) if node.alive]
    if not nodes:
        raise PoolError(f"the pool {pool} has no nodes that could be asked (monarch-nb up, monarch-nb pool add)")
    silent: dict[str, str] = {}

    def told(node: Node, *, is_first: bool = False) -> pb.UsageReply | None:
        try:
            return usage(node.address, node.identity, ANSWER_S, standings=is_first)
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

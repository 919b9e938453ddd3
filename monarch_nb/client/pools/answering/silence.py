"""Why a node does not answer, and what to do about it: as far as connecting to it tells."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from monarch_nb.config import gap
from monarch_nb.errors import MonarchNbError, NodeUnreachable
from monarch_nb.ground.rank_sets import format_ranks, listed, name_ranks

if TYPE_CHECKING:
    from monarch_nb.client.connections.connection import Connection
    from monarch_nb.trust.identity import Identity

CONNECT_S = gap(2.0)
"""A node that has not let us connect by then is behind something that swallows what we send."""
_REFUSED = os.strerror(errno.ECONNREFUSED).lower()


def why_silent(address: str, timeout_s: float = CONNECT_S) -> str:
    """Return why nobody can connect to an address, as the system has it; empty when one can, or it is on this machine.
    May block."""
    if address.startswith("unix"):  # also through ssh
        return ""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            return ""
    except OSError as error:
        return (error.strerror or str(error)).lower()


def what_helps(why: str, address: str) -> str:
    """Return what to do when nobody can connect to an address; empty where nothing is known. Pure.

    Example:
        >>> what_helps("timed out", "host2:7878")
        'is that host up, and does a firewall let port 7878 pass?'
    """
    port = address.rpartition(":")[2]
    if not why:
        return ""
    if why == _REFUSED:
        return f"start its allocator there, on port {port} (monarch-nb allocator)"
    if "name" in why:
        return "is the name right? monarch-nb pool list shows what was added"
    return f"is that host up, and does a firewall let port {port} pass?"


def nobody_answers(
    pool: str, identity: Identity | None, held: Sequence[str] | None = None, ending: Collection[str] = ()
) -> str:
    """Return what is known of a pool when no node of it answers, and what to do. Pure.

    Args:
        identity: who we are to it; None for a local one.
        held: the names of what its nodes held of ours when they last answered; None when that is not known.
        ending: the names of those that are released as soon as a node answers.

    Example:
        >>> nobody_answers("lab", alice, ["dev"])  # doctest: +SKIP
        'monarch-nb status --pool lab says more; they held dev of yours when they last answered; the ranks of dev …'
    """
    more = f"monarch-nb status --pool {pool} says more"
    if identity is None:
        return more
    if held is None:
        return f"{more}; reservations there go on, and %mesh release NAME releases them when they answer"
    if not held:
        return f"{more}; they held nothing of yours when they last answered"
    lines = [more, f"they held {listed(held)} of yours when they last answered"]
    if going_on := [name for name in held if name not in ending]:
        one = going_on[0] if len(going_on) == 1 else "NAME"
        released = f"%mesh release {one} releases it when they answer"
        lines.append(f"the ranks of {listed(going_on)} go on, and {released}")
    if ended := [name for name in held if name in ending]:
        lines.append(f"{listed(ended)} {'is' if len(ended) == 1 else 'are'} released as soon as they do")
    return "; ".join(lines)


def all_away(name: str, nodes: Sequence[str], runs: Sequence[str] = ()) -> NodeUnreachable:
    """Return the error that says that no node of a reservation answers, and what can be done. Pure.

    Args:
        nodes: what each is called, and since when it does not answer where that is known.
        runs: what is known to go on there.
    """
    do = "does" if len(nodes) == 1 else "do"
    known = f" ({listed(runs)})" if runs else ""
    ways = f"%mesh release {name} gives them back for good, and %mesh reserve {name} --replace begins anew on others"
    return NodeUnreachable(
        f"{name!r} is held, but {listed(nodes)} {do} not answer: its ranks go on{known}, and are here again "
        f"when {'it' if len(nodes) == 1 else 'they'} {do}; {ways}"
    )


def way_on(name: str, replacement: str, *, is_last: bool) -> str:
    """Return what to do about nodes of other machines that do not answer, however many these are. Pure.

    Args:
        name: of the reservation.
        replacement: what `%mesh replace` does then; empty where it can do nothing.
        is_last: no node of the mesh answers, so none can be told of another in its place.
    """
    follows = "the output of their ranks follows here when they answer again"
    if is_last:
        return f"{follows}; if they never do, %mesh reserve {name} --replace begins anew on others"
    return "; ".join(filter(None, [follows, "until then -t leaves them out", replacement]))


def needed(
    node: Connection, ranks: Sequence[int], others: Sequence[int], *, name: str, replacement: str, is_last: bool
) -> str:
    """Return what there is to say when a node does not answer and what is to run needs it. Pure.

    Args:
        ranks: its ranks of those that are to run. others: those of them that could run without it.
        name, replacement, is_last: as of `way_on`.
    """
    leave_out = f"-t {format_ranks(others)} leaves {name_ranks(ranks)} out" if others else ""
    if node.is_local:
        return "; ".join(filter(None, [node.absence, leave_out]))
    if is_last:
        gone = f"{node.absence}, with {name_ranks(ranks)}, and no other node of their mesh answers"
        return f"{gone}: they come back only with their nodes; %mesh reserve {name} --replace begins anew, on others"
    without = ", ".join(filter(None, [replacement, "%mesh release works without it"]))
    return f"{node.absence}, with {name_ranks(ranks)}: {'; '.join(filter(None, [leave_out, without]))}"


async def reasons(silent: Mapping[str, tuple[str, MonarchNbError]]) -> dict[str, str]:
    """Return why each node does not answer, in a few words, by name.

    Args:
        silent: the address of each, and what asking it ended with.
    """
    whys = await asyncio.gather(*(asyncio.to_thread(why_silent, address) for address, _ in silent.values()))
    return {
        name: why or str(error).removeprefix(f"{name} ")
        for (name, (_, error)), why in zip(silent.items(), whys, strict=True)
    }

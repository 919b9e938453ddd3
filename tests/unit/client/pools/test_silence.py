"""Why a node does not answer, and what helps."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from monarch_nb.client.pools.answering import needed, nobody_answers, reasons, way_on, what_helps, why_silent
from monarch_nb.errors import NodeUnreachable


def test_nobody_listens_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        why = why_silent(address)
    assert why == "connection refused"
    assert what_helps(why, address).startswith("start its allocator there, on port ")


def test_somebody_listens_or_it_is_on_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert why_silent(f"127.0.0.1:{server.getsockname()[1]}") == ""
    assert why_silent("unix:/tmp/s") == why_silent("unix:///tmp/monarch-nb-ssh-x/1") == ""
    assert what_helps("", "host1:7878") == ""
    assert what_helps("timed out", "host2:7900") == "is that host up, and does a firewall let port 7900 pass?"
    assert "is the name right?" in what_helps("name or service not known", "hots2:7878")


async def test_who_can_be_connected_to_says_itself_what_is_wrong() -> None:
    error = NodeUnreachable("host1 shows no certificate that you believe: ask", "host1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = {"host1": (f"127.0.0.1:{server.getsockname()[1]}", error)}
        assert await reasons(silent) == {"host1": "shows no certificate that you believe: ask"}


REPLACE = "%mesh replace puts a free node in its place"


def test_what_helps_where_something_can_be_replaced_and_where_not() -> None:
    follows = "the output of their ranks follows here when they answer again"
    assert way_on("dev", REPLACE, is_last=False) == f"{follows}; until then -t leaves them out; {REPLACE}"
    assert way_on("dev", "", is_last=False) == f"{follows}; until then -t leaves them out"
    anew = "if they never do, %mesh reserve dev --replace begins anew on others"
    assert way_on("dev", REPLACE, is_last=True) == f"{follows}; {anew}", "nobody can be told of another in its place"


def test_what_is_needed_is_refused_with_the_ways_that_there_are() -> None:
    node: Any = SimpleNamespace(is_local=False, absence="n2 unreachable")

    def said(others: list[int], replacement: str, *, is_last: bool = False) -> str:
        return needed(node, [1], others, name="dev", replacement=replacement, is_last=is_last)

    begin = "n2 unreachable, with rank 1: "
    assert said([0], REPLACE) == f"{begin}-t 0 leaves rank 1 out; {REPLACE}, %mesh release works without it"
    assert said([0], "") == f"{begin}-t 0 leaves rank 1 out; %mesh release works without it"
    assert "%mesh reserve dev --replace" in said([], REPLACE, is_last=True)
    assert "%mesh replace" not in said([], REPLACE, is_last=True)


def test_when_nobody_answers_it_is_said_what_was_held_there() -> None:
    alice: Any = object()

    def said(held: list[str] | None) -> str:
        return nobody_answers("lab", alice, held).removeprefix("monarch-nb status --pool lab says more; ")

    assert said(["dev"]) == "they held dev of yours when they last answered; its ranks go on"
    assert said(["dev", "eval"]) == "they held dev, eval of yours when they last answered; their ranks go on"
    assert said([]) == "they held nothing of yours when they last answered"
    assert said(None) == "reservations there go on"
    assert nobody_answers("local", None, ["dev"]) == "monarch-nb status --pool local says more"

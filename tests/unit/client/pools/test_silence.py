"""Why a node does not answer, and what helps."""

from __future__ import annotations

import socket

from monarch_nb.client.pools.silence import reasons, what_helps, why_silent
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
    assert why_silent("unix:/tmp/s") == why_silent("unix-abstract:ssh-lab-1-10.83.201.1:7878-2b495cd2") == ""
    assert what_helps("", "host1:7878") == ""


def test_a_port_that_does_not_pass_is_named() -> None:
    assert what_helps("timed out", "host2:7900") == "is that host up, and does a firewall let port 7900 pass?"
    assert "is the name right?" in what_helps("name or service not known", "hots2:7878")


async def test_who_can_be_connected_to_says_itself_what_is_wrong() -> None:
    error = NodeUnreachable("host1 shows no certificate that you believe: ask", "host1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = {"host1": (f"127.0.0.1:{server.getsockname()[1]}", error)}
        assert await reasons(silent) == {"host1": "shows no certificate that you believe: ask"}

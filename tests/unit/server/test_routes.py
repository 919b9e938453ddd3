"""Every route: who may ask, what is refused, what is answered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.panel import actions
from monarch_nb.panel.requests import Panel
from unit.panel.fake_pool import FakePool
from unit.panel.replies import hold
from unit.server.conftest import Client

VALUES = {"name": "dev", "nodes": 2, "kind": "procs", "per_node": 4}

BAD = {
    "check": {"action": 7},
    "reserve": {"values": {"nodes": 0}},
    "up": {"values": {"nodes": "many"}},
    "down": {"values": "all"},
    "release": {},
    "replace": {},
    "extend": {"reservation": "id-dev", "values": {"by": "soon"}},
    "resize": {"reservation": "id-dev", "values": {"nodes": 0}},
    "restart": {"reservation": "id-dev", "ranks": "99"},
    "interrupt": {"reservation": "id-dev", "ranks": "x"},
    "stacks": {"reservation": "id-dev", "ranks": 3},
    "lost": {"reservation": 7},
    "attach_lines": {"reservation": None},
    "cancel": {},
    "log_open": {"mesh": "mesh-dev", "streams": "stdin"},
    "log_rows": {"log": "x", "first": -1, "count": 1},
    "log_find": {"log": 1, "text": "x"},
    "log_row": {"log": "x", "row": -1},
    "log_close": {},
    "own_lines": {"mesh": "mesh-dev", "run": 1, "lines": "3", "text": "x"},
    "curves_found": {"mesh": "mesh-dev", "run": "x"},
    "curves_read": {"mesh": "mesh-dev", "runs": [1], "names": "loss"},
    "top": {"mesh": "mesh-dev", "ranks": 7},
}
"""Every request that takes something, and a body that makes no sense."""

UNKNOWN = {
    "check": {"action": "dance", "values": {}},
    **{
        name: {"reservation": "x", "by": "1h"}
        for name in ("release", "extend", "resize", "replace", "restart", "interrupt", "stacks")
    },
    "lost": {"reservation": "x"},
    "attach_lines": {"reservation": "x"},
    "cancel": {"job": "x"},
    "log_open": {"mesh": "x"},
    "log_rows": {"log": "x", "first": 0, "count": 1},
    "log_find": {"log": "x", "text": "x", "from": 0},
    "log_row": {"log": "x", "row": 0},
    "own_lines": {"mesh": "x", "run": 1, "lines": "0:0", "text": ""},
    "curves_found": {"mesh": "x"},
    "curves_read": {"mesh": "x", "runs": [1], "names": ["loss"]},
    "top": {"mesh": "x"},
    "dance": {},
}
POOL_AWAY = (
    *("release", "extend", "resize", "replace", "restart", "interrupt", "stacks"),
    *("lost", "attach_lines", "log_open", "own_lines", "curves_found", "curves_read", "top"),
)


def test_the_table_has_every_request(panel_requests: set[str]) -> None:
    assert panel_requests == set(BAD) | {"view", "forms"}


@pytest.fixture
def panel_requests() -> set[str]:
    return set(Panel()._handlers)


@pytest.mark.parametrize("name", ["view", "forms", *BAD])
async def test_who_is_not_authenticated_is_refused(client: Client, name: str) -> None:
    for token in (None, "wrong"):
        for method in ("GET", "POST"):
            assert (await client.fetch(f"api/{name}", {}, method=method, token=token))[0] == 403


@pytest.mark.parametrize(("name", "body"), BAD.items())
async def test_nonsense_is_refused_with_a_message(client: Client, pool: FakePool, name: str, body: Any) -> None:
    hold([pool.fakes[0].reply], procs=2, time_s=100.0)
    status, answer = await client.fetch(f"api/{name}", body)
    assert status == 400
    assert answer["message"]
    assert answer.keys() == {"message", "errors"}


@pytest.mark.parametrize(("name", "body"), UNKNOWN.items())
async def test_what_is_unknown_is_not_found(client: Client, name: str, body: Any) -> None:
    status, answer = await client.fetch(f"api/{name}", body)
    assert status == 404
    assert answer["message"]


@pytest.mark.parametrize("name", POOL_AWAY)
async def test_a_pool_that_is_away_says_so(client: Client, pool: FakePool, name: str) -> None:
    pool.fakes.clear()
    status, answer = await client.fetch(f"api/{name}", UNKNOWN[name])
    assert (status, answer["message"]) == (503, "no pool 'local' is up")


@pytest.mark.parametrize("body", ["{", "nonsense", "[1"])
async def test_a_body_that_is_no_json_is_refused(client: Client, body: str) -> None:
    status, answer = await client.fetch("api/view", body)
    assert status == 400
    assert "not JSON" in answer["message"]


async def test_a_field_has_its_message(client: Client) -> None:
    status, answer = await client.fetch("api/reserve", {"values": VALUES | {"nodes": 65}})
    assert (status, answer) == (400, {"message": "Nodes: at most 64", "errors": {"nodes": "at most 64"}})


async def test_what_does_not_fit_is_a_conflict(client: Client, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], "other", procs=2)
    status, answer = await client.fetch("api/reserve", {"values": VALUES})
    assert (status, list(answer["errors"])) == (409, ["nodes"])


async def test_the_view_is_answered(client: Client) -> None:
    for method in ("GET", "POST"):
        status, answer = await client.fetch("api/view", {}, method=method)
        assert status == 200
        assert set(answer["result"]["nodes"]) == {"node0", "node1"}


async def test_only_what_changes_nothing_is_read_by_get(client: Client) -> None:
    assert (await client.fetch("api/release?reservation=x", method="GET"))[0] == 405
    assert (await client.fetch("api/log_rows?log=x&first=0&count=5", method="GET"))[0] == 404
    assert (await client.fetch("api/log_rows?log=x&first=a&count=5", method="GET"))[0] == 400


async def test_a_request_from_another_site_is_refused(client: Client) -> None:
    """A browser sends its cookie along, but no token: then the XSRF token is needed."""
    cookie = await client.cookie()
    assert (await client.fetch("api/view", method="GET", token=None, Cookie=cookie))[0] == 200
    here = f"http://127.0.0.1:{client.port}"
    assert (await client.fetch("api/view", {}, token=None, Cookie=cookie, Origin=here))[0] == 403  # no XSRF token
    assert (await client.fetch("api/view", {}, token=None, Cookie=cookie, Origin="http://evil.example"))[0] == 404
    assert (await client.fetch("api/view", {}, Origin=here))[0] == 200


async def test_a_request_that_may_not_be_authorized_is_refused(client: Client) -> None:
    client.app.authorizer.is_authorized = lambda *_: False
    assert (await client.fetch("api/view"))[0] == 403
    assert (await client.fetch("api/view", method="GET"))[0] == 403


class Reserved:
    """Stands for a Reservation."""

    id, pool = "id-dev", "local"

    def detach(self) -> None:
        pass


async def test_ranks_run_the_python_of_the_notebooks_kernel(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(actions, "reserve", lambda _, **options: asked.append(options) or Reserved())
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    kernels(client, monkeypatch, argv=[str(python), "-m", "ipykernel_launcher"], language="python")
    await reserved(client, "work/a.ipynb")
    assert (asked[0]["python"], asked[0]["notebook"]) == (str(python), str(tmp_path / "notebooks/work/a.ipynb"))


@pytest.mark.parametrize(
    ("argv", "language"),
    [(["python", "-m", "ipykernel_launcher"], "python"), ([sys.executable], "R"), (["/no/such/python"], "python")],
)
async def test_otherwise_the_servers_own(
    client: Client, monkeypatch: pytest.MonkeyPatch, argv: list[str], language: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(actions, "reserve", lambda _, **options: asked.append(options) or Reserved())
    kernels(client, monkeypatch, argv=argv, language=language)
    await reserved(client, "work/a.ipynb")
    await reserved(client, "another.ipynb")
    assert [options["python"] for options in asked] == [None, None]


async def reserved(client: Client, notebook: str) -> None:
    """Reserve from a notebook, and wait until it has been."""
    socket = await client.connect()
    status, answer = await client.fetch("api/reserve", {"values": VALUES, "notebook": notebook})
    assert status == 200, answer
    while "done" not in str(message := await socket.read_message()):
        assert message is not None
        assert '"failed"' not in str(message), message
    socket.close()


def kernels(client: Client, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
    """Let the notebook work/a.ipynb have a kernel."""

    class Spec:
        def __init__(self) -> None:
            self.__dict__ |= spec

    async def list_sessions() -> list[Any]:
        return [{"path": "work/a.ipynb", "kernel": {"name": "mine"}}]

    monkeypatch.setattr(client.app.session_manager, "list_sessions", list_sessions)
    monkeypatch.setattr(client.app.kernel_spec_manager, "get_kernel_spec", lambda _: Spec())


async def test_a_pool_that_there_is_not_is_refused(client: Client) -> None:
    status, answer = await client.fetch("api/view", {"pool": "nowhere"})
    assert (status, answer["message"]) == (404, "there is no pool 'nowhere'; there is only local")
    assert (await client.fetch("api/view", {"pool": "local"}))[0] == 200

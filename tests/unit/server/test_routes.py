"""Every route: who may ask, and how what the panel answers, or refuses, comes to a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.panel import actions
from unit.panel.fake_pool import FakePool
from unit.panel.replies import hold
from unit.panel.test_requests import VALUES, Reserved
from unit.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_who_is_not_authenticated_is_refused(client: Client) -> None:
    for name in client.panel._handlers:
        for token in (None, "wrong"):
            assert (await client.fetch(f"api/{name}", {}, token=token))[0] == 403


async def test_a_request_that_may_not_be_authorized_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.app.authorizer, "is_authorized", lambda *_: False)
    assert (await client.fetch("api/view"))[0] == 403


async def test_a_request_from_another_site_is_refused(client: Client) -> None:
    """A browser sends its cookie along, but no token: then the XSRF token is needed."""
    cookie = await client.cookie()
    here = f"http://127.0.0.1:{client.port}"
    xsrf = {"Cookie": f"{cookie}; _xsrf=abcd1234", "X-XSRFToken": "abcd1234"}
    assert (await client.fetch("api/view", {}, token=None, **xsrf))[0] == 200
    assert (await client.fetch("api/view", {}, token=None, Cookie=cookie, Origin=here))[0] == 403  # no XSRF token
    assert (await client.fetch("api/view", {}, token=None, Cookie=cookie, Origin="http://evil.example"))[0] == 404
    assert (await client.fetch("api/view", {}, Origin=here))[0] == 200


async def test_an_answer_has_its_status_a_message_and_fields(client: Client, pool: FakePool) -> None:
    status, answer = await client.fetch("api/view", {"pool": "local"})
    assert (status, set(answer["result"]["nodes"])) == (200, {"node0", "node1"})
    status, answer = await client.fetch("api/reserve", {"values": VALUES | {"nodes": 65}})
    assert (status, answer) == (400, {"message": "Nodes: at most 64", "errors": {"nodes": "at most 64"}})
    status, answer = await client.fetch("api/view", {"pool": "nowhere"})
    assert (status, answer["message"]) == (404, "there is no pool 'nowhere'; there is only local")
    hold([pool.fakes[0].reply], "other", procs=2)
    client.panel.live.wake()
    status, answer = await client.fetch("api/reserve", {"values": VALUES})
    assert (status, list(answer["errors"])) == (409, ["nodes"])


async def test_a_body_that_is_no_json_is_refused(client: Client) -> None:
    for body in ("{", "nonsense", "[1"):
        status, answer = await client.fetch("api/view", body)
        assert (status, "not JSON" in answer["message"]) == (400, True)


async def test_requests_are_not_read_by_get(client: Client) -> None:
    assert (await client.fetch("api/view", method="GET"))[0] == 405


async def test_ranks_run_the_python_of_the_notebooks_kernel(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(actions, "reserve", lambda _, **options: asked.append(options) or Reserved())
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    kernels(client, monkeypatch, argv=[str(python), "-m", "ipykernel_launcher"], language="python")
    await reserved(client, "work/a.ipynb")
    assert (asked[0]["python"], asked[0]["notebook"]) == (str(python), f"{client.app.root_dir}/work/a.ipynb")


async def test_otherwise_the_servers_own(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(actions, "reserve", lambda _, **options: asked.append(options) or Reserved())
    for argv, language in (
        (["python", "-m", "ipykernel_launcher"], "python"),
        ([sys.executable], "R"),
        (["/no"], "python"),
    ):
        kernels(client, monkeypatch, argv=argv, language=language)
        await reserved(client, "work/a.ipynb")
    await reserved(client, "another.ipynb")
    assert [options["python"] for options in asked] == [None] * 4


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

"""A Jupyter server with the panel's extension on a real pool: what a browser asks for, from reserve to release."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.servers import Server
from monarch_nb.client.reservations.reserve import attach
from monarch_nb.provision import MOST_NODES, Node

VALUES = {"name": "dev", "nodes": 2, "kind": "procs", "per_node": 2, "time": "2h", "idle": "1h"}


@pytest.fixture
def server(shared_pool: list[Node], tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.stop()


async def test_from_reserve_to_release(server: Server) -> None:
    browser = await server.browser()
    await browser.until(lambda told: told.view and told.view["pool"]["state"] == "up")
    forms = await server.ask("forms")
    assert {field["name"]: field["maximum"] for field in forms["reserve"]["fields"]}["nodes"] == MOST_NODES
    assert (await server.ask("check", action="reserve", values=VALUES))["ok"]

    notebook = server.root / "a.ipynb"
    notebook.write_text("{}")
    reserved = await browser.finish("reserve", values=VALUES, notebook="a.ipynb")
    reservation = reserved["reservation"]
    await browser.until(lambda told: told.states() == ["idle"] * 4)
    held = browser.view["reservations"][reservation]
    assert (held["notebook"], held["notebook_path"], held["time_s"]) == (str(notebook), "a.ipynb", 7200.0)
    # Nobody is attached: the server does not count.
    await browser.until(lambda told: told.view["reservations"][reservation]["idle_left_s"] < 3600.0)
    slots = [slot["rank"] for node in browser.view["nodes"].values() for slot in node["slots"] if slot["kind"] == "cpu"]
    assert slots == [0, 1, None, None, 2, 3, None, None]

    dev = attach("dev")
    assert str(server.root) == dev.mesh.pull("__import__('os').getcwd()")[0]
    left = await browser.finish("extend", reservation=reservation, values={"by": "1h"})
    assert left["time_left_s"] > 7200.0
    await browser.until(lambda told: told.view["reservations"][reservation]["time_s"] == 10800.0)
    lines = (await server.ask("attach_lines", reservation=reservation))["code"]
    assert lines == "%load_ext monarch_nb\n%mesh attach dev"

    await browser.finish("release", reservation=reservation)
    await browser.until(lambda told: not told.view["reservations"])
    assert (await server.fetch("release", reservation=reservation))[0] == 404
    browser.close()

"""The widget in a real kernel, on a real pool: what a front end hears and says."""

from __future__ import annotations

import itertools
import os
import queue
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import monarch_nb
from integration.kernels import Kernel
from integration.live import TIMEOUT_S, Gate, eventually
from integration.pools import as_it_was
from monarch_nb.panel.forms.forms import HERE
from monarch_nb.provision import Node
from told import view_after

pytestmark = pytest.mark.usefixtures("shared_pool")
OPEN_MESH = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"
WIDGET = "application/vnd.jupyter.widget-view+json"


class FrontEnd(Kernel):
    """A notebook's front end that has a widget manager: cells and comms."""

    def __init__(self, notebook: Path) -> None:
        super().__init__(notebook)
        self._told: list[tuple[str, dict[str, Any]]] = []
        self._views: dict[str, Any] = {}
        self._numbers = itertools.count(1)

    def shown(self, code: str) -> list[dict[str, Any]]:
        """Run a cell; return the data of what it shows."""
        cell = self.start(code)
        self.wait(cell)
        outputs = self._cells[cell]
        assert not [output for output in outputs if output.output_type == "error"], outputs
        return [output.data for output in outputs if "data" in output]

    def say(self, widget: str, content: dict[str, Any]) -> None:
        """Send a widget's message, as its view does."""
        body = {"comm_id": widget, "data": {"method": "custom", "content": content}}
        self._client.shell_channel.send(self._client.session.msg("comm_msg", body))

    def ask(self, widget: str, name: str, body: dict[str, Any]) -> int:
        number = next(self._numbers)
        self.say(widget, {"id": number, "request": name, "body": body})
        return number

    def answer(self, widget: str, number: int) -> Any:
        content = self.wait_for_custom(widget, lambda content: content.get("id") == number)
        assert "error" not in content, content
        return content["result"]

    def wait_for_custom(self, widget: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first message of a widget that is wanted, among those that nobody has waited for."""

        def found() -> dict[str, Any] | None:
            self._hear()
            for each in self._told:
                if each[0] == widget and wanted(each[1]):
                    self._told.remove(each)
                    return each[1]
            return None

        return eventually(found) or {}

    def wait_for_states(self, widget: str, wanted: Callable[[dict[int, str]], bool]) -> None:
        """Wait until a view of a widget shows ranks in states that are wanted."""

        def are_wanted() -> bool:
            self._hear()
            return wanted(_states(self._views.get(widget)))

        eventually(are_wanted)

    def _hear(self) -> None:
        """Take in what has come."""
        with suppress(queue.Empty):
            while True:
                self._take(self._client.get_iopub_msg(timeout=0))

    def _take(self, message: dict[str, Any]) -> str | None:
        """What it says of a view is kept, as a browser does."""
        if message["msg_type"] == "comm_msg":
            widget, content = message["content"]["comm_id"], message["content"]["data"].get("content", {})
            self._told.append((widget, content))
            if event := content.get("event"):
                self._views[widget] = view_after(self._views.get(widget), event)
        return super()._take(message)


def _states(view: Any) -> dict[int, str]:
    """The states of all ranks."""
    return {
        rank["rank"]: rank["state"]
        for held in (view or {}).get("reservations", {}).values()
        for mesh in held["meshes"]
        for rank in mesh["ranks"]
    }


@pytest.fixture
def front_end(shared_pool: list[Node], shared_home: Path, tmp_path: Path) -> Iterator[FrontEnd]:
    with as_it_was(shared_home):
        front_end = FrontEnd(tmp_path / "a.ipynb")
        yield front_end
        front_end.kill()


def test_the_panel_goes_on_while_a_cell_blocks_the_kernel(front_end: FrontEnd, tmp_path: Path) -> None:
    front_end.run(OPEN_MESH)
    (shown,) = front_end.shown("%mesh panel")
    assert shown["text/plain"].startswith("pool local · node0: ")
    widget = shown[WIDGET]["model_id"]
    front_end.say(widget, {"type": "look", "view": "v", "looking": True})
    front_end.wait_for_states(widget, lambda states: states == dict.fromkeys(range(4), "idle"))
    with closing(Gate(tmp_path)) as gate:
        cell = front_end.start(f"%%mesh -t 1\n{gate.wait}")
        front_end.wait_for_states(widget, lambda states: states[1] == "running")
        number = front_end.ask(widget, "view", {})  # without a subshell it waits for the end of the cell
        gate.open(1)
        front_end.wait(cell)  # a rank that runs need not be at its gate yet
    assert front_end.answer(widget, number)["pool"]["state"] == "up"


def test_a_killed_rank_is_seen_and_restarted_through_the_widget(front_end: FrontEnd) -> None:
    front_end.run(OPEN_MESH)
    front_end.run("import monarch_nb\ndev = monarch_nb.attach('dev')")
    (shown,) = front_end.shown("dev")
    assert {"text/plain", "text/html", WIDGET} <= shown.keys()
    assert shown["text/plain"].startswith("dev · 2 nodes × 2 procs · 4 idle\n")
    assert front_end.shown("dev.mesh.panel()")[0][WIDGET] == shown[WIDGET]  # another view of one widget
    widget = shown[WIDGET]["model_id"]
    dev = monarch_nb.attach("dev")
    before = dev.mesh.status()[3].pid
    os.kill(before, signal.SIGKILL)
    front_end.wait_for_states(widget, lambda states: states.get(3) == "dead")
    job = front_end.answer(widget, front_end.ask(widget, "restart", {"reservation": dev.id, "ranks": "3"}))["job"]
    front_end.wait_for_custom(
        widget,
        lambda content: (
            content.get("event", {}).get("type") == "job"
            and content["event"]["job"]["id"] == job["id"]
            and content["event"]["job"]["state"] == "done"
        ),
    )
    assert dev.mesh.status()[3].pid != before
    assert dev.mesh.status()[3].state == "idle"


def test_the_widget_reserves_for_its_notebook_and_attaches_it(front_end: FrontEnd, tmp_path: Path) -> None:
    front_end.run("%load_ext monarch_nb")
    (shown,) = front_end.shown("%mesh panel")
    widget = shown[WIDGET]["model_id"]
    front_end.say(widget, {"type": "look", "view": "v", "looking": True})
    values = {"name": "dev", "nodes": 1, "kind": "procs", "per_node": 2, "time": "", "idle": ""}
    form = front_end.answer(widget, front_end.ask(widget, "forms", {}))["reserve"]
    of_the_pool = [field for field in form["fields"] if field["where"] in ("", HERE)]
    values = {field["name"]: field["default"] for field in of_the_pool} | values | {"where": HERE}
    job = front_end.answer(widget, front_end.ask(widget, "reserve", {"values": values, "notebook": None}))["job"]
    content = front_end.wait_for_custom(
        widget, lambda content: content.get("event", {}).get("job", {}).get("state", "running") != "running"
    )
    assert content["event"]["job"]["state"] == "done", content
    assert content["event"]["job"]["id"] == job["id"]
    (held,) = monarch_nb.list_reservations()
    assert held.notebook == str(tmp_path / "a.ipynb")
    told = front_end.answer(
        widget, front_end.ask(widget, "attach", {"name": "dev", "reservation": held.reservation_id})
    )["text"]
    assert told == "This notebook uses dev now: a cell with %%mesh at its top runs on its 2 ranks."
    assert front_end.shown("%mesh pull rank")[-1]["text/plain"] == "[0, 1]"


def test_a_notebook_without_anybody_in_front_gets_what_can_be_saved() -> None:
    cells = [OPEN_MESH, "import monarch_nb\ndev = monarch_nb.attach('dev')\ndev", "dev.mesh.slice(hosts=1)"]
    cells += ["%mesh panel", "%mesh release"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3").execute()
    dev, part, pool = (notebook.cells[place].outputs[0]["data"] for place in (1, 2, 3))
    assert [len(cell.outputs) for cell in notebook.cells[1:4]] == [1, 1, 1]
    assert dev.keys() == part.keys() == pool.keys() == {"text/plain", "text/html"}
    assert dev["text/plain"].splitlines()[:3] == [
        "dev · 2 nodes × 2 procs · 4 idle",
        "  node0  0-1 idle",
        "  node1  2-3 idle",
    ]
    assert part["text/plain"].splitlines()[:2] == ["dev · 2 nodes × 2 procs, ranks 2-3 · 2 idle", "  node1  2-3 idle"]
    assert re.match(
        r"pool local · node0: (\d+ of \d+ gpus free, )?2 of 4 procs free · node1: 2 of 4 procs free\n\ndev · ",
        pool["text/plain"],
    )
    assert "widgets" not in notebook.metadata

"""Output lands in the cell that caused it, under the ipykernel that is installed (7) and under 6.

What is looked at are the messages themselves: the cell that each display belongs to, and the display that each update
goes to. A last test looks at what nbclient, which follows these messages, writes into a notebook.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import monarch_nb
from integration.kernels import kernel_manager
from integration.live import TIMEOUT_S, Gate
from monarch_nb.provision import Node

ANOTHER_IPYKERNEL = Path(__file__).parents[2] / "build" / "ipykernel6"
OPEN_MESH = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"


@pytest.fixture(scope="session")
def ipykernel6() -> Path:
    """A folder with ipykernel 6, to be put before everything else; installed once and kept under build/."""
    if not ANOTHER_IPYKERNEL.exists():
        unfinished = ANOTHER_IPYKERNEL.with_name(f"ipykernel6-{os.getpid()}")
        # All else that it needs is what ipykernel 7 needs, and is installed.
        packages = ["ipykernel<7", "nest-asyncio"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(unfinished)]
        subprocess.run([*command, *packages], check=True, timeout=100)
        try:
            unfinished.rename(ANOTHER_IPYKERNEL)
        except OSError:  # another process of these tests was faster
            shutil.rmtree(unfinished)
    return ANOTHER_IPYKERNEL


@pytest.fixture(scope="module", params=[7, 6])
def environment(request: pytest.FixtureRequest, shared_pool: list[Node], folder: Path) -> dict[str, str]:
    """The environment of a kernel: it decides about the version of ipykernel."""
    environment = {**os.environ, "JPY_SESSION_NAME": str(folder / "a.ipynb")}
    if request.param == 6:
        paths = [str(request.getfixturevalue("ipykernel6")), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    assert _version_of_ipykernel(environment) == request.param
    return environment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebook lies."""
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def kernel(environment: dict[str, str], folder: Path) -> Iterator[Kernel]:
    kernel = Kernel(environment, folder)
    try:
        kernel.run(OPEN_MESH)
        yield kernel
        kernel.run("%mesh release")
        assert monarch_nb.list_reservations() == []
    finally:
        kernel.stop()


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Make places where code waits until the test lets it pass."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Gate(tmp_path)))


@dataclass
class Cell:
    """A cell and the messages that belong to it."""

    displays: list[Display] = field(default_factory=list)
    stream: str = ""
    errors: list[str] = field(default_factory=list)
    over: bool = False

    @property
    def text(self) -> str:
        return self.stream + "\n".join(display.text for display in self.displays) + "".join(self.errors)


@dataclass
class Display:
    """What a cell shows in one place, and all that it showed there."""

    texts: list[str]

    @property
    def text(self) -> str:
        return self.texts[-1]


class Kernel:
    """A kernel and its cells. A display is its cell's by the parent of the message, an update by the display's id."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._manager = kernel_manager()
        self._manager.start_kernel(env=environment, cwd=str(folder))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=TIMEOUT_S)
        self._cells: dict[str, Cell] = {}
        self._displays: dict[str, Display] = {}

    def start(self, code: str) -> Cell:
        cell = self._cells[self._client.execute(code)] = Cell()
        return cell

    def run(self, code: str) -> Cell:
        cell = self.start(code)
        self.wait(lambda: cell.over)
        return cell

    def wait(self, condition: Callable[[], bool]) -> None:
        """Take in messages until a condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"after {TIMEOUT_S} s there is only {self._cells}"
            try:
                self._take(self._client.get_iopub_msg(timeout=1.0))
            except queue.Empty:
                continue

    def stop(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        cell = self._cells.get(message["parent_header"].get("msg_id", ""), Cell())
        display_id = content.get("transient", {}).get("display_id")
        if kind == "stream":
            cell.stream += content["text"]
        elif kind in ("display_data", "execute_result"):
            cell.displays.append(Display([content["data"]["text/plain"]]))
            if display_id:
                assert display_id not in self._displays
                self._displays[display_id] = cell.displays[-1]
        elif kind == "update_display_data":
            self._displays[display_id].texts.append(content["data"]["text/plain"])
        elif kind == "error":
            cell.errors.append(content["evalue"])
        elif kind == "status" and content["execution_state"] == "idle":
            cell.over = True


def test_background_output_lands_in_its_cell_while_later_cells_run(
    kernel: Kernel, make_gate: Callable[[], Gate]
) -> None:
    go_on, leave, end = make_gate(), make_gate(), make_gate()
    first = kernel.run(f"%%mesh --noblock\nprint('first', rank)\n{go_on.wait}\nprint('more')\n{end.wait}\nrank + 40")
    second = kernel.run("%%mesh --noblock -t 0\nprint('second')")
    later = kernel.start(f"print('later')\ndisplay('shown')\n{leave.wait}\nprint('later still')")
    kernel.wait(lambda: "'shown'" in later.text)
    go_on.open(4)
    kernel.wait(lambda: "[0-3] more" in first.text)
    assert not later.over
    leave.open()
    kernel.wait(lambda: later.over)
    end.open(4)
    kernel.wait(lambda: "Out[3]: 43" in first.text and "second" in second.text)
    assert [len(cell.displays) for cell in (first, second, later)] == [1, 1, 1]
    assert "[2] first 2" in first.text
    assert second.text.splitlines()[0] == "[0] second"
    assert later.text == "later\nlater still\n'shown'"
    assert [first.stream, second.stream] == ["", ""]
    assert first.errors == second.errors == later.errors == []


def test_output_of_a_thread_lands_in_the_cell_that_started_it(kernel: Kernel, make_gate: Callable[[], Gate]) -> None:
    """Also when its cell has shown nothing, and while another cell runs on the ranks."""
    telling, silent, busy = make_gate(), make_gate(), make_gate()
    telling_cell = kernel.run(f"%%mesh\nprint('told')\n{_thread(telling)}")
    silent_cell = kernel.run(f"%%mesh\n{_thread(silent)}")
    busy_cell = kernel.start(f"%%mesh\nprint('busy')\n{busy.wait}")
    kernel.wait(lambda: "[0-3] busy" in busy_cell.text)
    telling.open(4)
    kernel.wait(lambda: "[3] from the thread 3" in telling_cell.text)
    assert not busy_cell.over
    busy.open(4)
    kernel.wait(lambda: busy_cell.over)
    silent.open(4)
    kernel.wait(lambda: "[3] from the thread 3" in silent_cell.text)
    assert telling_cell.text.startswith("[0-3] told\n")
    assert busy_cell.text == "[0-3] busy"
    assert [len(cell.displays) for cell in (telling_cell, silent_cell, busy_cell)] == [1, 1, 1]


def test_nbclient_stores_output_in_its_cell(environment: dict[str, str], make_gate: Callable[[], Gate]) -> None:
    """nbclient reads what belongs to the cell that runs, so a later cell waits until the output must have come."""
    gate, thread = make_gate(), make_gate()
    environment = {**environment, "JPY_SESSION_NAME": "another.ipynb"}
    pass_by = "open({!r}, 'wb').write(b'xxxx')"
    sources = [
        OPEN_MESH.replace("dev", "other"),
        f"%%mesh --noblock -o run\n{gate.wait}\nprint('behind', rank)",
        f"{pass_by.format(str(gate.path))}\nrun.result(60)\nprint('waited')",
        f"%%mesh\n{_thread(thread)}\nprint('started')",
        f"{pass_by.format(str(thread.path))}",
        "%%mesh\nprint('blocking')",
        "%mesh release",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute(env=environment)
    shown = [[_text(output) for output in cell.outputs] for cell in notebook.cells]
    assert len(shown[1]) == 1
    assert "[3] behind 3" in shown[1][0]
    assert shown[2] == ["waited\n"]
    assert shown[3][0].startswith("[0-3] started")
    assert shown[5] == ["[0-3] blocking"]


def _thread(gate: Gate) -> str:
    """Code that starts a thread that waits at a gate and then prints."""
    return (
        f"import threading\ndef later():\n    {gate.wait}\n    print('from the thread', rank)\n"
        "threading.Thread(target=later).start()"
    )


def _text(output: nbformat.NotebookNode) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain") or output.get("evalue", "")


def _version_of_ipykernel(environment: dict[str, str]) -> int:
    code = "import ipykernel; print(ipykernel.version_info[0])"
    asked = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return int(asked.stdout)

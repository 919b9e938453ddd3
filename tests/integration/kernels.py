"""Kernels, driven as a notebook's front end drives them."""

from __future__ import annotations

import os
import queue
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager, _ShutdownStatus

from integration.live import TIMEOUT_S
from integration.notebooks import keep

PATIENT = "from monarch_nb.ground import interrupting\ninterrupting.SHUTDOWN_NOTICE_S = 60.0"
"""In a kernel that is restarted while a cell waits: it hears of that in time on any loaded machine."""


ANEW = """
import os, sys
first, sys.path[:] = sys.__dict__.setdefault("_first", (dict(os.environ), sys.path[:]))
for name in os.environ.keys() - first.keys() - {env!r}.keys(): del os.environ[name]
os.environ.update(first | {env!r})
os.chdir({cwd!r})
if stops := sys.modules.get("monarch_nb.client.runs.results"): stops._chosen.clear()
get_ipython().reset()
print("as new")
"""
"""In a kernel that begins another notebook: its variables and environment, the numbers of its cells, and what `%mesh
debug` has chosen."""


class Kernel:
    """A kernel, and what its cells show in the end.

    Args:
        python: its own, where it is another one than the test's.
    """

    def __init__(self, notebook: Path, python: Path | None = None) -> None:
        # Sockets that no other program can be given: a port that is free when it is chosen may be taken when the kernel
        # binds it, and may be one at which somebody else's client still knocks.
        self._manager = KernelManager(
            kernel_name="python3", transport="ipc", ip=f"/tmp/mnb-kernel-{uuid.uuid4().hex[:12]}"
        )
        if python is not None:
            self._manager.kernel_spec.argv[0] = str(python)
        self._notebook = notebook
        self._manager.start_kernel(**self._surroundings)
        self._connect()
        self._codes: dict[str, str] = {}
        self._cells: dict[str, list[nbformat.NotebookNode]] = {}
        self._displays: dict[str, nbformat.NotebookNode] = {}
        self._asked = ("", "")

    @property
    def _surroundings(self) -> dict[str, Any]:
        return {"env": {**os.environ, "JPY_SESSION_NAME": str(self._notebook)}, "cwd": str(self._notebook.parent)}

    def begin(self, notebook: Path) -> None:
        """Serve a notebook, as if it had just been started for that."""
        self._notebook = notebook
        shown = self._run_unseen(ANEW.format(**self._surroundings))  # news of what has ended may come late
        assert "as new" in shown, shown

    def end(self) -> bool:
        """Hold nothing any more; return whether it can serve another notebook."""
        if self._manager.is_alive():
            for line in ("%mesh detach", "%unload_ext monarch_nb"):  # which fail where nothing is held, or loaded
                self._run_unseen(line)
        return bool(self._manager.is_alive())

    def _run_unseen(self, code: str) -> str:
        """Run what is no cell of the notebook; return what it shows."""
        cell: str = self._client.execute(code, store_history=False, allow_stdin=False)
        self._cells[cell] = []
        return self.wait(cell)

    def _connect(self) -> None:
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=TIMEOUT_S)

    def start(self, code: str, *, headless: bool = False) -> str:
        """Begin a cell; a headless one can ask nobody."""
        cell: str = self._client.execute(code, allow_stdin=not headless)
        self._codes[cell] = code
        self._cells[cell] = []
        return cell

    def wait(self, cell: str, text: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """Wait until a cell is over, or shows `text`; return what it shows."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if text and text in self.text(cell):  # also when it came while another cell was waited for
                return self.text(cell)
            try:
                over = self._take(self._client.get_iopub_msg(timeout=0.1)) == cell
            except queue.Empty:
                continue
            if over and not text:
                return self.text(cell)
        raise AssertionError(f"after {timeout_s} s the cell shows only: {self.text(cell)}")

    def run(self, code: str, *, headless: bool = False) -> str:
        """Run a cell; return what it shows."""
        return self.wait(self.start(code, headless=headless))

    def asked(self, cell: str, prompt: str) -> str:
        """Wait until a cell asks at a prompt; return what it shows by then."""
        try:
            message = self._client.get_stdin_msg(timeout=TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"the cell does not ask, it shows: {self.wait(cell)}") from None
        assert message["content"]["prompt"] == prompt, message["content"]
        self._asked = (cell, prompt)
        barrier = self._client.session.msg("kernel_info_request", {})
        self._client.control_channel.send(barrier)  # what was shown before comes before it is answered
        while self._take(self._client.get_iopub_msg(timeout=TIMEOUT_S)) != barrier["msg_id"]:
            pass
        self._client.get_control_msg(timeout=TIMEOUT_S)
        return self.text(cell)

    def answer(self, line: str) -> None:
        """Type a line at the prompt that was waited for."""
        cell, prompt = self._asked
        self._cells[cell].append(nbformat.v4.new_output("stream", name="stdin", text=f"{prompt}{line}\n"))
        self._client.input(line)

    def outputs(self, cell: str) -> list[nbformat.NotebookNode]:
        """What a cell shows now."""
        return self._cells[cell]

    def text(self, cell: str) -> str:
        """What a cell shows now, without what was typed there."""
        return "\n".join(_text_of(output) for output in self._cells[cell] if output.get("name") != "stdin")

    def answered(self, cell: str) -> str:
        """What a cell shows below the line that was typed last."""
        outputs = self._cells[cell]
        typed = max(place for place, output in enumerate(outputs) if output.get("name") == "stdin")
        return "\n".join(map(_text_of, outputs[typed + 1 :]))

    def keep(self, path: Path) -> None:
        """Keep a notebook of which this ran the cells, with what they show, where `make executed` asks for it."""
        notebook = nbformat.read(path, as_version=4)
        shown = {code: self._cells[cell] for cell, code in self._codes.items()}
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = shown.get(cell.source, [])
        keep(path.stem, notebook)

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """As JupyterLab does; the kernel must end by itself."""
        self._manager.shutdown_wait_time = 120.0
        self._manager.restart_kernel(**self._surroundings)
        assert self._manager._shutdown_status is _ShutdownStatus.ShutdownRequest, "it was not killed"
        self._client.stop_channels()  # on these, what the old kernel said last reads as if the new one were connected
        self._connect()

    def inspect(self, code: str) -> dict[str, Any]:
        """What Shift+Tab shows at the end of a cell."""
        reply: dict[str, Any] = self._client.inspect(code, reply=True, timeout=TIMEOUT_S)["content"]
        return reply

    def complete(self, code: str) -> list[str]:
        matches: list[str] = self._client.complete(code, reply=True, timeout=TIMEOUT_S)["content"]["matches"]
        return matches

    def kill(self) -> None:
        """As if the machine took it away."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def _take(self, message: dict[str, Any]) -> str | None:
        """Take in a message; return the cell that is over with it."""
        content, kind = message["content"], message["msg_type"]
        cell: str = message["parent_header"].get("msg_id", "")
        outputs = self._cells.get(cell, [])
        display_id = content.get("transient", {}).get("display_id")
        if kind in ("stream", "error", "display_data", "execute_result"):
            outputs.append(nbformat.v4.output_from_msg(message))
            if display_id:
                self._displays[display_id] = outputs[-1]
        elif kind == "update_display_data":
            self._displays[display_id].data = nbformat.from_dict(content["data"])
        elif kind == "status" and content["execution_state"] == "idle":
            return cell
        return None


@contextmanager
def opened(notebook: Path) -> Iterator[Kernel]:
    """A kernel of a notebook, which is gone at the end."""
    kernel = Kernel(notebook)
    try:
        yield kernel
    finally:
        kernel.kill()


def _text_of(output: nbformat.NotebookNode) -> str:
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return str(output.text if output.output_type == "stream" else output.data["text/plain"])

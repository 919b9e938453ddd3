"""A real JupyterLab, and a notebook in it as a person in front of a browser has it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.request import Request, urlopen

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from e2e.lighter import lighter_path
from e2e.ports import held_port

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
WAIT_MS = 60_000
"""How long a page may take to show what it must: far longer than it does, since other work may go on."""
REPOSITORY = Path(__file__).parents[2]
PANEL = REPOSITORY / "monarch_nb" / "labextension"
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"

_CHROMIUM_ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
    "--disable-extensions",
]
# Not what the status bar says: where JupyterLab is slow to begin, that may never name the notebook's kernel.
_KERNEL_IS_IDLE = """path => {
  const shown = widget => widget.context && widget.context.path.endsWith(path);  // with people who share it, "RTC:..."
  const notebook = Array.from(jupyterapp.shell.widgets('main')).find(shown);
  const session = notebook && notebook.context.sessionContext;
  const kernel = session && session.isReady && session.session && session.session.kernel;
  return Boolean(kernel) && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
_OPEN = "async arguments => { await jupyterapp.commands.execute('docmanager:open', arguments) }"
_CLOSE_ALL = """() => {
  for (const widget of Array.from(jupyterapp.shell.widgets('main'))) {
    if (widget.context) widget.context.model.dirty = false;  // else it asks whether to save
    widget.close();
  }
  jupyterapp.shell.activateById('filebrowser');
}"""
_COLLABORATION_SERVER = ("jupyter_server_ydoc", "jupyter_server_fileid")
_COLLABORATION_LAB = ("@jupyter/collaboration-extension", "@jupyter/docprovider-extension")
_DONE = re.compile(r"\[\d+\]:")


def home_variables(folder: Path) -> dict[str, str]:
    """Return the environment in which everything that programs keep for their user lies in `folder`."""
    names = {
        "HOME": "home",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    for name in names.values():
        (folder / name).mkdir(mode=0o700)
    own_first = {"JUPYTER_PREFER_ENV_PATH": "no"}  # before what the virtual environment has
    return {variable: str(folder / name) for variable, name in names.items()} | own_first


@contextmanager
def own_home(kind: str) -> Iterator[Path]:
    """Have a folder of which `home_variables` are set, until it goes with all that lies there."""
    folder = Path(tempfile.mkdtemp(prefix=f"mnb-{kind}-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home_variables(folder).items():
            patch.setenv(name, value)
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Lab:
    """A JupyterLab server, with the panel as it is built now.

    Args:
        python: of another environment, which has a panel of its own.
        collaborative: whether notebooks are shared by those who have them open, as by jupyter-collaboration.

    Attributes:
        notebooks: the folder that it serves.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        base_url: str = "/",
        options: Sequence[str] = (),
        python: str = "",
        *,
        collaborative: bool = False,
    ) -> None:
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        self._settings = folder / "settings" / "@jupyterlab"
        self._runtime = folder / "runtime"
        self._token = secrets.token_hex(8)
        self._base_url = base_url
        self._options = options
        self._port = port
        self._python = python or sys.executable
        self._lighter = {} if python else {"PYTHONPATH": lighter_path()}
        self._set("apputils-extension", "notification", {"fetchNews": "false", "checkForUpdates": False})
        self._set("completer-extension", "manager", {"providerTimeout": WAIT_MS})  # else after 1 s it offers nothing
        if not python:
            _install_panel(folder)
        if not collaborative:
            _uninstall_collaboration(folder)

    def start(self) -> None:
        """Start it, and wait until it serves; again after `stop`, where it was."""
        self._log: deque[str] = deque(maxlen=60)
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [
                *(self._python, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
                *(f"--port={self._port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self._token}"),
                *(f"--ServerApp.root_dir={self.notebooks}", f"--ServerApp.base_url={self._base_url}"),
                "--LabApp.expose_app_in_browser=True",  # as `jupyterapp`
                *self._options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._lighter},
        )
        threading.Thread(target=self._read_log, args=(self._process.stderr,), daemon=True).start()
        if not self._ready.wait(START_TIMEOUT_S) or self._process.poll() is not None:
            raise AssertionError("JupyterLab did not start:\n" + "".join(self._log))

    def stop(self) -> None:
        """End it and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def use_theme(self, theme: str) -> None:
        """Pages opened from now on have this theme."""
        self._set("apputils-extension", "themes", {"theme": theme})

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """Make a notebook of code cells; one that begins with "# " is a heading."""
        make = {True: nbformat.v4.new_markdown_cell, False: nbformat.v4.new_code_cell}
        notebook = nbformat.v4.new_notebook(cells=[make[source.startswith("# ")](source) for source in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.notebooks / name
        nbformat.write(notebook, path)
        return path

    def address(self, path: Path, single: bool = False) -> str:
        """Where a browser finds a notebook; `single`: with nothing around it."""
        return self.url(f"{'doc' if single else 'lab'}/tree/{path.name}?reset")

    def url(self, place: str) -> str:
        """Where a browser finds a page of this server, whose address may have a query."""
        join = "&" if "?" in place else "?"
        return f"http://127.0.0.1:{self._port}{self._base_url}{place}{join}token={self._token}"

    def shut_kernels_down(self) -> None:
        """End every kernel, as `Shut Down All Kernels` does."""
        for session in self._request("GET", "sessions"):
            self._request("DELETE", f"sessions/{session['id']}")

    @property
    def memory_bytes(self) -> int:
        """How much of the server is in memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    @property
    def kernel_is_idle(self) -> bool:
        """Whether the only kernel runs nothing."""
        (kernel,) = self._request("GET", "kernels")
        return bool(kernel["execution_state"] == "idle")

    def wait_for_kernel(self) -> None:
        """Wait until the only kernel answers, also one that Jupyter is about to start in place of one that died."""
        (kernel,) = self._request("GET", "kernels")
        client = BlockingKernelClient(connection_file=str(self._runtime / f"kernel-{kernel['id']}.json"))
        client.load_connection_file()
        deadline = time.monotonic() + WAIT_MS / 1000
        client.start_channels()
        try:
            while True:
                try:
                    return client.wait_for_ready(WAIT_MS / 1000)
                except RuntimeError:  # also when it is slow to begin: its heart does not beat yet
                    if time.monotonic() > deadline:
                        raise
        finally:
            client.stop_channels()

    def _request(self, method: str, path: str) -> Any:
        request = Request(self.url(f"api/{path}"), method=method)
        with urlopen(request, timeout=STOP_TIMEOUT_S) as reply:
            body = reply.read()
        return json.loads(body) if body else None

    def _set(self, extension: str, plugin: str, settings: dict[str, object]) -> None:
        folder = self._settings / extension
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{plugin}.jupyterlab-settings").write_text(json.dumps(settings))

    def _read_log(self, lines: IO[str]) -> None:
        log, ready = self._log, self._ready
        for line in lines:
            log.append(line)
            if " is running at:" in line:
                ready.set()
        ready.set()  # it has ended


def _install_panel(folder: Path) -> None:
    """Install the panel of this checkout, as a wheel would, for a JupyterLab that keeps what it has in `folder`."""
    if not (PANEL / "package.json").exists():
        raise AssertionError("the panel is not built: make panel")
    extensions = folder / "data" / "labextensions"
    extensions.mkdir()
    (extensions / "monarch-nb").symlink_to(PANEL)
    configuration = folder / "config" / "jupyter_server_config.d"
    configuration.mkdir()
    shutil.copy(REPOSITORY / "jupyter-config" / "server-config" / "monarch_nb.json", configuration)
    notebook_7 = {"ServerApp": {"jpserver_extensions": {"notebook": True}}}  # also where it lies outside sys.prefix
    (configuration / "notebook.json").write_text(json.dumps(notebook_7))


def _uninstall_collaboration(folder: Path) -> None:
    """Have a JupyterLab that keeps what it has in `folder` without jupyter-collaboration."""
    configuration = folder / "config"
    (configuration / "jupyter_server_config.d").mkdir(exist_ok=True)
    absent = {"ServerApp": {"jpserver_extensions": dict.fromkeys(_COLLABORATION_SERVER, False)}}
    for name in ("jupyter_collaboration.json", "jupyter_server_fileid.json"):  # as theirs are called
        (configuration / "jupyter_server_config.d" / name).write_text(json.dumps(absent))
    (configuration / "labconfig").mkdir()
    disabled = {"disabledExtensions": dict.fromkeys(_COLLABORATION_LAB, True)}
    (configuration / "labconfig" / "page_config.json").write_text(json.dumps(disabled))


@contextmanager
def running_lab(
    folder: Path,
    base_url: str = "/",
    options: Sequence[str] = (),
    python: str = "",
    *,
    collaborative: bool = False,
) -> Iterator[Lab]:
    """A JupyterLab that keeps all it has in `folder`, of `own_home`."""
    with held_port() as port:
        lab = Lab(folder, port, base_url, options, python, collaborative=collaborative)
        try:
            lab.start()
            yield lab
        finally:
            lab.stop()


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    chromium = shutil.which("chromium")
    expect.set_options(timeout=WAIT_MS)
    assert chromium, "these tests need chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=_CHROMIUM_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Desk:
    """A JupyterLab in the browser in which one notebook after the other is opened: loading it takes longer than most
    tests."""

    def __init__(self, lab: Lab, context: BrowserContext) -> None:
        self._lab, self._context = lab, context
        self._page: Page | None = None

    def page(self) -> Page:
        """Return it with nothing open in it, loaded when nobody has done so or it was left."""
        if self._page is None or self._page.is_closed():
            self._page = self._context.new_page()
            self._page.goto(self._lab.url("lab?reset"))
            self._page.wait_for_function("window.jupyterapp")
            self._page.evaluate("async () => { await jupyterapp.restored }")
        return self._page

    def clear(self) -> None:
        """Close what is open in it; what is no JupyterLab any more, or asks something, is left."""
        page = self._page
        if page is None or page.is_closed():
            return
        if "/lab" in page.url and not page.locator(".jp-Dialog").count():
            page.evaluate(_CLOSE_ALL)
        else:
            page.close()

    def leave(self) -> None:
        """Have the next test load it anew."""
        if self._page is not None:
            self._page.close()


class NotebookPage:
    """A notebook that is open in the browser; its cells are known by their place."""

    def __init__(self, lab: Lab, page: Page, path: Path) -> None:
        self._lab = lab
        self.page = page
        self.path = path

    def open(self, single: bool = False) -> None:
        """Load the page and wait until its kernel is there; `single`: the notebook with nothing around it."""
        self.page.goto(self._lab.address(self.path, single))
        self.wait_for_kernel()

    def open_here(self) -> None:
        """Open it beside what the JupyterLab in this page has open already, and wait until its kernel is there."""
        arguments = {"path": self.path.name, "factory": "Notebook"}
        self.page.evaluate(_OPEN, arguments)
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        """Wait until the kernel is idle."""
        # Not the notebook's own indicator: that says "idle" before there is a kernel.
        self.page.wait_for_function("window.jupyterapp", timeout=WAIT_MS)
        self.page.wait_for_function(_KERNEL_IS_IDLE, arg=self.path.name, timeout=WAIT_MS)

    def cell(self, place: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(place)

    def output(self, place: int) -> Locator:
        """All that a cell shows."""
        return self.cell(place).locator(".jp-Cell-outputArea")

    def text(self, place: int) -> str:
        """What a cell shows, with its lines but without `[1]:` before a value."""
        shown = self.output(place).locator(".jp-OutputArea-output").all_inner_texts()
        return "\n".join(text.rstrip("\n") for text in shown)

    def start(self, place: int) -> None:
        """Begin a cell."""
        self.focus(place)
        self.page.keyboard.press("Control+Enter")

    def run(self, place: int) -> str:
        """Run a cell to its end; return what it shows."""
        self.start(place)
        self.wait_for_end(place)
        return self.text(place)

    def focus(self, place: int) -> None:
        """Put the cursor at the end of a cell."""
        self.cell(place).locator(".cm-content").click()
        self.page.keyboard.press("Control+End")

    def write(self, place: int, source: str) -> None:
        """Replace what a cell has by `source`, of which each line begins where it says."""
        self.focus(place)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)

    def run_on_mesh(self, place: int) -> None:
        """Press the toolbar's button that runs a cell on the mesh."""
        self.focus(place)
        self.page.locator("[data-jp-item-name='run-on-mesh']").click()

    def wait_for_end(self, place: int) -> None:
        expect(self._prompt(place)).to_have_text(_DONE)

    def is_running(self, place: int) -> bool:
        """Whether the cell's prompt is a star now."""
        return self._prompt(place).inner_text() == "[*]:"

    def wait_for_text(self, place: int, text: str | re.Pattern[str]) -> None:
        """Wait until a cell shows `text`; blanks and ends of lines count as one blank."""
        expect(self.output(place)).to_contain_text(text)

    def interrupt(self) -> None:
        """Press ■."""
        self.page.locator("[data-command='notebook:interrupt-kernel']").first.click()

    def choose(self, menu: str, *items: str) -> None:
        """Choose from the menu bar."""
        self.page.locator(".lm-MenuBar-item", has_text=re.compile(f"^{menu}$")).click()
        for item in items:
            self.page.locator(".lm-Menu-item", has_text=re.compile(f"^{re.escape(item)}")).click()

    def accept(self, title: str) -> None:
        """Press the last button of a dialog, the one that goes on."""
        dialog = self.page.locator(".jp-Dialog", has_text=title)
        dialog.locator(".jp-mod-accept").click()
        expect(dialog).to_have_count(0)

    def save(self) -> nbformat.NotebookNode:
        """Save with Ctrl+S; return what lies on the disk then."""
        with self.page.expect_response(lambda reply: reply.request.method == "PUT" and "/contents/" in reply.url):
            self.page.keyboard.press("Control+s")
        return nbformat.read(self.path, as_version=4)

    def _prompt(self, place: int) -> Locator:
        return self.cell(place).locator(".jp-InputPrompt")


OpenNotebook = Callable[..., NotebookPage]

"""A shell with the magics, on a client made of plain objects."""

import atexit
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import monarch_nb
from monarch_nb import config
from monarch_nb.notebook import load_ipython_extension, unload_ipython_extension
from unit.notebook.fakes import FakeClient, Notebook


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeClient:
    fake = FakeClient()
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv(config.HOME_VARIABLE, str(home))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "a.ipynb"))
    for name in ("reserve", "attach", "list_reservations", "list_everywhere", "list_ended"):
        monkeypatch.setattr(monarch_nb, name, getattr(fake, name))
    return fake


@pytest.fixture(scope="session")
def made_here() -> Iterator[list[InteractiveShell]]:
    """Views may show more when their test is over: IPython would make a shell for it, on their thread, and that might
    become the next test's."""
    made: list[InteractiveShell] = []
    whole: Any = InteractiveShell.instance

    def instance(*arguments: Any, **options: Any) -> InteractiveShell:
        is_late = threading.current_thread() is not threading.main_thread() and not InteractiveShell.initialized()
        return made[-1] if is_late else whole(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InteractiveShell, "instance", instance)
        yield made


@pytest.fixture
def shell(made_here: list[InteractiveShell]) -> Iterator[InteractiveShell]:
    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=settings)
    made_here[:] = [shell]
    yield shell
    atexit.unregister(shell.atexit_operations)  # of hundreds of shells, each collecting garbage: minutes
    shell.history_manager.end_session()
    shell.history_manager.close()
    InteractiveShell.clear_instance()


@pytest.fixture
def notebook(client: FakeClient, shell: InteractiveShell) -> Iterator[Notebook]:
    opened = Notebook(shell)
    load_ipython_extension(shell)
    yield opened
    for run in client.runs:
        if not run.done:
            run.finish()
    unload_ipython_extension(shell)


@pytest.fixture
def held(notebook: Notebook) -> Notebook:
    """A notebook that holds "dev": 2 nodes × 2 procs."""
    notebook.ok("%mesh reserve dev --nodes 2 --procs 2")
    return notebook

"""The wheel in an environment of one's own, which has JupyterLab and what the wheel requires, and no node."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from playwright.sync_api import BrowserContext, expect

from e2e.lab import REPOSITORY, NotebookPage, own_home, running_lab
from e2e.panel import PanelPage

CELLS = [
    "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 1",
    "%%mesh\nimport monarch_nb\nprint(monarch_nb.__file__)",
    "%mesh panel",
]


class Environment:
    """A virtual environment. Only the wheel is really installed: what else it is to have is ours, since fetching and
    unpacking torch and JupyterLab takes minutes.

    Attributes:
        directory: it. site: where its packages are.
        python: its python.
    """

    def __init__(self, directory: Path) -> None:
        venv.create(directory, symlinks=True)
        self.directory, self.python = directory, directory / "bin" / "python"
        self.site = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory)}))

    def install(self, wheel: Path) -> None:
        """Install a wheel, and link what it and JupyterLab require."""
        subprocess.run(
            [*(sys.executable, "-m", "pip", "--python", self.python), "install", "--no-deps", "--no-index", wheel],
            check=True,
        )
        [installed] = distributions(path=[str(self.site)])
        for each in required_by([Requirement("jupyterlab"), *_needs(installed)]):
            self._link(each)

    def _link(self, package: Distribution) -> None:
        for file in package.files or ():
            name = file.parts[0] if file.parts[0] != ".." else str(file)  # a package as a whole; data one by one
            here, there = Path(os.path.normpath(self.site / name)), Path(str(package.locate_file(name))).resolve()
            if here.exists() or here.parent == self.python.parent or here.name == "__pycache__":
                continue
            here.parent.mkdir(parents=True, exist_ok=True)
            if there.is_dir():
                here.symlink_to(there)
            else:
                shutil.copy(there, here)  # Jupyter serves no links that lead out of its directories

    def run(self, *command: str) -> str:
        """Run one of its programs (`-m …` is python's); return all that it says."""
        program = [self.python, *command] if command[0] == "-m" else [self.python.parent / command[0], *command[1:]]
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        return done.stdout


def required_by(wanted: list[Requirement]) -> Iterable[Distribution]:
    """Return the packages of ours that these name, and all that they require."""
    found: dict[str, Distribution] = {}
    pending = {str(each): each for each in wanted}
    seen: set[str] = set()
    while pending:
        text, one = pending.popitem()
        seen.add(text)
        found[one.name] = distribution(one.name)
        pending |= {str(each): each for each in _needs(found[one.name], one.extras) if str(each) not in seen}
    return found.values()


def _needs(package: Distribution, extras: Iterable[str] = ()) -> list[Requirement]:
    needs = map(Requirement, package.requires or ())
    variants = [{"extra": extra} for extra in ("", *extras)]
    return [each for each in needs if each.marker is None or any(map(each.marker.evaluate, variants))]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with own_home("own") as folder:
        yield folder


@pytest.fixture(scope="module")
def environment(folder: Path) -> Iterator[Environment]:
    """What `pip install` makes of the wheel, for programs that find no node on their PATH."""
    build = [*(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"), REPOSITORY, "-w", folder]
    made = Environment(folder / "venv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(made.python.parent))
        patch.delenv("PYTHONPATH", raising=False)  # the other tests' GPUs
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        made.install(next(folder.glob("*.whl")))
        yield made


@pytest.fixture
def home(pool_home: Path) -> Iterator[None]:
    """Where its pool is; what is remembered of notebooks is meant to stay there."""
    yield
    shutil.rmtree(pool_home / "notebooks", ignore_errors=True)


@pytest.mark.slow
def test_kernel_panel_and_widget_work(
    environment: Environment, folder: Path, home: None, browser_context: BrowserContext
) -> None:
    listed = environment.run("-m", "jupyterlab.labextensions", "list")
    assert re.search(r"monarch-nb v\S+ .*enabled.*OK.*\(python, monarch_nb\)", listed), listed
    assert browser_context.browser
    with running_lab(folder, python=str(environment.python)) as lab:
        page = browser_context.browser.new_page()
        notebook = NotebookPage(lab, page, lab.write("own.ipynb", CELLS))
        notebook.open()
        assert "(started a local pool; monarch-nb down ends it)" in notebook.run(0)
        assert f"[0-1] {environment.site}/monarch_nb/" in notebook.run(1)
        notebook.run(2)
        expect(notebook.output(2).locator(".mnb-rank.mnb-state-idle")).to_have_count(2)
        panel = PanelPage(page)
        panel.show()
        expect(panel.card("dev")).to_be_visible()
        page.close()
    environment.run("monarch-nb", "release", "dev")
    assert "ending 2 nodes" in environment.run("monarch-nb", "down")

"""Tries what a release would publish: `make release-check`.

Builds sdist and wheel, has twine read them, and installs the wheel into a fresh environment of each Python that is
there. In each, a user's first minutes are tried for real: `monarch-nb up`, a cell and the panel in JupyterLab in a
browser, `monarch-nb down`.

torch is there where pip finds a wheel of it without the network (here: the build for CPUs, for Python 3.11). Elsewhere
a build with CUDA would take 7 GB per Python, so it is left out unless `--torch` says which one to fetch. Ranks need
torch: without it the wheel is installed and the command runs, and the last line says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement
from playwright.sync_api import Browser, expect

from e2e.lab import REPOSITORY, NotebookPage, home_variables, running_browser, running_lab
from e2e.panel import PanelPage
from leaks import GRACE_S, processes_of, wait_for_end
from monarch_nb.config import HOME_VARIABLE

DIST = REPOSITORY / "dist"
PICTURES = REPOSITORY / "build" / "release"
RESERVE = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"
CELL = """\
%%mesh
import torch

dist.init_process_group("gloo")
total = torch.ones(1) * rank
dist.all_reduce(total)
print("the sum of all ranks is", total.item())"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of one Python into which the wheel is installed.

    Attributes:
        version: such as "3.12".
    """

    version: str
    directory: Path

    def pip(self, *words: str) -> int:
        """Run pip; return its exit status."""
        return subprocess.run([self.directory / "bin" / "python", "-m", "pip", *words], check=False).returncode

    def install(self, wheel: Path, torch: str) -> bool:
        """Install a wheel, JupyterLab and all that they require; return whether torch is among it.

        Args:
            torch: the requirement to fetch; "" takes what is there without the network, or does without.
        """
        found = ["--quiet", torch] if torch else ["-qqq", "--no-deps", "--no-index", "torch"]  # -qqq: it may be absent
        has_torch = self.pip("install", *found) == 0
        wanted = [f"{wheel}[lab]"]
        if not has_torch:
            self._must("install", "--quiet", "--no-deps", str(wheel))
            wanted = list(_requirements_without_torch(wheel))
        self._must("install", "--quiet", *wanted)
        return has_torch

    def _must(self, *words: str) -> None:
        if self.pip(*words):
            raise SystemExit(f"Python {self.version}: pip {words[0]} failed")

    def run(self, *words: str, home: Mapping[str, str]) -> str:
        """Run one of its programs as its user; return what it prints."""
        command = [self.directory / "bin" / words[0], *words[1:]]
        done = subprocess.run(command, env=self.variables(home), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"Python {self.version}: {' '.join(words)} failed\n{done.stdout}{done.stderr}")
        return done.stdout

    def variables(self, home: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of its user, who has no other Python and no node on the PATH."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**kept, **home, "PATH": os.pathsep.join([str(self.directory / "bin"), "/usr/bin", "/bin"])}


def main() -> int:
    """Try it with every Python; return 0 when all is well."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--python", action="append", metavar="3.N", help="only this one; may be repeated")
    arguments.add_argument("--torch", default="", metavar="REQUIREMENT", help="fetch it for each, as in torch==2.15.0")
    arguments.add_argument("--built", action="store_true", help="try the wheel that lies in dist/; build nothing")
    options = arguments.parse_args()
    wheel = next(DIST.glob("*.whl")) if options.built else build()
    found = {version: path for version, path in pythons(wheel) if not options.python or version in options.python}
    if not found:
        raise SystemExit("none of these Pythons is there")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with running_browser() as browser:
        used = {}
        for version, python in found.items():
            _say(f"Python {version}: {python}")
            used[version] = try_with(version, python, wheel, options.torch, browser)
    for version, was_used in used.items():
        _say(f"Python {version}: {'up, a cell, the panel, down' if was_used else 'installed only; use needs --torch'}")
    return 0


def build() -> Path:
    """Make sdist and wheel anew, the wheel from the sdist, and have twine read them; return the wheel."""
    _say("sdist and wheel")
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", DIST, REPOSITORY], check=True, stdout=subprocess.DEVNULL)
    files = sorted(DIST.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def pythons(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield version and path of each Python that the wheel names and that is there, on the PATH or as pyenv's."""
    named = "\n".join(_metadata(wheel).get_all("Classifier", []))
    for version in re.findall(r"Python :: (3\.\d+)$", named, re.MULTILINE):
        installed = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{version}.*/bin/python")
        for candidate in filter(None, [shutil.which(f"python{version}"), *map(str, sorted(installed))]):
            asked = [candidate, "-c", "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"]
            told = subprocess.run(asked, capture_output=True, text=True, check=False)  # pyenv's shims may lead nowhere
            if told.stdout.strip() == version:
                yield version, candidate
                break
        else:
            _say(f"Python {version} is not here: not tried")


def try_with(version: str, python: str, wheel: Path, torch: str, browser: Browser) -> bool:
    """Install the wheel in a fresh environment of one Python and use it; return whether torch was there to use it."""
    with tempfile.TemporaryDirectory(prefix="mnb-release-", dir="/tmp") as name:
        folder = Path(name)
        environment = Environment(version, folder / "venv")
        subprocess.run([python, "-m", "venv", environment.directory], check=True)
        has_torch = environment.install(wheel, torch)
        print(f"installed {wheel.name}{'' if has_torch else ', without torch'}", flush=True)
        home = {**home_variables(folder), HOME_VARIABLE: str(folder / "nb")}
        print(environment.run("monarch-nb", "version", home=home).strip(), flush=True)
        if not has_torch:
            return False
        try:
            print(environment.run("monarch-nb", "up", "--nodes", "2", "--procs", "2", home=home).splitlines()[-1])
            _work(environment, home, folder, browser)
            print(environment.run("monarch-nb", "down", home=home).strip(), flush=True)
        finally:
            environment.run("monarch-nb", "down", "--force", home=home)
        for process in processes_of(folder):
            wait_for_end(process.pid, GRACE_S)
        if left := processes_of(folder):
            raise SystemExit(f"Python {version}: left behind: {left}")
        return True


def _work(environment: Environment, home: Mapping[str, str], folder: Path, browser: Browser) -> None:
    """Reserve, run a cell, look at the panel and release, in JupyterLab."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment.variables(home))
    try:
        with running_lab(folder, python=str(environment.directory / "bin" / "python")) as lab:
            page = browser.new_page(viewport={"width": 1100, "height": 700})
            notebook = NotebookPage(lab, page, lab.write("release.ipynb", [RESERVE, CELL, "%mesh release"]))
            notebook.open()
            assert "4 ranks ready" in notebook.run(0), notebook.text(0)
            assert "[0-3] the sum of all ranks is 6.0" in notebook.run(1), notebook.text(1)
            print(notebook.text(1).strip(), flush=True)
            panel = PanelPage(page)
            panel.show()
            expect(panel.card("dev")).to_be_visible()
            panel.wait_for_state("idle", 0, 1, 2, 3)
            page.screenshot(path=PICTURES / f"python{environment.version}.png")
            notebook.run(2)
            expect(panel.card("dev")).to_have_count(0)
            page.close()
            lab.shut_kernels_down()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def _requirements_without_torch(wheel: Path) -> Iterator[str]:
    for requirement in map(Requirement, _metadata(wheel).get_all("Requires-Dist", [])):
        marker = requirement.marker
        if requirement.name != "torch" and (marker is None or marker.evaluate({"extra": "lab"})):
            requirement.marker = None
            yield str(requirement)


def _say(what: str) -> None:
    print(f"\n\033[1m==> {what}\033[0m", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`sys.path` of a script is what python makes of the same environment, wherever script, project and packages lie."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import monarch_nb
from integration.live import TIMEOUT_S, Recorder
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.scripts.script import Script
from monarch_nb.provision import Node

PACKAGE_PARENT = Path(monarch_nb.__file__).parents[1]
SHOWS = """
import os, sys
print([sys.path, [getattr(__import__(name), "__file__", "") for name in os.environ.get("FINDS", "").split()]])
"""
SAME_NAMES = "code/__init__ code/train cmd html/__init__ random json logging linecache traceback os time IPython"
FINDS = {"FINDS": "code cmd html random json logging linecache traceback os time IPython"}
"""What is imported before the script begins: by our ranks, and os and time by any Python."""
FINDER = """
import sys
from importlib.machinery import ModuleSpec, PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{where!r}]) if name == "found_by_finder" else None

def install():
    sys.meta_path.append(Finder)
    sys.path.append("__editable__.found_by_finder.finder.__path_hook__")
"""


@dataclass(frozen=True)
class Layout:
    """How a script is started, in a directory with `train.py`, `sub/` and the package `package` with a part `part`.

    Args:
        words: what follows `python`, and `monarch-nb run`. Where: the directory, below the project.
    """

    words: tuple[str, ...] = ("train.py",)
    where: str = "project"
    environment: Mapping[str, str] = field(default_factory=dict)


LAYOUTS = {
    "beside": Layout(),
    "dot": Layout(("./sub/../train.py",)),
    "below": Layout(("sub/train.py",)),
    "from-below": Layout(("../train.py",), "project/sub"),
    "absolute": Layout(("{root}/project/sub/train.py",)),
    "outside": Layout(("{root}/elsewhere/train.py",)),
    "linked-script": Layout(("linked.py",)),
    "linked-directory": Layout(("linked/train.py",)),
    "through-a-link": Layout(("train.py",), "project/linked"),
    "module": Layout(("-m", "train")),
    "package": Layout(("-m", "package")),
    "part-of-a-package": Layout(("-m", "package.part")),
    "module-from-below": Layout(("-m", "train"), "project/sub"),
    "root-in-PYTHONPATH": Layout(("sub/train.py",), environment={"PYTHONPATH": "{root}/project"}),
    "src-layout": Layout(("sub/train.py",), environment={"PYTHONPATH": "src", "FINDS": "in_src"}),
    "relative-PYTHONPATH": Layout(("sub/train.py",), environment={"PYTHONPATH": "./sub:..:."}),
    "empty-in-PYTHONPATH": Layout(("sub/train.py",), environment={"PYTHONPATH": ":{root}/elsewhere:"}),
    "twice-in-PYTHONPATH": Layout(environment={"PYTHONPATH": "{root}/project/:/nowhere:{root}/project:/nowhere/"}),
    "libraries-in-PYTHONPATH": Layout(environment={"PYTHONPATH": f"{sysconfig.get_path('stdlib')}:{{root}}/editable"}),
    "editable-by-path": Layout(("sub/train.py",), environment={"FINDS": "found_by_path"}),
    "editable-by-finder": Layout(("sub/train.py",), environment={"FINDS": "found_by_finder"}),
    "customized-in-PYTHONPATH": Layout(environment={"PYTHONPATH": "/nowhere:{root}/customized"}),  # dd-trace-py 19140
    "customized-badly": Layout(environment={"PYTHONPATH": "{root}/customized/badly"}),
    "same-names": Layout(("same/train.py",), environment=FINDS),
    "same-names-module": Layout(("-m", "code.train"), "project/same", environment=FINDS),
    "same-names-in-PYTHONPATH": Layout(environment={"PYTHONPATH": "same", **FINDS}),
    "same-names-in-directory": Layout(("{root}/project/same",), environment=FINDS),
    "safe": Layout(environment={"PYTHONSAFEPATH": "1"}),
    "safe-module": Layout(("-m", "train"), environment={"PYTHONSAFEPATH": "1", "PYTHONPATH": "{root}/project"}),
    "unsafe": Layout(environment={"PYTHONSAFEPATH": ""}),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its environment, in which two packages are installed for editing."""
    root = tmp_path_factory.mktemp("layouts").resolve()
    for name in ("train.py", "sub/train.py", "package/__main__.py", "package/part.py"):
        for script in (root / "project" / name, root / "elsewhere" / name):
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(SHOWS)
    for name in (*SAME_NAMES.split(), "train", "__main__"):
        (root / f"project/same/{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (root / f"project/same/{name}.py").write_text(SHOWS if name.endswith(("train", "__main__")) else "")
    (root / "project/linked.py").symlink_to(root / "elsewhere/sub/train.py")
    (root / "project/linked").symlink_to(root / "elsewhere/sub")
    for name in ("project/src/in_src.py", "editable/found_by_path.py", "editable/elsewhere/found_by_finder.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "customized/badly").mkdir(parents=True)
    (root / "customized/sitecustomize.py").write_text("import sys\nsys.path.append('/added')\n")
    (root / "customized/badly/sitecustomize.py").write_text("import sys\nsys.path.append('/added')\n1 / 0\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    [packages] = (root / "venv").glob("lib/python*/site-packages")
    (packages / "a_editable.pth").write_text(f"{root}/editable\n{root}/project\n")
    (packages / "b_finder.pth").write_text("import b_finder; b_finder.install()\n")
    (packages / "b_finder.py").write_text(FINDER.format(where=f"{root}/editable/elsewhere"))
    (packages / "c_everything_else.pth").write_text(f"{sysconfig.get_path('purelib')}\n{PACKAGE_PARENT}\n")
    return root


@pytest.fixture(scope="module")
def dev(root: Path, shared_pool: list[Node]) -> Iterator[Reservation]:
    """Ranks of that environment, which work in the project."""
    reservation = monarch_nb.reserve(
        "dev", procs=1, python=str(root / "venv/bin/python"), preload=[], directory=root / "project"
    )
    yield reservation
    reservation.release()


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_what_python_makes_of_it(name: str, root: Path, dev: Reservation) -> None:
    layout = LAYOUTS[name]
    words = [word.format(root=root) for word in layout.words]
    environment = {key: value.format(root=root) for key, value in layout.environment.items()}
    directory = root / layout.where
    asked = subprocess.run(
        [root / "venv/bin/python", *words],
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    *flags, path = words
    script = Script(path, module=bool(flags), environment=environment, directory=str(directory))
    told = Recorder()
    dev.mesh.start_script(script, listener=told).result(TIMEOUT_S)
    assert ast.literal_eval(told.text(0)) == ast.literal_eval(asked.stdout)
    assert told.text(0, "stderr") == asked.stderr

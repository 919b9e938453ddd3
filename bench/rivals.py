"""The rivals live in a virtual environment of their own, which sees everything of ours.

Not in ours: torchmonarch installs a top-level package called `tests`, and ipyparallel a JupyterLab extension.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / "build" / "bench-venv"


def requirements() -> list[str]:
    """Return what pyproject.toml's extra `bench` asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["bench"])


def rival_python(say: Callable[[str], None]) -> Path:
    """Return the python that has the rivals, installed at the first call (half a minute).

    Raises:
        subprocess.CalledProcessError: they can not be installed.
    """
    python = ENVIRONMENT / "bin" / "python"
    installed = ENVIRONMENT / "installed"
    wanted = "\n".join([sys.executable, *requirements()])
    if not installed.exists() or installed.read_text() != wanted:
        say(f"installing {', '.join(requirements())} in {ENVIRONMENT.relative_to(ROOT)}")
        venv.create(ENVIRONMENT, clear=True)
        base = sysconfig.get_path("purelib")
        (_packages() / "base.pth").write_text(f"import site; site.addsitedir({base!r})")  # and what is editable there
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements()], check=True, stderr=subprocess.DEVNULL)
        installed.write_text(wanted)
    return python


def versions() -> list[str]:
    """Return the rivals that are installed, with their versions."""
    found = {one.name: one.version for one in metadata.distributions(path=[str(_packages())])}
    names = [requirement.partition(">")[0].partition("=")[0] for requirement in requirements()]
    return [f"{name} {found[name]}" for name in names if name in found]


def _packages() -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(ENVIRONMENT)}))

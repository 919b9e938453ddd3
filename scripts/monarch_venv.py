"""Make a virtual environment with torchmonarch that sees everything of the one that runs this.

    python scripts/monarch_venv.py .venv/monarch

Not in ours: torchmonarch installs top-level packages called `tests` and `examples`. Where it has no wheel for this
Python, the environment stays without it, and the tests that need it are skipped.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(environment: Path) -> None:
    """Make it anew."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    venv.create(environment, clear=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    base = sysconfig.get_path("purelib")
    (packages / "base.pth").write_text(f"import site; site.addsitedir({base!r})")  # and what is editable there
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    wanted = project["optional-dependencies"]["monarch"]
    done = subprocess.run([*pip, "--disable-pip-version-check", "--only-binary", "torchmonarch", *wanted], check=False)
    if done.returncode:
        print(f"{', '.join(wanted)} can not be installed for Python {sys.version.split()[0]}: its tests are skipped")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())

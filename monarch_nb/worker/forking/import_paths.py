"""`sys.path` of a process that was forked, as Python would have made it of that process's environment.

The template itself has been started so that it finds this package first. So it asks its interpreter what it has on
`sys.path` beside a script's directory and PYTHONPATH: the standard library, site-packages and what `.pth` files add.
"""

import os
import subprocess
import sys
from collections.abc import Mapping

from monarch_nb.config import patience

_ASK_TIMEOUT_S = patience(30.0)

_own: list[str] = []
"""What this interpreter has by itself, then what the template has besides, in which this package is found."""


def learn() -> None:
    """In the template, before it forks."""
    here = sys.path if sys.flags.safe_path else sys.path[1:]
    own = _of_interpreter()
    _own[:] = own + [path for path in here if path not in own]


def _of_interpreter() -> list[str]:
    """Return what a new interpreter has; nothing where none starts, as on a disk that hangs: then the template's own
    paths are the best that is known."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONSAFEPATH"] = "1"  # no directory of a script
    command = [sys.executable, "-c", r"import os, sys; os.write(1, os.fsencode('\0'.join(['', *sys.path])))"]
    try:
        asked = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=_ASK_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"sys.path of {sys.executable} is not known, the template's is taken: {error}\n")
        return []
    return os.fsdecode(asked.stdout).split("\0")[1:]  # a sitecustomize may have printed before


def of_environment(environment: Mapping[str, str]) -> list[str]:
    """Return what follows the directory of a script: PYTHONPATH, whose relative paths begin in the current directory,
    and the rest."""
    named = environment.get("PYTHONPATH", "")
    paths = dict.fromkeys(os.path.abspath(path) for path in named.split(os.pathsep)) if named else {}
    return [*paths, *(path for path in _own if path not in paths)]


def is_safe(environment: Mapping[str, str]) -> bool:
    """Return whether the directory of a script is to be left out."""
    return bool(environment.get("PYTHONSAFEPATH"))

"""Git's own patterns for all repositories of a user: `core.excludesFile`, at whatever level it is set, or `git/ignore`
beside git's configuration."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from pathlib import Path

from monarch_nb.config import cadence, patience

_GIT_S = patience(5.0)
ASK_AGAIN_S = cadence(10.0)
"""Git's files include others, of which only git knows: so it is asked again after this time."""


def excludes_file(top: Path, git: Path) -> Path:
    """Return the file, which may not be there, that a repository's git reads besides those of the repository.

    Args:
        top: of the work tree.
        git: what all work trees of the repository share.
    """
    beside = Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config"), "git")
    own = Path(os.environ.get("GIT_CONFIG_GLOBAL") or os.path.expanduser("~/.gitconfig"))
    system = Path(os.environ.get("GIT_CONFIG_SYSTEM") or "/etc/gitconfig")
    configurations = (own, beside / "config", system, git / "config", top / ".git/config.worktree")
    state = (*(_written(path) for path in configurations), time.monotonic() // ASK_AGAIN_S)
    try:
        return _named(top, configurations, state) or beside / "ignore"
    except subprocess.TimeoutExpired:  # not what git says, but it is asked again the next time
        return beside / "ignore"


@functools.lru_cache(maxsize=64)
def _named(top: Path, _configurations: tuple[Path, ...], _state: tuple[float, ...]) -> Path | None:
    """Ask git, which knows how its files include one another.

    Raises:
        subprocess.TimeoutExpired: it does not answer.
    """
    command = ["git", "config", "--type=path", "--get", "core.excludesFile"]
    for directory in (top, Path("/")):  # it may refuse to read the configuration of somebody else's repository
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, timeout=_GIT_S, check=False)
        except OSError:  # there is no git
            return None
        if done.returncode in (0, 1):
            return top / os.fsdecode(done.stdout.removesuffix(b"\n")) if done.returncode == 0 else None
    return None


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0

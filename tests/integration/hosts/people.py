"""Other people of a test's pool: each has a certificate, a config and processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from integration.hosts.lab import Lab
from monarch_nb.config import CONFIG_VARIABLE
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import USER, Identity
from monarch_nb.trust.pools import paths_of

TIMEOUT_S = 60.0


class Person:
    """Somebody who was invited to a pool.

    Args:
        directory: of their own.
    """

    def __init__(self, lab: Lab, name: str, directory: Path) -> None:
        self.name = name
        paths = paths_of(lab.name)
        self.identity: Identity = Authority.load(lab.name, paths).issue(name, USER)
        self._config = directory / "config"
        mine = self._config / "pools" / lab.name
        for made in (self._config, mine.parent, mine):
            made.mkdir(mode=0o700)
        shutil.copy(paths.hosts, mine / paths.hosts.name)
        self._file = mine / paths.identity.name
        self.take(self.identity)
        self._directory = directory

    def take(self, identity: Identity) -> None:
        """Take another invitation in."""
        self.identity = identity
        identity.save(self._file)

    def begin(self, code: str) -> subprocess.Popen[str]:
        """Start Python as this person: it reads lines, and what it prints can be read."""
        environment = {**os.environ, CONFIG_VARIABLE: str(self._config)}
        words = [sys.executable, "-u", "-c", code]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=self._directory
        )

    def run(self, code: str) -> list[str]:
        """Run Python as this person; return the lines that it printed."""
        with self.begin(code) as process:
            try:
                said, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        assert process.returncode == 0, errors
        return said.splitlines()

"""SkyPilot for tests: its own client, in a virtual environment of its own, and a stand-in for its server."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.night.ssh.sshd import SshLab
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE

_SERVICE = Path(__file__).with_name("sky_service.py")
_CATALOG = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu_4x_general,,,4.0,16.0,0.25,us-east-1,,
gpu_8x_a100,A100,8.0,124.0,1800.0,10.32,us-east-1,{},
"""
_ACCELERATORS = "AcceleratorName,Clouds\nA100,['Lambda']\nH100,[]\n"


def skypilot_python() -> Path | None:
    """Return the Python that has SkyPilot: that of `make install`, else what users have; None when there is none."""
    own = Path(sys.prefix) / "sky" / "bin" / "python"
    if own.exists():
        return own
    if importlib.util.find_spec("sky") is not None:
        return Path(sys.executable)
    found = shutil.which("sky")
    return Path(found).resolve().parent / "python" if found else None


@dataclass
class SkyService:
    """The stand-in, and what a client of it has.

    Attributes:
        home: the client's home directory. binaries: where `sky` is found, and its Python.
    """

    directory: Path
    url: str

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def binaries(self) -> Path:
        return self.directory / "bin"

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    def clusters(self) -> dict[str, list[str]]:
        """Return the clusters, each with its machines as the lab calls them."""
        return dict(self._ask()["clusters"])

    def asked(self) -> list[str]:
        """Return what clients have sent."""
        return list(self._ask()["asked"])

    def tell(self, **told: object) -> None:
        """Have the next launch fail with `next`, or hang when that is "hang"; or have no cloud."""
        self._ask(told)

    def have(self, lab: SshLab) -> None:
        """Have a lab's hosts as machines, and nothing else; OpenSSH knows them when SkyPilot has told it."""
        machines = [
            {
                "name": name,
                "namespace": lab.host(name).name,
                "address": lab.host(name).address,
                "home": str(lab.home(name)),
                "sshd": daemon.pid,
            }
            for name, daemon in lab.daemons.items()
        ]
        self.tell(machines=machines, client=lab.client.split(), key=str(lab.directory / "me"))
        # OpenSSH takes ~ for the home directory that the system knows, not for $HOME: the key is named here.
        self.ssh_config.write_text(
            f"Include {self.home}/.sky/generated/ssh/*\nHost *\n    IdentityFile {lab.directory}/me\n"
        )

    def left(self) -> list[str]:
        """Return what SkyPilot's client still knows of clusters."""
        generated = self.home / ".sky" / "generated"
        return [str(path) for path in generated.glob("ssh*/*")] + list(self.clusters())

    def _ask(self, told: object = None) -> dict[str, Any]:
        data = None if told is None else json.dumps(told).encode()
        with urllib.request.urlopen(f"{self.url}/_lab", data) as answer:
            return dict(json.load(answer))


@contextmanager
def service(python: Path, directory: Path) -> Iterator[SkyService]:
    """Serve."""
    home = directory / "home"
    catalogs = home / ".sky" / "catalogs" / _schema(python)
    for path, text in (("lambda/vms.csv", _CATALOG), ("common/accelerators.csv", _ACCELERATORS)):
        (catalogs / path).parent.mkdir(parents=True)
        (catalogs / path).write_text(text)
    left_out = (HOME_VARIABLE, CONFIG_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    with subprocess.Popen(
        [python, "-P", _SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        port = int(process.stdout.readline())
        made = SkyService(directory, f"http://127.0.0.1:{port}")
        _client(made, python)
        yield made
        process.stdin.close()


def _schema(python: Path) -> str:
    """Return the version of SkyPilot's catalogs."""
    code = "from sky.skylet import constants; print(constants.CATALOG_SCHEMA_VERSION)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _client(made: SkyService, python: Path) -> None:
    """Make the commands of an installation whose client has that home, and asks that service."""
    made.binaries.mkdir()
    variables = f'HOME="{made.home}" SKYPILOT_API_SERVER_ENDPOINT="{made.url}" SKYPILOT_DISABLE_USAGE_COLLECTION=1'
    for name in ("python", "sky"):
        path = made.binaries / name
        path.write_text(f'#!/bin/sh\nexec env {variables} "{python}" "$@"\n')
        path.chmod(0o755)

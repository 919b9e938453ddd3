"""What lies in deploy/: units that systemd takes, and commands that exist."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from monarch_nb.allocator.__main__ import parse
from monarch_nb.config import GPU_LOCKS_VARIABLE, HOME_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
EACH_UNIT = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


@EACH_UNIT
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze (apt install systemd)")
    installed = tmp_path / unit.name.replace("@.", "@lab.")
    command = tmp_path / "monarch-nb"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    installed.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={command}", unit.read_text()))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(installed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    about_it = [line for line in done.stderr.splitlines() if installed.name in line]
    assert about_it == []
    assert done.returncode == 0, done.stderr


@EACH_UNIT
def test_an_allocator_dies_alone(unit: Path) -> None:
    """Ranks outlive its restart, and each other's running out of memory."""
    lines = unit.read_text().splitlines()
    assert {"KillMode=process", "OOMPolicy=continue", "Restart=on-failure", "StartLimitIntervalSec=0"} <= set(lines)
    assert not [
        line for line in lines if line.startswith(("PrivateTmp=", "PrivateDevices=", "MemoryDenyWriteExecute="))
    ]


@EACH_UNIT
def test_a_unit_starts_an_allocator(unit: Path) -> None:
    found = re.search(r"(?m)^ExecStart=\S+/monarch-nb (.*)$", unit.read_text())
    assert found is not None
    check_command(found[1].replace("${LISTEN}", "host1:7878"))


def test_the_container_starts_an_allocator() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    parts = {name: json.loads(value) for name, value in re.findall(r"(?m)^(ENTRYPOINT|CMD) (\[.*\])$", text)}
    command, *words = parts["ENTRYPOINT"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert command in project["scripts"]
    assert f"pip install --no-cache-dir /tmp/{project['name'].replace('-', '_')}-*.whl " in text
    check_command(shlex.join([*words, *parts["CMD"]]))
    assert {HOME_VARIABLE, GPU_LOCKS_VARIABLE} == set(re.findall(r"(MONARCH_NB_\w+)=", text))


def test_kubernetes_takes_the_role() -> None:
    for each in yaml.safe_load_all((DEPLOY / "kubernetes-role.yaml").read_text()):
        kubernetes_validate.validate(each, "1.37", strict=True)


def check_command(words: str) -> None:
    """A node that only listens to a network, with a certificate."""
    name, *flags = shlex.split(words)
    assert name == "allocator"
    options = parse(flags)
    assert options.listen
    assert options.pool or options.certificate

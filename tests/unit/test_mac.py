"""What a client on a Mac has, as far as Linux can show it: everything but nodes of its own, which are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mac
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE

IMPORTS = """
import importlib, pkgutil
import monarch_nb

for package in "cli notebook server panel client provision integrations actor branches rpc files trust ground".split():
    found = importlib.import_module(f"monarch_nb.{package}")
    for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
        if not module.name.endswith((".ray.helper", ".skypilot.helper", ".integrations.monarch")):
            importlib.import_module(module.name)
for name in monarch_nb.__all__:
    getattr(monarch_nb, name)
print("all")
"""
"""Helpers of engines run in Pythons that have Ray or SkyPilot; Monarch's job is imported where torchmonarch is."""

REFUSED = """
import monarch_nb
from monarch_nb.client.doctor.doctor import examine_pool
from monarch_nb.provision import provisioner

local = provisioner("local")
asks = {
    "up": lambda: local.up(),
    "reserve": lambda: monarch_nb.reserve("dev", procs=1),
    "reserve of a name": lambda: monarch_nb.reserve("dev", procs=1, pool="labb"),
    "reserve GPUs": lambda: monarch_nb.reserve("dev", gpus=1),
    "doctor": lambda: examine_pool("local"),
}
for name, ask in asks.items():
    try:
        ask()
    except monarch_nb.errors.PoolError as error:
        print(f"{name}: {error}")
print(local.options(), local.nodes(), local.down(), monarch_nb.list_reservations())
"""
WHY = "a local pool needs Linux: use a pool of hosts (--pool NAME), or have ssh start nodes (--on ssh:HOST)"

WHY_NO_NODE = (
    "nodes run on Linux only: run this on the host that has the GPUs, and tell this computer with "
    "monarch-nb pool add NAME HOST"
)


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))


def test_all_that_a_client_has_is_imported() -> None:
    assert mac.run(IMPORTS) == ["all"]


def test_a_local_pool_is_refused_with_what_to_do() -> None:
    assert mac.run(REFUSED) == [
        f"up: {WHY}",
        f"reserve: {WHY}",
        f"reserve of a name: there is no pool 'labb', and {WHY}",
        f"reserve GPUs: {WHY}",
        f"doctor: {WHY}",
        "[] [] 0 []",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("up --nodes 2", f"monarch-nb: {WHY}\n"),
        ("allocator --pool lab --listen :7878", f"monarch-nb allocator: {WHY_NO_NODE}\n"),
    ],
)
def test_commands_that_need_linux_say_so(words: str, said: str) -> None:
    command = [sys.executable, "-m", "monarch_nb.cli.main", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=mac.environment())
    assert (done.returncode, done.stderr) == (1, said)

"""What an import brings along. Which way imports go is for import-linter, in `make check`."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "grpc", "IPython", "numpy", "google", "rich", "psutil", "cryptography")


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "module", ["monarch_nb", "monarch_nb.cli.main", "monarch_nb.provision.local", "monarch_nb.trust.revocation"]
)
def test_importing_is_light(module: str) -> None:
    assert not modules_after(f"import {module}") & set(HEAVY)


def test_each_process_brings_only_its_own() -> None:
    for code, others in (
        ("from monarch_nb.actor import Actor, Channel, context, endpoint, this_host", "torch grpc IPython numpy"),
        ("import monarch_nb.allocator.__main__, monarch_nb.allocator.api.service", "torch IPython numpy"),
        ("import monarch_nb.worker.template, monarch_nb.worker.rank", "grpc torch jupyter_server"),
        ("import monarch_nb.server, monarch_nb.server.extension", "grpc torch IPython google.protobuf"),
    ):
        assert not modules_after(code) & set(others.split()), code

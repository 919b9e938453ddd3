"""What an import brings along, and which way imports go."""

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


def test_importing_actors_is_light() -> None:
    loaded = modules_after("from monarch_nb.actor import Actor, Channel, context, endpoint, this_host")
    assert not loaded & {"torch", "grpc", "IPython", "numpy"}


def test_the_allocator_never_sees_torch() -> None:
    loaded = modules_after("import monarch_nb.allocator.__main__, monarch_nb.allocator.serving.service")
    assert not loaded & {"torch", "IPython", "numpy"}


def test_a_worker_never_sees_grpc() -> None:
    loaded = modules_after("import monarch_nb.worker.template, monarch_nb.worker.rank")
    assert not loaded & {"grpc", "torch", "jupyter_server"}


def test_imports_go_downward_only() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr

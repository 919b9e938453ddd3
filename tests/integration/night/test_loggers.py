"""Loggers that people use, unmodified, on rank 0 of 2: each has the values of two runs in the same ranks."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from integration.live import TIMEOUT_S, eventually, lives, started
from integration.night.lightning.service import Service, service
from leaks import wait_for_end
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import RunFailed
from monarch_nb.provision import Node

LOSSES = [4.125, 2.0625, 1.03125]
TENSORBOARD = """
from torch.utils.tensorboard import SummaryWriter
if rank == 0:
    with SummaryWriter("logs") as writer:
        for step, loss in enumerate(losses):
            writer.add_scalar("loss", loss, step)
"""
WANDB = """
import wandb
if rank == 0:
    with wandb.init(project="tried", mode="offline", dir="logs") as run:
        for step, loss in enumerate(losses):
            run.log({"loss": loss}, step=step)
"""
CSV = """
from lightning.pytorch.loggers import CSVLogger
logger = CSVLogger("logs")  # on every rank: it is Lightning that has rank 0 write
for step, loss in enumerate(losses):
    logger.log_metrics({"loss": loss}, step=step)
logger.finalize("success")
"""
LITLOGGER = """
import litlogger
if rank == 0:
    experiment = litlogger.init(name=f"tried-{losses[0]}", root_dir="logs", rate_limiting_interval=0)
    for step, loss in enumerate(losses):
        experiment["loss"].append(loss, step=step)
    experiment.finalize()
"""
LEFT = """
import psutil, threading
threads = sorted(each.name for each in threading.enumerate() if not each.name.startswith("QueueFeeder"))
threads, sorted(each.pid for each in psutil.Process().children(recursive=True))
"""
"""LitLogger keeps its experiments, and with each the thread of a multiprocessing queue."""


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A stand-in for the service that LitLogger sends to."""
    with service(tmp_path_factory.mktemp("lightning")) as known:
        yield known


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ranks start."""
    return tmp_path_factory.mktemp("loggers")


@pytest.fixture(scope="module")
def mesh(shared_pool: list[Node], lightning: Service, folder: Path) -> Iterator[Mesh]:
    told = {name: value for name, value in os.environ.items() if name.startswith("LIGHTNING_")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        reservation = reserve("loggers", nodes=1, procs=2, env={**told, "HOME": str(folder)})
    yield reservation.mesh
    children = [pid for _, pids in reservation.mesh.run(LEFT).values for pid in pids]
    reservation.release()
    for pid in children:
        wait_for_end(pid, TIMEOUT_S)
    assert not [pid for pid in children if lives(pid)]


def log_twice(mesh: Mesh, code: str) -> None:
    """Log in two runs, with other values in the second; nothing more may be left after it than after the first."""
    left = []
    for factor in (1, 10):
        mesh.push({"losses": [factor * loss for loss in LOSSES]})
        mesh.run(code)
        eventually(lambda: not monitors(mesh))
        left.append(mesh.run(LEFT).values)
    assert left[0] == left[1]


def monitors(mesh: Mesh) -> list[int]:
    """Processes of wandb's that watch a run: they end soon after it."""
    found = []
    for rank in mesh.status():
        for child in psutil.Process(rank.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "wandb-symon" and lives(child.pid):
                    found.append(child.pid)
    return found


def both_runs() -> list[list[float]]:
    return [LOSSES, [10 * loss for loss in LOSSES]]


def test_tensorboard(mesh: Mesh, folder: Path) -> None:
    pytest.importorskip("tensorboard")
    log_twice(mesh, TENSORBOARD)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = sorted(folder.glob("logs/events.out.tfevents.*"), key=lambda path: int(path.suffix[1:]))
    events = [[value for event in EventFileLoader(str(path)).Load() for value in event.summary.value] for path in files]
    assert [[value.tensor.float_val[0] for value in values] for values in events] == both_runs()


def test_wandb_offline(mesh: Mesh, folder: Path) -> None:
    pytest.importorskip("wandb")
    log_twice(mesh, WANDB)
    files = sorted(folder.glob("logs/wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    for path, losses in zip(files, both_runs(), strict=True):  # what would read it is a program that sends it
        assert all(str(loss).encode() in path.read_bytes() for loss in losses)


def test_the_csv_logger_of_lightning(mesh: Mesh, folder: Path) -> None:
    if find_spec("lightning") is None:
        pytest.skip("there is no lightning")
    log_twice(mesh, CSV)
    files = sorted(folder.glob("logs/lightning_logs/version_*/metrics.csv"))
    assert [path.parent.name for path in files] == ["version_0", "version_1"]
    assert [[float(row["loss"]) for row in csv.DictReader(path.open())] for path in files] == both_runs()


def test_litlogger(mesh: Mesh, lightning: Service) -> None:
    if find_spec("litlogger") is None:
        pytest.skip("there is no litlogger")
    log_twice(mesh, LITLOGGER)
    assert lightning.logged == {
        f"tried-{losses[0]}": [("loss", step, loss) for step, loss in enumerate(losses)] for losses in both_runs()
    }


def test_a_logger_that_takes_sigint_leaves_interrupts_as_they_are(mesh: Mesh) -> None:
    """LitLogger installs a handler that exits the process."""
    if find_spec("litlogger") is None:
        pytest.skip("there is no litlogger")
    mesh.push({"losses": LOSSES})
    mesh.run(LITLOGGER)
    run, recorder = started(mesh, "import threading\nprint('\\x02waits')\nthreading.Event().wait(600)")
    recorder.wait_for_text("\x02waits", 2)
    mesh.interrupt()
    with pytest.raises(RunFailed) as failed:
        run.result(TIMEOUT_S)
    assert {failure.kind for failure in failed.value.failures.values()} == {"interrupted"}
    assert mesh.run("len(losses)").values == [3, 3]

"""Requests that can not be met: each is refused clearly, and nothing stays leased, started or changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb
from integration.live import TIMEOUT_S, Gate, Recorder, client
from leaks import processes_of, wait_for_end
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import (
    PreloadError,
    ReservationNotFound,
    SpawnError,
)
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner


@pytest.fixture
def nothing_stays(shared_pool: list[Node], shared_home: Path) -> Iterator[None]:
    """Afterwards nothing is leased, and the pool's processes are its allocators and their templates again."""
    before = {process.pid for process in processes_of(shared_home)}
    yield
    assert list_reservations() == []
    for process in processes_of(shared_home):
        if process.pid not in before and "template" not in process.command:
            wait_for_end(process.pid, TIMEOUT_S)
    left = [process for process in processes_of(shared_home) if process.pid not in before]
    assert [process for process in left if "--preload" not in process.command] == []


@pytest.fixture
def held(shared_pool: list[Node]) -> Iterator[Reservation]:
    """One node, 3 of its 4 procs."""
    reservation = reserve("held", procs=3)
    yield reservation
    reservation.release()


@pytest.mark.usefixtures("nothing_stays")
def test_a_rank_that_is_named_twice_is_replaced_once(held: Reservation) -> None:
    [connection] = held.mesh.core.connections.values()
    call(connection.unary("Restart", pb.RestartRequest(mesh_id=held.mesh.id, ranks=[0, 0]), TIMEOUT_S))
    assert held.mesh.run("rank").values == [0, 1, 2]


@pytest.mark.usefixtures("nothing_stays")
class TestNames:
    def test_the_same_again_is_the_same(self, held: Reservation) -> None:
        held.mesh.run("kept = rank")
        again = reserve("held", procs=3)
        assert again.id == held.id
        assert again.mesh.run("kept").values == [0, 1, 2]

    def test_released_it_is_gone(self, shared_pool: list[Node]) -> None:
        gone = reserve("gone", procs=1)
        gone.release()
        gone.release()
        with pytest.raises(ReservationNotFound):
            gone.status()
        with pytest.raises(monarch_nb.MonarchNbError):
            gone.mesh.run("1")
        with pytest.raises(monarch_nb.MonarchNbError):
            list(gone.mesh.logs())


@pytest.mark.usefixtures("nothing_stays")
def test_a_release_ends_scripts_with_all_that_they_started_and_their_stores(held: Reservation, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import signal, subprocess\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('under way', flush=True)\n"
        "signal.pause()\n"
    )
    told = Recorder()
    runs = [held.mesh.submit_script(str(script), listener=told) for _ in range(2)]
    told.wait_for_text("under way", 3)
    held.release()
    for run in runs:
        assert run.wait(TIMEOUT_S)


@pytest.mark.usefixtures("nothing_stays")
class TestSpawn:
    def test_a_broken_preload(self, shared_pool: list[Node], tmp_path: Path) -> None:
        (tmp_path / "preload_me.py").write_text("raise RuntimeError('broken by hand')")
        with pytest.raises(PreloadError, match="broken by hand") as raised:
            reserve("broken", nodes=2, procs=1, python=with_path(tmp_path), preload=["preload_me"])
        assert raised.value.module == "preload_me"
        assert 'preload_me.py", line 1' in raised.value.traceback

    def test_a_python_that_is_none(self, shared_pool: list[Node], tmp_path: Path) -> None:
        with pytest.raises(SpawnError, match="/no/such/python"):
            reserve("nopy", procs=1, python="/no/such/python")
        script = tmp_path / "python"
        script.write_text("#!/bin/sh\necho 'I am no python' >&2\nexit 3\n")
        script.chmod(0o755)
        with pytest.raises(SpawnError, match="I am no python"):
            reserve("nopy", nodes=2, procs=1, python=str(script))

    def test_environment_directory_and_python(
        self, shared_pool: list[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TAKEN_FROM_HERE", "here × there")
        (tmp_path / "helper_beside_the_notebook.py").write_text("value = 41")
        with_env: dict[str, str | None] = {"ADDED": "a=b", "EMPTY": "", "TAKEN_FROM_HERE": None, "MISSING_HERE": None}
        reservation = reserve("env", procs=2, env=with_env, directory=tmp_path)
        try:
            code = (
                "import os, sys, helper_beside_the_notebook as helper\n"
                "names = 'ADDED', 'EMPTY', 'TAKEN_FROM_HERE', 'MISSING_HERE', 'CUDA_VISIBLE_DEVICES', 'LOCAL_RANK'\n"
                "[os.environ.get(name) for name in names], os.getcwd(), sys.path[0], sys.executable, helper.value"
            )
            for rank, value in enumerate(reservation.mesh.run(code).values):
                environment, directory, first_path, python, from_helper = value
                assert environment == ["a=b", "", "here × there", None, "", str(rank)]
                assert (directory, first_path, from_helper) == (str(tmp_path), str(tmp_path), 41)
                assert python == sys.executable
        finally:
            reservation.release()


def with_path(directory: Path) -> str:
    """Return a python that finds modules in `directory`."""
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={directory}:$PYTHONPATH exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


class TestInterruptedHalfWay:
    """`%mesh reserve` interrupted by Ctrl-C."""

    def test_nothing_stays_leased(self, nothing_stays: None, gate: Gate, tmp_path: Path) -> None:
        (tmp_path / "slow_module.py").write_text(gate.wait)
        options = f"nodes=2, procs=2, python={with_path(tmp_path)!r}, preload=['slow_module'], progress=print"
        program = (
            f"try:\n    monarch_nb.reserve('half', {options})\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
        )
        with client(program) as kernel:
            assert kernel.line() == "leasing 2 nodes × 2 procs"
            assert kernel.line() == "starting 4 ranks"
            assert [info.name for info in list_reservations()] == ["half"]
            kernel.interrupt()
            assert kernel.line() == "interrupted"
            assert list_reservations() == [], "at once, though the preload goes on"
            assert kernel.finish() == ""
        gate.open(2)
        reservation = reserve("half", nodes=2, procs=2, python=with_path(tmp_path), preload=["slow_module"])
        assert reservation.mesh.run("rank").values == [0, 1, 2, 3]
        reservation.release()

    def test_while_the_pool_is_being_started(self, pool_home: Path) -> None:
        program = (
            "import signal\n"
            "def say(text):\n"
            "    if text.startswith('node0 is ready'): os.kill(os.getpid(), signal.SIGINT)\n"
            "try:\n"
            "    monarch_nb.reserve('half', procs=1, progress=say)\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n"
        )
        with client(program) as kernel:
            assert kernel.line() == "interrupted", kernel.errors()
        assert LocalProvisioner().nodes() == [], "those that were started have ended"
        assert list_reservations() == []
        assert reserve("whole", procs=1).mesh.run("rank").values == [0]

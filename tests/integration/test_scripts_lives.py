"""Scripts whose allocator, client or reservation ends: who survives whom, and that nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, client, eventually, kill
from leaks import wait_for_end
from monarch_nb.client.mesh import Mesh
from monarch_nb.client.reservation import reserve
from monarch_nb.client.run import Run
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

local = LocalProvisioner()


@pytest.fixture
def mesh(module_pool: list[Node]) -> Iterator[Mesh]:
    """A mesh on a pool whose allocators tests may kill."""
    reservation = reserve("dev", nodes=2, procs=2)
    yield reservation.mesh
    local.up(2, 4)
    reservation.release()


@pytest.fixture
def script(tmp_path: Path, gate: Gate) -> str:
    """A script that starts a process, says what its pids are, and waits."""
    path = tmp_path / "waits.py"
    path.write_text(
        "import os, subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('under way', os.getpid(), child.pid, flush=True)\n"
        f"{gate.wait}\n"
        "print('passed')\n"
    )
    return str(path)


def under_way(mesh: Mesh, script: str) -> tuple[Run, Recorder]:
    recorder = Recorder()
    run = mesh.submit_script(script, listener=recorder)
    recorder.wait_for_text("under way", len(mesh.ranks))
    return run, recorder


def pids(recorder: Recorder) -> list[int]:
    return [int(word) for word in recorder.text().split() if word.isdecimal()]


def test_an_allocator_that_was_killed_adopts_it(mesh: Mesh, script: str, gate: Gate) -> None:
    run, told = under_way(mesh, script)
    for node in local.nodes():
        assert node.pid is not None
        kill(node.pid)
    gate.open(2)  # some end in the gap, some after it
    local.up(2, 4)
    gate.open(2)
    assert run.result(TIMEOUT_S) == [0] * 4
    assert told.text().count("passed") == 4
    for pid in pids(told):
        wait_for_end(pid, TIMEOUT_S)
    assert mesh.run_script(script_of(script, "print('next')")).values == [0] * 4


def script_of(beside: str, code: str) -> str:
    path = Path(beside).with_name("other.py")
    path.write_text(code)
    return str(path)


def test_its_client_ends_and_another_one_takes_it_over(mesh: Mesh, script: str, gate: Gate) -> None:
    program = f"mesh = monarch_nb.attach('dev').mesh\nprint(mesh.submit_script({script!r}).wait())"
    with client(program):
        eventually(lambda: [info for info in mesh.runs() if len(info.running) == 4])
    [info] = mesh.runs()
    assert info.is_script
    gate.open(4)
    recorder = Recorder()
    run = mesh.attach_run(info.run_id, from_start=True, listener=recorder)
    assert run.result(TIMEOUT_S) == [0] * 4
    recorder.wait_for_text("passed", 4)


def test_a_release_ends_it_with_all_that_it_has_started(mesh: Mesh, script: str) -> None:
    _, told = under_way(mesh, script)
    waiting = mesh.submit_script(script)
    mesh.reservation.release()
    for pid in pids(told):
        wait_for_end(pid, TIMEOUT_S)
    assert waiting.wait(TIMEOUT_S)
    again = reserve("dev", nodes=2, procs=4)  # all slots are free
    again.release()

"""Allocators and clients that die while cells run: the ranks go on, and everything of the cells arrives, once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, client, eventually, kill, parent_of, pids_of, started
from leaks import wait_for_end
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import NodePaths
from monarch_nb.errors import RunFailed, RunNotFound
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

local = LocalProvisioner()


@pytest.fixture(scope="module")
def dev(module_pool: list[Node]) -> Iterator[Reservation]:
    """A reservation on a pool whose allocators tests may kill."""
    reservation = reserve("dev", nodes=2, procs=4)
    yield reservation
    local.up(2, 4)
    reservation.release()


@pytest.fixture
def mesh(dev: Reservation) -> Iterator[Mesh]:
    """Afterwards every allocator serves, nothing runs and every rank lives."""
    yield dev.mesh
    local.up(2, 4)
    infos = dev.mesh.runs()
    going_on = [info.title for info in infos if not info.done]
    for info in infos:
        with contextlib.suppress(RunNotFound):  # it has just been collected
            dev.mesh.attach_run(info.run_id).collected()
    if going_on or any(info.state == "dead" for info in dev.mesh.status()):
        dev.mesh.restart()
    assert not going_on


def allocators() -> list[int]:
    return [node.pid for node in local.nodes() if node.pid is not None]


def own_text(recorder: Recorder, rank: int) -> str:
    return recorder.text(rank).removeprefix("\x02under way\n")


CANCELLED_BY_GRPC = re.compile(
    r"(?:.* ERROR grpc\._cython\.cygrpc: .*\n)?"
    r"Traceback .*\n  File .src/python/grpcio/.*\nasyncio\.exceptions\.CancelledError\n"
)
"""What gRPC itself says on a busy machine of a call that ends with its server: seen at load 9."""


class TestAllocator:
    def test_killed_while_a_cell_runs(self, mesh: Mesh, gate: Gate, second_gate: Gate) -> None:
        code = f"print('before')\n{gate.wait}\nprint('in the gap', rank)\n{second_gate.wait}\nprint('after')\nrank * 2"
        run, recorder = started(mesh, code)
        kill(allocators()[0])
        recorder.wait_for(lambda recorder: any("does not answer" in n.text for n in recorder.of(events.Notice)))
        gate.open(8)
        for rank in range(4, 8):
            recorder.wait_for(lambda recorder, rank=rank: f"gap {rank}" in recorder.text(rank))  # type: ignore[misc]
        assert "gap" not in recorder.text(0)
        local.up(2, 4)
        for rank in range(4):
            recorder.wait_for(lambda recorder, rank=rank: f"gap {rank}" in recorder.text(rank))  # type: ignore[misc]
        second_gate.open(8)
        assert run.result() == [rank * 2 for rank in range(8)]
        for rank in range(8):
            assert own_text(recorder, rank) == f"before\nin the gap {rank}\nafter\n"
            logged = "".join(record.text for record in mesh.logs(ranks=[rank], run=run))
            assert logged == recorder.text(rank)
        notices = {notice.key: notice.text for notice in recorder.of(events.Notice)}
        assert notices["link node0"] == "", "the notice is gone"
        assert mesh.run("rank").values == list(range(8))

    def test_ranks_that_die_in_the_gap_are_reported_with_exit_codes(self, mesh: Mesh, gate: Gate) -> None:
        run, _ = started(mesh, f"{gate.wait}\nimport os, signal\nif rank == 1: os._exit(5)\nrank")
        leaving, victim = pids_of(mesh)[1], pids_of(mesh)[6]
        for pid in allocators():
            kill(pid)
        kill(victim, signal.SIGABRT)
        gate.open(7)
        wait_for_end(leaving, TIMEOUT_S)
        local.up(2, 4)
        with pytest.raises(RunFailed) as raised:
            run.result()
        failures = raised.value.failures
        assert (failures[1].exit_code, failures[1].signal) == (5, None)
        assert (failures[6].exit_code, failures[6].signal) == (None, signal.SIGABRT)
        assert sorted(failures) == [1, 6]
        assert run.values == [0, None, 2, 3, 4, 5, None, 7]

    def test_a_rank_too_busy_to_say_hello_is_waited_for(self, mesh: Mesh, gate: Gate) -> None:
        holds_the_interpreter = f"""
kept = 'in memory'
import ctypes, os
end = os.open({str(gate.path)!r}, os.O_RDONLY)
ctypes.PyDLL(None).read(end, ctypes.create_string_buffer(1), 1)
rank"""
        run, _ = started(mesh.select([1]), holds_the_interpreter)
        before = pids_of(mesh)
        kill(allocators()[0])
        local.up(2, 4)
        assert mesh.select([0, 2, 3, 4]).run("rank").values == [0, 2, 3, 4], "the node serves meanwhile"
        assert not run.done
        gate.open()
        assert run.result() == [1]
        assert mesh.select([1]).pull("kept") == ["in memory"]
        assert pids_of(mesh) == before

    def test_the_socket_that_it_left_is_stale(self, mesh: Mesh) -> None:
        node = local.nodes()[0]
        kill(allocators()[0])
        assert NodePaths(node.directory).allocator_socket.exists()
        assert [info.name for info in list_reservations()] == ["dev"], "the other node answers at once"
        assert list_reservations()[0].nodes_answering == 1
        assert attach("dev").mesh.run("kept = rank\nrank").values == list(range(8)), "attaching starts it again"
        for pid in allocators():
            kill(pid)
        said: list[str] = []
        again = reserve("dev", nodes=2, procs=4, progress=said.append)
        assert "died; new ones adopt their ranks" in said[0], "so does reserving it again"
        assert again.id == mesh.reservation.id
        assert again.mesh.pull("kept") == list(range(8))

    def test_one_that_was_told_to_stop_leaves_its_ranks(self, mesh: Mesh, gate: Gate) -> None:
        run, _ = started(mesh, f"{gate.wait}\nrank")
        logs = [NodePaths(node.directory).allocator_log for node in local.nodes()]
        before = [log.stat().st_size for log in logs]  # what other tests did to the pool is not this one's
        for pid in allocators():
            kill(pid, signal.SIGTERM)
        gate.open(8)
        local.up(2, 4)
        assert run.result() == list(range(8))
        for path, already in zip(logs, before, strict=True):
            log = path.read_bytes()[already:].decode()
            said = CANCELLED_BY_GRPC.sub("", log)
            assert "Traceback" not in said, f"ending is no error, also of what clients had open: {log}"

    def test_killed_while_replaced_ranks_end(self, mesh: Mesh) -> None:
        """The next one ends them, also without a template that knows them, and what they have started."""
        child = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True).pid"
        old = [*pids_of(mesh).values(), *mesh.run(child).values]
        for pid in old:
            os.kill(pid, signal.SIGSTOP)  # ranks take seconds to end then
        mesh.restart()
        templates = {parent_of(pid) for pid in pids_of(mesh).values()}
        for pid in (*allocators(), *templates):
            kill(pid)
        local.up(2, 4)
        for pid in old:
            wait_for_end(pid, TIMEOUT_S)
        assert mesh.run("rank").values == list(range(8)), "their successors live"


class TestClient:
    """A kernel is killed while its cell runs on 8 ranks; another one takes over."""

    def program(self, code: str) -> str:
        return (
            "seen = threading.Semaphore(0)\n"
            "def show(event):\n"
            "    if hasattr(event, 'stream') and 'first' in event.text: seen.release()\n"
            "    else: print(event, file=sys.stderr)\n"  # to be read when no line comes
            "mesh = monarch_nb.attach('dev').mesh\n"
            f"run = mesh.submit({code!r}, listener=show)\n"
            "for _ in range(8): seen.acquire()\n"
            "print(run.id)\n"
            "run.result()\n"
        )

    def test_everything_is_there_for_the_next(self, mesh: Mesh, gate: Gate) -> None:
        code = f"print('first', rank)\n{gate.wait}\nprint('second', rank)\n{{'value': rank}}"
        with client(self.program(code)) as kernel:
            run_id = kernel.line()
            kernel.process.kill()
            kernel.finish()
        [info] = [info for info in mesh.runs() if not info.done]
        assert (info.run_id, info.title, info.done, info.ranks) == (
            run_id,
            "print('first', rank)",
            False,
            tuple(range(8)),
        )
        rest, whole = Recorder(), Recorder()
        run = mesh.attach_run(run_id, listener=rest)
        again = mesh.attach_run(run_id, from_start=True, listener=whole)
        whole.wait_for_text("first", 8)  # it follows: who comes after the other has collected the values gets none
        gate.open(8)
        for followed, recorder in ((run, rest), (again, whole)):
            assert followed.result() == [{"value": rank} for rank in range(8)]
            recorder.wait_for(lambda recorder: recorder.of(events.Finished))
        for rank in range(8):
            text = f"first {rank}\nsecond {rank}\n"
            assert whole.text(rank) == text
            assert rest.text(rank).endswith(f"second {rank}\n"), "at least what was not shown yet"
            assert text.endswith(rest.text(rank)), "and not in another order"
        assert [result.bundle["text/plain"] for result in whole.of(events.Result) if result.rank == 3] == [
            "{'value': 3}"
        ]
        with pytest.raises(RunNotFound):
            mesh.attach_run("unknown")


class TestTwoClients:
    """Two notebooks on one reservation: their cells queue in order, and each sees its own output."""

    def test_cells_queue_and_output_does_not_mix(self, mesh: Mesh, gate: Gate) -> None:
        program = (
            "mesh = monarch_nb.attach('dev').mesh\n"
            "def show(event):\n"
            "    if getattr(event, 'text', '').startswith('waits for'): print(event.text)\n"
            "    elif hasattr(event, 'stream'): texts.append(event.text)\n"
            "texts = []\n"
            'run = mesh.submit(\'order.append("theirs")\\nprint("their output")\', listener=show)\n'
            "run.result()\n"
            "print(repr(''.join(sorted(texts))))\n"
        )
        mesh.run("order = []")
        run, recorder = started(mesh, f"order.append('mine')\n{gate.wait}\nprint('my output')")
        with client(program) as other:
            waits = other.line()
            assert waits.startswith("waits for: run ")
            assert waits.endswith(r"(print('\x02under way'))")
            last = mesh.submit("order.append('last')")
            gate.open(8)
            run.result()
            last.result()
            lines = other.finish().splitlines()
        assert "their output" in lines[-1]
        assert "my output" not in lines[-1]
        assert recorder.text().count("my output\n") == 8
        assert "their" not in recorder.text()
        assert mesh.pull("order") == [["mine", "theirs", "last"]] * 8


class TestScripts:
    @pytest.fixture
    def script(self, gate: Gate, tmp_path: Path) -> str:
        """A script that starts a process, says what the pids are, and waits."""
        path = tmp_path / "waits.py"
        path.write_text(
            "import os, subprocess\n"
            "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
            "print('under way', os.getpid(), child.pid, flush=True)\n"
            f"{gate.wait}\n"
            "print('passed')\n"
        )
        return str(path)

    def test_allocators_that_were_killed_know_it_again(self, mesh: Mesh, script: str, gate: Gate) -> None:
        recorder = Recorder()
        run = mesh.submit_script(script, listener=recorder)
        recorder.wait_for_text("under way", 8)
        next_run = mesh.submit_script(script)
        for pid in allocators():
            kill(pid)
        gate.open(4)  # so many end in the gap
        local.up(2, 4)
        gate.open(12)
        assert run.result(TIMEOUT_S) == [0] * 8
        assert next_run.result(TIMEOUT_S) == [0] * 8
        assert recorder.text().count("passed") == 8
        for pid in [int(word) for word in recorder.text().split() if word.isdecimal()]:
            wait_for_end(pid, TIMEOUT_S)

    def test_the_next_client_takes_it_over(self, mesh: Mesh, script: str, gate: Gate) -> None:
        recorder = Recorder()
        with client(f"monarch_nb.attach('dev').mesh.submit_script({script!r}).wait()"):
            eventually(lambda: [info for info in mesh.runs() if len(info.running) == 8])
            [info] = mesh.runs()
        run = mesh.attach_run(info.run_id, from_start=True, listener=recorder)
        gate.open(8)
        assert run.result(TIMEOUT_S) == [0] * 8
        recorder.wait_for_text("passed", 8)

"""Allocators and clients that die while cells run: the ranks go on, and everything of the cells arrives, once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, client, eventually, kill, parent_of, pids_of, started
from leaks import wait_for_end
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.known.lists import list_reservations
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import NodePaths
from monarch_nb.errors import NodeUnreachable, RunFailed, RunNotFound
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


@pytest.fixture
def second_gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


def allocators() -> list[int]:
    return [node.pid for node in local.nodes() if node.pid is not None]


def own_text(recorder: Recorder, rank: int) -> str:
    return recorder.text(rank).removeprefix("\x02under way\n")


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

    def test_logs_know_the_runs_that_the_allocator_before_had_forgotten(self, mesh: Mesh) -> None:
        mesh.run("pass")
        run = mesh.submit("print('after a silent run')")  # in the files that the silent one left untouched
        run.result()
        for silent in range(2):
            mesh.run(f"{silent}")
        for pid in allocators():
            kill(pid)
        local.up(2, 4)
        assert {record.run for record in mesh.logs() if "silent" in record.text} == {run.number}
        assert mesh.run("pass").number == run.number + 3, "numbers go on by one"

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

    @pytest.mark.slow
    def test_what_nobody_saw_is_not_guessed(self, mesh: Mesh, gate: Gate) -> None:
        run, _ = started(mesh, gate.wait)
        victim = pids_of(mesh)[2]
        template = parent_of(victim)
        kill(allocators()[0])
        kill(template)
        kill(victim)
        local.up(2, 4)
        gate.open(7)
        with pytest.raises(RunFailed) as raised:
            run.result()
        [failure] = raised.value.failures.values()
        assert (failure.rank, failure.kind, failure.exit_code) == (2, "died", None)
        assert failure.signal in (None, signal.SIGKILL)
        assert failure.signal or "unknown" in failure.message

    def test_killed_by_the_very_cell_that_it_just_started(self, mesh: Mesh, gate: Gate, tmp_path: Path) -> None:
        """It had no time to write the run down. The run is executed once, and nothing of it is lost."""
        mesh.run("print('so that the next run has files of its own')")
        doomed = allocators()
        code = (
            f"import os\n{gate.wait}\n"
            f"if rank in (0, 4): os.kill({doomed}[rank // 4], 9)\n"
            f"with open(f'{tmp_path}/{{rank}}', 'a') as file: file.write('once')\n"
            "print('printed', rank)\n"
            "rank"
        )
        recorder = Recorder()
        run = mesh.submit(code, listener=recorder)
        eventually(lambda: run.number)
        gate.open(8)
        for pid in doomed:
            wait_for_end(pid, TIMEOUT_S)
        local.up(2, 4)
        assert run.result() == list(range(8))
        assert [(tmp_path / str(rank)).read_text() for rank in range(8)] == ["once"] * 8
        assert {rank: recorder.text(rank) for rank in range(8)} == {rank: f"printed {rank}\n" for rank in range(8)}
        assert [record.text for record in mesh.logs(ranks=[3], run=run)] == ["printed 3\n"]
        after = mesh.run("print('next')\nrank")
        assert after.values == list(range(8))
        assert after.number > run.number

    def test_the_socket_that_it_left_is_stale(self, mesh: Mesh) -> None:
        node = local.nodes()[0]
        kill(allocators()[0])
        assert NodePaths(node.directory).allocator_socket.exists()
        assert [info.name for info in list_reservations()] == ["dev"], "the other node answers at once"
        assert list_reservations()[0].nodes_answering == 1
        assert attach("dev").mesh.run("rank").values == list(range(8)), "attaching starts it again"

    def test_rerunning_reserve_brings_it_back_with_its_ranks(self, mesh: Mesh) -> None:
        mesh.run("trained = 'for hours'")
        for pid in allocators():
            kill(pid)
        said: list[str] = []
        again = reserve("dev", nodes=2, procs=4, progress=said.append)
        assert "died; new ones adopt their ranks" in said[0]
        assert again.id == mesh.reservation.id
        assert again.mesh.pull("trained") == ["for hours"] * 8

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
            assert "Traceback" not in log, f"ending is no error, also of what clients had open: {log}"

    def test_a_cell_is_refused_while_one_is_down(self, mesh: Mesh) -> None:
        mesh.run("rank")
        kill(allocators()[1])
        eventually(lambda: not mesh.core.is_node_up(1))
        for use in (lambda: mesh.submit("rank"), lambda: mesh.push({"x": 1}), lambda: mesh.pull("rank")):
            with pytest.raises(NodeUnreachable, match=r"node1 does not answer.*monarch-nb up") as raised:
                use()
            assert raised.value.node == "node1"
        assert mesh.select([0, 1]).run("rank").values == [0, 1], "the other node serves"
        local.up(2, 4)
        assert mesh.run("rank").values == list(range(8)), "at once, although the session may not be open yet"

    def test_an_interrupt_leaves_what_can_not_be_reached(self, mesh: Mesh, gate: Gate) -> None:
        program = (
            "from monarch_nb.client.connections import events\n"
            "def tell(event):\n"
            "    if isinstance(event, events.Text): print('under way')\n"
            "    if isinstance(event, events.Notice) and 'does not answer' in event.text: print('away', flush=True)\n"
            "mesh = monarch_nb.attach('dev').mesh\n"
            f"run = mesh.submit({f'print(1){chr(10)}{gate.wait}{chr(10)}rank'!r}, listener=tell)\n"
            "try:\n"
            "    run.join()\n"
            "except KeyboardInterrupt as interrupt:\n"
            "    print('freed', interrupt)\n"
            "input()\n"
            "print(sorted(run.results))\n"
            "run.wait()\n"
            "print([result.outcome for _, result in sorted(run.results.items())])\n"
        )
        with client(program) as script:
            assert [script.line() for _ in range(8)] == ["under way"] * 8
            kill(allocators()[1])
            assert script.line() == "away"
            script.interrupt()
            while not (line := script.line()).startswith("freed"):
                assert line == "away"
            assert "interrupted ranks 0-3; ranks 4-7 can not be reached and go on: node1 does not answer" in line
            script.tell()
            assert script.line() == "[0, 1, 2, 3]"
            assert str(mesh.interrupt()).startswith("ranks 4-7 can not be reached"), "it returns"
            local.up(2, 4)
            gate.open(4)
            assert script.line() == str(["interrupted"] * 4 + ["ok"] * 4)

    def test_a_rank_restarted_after_it_came_back(self, mesh: Mesh) -> None:
        for pid in allocators():
            kill(pid)
        local.up(2, 4)
        before = pids_of(mesh)
        mesh.restart([0, 5])
        assert mesh.run("rank").values == list(range(8))
        assert {rank for rank, pid in pids_of(mesh).items() if before[rank] != pid} == {0, 5}

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

    def test_interrupting_what_another_one_started(self, mesh: Mesh) -> None:
        with client(self.program("print('first')\nimport threading\nthreading.Event().wait()")) as kernel:
            kernel.line()
            kernel.process.kill()
            kernel.finish()
        assert mesh.interrupt().stopped == tuple(range(8))
        assert mesh.run("rank").values == list(range(8))

    def test_a_script_that_ends_without_waiting(self, mesh: Mesh, gate: Gate) -> None:
        with client(f"monarch_nb.attach('dev').mesh.submit({gate.wait!r} + '\\nrank')") as script:
            assert script.finish() == ""
            assert script.process.returncode == 0
            assert script.errors() == ""
        [info] = [info for info in mesh.runs() if not info.done]
        gate.open(8)
        assert mesh.attach_run(info.run_id).result() == list(range(8))


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

    def test_fifty_runs_of_each_at_once_in_one_order_on_all_ranks(self, mesh: Mesh) -> None:
        """Each run meets in a collective: one order that differed between nodes would mix two runs, or hang."""
        mesh.restart()
        mesh.run("import torch\ndist.init_process_group('gloo')\nfor_all = []")
        code = (
            "tags = [None] * world_size\n"
            "dist.all_gather_object(tags, {tag!r})\n"
            "assert set(tags) == {{{tag!r}}}, tags\n"
            "for_all.append({tag!r})"
        )
        program = (
            "mesh = monarch_nb.attach('dev').mesh\n"
            "print('ready')\n"
            "sys.stdin.readline()\n"
            "runs = []\n"
            "for i in range(50):\n"
            f"    runs.append(mesh.submit({code!r}.format(tag=f'{{os.getpid()}}-{{i}}')))\n"
            "    if i % 2: runs[-1].result(60)\n"
            "for run in runs: run.result(60)\n"
            "print('done')\n"
        )
        with client(program) as first, client(program) as second:
            for one in (first, second):
                assert one.line() == "ready"
            for one in (first, second):
                one.tell()
            for one in (first, second):
                assert one.line() == "done", one.errors()
        orders = mesh.pull("for_all")
        assert all(order == orders[0] for order in orders)
        assert len(orders[0]) == 100
        for pid in {tag.partition("-")[0] for tag in orders[0]}:
            own = [int(tag.partition("-")[2]) for tag in orders[0] if tag.startswith(f"{pid}-")]
            assert own == list(range(50))


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

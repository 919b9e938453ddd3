"""One interrupt frees every rank without costing its memory; what does not stop is named, and replaced on demand."""

from __future__ import annotations

import time
from typing import Any

import pytest

from integration.live import Gate, Recorder, client, eventually, pids_of, said_of_waits, started
from monarch_nb.client.connections import events
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.runs import interrupting, waits
from monarch_nb.client.runs import run as run_module
from monarch_nb.client.runs.mismatches import wait_in_vain
from monarch_nb.errors import GROUP_ABORTED, RunFailed

INIT = "dist.init_process_group('gloo')"
FRESH_GROUP = f"if dist.is_initialized(): dist.destroy_process_group()\n{INIT}"
TRAIN = (
    "import torch\n"
    "torch.manual_seed(0)\n"
    "weights = torch.ones(4) * rank\n"
    "steps = 0\n"
    "def step():\n"
    "    global steps\n"
    "    mean = weights.clone(); dist.all_reduce(mean); steps += 1\n"
    "    return mean[0].item()\n"
)
HANG_IN_C = "sum(range(10 ** 14))  # holds the interpreter and looks at no signal"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client says or gives up after seconds, it does at once."""
    monkeypatch.setattr(waits, "WAITS_INTERVAL_S", 0.1)
    monkeypatch.setattr(waits, "APART_AFTER_S", 0.2)
    monkeypatch.setattr(run_module, "ABORT_AFTER_S", 0.1)


def wait_until_in_collective(mesh: Mesh, ranks: int) -> None:
    """Wait until so many ranks are in a collective."""
    eventually(lambda: len([at for at in mesh.where().values() if at.collective]) == ranks)


def kinds(error: RunFailed) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, failure in sorted(error.failures.items()):
        found.setdefault(failure.kind, []).append(rank)
    return found


class TestPython:
    def test_it_stops_and_keeps_everything(self, mesh: Mesh) -> None:
        mesh.run("kept = rank * 3")
        run, recorder = started(mesh, "while True: pass")
        report = mesh.interrupt()
        assert report.stopped == tuple(range(8))
        assert (report.stuck, report.aborted, report.restarted) == ({}, (), ())
        assert run.done
        assert len(recorder.of(events.Finished)) == 1
        with pytest.raises(RunFailed) as raised:
            run.result(60)
        assert kinds(raised.value) == {"interrupted": list(range(8))}
        assert {failure.name for failure in raised.value.failures.values()} == {"KeyboardInterrupt"}
        assert mesh.pull("kept") == [rank * 3 for rank in range(8)]

    def test_ranks_that_finished_are_left_alone(self, mesh: Mesh, gate: Gate) -> None:
        run, recorder = started(mesh, f"if rank < 4:\n    {gate.wait}\nrank")
        recorder.wait_for(lambda recorder: len(recorder.of(events.Result)) == 4)
        assert run.interrupt().stopped == (0, 1, 2, 3)
        with pytest.raises(RunFailed) as raised:
            run.result(60)
        assert kinds(raised.value) == {"interrupted": [0, 1, 2, 3]}
        assert run.values == [None] * 4 + [4, 5, 6, 7]

    def test_nothing_runs(self, mesh: Mesh) -> None:
        assert str(mesh.interrupt()) == "nothing was running"
        assert mesh.run("rank").values == list(range(8))

    def test_what_waits_for_its_turn_is_dropped(self, mesh: Mesh, gate: Gate) -> None:
        first, _ = started(mesh, f"{gate.wait}\n'first'")
        queued = mesh.submit("ran = True")
        queued.cancel()
        with pytest.raises(RunFailed) as raised:
            queued.result(60)
        assert kinds(raised.value) == {"cancelled": list(range(8))}
        gate.open(8)
        assert first.result(60) == ["first"] * 8
        assert mesh.pull("'ran' in globals()") == [False] * 8

    def test_everything_at_once(self, mesh: Mesh) -> None:
        """What waits never begins, whoever submitted it. What comes afterwards is not touched."""
        first, _ = started(mesh, "while True: pass", cell_number=3)
        queued = [mesh.submit(f"began = {number}\nwhile True: pass", cell_number=number) for number in (4, 5)]
        queued.append(mesh.select([6]).submit("began = 6"))
        with client(self.OTHER) as other:
            assert other.line() == "waits for"
            report = mesh.interrupt()
            assert other.line() == "cancelled"
        assert report.stopped == tuple(range(8))
        names = [f"run {first.number + 1}, cell [4]", f"run {first.number + 2}, cell [5]"]
        names += [f"run {first.number + 3}", "and 1 more"]
        assert str(report) == (
            f"interrupted run {first.number}, cell [3], on ranks 0-7; dropped 4 that waited: {'; '.join(names)}"
        )
        with pytest.raises(RunFailed) as raised:
            first.result(60)
        assert kinds(raised.value) == {"interrupted": list(range(8))}
        for run in queued:
            assert run.done
            with pytest.raises(RunFailed) as raised:
                run.result(60)
            assert kinds(raised.value) == {"cancelled": list(run.ranks)}
        assert mesh.pull("globals().pop('began', None)") == [None] * 8

    OTHER = (
        "mesh = monarch_nb.attach('dev').mesh\n"
        "said = set()\n"
        "def show(event):\n"
        "    text = getattr(event, 'text', '')[:9]\n"
        "    if text == 'waits for' and text not in said: said.add(text); print(text)\n"
        "try:\n"
        "    mesh.submit('began = True\\nwhile True: pass', listener=show).result()\n"
        "except monarch_nb.errors.RunFailed as error:\n"
        "    print(*{failure.kind for failure in error.failures.values()})\n"
    )

    def test_what_was_submitted_just_before_does_not_escape(self, mesh: Mesh) -> None:
        for _ in range(5):
            runs = [mesh.submit("began = True\nwhile True: pass") for _ in range(3)]
            mesh.interrupt()
            for run in runs:
                with pytest.raises(RunFailed) as raised:
                    run.result(60)
                assert set(kinds(raised.value)) <= {"interrupted", "cancelled"}
        after = mesh.run("'ran'")
        assert after.values == ["ran"] * 8


class TestCollective:
    def test_hang_interrupt_init_again_and_again_on_one_live_model(self, fresh_mesh: Mesh) -> None:
        mesh = fresh_mesh
        mesh.run(f"{TRAIN}\n{INIT}")
        for missing in (0, 5):
            assert mesh.run("step()").values == [28.0] * 8
            run, recorder = started(mesh, f"if rank == {missing}: raise KeyError('boom')\nstep()", on_error="wait")
            recorder.wait_for(lambda recorder: recorder.of(events.Result))
            wait_until_in_collective(mesh, 7)
            report = run.interrupt()
            assert report.stuck == {}
            assert report.aborted
            with pytest.raises(RunFailed) as raised:
                run.result(60)
            others = [rank for rank in range(8) if rank != missing]
            assert kinds(raised.value) == {"error": [missing], "interrupted": others}
            messages = {raised.value.failures[rank].message for rank in others}
            assert any("interrupted in all_reduce" in message for message in messages), messages
            assert all("process group aborted" in message for message in messages), messages
            mesh.run(INIT)
        assert mesh.run("step()").values == [28.0] * 8
        assert mesh.pull("steps") == [3] * 8

    @pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.3])
    def test_one_press_at_any_moment(self, mesh: Mesh, delay_s: float) -> None:
        """Before the run has reached all nodes, before its ranks begin, inside destroy and init, in the all_reduce."""
        run = mesh.submit(f"import torch\n{FRESH_GROUP}\nif rank != 3: dist.all_reduce(torch.ones(1))")
        time.sleep(delay_s)
        report = run.interrupt()
        assert report.stuck == {}
        with pytest.raises(RunFailed) as raised:
            run.result(0)
        others = [failure for failure in raised.value.failures.values() if failure.rank != 3]
        assert {failure.kind for failure in others} <= {"interrupted", "cancelled"}, others
        # That import may have been interrupted, too.
        again = mesh.submit(f"import torch\n{INIT}\nsum = torch.ones(1)\ndist.all_reduce(sum)\nsum.item()")
        assert again.result(60) == [8.0] * 8

    def test_who_waits_for_whom_is_said(self, fresh_mesh: Mesh, soon: None) -> None:
        mesh = fresh_mesh
        mesh.run(f"{TRAIN}\n{INIT}")
        code = "if rank == 7: raise KeyError('boom')\nstep()"
        run, recorder = started(mesh, code, cell_number=12, on_error="wait")

        recorder.wait_for(lambda recorder: said_of_waits(recorder).startswith("Stuck: ranks 0-6 wait in all_reduce"))
        assert "for rank 7, which raised KeyError. Press ■" in said_of_waits(recorder)
        stacks = mesh.stacks()
        [waiting] = [stack for ranks, stack in stacks.groups if ranks == tuple(range(7))]
        assert "step" in waiting
        assert "Cell In[" in waiting
        assert {at.collective for at in mesh.select(range(7)).where().values()} == {"all_reduce"}
        run.interrupt()
        with pytest.raises(RunFailed):
            run.result(60)
        assert said_of_waits(recorder).startswith("ranks 0-6 waited in all_reduce"), "a saved notebook still says why"
        assert said_of_waits(recorder).endswith("for rank 7, which raised KeyError")
        with pytest.raises(RunFailed) as later:
            mesh.run("pass\nstep()", cell_number=13)
        [(everyone, failure)] = later.value.groups()
        assert everyone == list(range(8))
        assert failure.message == f"a run was interrupted in a collective; {GROUP_ABORTED}"
        assert "Cell In[13], line 2" in failure.traceback, "a message alone does not say where"

    def test_who_waits_for_whom_is_said_although_nobody_has_ended(self, fresh_mesh: Mesh, soon: None) -> None:
        mesh = fresh_mesh
        mesh.run(f"{TRAIN}\n{INIT}")
        run, recorder = started(mesh, "if rank != 3: step()\ndist.barrier()", cell_number=12)

        recorder.wait_for(lambda recorder: "ranks 0-2,4-7 wait in all_reduce" in said_of_waits(recorder))
        assert "rank 3 waits in barrier (Cell In[12]:3)" in said_of_waits(recorder)
        assert "Press ■ (or %mesh interrupt) to free them" in said_of_waits(recorder)
        run.interrupt()
        assert run.wait(60)

    def test_ranks_that_wait_in_vain_for_one_that_failed_are_freed(self, fresh_mesh: Mesh, soon: None) -> None:
        mesh = fresh_mesh
        mesh.run(f"{TRAIN}\nkept = rank")
        for before, code in (("", INIT), (INIT, "step()"), (INIT, "dist.recv(torch.ones(1), 3)")):
            mesh.run(before)
            recorder = Recorder()
            with pytest.raises(RunFailed) as raised:
                mesh.run(f"if rank == 3: raise KeyError('boom')\n{code}", listener=recorder)
            assert kinds(raised.value) == {"error": [3], "interrupted": [0, 1, 2, 4, 5, 6, 7]}
            assert raised.value.groups()[0][0] == [3], "the cause comes first"
            waits = [notice.text for notice in recorder.of(events.Notice) if notice.key == "waits"]
            assert any(text.endswith("This ends by itself in some seconds; variables stay.") for text in waits)
            [notice] = [notice for notice in recorder.of(events.Notice) if notice.key == "abort"]
            assert notice.text.startswith("ranks 0-2,4-7 freed: rank 3 failed and can never join them; all variables")
            assert "for rank 3, which raised KeyError" in said_of_waits(recorder), "a saved notebook still says why"
        assert mesh.pull("kept") == list(range(8))
        mesh.run(INIT)
        assert mesh.run("step()").values == [28.0] * 8

    @pytest.mark.parametrize("kind", ["computes", "joins in a task", "joins in another cell", "is debugged"])
    def test_no_rank_is_freed_while_it_or_the_one_that_failed_may_go_on(
        self, fresh_mesh: Mesh, gate: Gate, second_gate: Gate, soon: None, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        mesh, debugger, verdicts = fresh_mesh, Debugger(fresh_mesh), list[bool]()

        def judge(*facts: Any) -> bool:
            verdicts.append(wait_in_vain(*facts))
            return verdicts[-1]

        monkeypatch.setattr(run_module, "wait_in_vain", judge)
        monkeypatch.setattr(waits, "APART_AFTER_S", 1e9)
        mesh.run(f"{TRAIN}\n{INIT}\nimport asyncio\nasync def join():\n  await asyncio.to_thread(wait)\n  step()")
        mesh.run(f"def wait():\n  {gate.wait}")
        run, _ = started(
            mesh,
            "if rank == 7:\n"
            f"  {second_gate.wait}\n"
            f"  {'task = asyncio.get_running_loop().create_task(join())' if kind == 'joins in a task' else 'pass'}\n"
            "  raise KeyError('boom')\n"
            f"if rank == 0: {'wait()' if kind == 'computes' else 'pass'}\n"
            "step()",
        )
        other = mesh.select([7]).submit("wait()\nstep()") if kind == "joins in another cell" else None
        second_gate.open()
        eventually(lambda: 7 in run.results)
        if kind == "is debugged":
            assert debugger.enter_errors() == [7]
        monkeypatch.setattr(waits, "APART_AFTER_S", 0.2)
        eventually(lambda: len(verdicts) > 2)
        assert not any(verdicts)
        debugger.leave_errors()
        gate.open()
        with pytest.raises(RunFailed) as raised:
            run.result(60)
        freed = {} if kind.startswith("joins") else {"interrupted": list(range(7))}
        assert kinds(raised.value) == {"error": [7]} | freed
        if other is not None:
            assert other.result(60) == [28.0]

    def test_on_error_abort_needs_nobody(self, fresh_mesh: Mesh, soon: None) -> None:
        mesh = fresh_mesh
        mesh.run(f"{TRAIN}\n{INIT}")
        recorder = Recorder()
        with pytest.raises(RunFailed) as raised:
            mesh.run("if rank == 3: raise KeyError('boom')\nstep()", on_error="abort", listener=recorder)
        assert kinds(raised.value) == {"error": [3], "interrupted": [0, 1, 2, 4, 5, 6, 7]}
        assert raised.value.groups()[0][0] == [3], "the cause comes first"
        [notice] = [notice for notice in recorder.of(events.Notice) if notice.key == "abort"]
        assert notice.text == "ranks 0-2,4-7 interrupted: rank 3 failed"
        mesh.run(INIT)
        assert mesh.run("step()").values == [28.0] * 8


@pytest.mark.usefixtures("impatient")
class TestStuck:
    def test_it_is_named_and_a_second_interrupt_replaces_just_it(self, mesh: Mesh) -> None:
        mesh.run("kept = rank")
        before = pids_of(mesh)
        wait = "__import__('threading').Event().wait()"
        run, recorder = started(mesh, f"if rank == 2: {HANG_IN_C}\n{wait}", cell_number=5)
        eventually(lambda: 2 not in mesh.select([2]).where())
        report = run.interrupt()
        assert report.stopped == (0, 1, 3, 4, 5, 6, 7)
        assert list(report.stuck) == [2]
        assert "native code" in report.stuck[2]
        assert "rank 2 does not stop" in str(report)
        recorder.wait_for(lambda recorder: any("rank 2" in notice.text for notice in recorder.of(events.Notice)))
        [stack] = [stack for ranks, stack in mesh.stacks().groups if 2 in ranks]
        assert "most recent call" in stack, "by faulthandler, though the interpreter is held"
        report = run.interrupt(kill_stuck=True)
        assert report.restarted == (2,)
        with pytest.raises(RunFailed) as raised:
            run.result(60)
        assert kinds(raised.value) == {"died": [2], "interrupted": [0, 1, 3, 4, 5, 6, 7]}
        assert mesh.pull("globals().get('kept')") == [0, 1, None, 3, 4, 5, 6, 7]
        assert {rank for rank, pid in pids_of(mesh).items() if before[rank] != pid} == {2}


class TestCtrlC:
    """In a script: Ctrl-C goes to the ranks."""

    PROGRAM = (
        "mesh = monarch_nb.attach('dev').mesh\n"
        "said = set()\n"
        "def show(event):\n"
        "    for text in {texts!r}:\n"
        "        if text in getattr(event, 'text', '') and text not in said: said.add(text); print(text)\n"
        "try:\n"
        "    mesh.run({code!r}, listener=show)\n"
        "except KeyboardInterrupt as interrupt:\n"
        "    print(interrupt)\n"
        "print(mesh.run('rank').values)\n"
    )

    def test_it_frees_the_ranks(self, mesh: Mesh) -> None:
        with client(self.PROGRAM.format(code="print('go')\nwhile True: pass", texts=["go"])) as script:
            assert script.line() == "go"
            script.interrupt()
            assert script.line() == "interrupted ranks 0-7"
            assert script.line() == "[0, 1, 2, 3, 4, 5, 6, 7]"

    @pytest.mark.usefixtures("impatient")
    def test_twice_replaces_what_does_not_stop(self, mesh: Mesh) -> None:
        code = f"if rank == 1: print('go'); {HANG_IN_C}\n__import__('threading').Event().wait()"
        with client(self.PROGRAM.format(code=code, texts=["go", "rank 1 does not stop"])) as script:
            assert script.line() == "go"
            eventually(lambda: 1 not in mesh.select([1]).where())
            script.interrupt()
            eventually(lambda: [info.rank for info in mesh.status() if info.state == "running"] == [1])
            script.interrupt()  # impatient: that kills nothing
            assert script.line() == "rank 1 does not stop"
            script.interrupt()
            assert script.line() == ("interrupted ranks 0,2-7; killed and restarted rank 1: their variables are lost")
            assert script.line() == "[0, 1, 2, 3, 4, 5, 6, 7]"

    def test_while_it_waits_for_another_ones_cell(self, mesh: Mesh, gate: Gate) -> None:
        run, _ = started(mesh, f"{gate.wait}\nrank")
        with client(self.PROGRAM.format(code="'never'", texts=["waits for"])) as script:
            assert script.line() == "waits for"
            script.interrupt()
            goes_on = f"run {run.number} goes on: %mesh interrupt stops it"
            assert script.line() == f"not begun: removed from the queue; {goes_on}"
            gate.open(8)
            assert run.result(60) == list(range(8)), "the other one's goes on"
            assert script.line() == "[0, 1, 2, 3, 4, 5, 6, 7]"


class TestTimeout:
    def test_the_run_goes_on(self, mesh: Mesh, gate: Gate) -> None:
        recorder = Recorder()
        with pytest.raises(TimeoutError, match=r"run \d+ goes on after 0.2 s on ranks 0-7") as raised:
            mesh.run(f"print('under way')\n{gate.wait}\nrank", timeout_s=0.2, listener=recorder)
        assert type(raised.value) is TimeoutError
        assert not isinstance(raised.value, RunFailed)
        recorder.wait_for_text("under way", 8)
        [info] = [info for info in mesh.runs() if not info.done]
        run = mesh.attach_run(info.run_id)
        with pytest.raises(TimeoutError, match="after 0 s"):
            run.result(timeout_s=0)
        assert not run.wait(0.01)
        gate.open(8)
        assert run.result(timeout_s=60) == list(range(8))


@pytest.mark.slow
def test_code_that_handles_its_interrupt_is_left_alone(mesh: Mesh, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0-3 have a handler, the others catch KeyboardInterrupt. Both save, which takes long."""
    monkeypatch.setattr(interrupting, "STOP_WAIT_S", 4.0)  # as users have it
    code = (
        "import signal, time\ncalls = []\n"
        "if rank < 4:\n"
        "    signal.signal(signal.SIGINT, lambda *_: calls.append(1))\n"
        f"    print('steps')\n    while not calls: time.sleep(0.01)\n    {gate.wait}\n"
        "else:\n"
        f"    try: print('steps'); time.sleep(1000)\n    except KeyboardInterrupt:\n        {gate.wait}\n"
        "len(calls)"
    )
    run, recorder = started(mesh, code)
    recorder.wait_for(
        lambda recorder: len({text.rank for text in recorder.of(events.Text) if "steps" in text.text}) == 8
    )
    first = run.interrupt()
    assert (sorted(first.handling), first.stuck, first.stopped, first.kills) == (list(range(8)), {}, (), frozenset())
    second = run.interrupt()
    assert (sorted(second.handling), second.stopped, second.kills) == ([0, 1, 2, 3], (4, 5, 6, 7), {0, 1, 2, 3})
    told = [notice.text for notice in recorder.of(events.Notice) if notice.key == "stuck"]
    assert told[0].startswith("ranks 0-7 handle the interrupt (")
    assert told[-1].endswith("interrupt again within 10 s to kill and restart them")
    gate.open(4)
    with pytest.raises(RunFailed) as raised:
        run.result(60)
    assert kinds(raised.value) == {"interrupted": [4, 5, 6, 7]}
    assert run.values == [2] * 4 + [None] * 4, "each was told twice"

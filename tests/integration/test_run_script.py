"""Scripts on a mesh: each has processes of its own, which are what torchrun would start, and end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.ports import held_port
from integration.live import TIMEOUT_S, Gate, Recorder, eventually
from leaks import wait_for_end
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.runs.run import Run
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.errors import RunFailed, UsageError

Write = Callable[[str], str]
STRANGERS = Path(__file__).resolve().parents[1] / "strangers"

DDP = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    for step in range(3):
        model(torch.ones(2, 4)).sum().backward()
    print(dist.get_rank(), dist.get_world_size(), f"{sum(p.grad.sum() for p in model.parameters()):.3f}")
    dist.destroy_process_group()
"""


SPAWNS = """
    import os, sys
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        dist.init_process_group("gloo", rank=rank, world_size=2)
        total = torch.ones(1) + rank
        dist.all_reduce(total)
        os.write(1, f"{rank} of two has {total.item()}\\n".encode())  # in one piece: both have the same stdout
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(work, args=(sys.argv[1],), nprocs=2)
        assert "TORCHELASTIC_USE_AGENT_STORE" in os.environ
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a script; returns its path, which all nodes of the pool see."""

    def written(code: str) -> str:
        path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
        path.write_text(textwrap.dedent(code))
        return str(path)

    return written


def ran(mesh: Mesh, path: str, *arguments: str, **options: Any) -> Recorder:
    """Run a script to its end; return what it told."""
    recorder = Recorder()
    run = mesh.run_script(path, *arguments, listener=recorder, **options)
    assert run.values == [0] * len(mesh.ranks)
    return recorder


def failed(mesh: Mesh, path: str, *arguments: str, **options: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        mesh.run_script(path, *arguments, **options)
    return caught.value


def ranks_that_caused(error: RunFailed) -> list[int]:
    """Without those that came too late: they are interrupted when another has failed."""
    return [rank for rank, failure in sorted(error.failures.items()) if not failure.is_consequence]


def under_way(mesh: Mesh, path: str, *arguments: str, **options: Any) -> tuple[Run, Recorder]:
    """Start a script that prints "under way" on each rank, and wait until all have."""
    recorder = Recorder()
    run = mesh.submit_script(path, *arguments, listener=recorder, **options)
    recorder.wait_for_text("under way", len(mesh.ranks))
    return run, recorder


class TestWorld:
    def test_a_script_spawns_a_world_of_its_own(self, mesh: Mesh, write: Write) -> None:
        with held_port() as port:
            told = ran(mesh.select([0]), write(SPAWNS), str(port))
        assert sorted(told.text(0).splitlines()) == ["0 of two has 3.0", "1 of two has 3.0"]

    def test_a_script_trains_again_and_again_and_the_live_ranks_know_nothing_of_it(
        self, mesh: Mesh, write: Write
    ) -> None:
        script = write(DDP)
        mesh.run("import torch.distributed as dist; mine = rank")
        texts = [ran(mesh, script) for _ in range(2)]
        for told in texts:
            assert {told.text(rank).split()[0] for rank in mesh.ranks} == set("01234567")
            assert len({told.text(rank).split()[2] for rank in mesh.ranks}) == 1
        assert mesh.run("(mine, dist.is_initialized())").values == [(rank, False) for rank in range(8)]

    def test_it_is_what_python_starts(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import asyncio, builtins, os, sys, threading, warnings
            import IPython
            assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
            assert __file__ == sys.argv[0] and __spec__ is None and __builtins__ is builtins
            assert sys.path[0] == os.path.dirname(__file__)
            assert sys.argv[1:] == ["--lr", "3e-4"]
            assert IPython.get_ipython() is None and not hasattr(builtins, "get_ipython") and not hasattr(sys, "ps1")
            assert sys.displayhook is sys.__displayhook__ and sys.excepthook is sys.__excepthook__
            assert "MPLBACKEND" not in os.environ
            async def main():
                await asyncio.sleep(0)
                return "ran"
            print(asyncio.run(main()))
            try:
                input()
            except EOFError:
                print("no input")
            import atexit
            atexit.register(print, "at exit")
            threading.Timer(0.01, print, ["thread"]).start()
            left_open = open(__file__ + os.environ["RANK"], "w")
            left_open.write("written")
        """)
        told = ran(mesh.select([0, 4]), script, "--lr", "3e-4")
        assert told.text(0) == "ran\nno input\nthread\nat exit\n"
        assert told.text(stream="stderr") == ""
        assert [Path(f"{script}{rank}").read_text() for rank in (0, 1)] == ["written"] * 2

    def test_workers_find_what_the_script_defines(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import multiprocessing
            class Item:
                pass
            def work(queue, item):
                queue.put((type(item).__name__, __name__))
            if __name__ == "__main__":
                for method in ("fork", "spawn"):
                    context = multiprocessing.get_context(method)
                    queue = context.SimpleQueue()
                    worker = context.Process(target=work, args=(queue, Item()))
                    worker.start()
                    print(*queue.get())
                    worker.join()
        """)
        assert ran(mesh.select(0), script).text() == "Item __main__\nItem __mp_main__\n"

    def test_a_module_and_a_command(self, mesh: Mesh, tmp_path: Path) -> None:
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "train.py").write_text(
            "from . import __name__ as n; import sys; print(n, __spec__.name, sys.argv[1:])"
        )
        told = ran(mesh.select(0), "package.train", "x", module=True, environment={"PYTHONPATH": str(tmp_path)})
        assert told.text() == "package package.train ['x']\n"
        says = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $NODE_RANK"
        command = ran(mesh.select([3, 7]), "sh", "-c", says, executable=True)
        assert (command.text(3), command.text(7)) == ("0 of 2, 0 of 1 on 0\n", "1 of 2, 0 of 1 on 1\n")

    def test_in_place_it_is_a_cell_of_the_live_ranks(self, mesh: Mesh, write: Write) -> None:
        mesh.run("seen = 20")
        script = write("import sys; left = seen + int(sys.argv[1]); assert __name__ == '__main__'")
        run = mesh.run_script(script, "1", in_place=True)
        assert (run.title, run.values) == (f"{script} 1", [0] * 8), "as of a script in processes of its own"
        assert mesh.run("left").values == [21] * 8
        script = write("kept = rank\nif rank == 1: raise ValueError('bad batch')\nwhile True: pass")
        with pytest.raises(RunFailed, match="bad batch"):
            mesh.run_script(script, in_place=True)
        assert mesh.run("kept").values == list(range(8)), "the others were interrupted"
        told = Recorder()
        with pytest.raises(RunFailed) as caught:
            mesh.run_script(write("import sys; sys.exit(rank and 'no data')"), in_place=True, listener=told)
        assert caught.value.run.kept_values == [0, *[1] * 7]
        assert (told.text(0, "stderr"), told.text(1, "stderr")) == ("", "no data\n")


class TestEnds:
    @pytest.mark.parametrize(
        ("code", "line"),
        [
            ("sys.exit('no good')", "failed: SystemExit: exited with code 1: no good (SCRIPT:5)"),
            ("raise ValueError('bad batch')", "failed: ValueError: bad batch (SCRIPT:5)"),
            ("os._exit(4)", "died: exited with code 4"),
            ("os.kill(os.getpid(), signal.SIGTERM)", "died: killed by signal 15 (SIGTERM): asked to end by another "),
        ],
    )
    def test_what_fails(self, mesh: Mesh, write: Write, code: str, line: str) -> None:
        script = write(f"""
            import os, signal, sys
            if os.environ["RANK"] != "1":
                sys.exit(0)
            {code}
        """)
        error = failed(mesh, script)
        assert ranks_that_caused(error) == [1]
        assert error.failures[1].line.startswith(line.replace("SCRIPT", os.path.basename(script)))
        assert "monarch_nb/worker" not in error.failures[1].traceback
        assert bool(error.failures[1].traceback) is ("Error: " in line), "an exit that is meant has no traceback"
        assert all(info.state == "idle" for info in mesh.status())

    def test_what_it_says_when_it_exits_is_on_stderr(self, mesh: Mesh, write: Write) -> None:
        script, told = write("import sys; sys.exit('only 3 files')"), Recorder()
        with pytest.raises(RunFailed):
            mesh.select(5).run_script(script, listener=told)
        assert told.text(5, stream="stderr") == "only 3 files\n"
        script, told = write("import os, sys\nif not os.fork(): sys.exit('the child')\nos.wait()"), Recorder()
        mesh.run_script(script, listener=told)
        assert told.text(5, stream="stderr") == "the child\n"

    def test_a_failure_is_shown_beside_what_its_hook_says(self, mesh: Mesh, write: Write) -> None:
        script, told = (
            write("""
            import sys
            sys.excepthook = lambda kind, error, trace: print("reported", error)
            raise ValueError("bad batch")
        """),
            Recorder(),
        )
        with pytest.raises(RunFailed) as caught:
            mesh.select(5).run_script(script, listener=told)
        assert told.text(5) == "reported bad batch\n"
        assert 'raise ValueError("bad batch")' in caught.value.failures[5].traceback

    def test_what_record_wrote_is_told_of_a_process_that_ends_itself(self, mesh: Mesh, write: Write) -> None:
        error = failed(mesh.select(5), str(STRANGERS / "ends" / "recorded_then_os_exit.py"))
        assert error.failures[5].stderr_tail[-1] == "ValueError: bad batch"
        assert not list(Path(os.environ[HOME_VARIABLE]).rglob("*.error.json"))

    def test_a_module_of_a_package_fails_with_its_own_frames(self, mesh: Mesh) -> None:
        error = failed(mesh.select(0), "json.tool", "/nowhere", module=True)
        assert error.failures[0].where.startswith("tool.py:")
        with pytest.raises(RunFailed) as in_cell:
            mesh.select(0).run("%run -m json.tool /nowhere")
        assert in_cell.value.failures[0].where.startswith("tool.py:")
        printed = [record.text for record in mesh.select(0).logs(run=in_cell.value.run)]
        assert not [text for text in printed if "Unknown failure" in text]

    def test_when_one_fails_the_others_end(self, mesh: Mesh, write: Write, gate: Gate) -> None:
        script = write(f"""
            import os, signal
            print("under way", flush=True)
            if os.environ["RANK"] == "3":
                {gate.wait}
                raise KeyError("gone")
            signal.pause()
        """)
        run, _ = under_way(mesh, script)
        gate.open()
        with pytest.raises(RunFailed) as caught:
            run.result(TIMEOUT_S)
        assert {rank: failure.kind for rank, failure in caught.value.failures.items()} == {
            rank: "error" if rank == 3 else "interrupted" for rank in range(8)
        }

    def test_a_rank_that_ended_early_is_named_when_the_others_fail_of_it(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import os
            import torch
            import torch.distributed as dist
            dist.init_process_group("gloo")
            if dist.get_rank() == 1:
                os._exit(0)
            dist.all_reduce(torch.ones(1))
        """)
        told = Recorder()
        with pytest.raises(RunFailed) as caught:
            mesh.run_script(script, listener=told)
        assert 1 not in caught.value.failures
        shown = {
            event.rank: event.failure for event in told.events if isinstance(event, events.Result) and event.failure
        }
        assert shown == caught.value.failures
        torn = [failure for failure in shown.values() if failure.kind == "error"]  # others may have been interrupted
        assert torn
        for failure in torn:
            assert failure.name == "ProcessGroupAborted", failure.message
            assert failure.message.endswith("; rank 1 had ended (exit code 0)")

    @pytest.mark.parametrize("name", ["program", "program.zip"])
    def test_a_directory_and_a_zip_file_run_as_under_python(self, mesh: Mesh, tmp_path: Path, name: str) -> None:
        helper = f"helper_of_{name.replace('.', '_')}"  # live ranks keep what they have imported
        code = f"import sys, {helper}\nprint(sys.path[0], sys.argv, __file__, __name__, {helper}.__file__)\n"
        texts = {"__main__.py": code, f"{helper}.py": ""}
        (tmp_path / "program").mkdir()
        with zipfile.ZipFile(tmp_path / "program.zip", "w") as packed:
            for file, text in texts.items():
                (tmp_path / "program" / file).write_text(text)
                packed.writestr(file, text)
        path = str(tmp_path / name)
        command = [sys.executable, path, "a b"]
        expected = subprocess.run(command, capture_output=True, check=True, text=True, timeout=TIMEOUT_S).stdout
        one = mesh.select([0])
        assert ran(one, path, "a b").text(0) == ran(one, path, "a b", in_place=True).text(0) == expected

    def test_what_is_not_there_changes_nothing(self, mesh: Mesh, tmp_path: Path) -> None:
        newest = mesh.run("0").number
        with pytest.raises(UsageError, match=r"node0, node1: .* is a directory"):
            mesh.run_script(str(tmp_path))
        with pytest.raises(UsageError, match="equally many ranks on each node"):
            mesh.select([0, 1, 4]).run_script(str(tmp_path))
        assert mesh.run("0").number == newest + 1


class TestQueue:
    def test_scripts_wait_for_each_other_unless_beside_and_not_for_cells(
        self, mesh: Mesh, write: Write, gate: Gate
    ) -> None:
        waits = write(f"print('under way', flush=True)\n{gate.wait}")
        quick = write("print('quick')")
        first, first_told = under_way(mesh, waits)
        second_told = Recorder()
        second = mesh.select([0, 4]).submit_script(quick, listener=second_told)
        second_told.wait_for(lambda told: "waits for" in str(told.events))
        assert mesh.run("rank").values == list(range(8))
        assert "ranks 0,4 of the mesh are the script's ranks 0-1" in str(second_told.events)
        assert "of the mesh" not in str(first_told.events), "they are the same"
        assert ran(mesh, quick, beside=True).text(0) == "quick\n"
        assert not second.done
        gate.open(8)
        assert first.result(TIMEOUT_S) == [0] * 8
        assert second.result(TIMEOUT_S) == [0, 0]
        queue = [notice.text for notice in second_told.of(events.Notice) if notice.key == events.QUEUE_NOTICE]
        assert queue[-1] == ""

    def test_an_interrupt_drops_what_waits(self, mesh: Mesh, write: Write, gate: Gate) -> None:
        waits = write(f"print('under way', flush=True)\n{gate.wait}")
        first, _ = under_way(mesh, waits)
        second = mesh.submit_script(waits)
        report = mesh.interrupt()
        assert (report.stopped, len(report.dropped)) == (tuple(range(8)), 1)
        assert first.done
        assert second.wait(TIMEOUT_S)


class TestInterrupts:
    def test_where_it_is_and_that_it_stops(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import torch
            import torch.distributed as dist
            dist.init_process_group("gloo")
            print("under way", flush=True)
            if dist.get_rank():
                dist.all_reduce(torch.ones(1))
            else:
                import signal
                signal.pause()
        """)
        run, _ = under_way(mesh, script)
        name = os.path.basename(script)
        eventually(lambda: all(where.collective == "all_reduce" for rank, where in mesh.where().items() if rank))
        assert {where.line for rank, where in mesh.where().items() if rank} == {f"{name}:7"}
        assert [len(ranks) for ranks, _ in mesh.stacks().groups] == [1, 7]
        assert {(info.state, info.run_id) for info in mesh.status()} == {("running", run.id)}
        assert run.interrupt().stopped == tuple(range(8))
        assert run.results[1].failure is not None
        assert run.results[1].failure.message.startswith("interrupted in all_reduce")

    def test_one_that_knows_what_to_do_at_ctrl_c_does_it(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import signal, time
            pressed = 0
            def save(*_):
                global pressed
                pressed += 1
            signal.signal(signal.SIGINT, save)
            print("under way", flush=True)
            while not pressed:
                time.sleep(0.01)
            print("saved", pressed)
        """)
        run, told = under_way(mesh, script)
        assert str(run.interrupt()) == "interrupted ranks 0-7"
        assert run.result(TIMEOUT_S) == [0] * 8
        assert told.text(5) == "under way\nsaved 1\n"

    def test_a_look_at_stacks_touches_no_signal_of_the_scripts(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import re, signal
            def stuck():
                re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # would end it
            print("under way", flush=True)
            stuck()
        """)
        part = mesh.select([0])
        run, _ = under_way(part, script)
        [(_, stack)] = part.stacks().groups
        assert "in stuck" in stack
        assert not run.done
        assert str(run.interrupt(kill_stuck=True)) == "killed rank 0"

    def test_of_a_library_that_exits_then_the_users_line_is_shown(
        self, mesh: Mesh, write: Write, tmp_path: Path
    ) -> None:
        library = tmp_path / "site-packages" / "lightning_like.py"
        library.parent.mkdir()
        library.write_text(
            "import sys, time\ndef fit():\n    try:\n        print('under way', flush=True)\n        time.sleep(1000)\n"
            "    except KeyboardInterrupt:\n        print('closes')\n        sys.exit(1)\n"
        )
        script = write(
            f"import sys; sys.path.append({str(library.parent)!r})\nimport lightning_like\nlightning_like.fit()"
        )
        run, told = under_way(mesh.select(0), script)
        run.interrupt()
        failure = run.results[0].failure
        assert failure is not None
        assert (failure.kind, failure.where) == ("interrupted", f"{os.path.basename(script)}:3")
        assert "lightning_like.fit()" in failure.traceback
        assert told.text(0).endswith("closes\n")

    def test_what_a_script_answers_is_all_that_is_said(self, mesh: Mesh, write: Write) -> None:
        """It has caught the interrupt: as with Python, its status is what is left."""
        script = write("""
            import sys, threading
            try:
                print("under way", flush=True)
                threading.Event().wait()
            except KeyboardInterrupt:
                print("saves")
                sys.exit(7)
        """)
        run, told = under_way(mesh.select(0), script)
        run.interrupt()
        failure = run.results[0].failure
        assert failure is not None
        assert (failure.kind, failure.message, failure.traceback) == ("interrupted", "exited with code 7", "")
        assert run.kept_values == [7]
        assert told.text(0).endswith("saves\n")

    def test_another_program_is_interrupted_too(self, mesh: Mesh) -> None:
        # A shell that is about to become `sleep` loses the signal.
        run, _ = under_way(mesh, "sh", "-c", "sleep 1000 & echo under way; wait", executable=True)
        assert [stack for _, stack in mesh.stacks().groups] == [""], "nobody answers, and nobody dies of the question"
        assert run.interrupt().stopped == tuple(range(8))
        assert {result.outcome for result in run.results.values()} == {"interrupted"}

    @pytest.mark.usefixtures("impatient")
    def test_what_does_not_stop_is_killed_and_the_live_ranks_live_on(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import signal
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            print("under way", flush=True)
            signal.pause()
        """)
        mesh.run("kept = 1")
        part = mesh.select([0, 4])
        run, _ = under_way(part, script)
        assert set(run.interrupt().stuck) == {0, 4}
        assert str(run.interrupt(kill_stuck=True)) == "killed ranks 0,4"
        assert {result.outcome for result in run.results.values()} == {"died"}
        assert mesh.run("kept").values == [1] * 8


class TestLives:
    def test_what_it_started_ends_with_it(self, mesh: Mesh, write: Write) -> None:
        script = write("""
            import subprocess
            print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
        """)
        told = ran(mesh, script)
        for rank in mesh.ranks:
            wait_for_end(int(told.text(rank)), TIMEOUT_S)


RESUMES = """
    import os, signal, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    weights, killed_at = sys.argv[1], int(sys.argv[2])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    begin, checkpoint = 0, weights + ".last"
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        begin = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    print("attempt", attempt, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], "from step", begin)
    for step in range(begin, 8):
        data = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * 100 + rank))
        optimizer.zero_grad()
        model(data).pow(2).mean().backward()
        optimizer.step()
        if rank == 0:
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        dist.barrier()
        if rank == 1 and step == killed_at and attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        torch.save(model.state_dict(), weights)
    dist.destroy_process_group()
"""


class TestRestarts:
    def test_killed_in_the_middle_it_goes_on_from_its_checkpoint_to_the_same_weights(
        self, mesh: Mesh, write: Write, tmp_path: Path
    ) -> None:
        script, part = write(RESUMES), mesh.select([0, 1, 4, 5])
        ran(part, script, str(tmp_path / "undisturbed"), "-1")
        told = ran(part, script, str(tmp_path / "killed"), "4", max_restarts=2)
        assert told.text(4) == "attempt 0 of 2 from step 0\nattempt 1 of 2 from step 5\n"
        assert told.text(stream="stderr") == ""
        [restart] = told.of(events.Restart)
        assert restart.text.startswith("rank 1 (node0) died: killed by signal 9 (SIGKILL)")
        assert restart.text.endswith(": starting all again, attempt 2 of 3")
        undisturbed, killed = (torch.load(tmp_path / name) for name in ("undisturbed", "killed"))
        assert all(torch.equal(undisturbed[name], killed[name]) for name in undisturbed)

    def test_after_the_last_attempt_its_failure_is_told(self, mesh: Mesh, write: Write) -> None:
        script = write("import os; raise ValueError(os.environ['TORCHELASTIC_RESTART_COUNT'])")
        error = failed(mesh.select(0), script, max_restarts=1)
        assert error.failures[0].message == "1"

    def test_interrupted_it_is_not_started_again(self, mesh: Mesh, write: Write) -> None:
        script = write("import signal; print('under way', flush=True); signal.pause()")
        run, told = under_way(mesh.select([0, 4]), script, max_restarts=3)
        run.interrupt()
        assert run.wait(TIMEOUT_S)
        assert told.text(0) == "under way\n"

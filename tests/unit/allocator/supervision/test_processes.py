"""Who a process is, how it ended, and ending it with everything that it started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaks import wait_for_end
from monarch_nb.allocator.supervision import processes
from monarch_nb.config import RANK_TOKEN_VARIABLE
from monarch_nb.proto import state_pb2

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", SLEEP], start_new_session=True)
    yield process
    process.kill()
    process.wait()


class TestIdentity:
    def test_a_living_process_is_itself(self, child: subprocess.Popen[bytes]) -> None:
        identity = processes.identify(child.pid)
        assert identity.pid == child.pid
        assert processes.is_alive(identity)

    def test_a_zombie_is_not_alive(self, child: subprocess.Popen[bytes]) -> None:
        identity = processes.identify(child.pid)
        child.kill()
        wait_for_end(child.pid, 10)
        assert not processes.is_alive(identity)

    def test_neither_another_with_its_pid_nor_one_of_another_boot_nor_none(
        self, child: subprocess.Popen[bytes]
    ) -> None:
        identity = processes.identify(child.pid)
        later = state_pb2.ProcessIdentity(pid=child.pid, start_ticks=identity.start_ticks + 1, boot_id=identity.boot_id)
        rebooted = state_pb2.ProcessIdentity(pid=child.pid, start_ticks=identity.start_ticks, boot_id="other")
        assert not any(map(processes.is_alive, (later, rebooted, state_pb2.ProcessIdentity())))

    def test_one_that_is_gone(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        with pytest.raises(ProcessLookupError):
            processes.identify(child.pid)

    def test_a_name_with_brackets_and_spaces(self) -> None:
        code = "import ctypes; ctypes.CDLL(None).prctl(15, b') S 1 1 (x', 0, 0, 0); input()"
        with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE) as odd:
            assert processes.is_alive(processes.identify(odd.pid))
            odd.kill()

    def test_a_name_that_is_no_text(self) -> None:
        """As one that was cut in the middle of a character. Every process of the machine is looked at when one ends."""
        code = "import ctypes; ctypes.CDLL(None).prctl(15, 'é'.encode()[:1], 0, 0, 0); print(flush=True); input()"
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=pipe, stdout=pipe) as odd:
            assert odd.stdout is not None
            odd.stdout.readline()
            assert processes.is_alive(processes.identify(odd.pid))
            processes.kill_trees([(state_pb2.ProcessIdentity(), "token-of-nobody")])
            odd.kill()


class TestReap:
    def test_only_what_has_ended_and_is_ours(self, child: subprocess.Popen[bytes]) -> None:
        assert processes.reap(child.pid) is None
        assert processes.reap(1) is None
        child.send_signal(signal.SIGTERM)
        wait_for_end(child.pid, 10)
        status = processes.reap(child.pid)
        assert status is not None
        assert os.WTERMSIG(status) == signal.SIGTERM

    def test_orphans_but_nobody_that_somebody_waits_for(self) -> None:
        program = """\
import os, subprocess
from monarch_nb.allocator.supervision import processes
processes.become_subreaper()
own = subprocess.Popen("exit 3", shell=True)
watched = subprocess.Popen("exit 4", shell=True, start_new_session=True)
for process in (own, watched):
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
parent = subprocess.Popen("sleep 0 & echo $!", shell=True, start_new_session=True, stdout=subprocess.PIPE)
orphan = int(parent.communicate()[0])
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
processes.reap_orphans({watched.pid})
print(os.path.exists(f"/proc/{orphan}"), own.wait(), watched.wait())
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("False 3 4\n", "")


class TestKillTrees:
    def start(self, token: str, *, new_session: bool) -> subprocess.Popen[bytes]:
        """Start a process with a child in its session and one in a session of its own; all sleep."""
        code = (
            "import os, subprocess, sys\n"
            f"sleep = [sys.executable, '-S', '-c', 'print(flush=True); ' + {SLEEP!r}]\n"
            "start = lambda new: subprocess.Popen(sleep, start_new_session=new, stdout=subprocess.PIPE)\n"
            "children = [start(new) for new in (False, True)]\n"
            "[child.stdout.readline() for child in children]  # in the middle of exec they have no environment yet\n"
            "print(*(child.pid for child in children), flush=True)\n" + SLEEP
        )
        return subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            start_new_session=new_session,
            stdout=subprocess.PIPE,
            env={**os.environ, RANK_TOKEN_VARIABLE: token},
        )

    def pids(self, process: subprocess.Popen[bytes]) -> list[int]:
        assert process.stdout is not None
        return [process.pid, *map(int, process.stdout.readline().split())]

    def wait(self, process: subprocess.Popen[bytes], pids: list[int]) -> None:
        for pid in pids:
            wait_for_end(pid, 10)
        process.communicate()

    def alive(self, pids: list[int]) -> list[bool]:
        states = [(processes._stat_fields(pid) or "X")[0] for pid in pids]
        return [state not in "ZX" for state in states]

    def test_the_session_and_whoever_carries_the_token(self) -> None:
        doomed, other = (self.start(token, new_session=True) for token in ("token-of-rank-1", "token-of-rank-2"))
        doomed_pids, other_pids = self.pids(doomed), self.pids(other)
        try:
            processes.kill_trees([(processes.identify(doomed.pid), "token-of-rank-1")])
            self.wait(doomed, doomed_pids)
            assert self.alive(doomed_pids) == [False, False, False]
            assert self.alive(other_pids) == [True, True, True]
        finally:
            processes.kill_trees([(processes.identify(other.pid), "token-of-rank-2")])
            self.wait(other, other_pids)

    def test_children_of_a_rank_that_is_dead_already(self) -> None:
        rank = self.start("token-3", new_session=True)
        pids = self.pids(rank)
        identity = processes.identify(rank.pid)
        rank.kill()
        rank.wait()
        processes.kill_trees([(identity, "token-3")])
        self.wait(rank, pids)
        assert self.alive(pids) == [False, False, False]

    def test_a_pid_that_belongs_to_another_process_by_now(self, child: subprocess.Popen[bytes]) -> None:
        stranger = processes.identify(child.pid)
        stranger.start_ticks -= 1
        processes.kill_trees([(stranger, ""), (state_pb2.ProcessIdentity(), "")])
        assert child.poll() is None

    def test_one_that_is_another_users_does_not_spare_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rank has run `sudo`: the release ends all else."""
        rank = self.start("token-4", new_session=True)
        pids = self.pids(rank)
        kill = os.kill

        def refuse(pid: int, number: int) -> None:
            if pid == pids[1]:
                raise PermissionError
            kill(pid, number)

        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", refuse)
            processes.kill_trees([(processes.identify(rank.pid), "token-4")])
        wait_for_end(pids[2], 10)
        assert self.alive(pids[1:]) == [True, False]
        kill(pids[1], signal.SIGKILL)
        self.wait(rank, pids)


class TestLastWords:
    CRASH = """\
before
Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "control.py", line 1 in run

Current thread 0x00007f (most recent call first):
  File "ctypes/__init__.py", line 519 in string_at
  File "<ipython-input-7-0a1b2c>", line 2 in <module>
  File "/site-packages/IPython/core/interactiveshell.py", line 3 in run_code
  File "/src/monarch_nb/worker/rank.py", line 4 in serve

Extension modules: numpy
"""

    def words(self, stacks: Path, report: str, count: int = 8) -> list[str]:
        stacks.write_text(report)
        return processes.last_words(["stderr"], stacks, count)

    @pytest.fixture
    def stacks(self, tmp_path: Path) -> Path:
        return tmp_path / "3.stacks"

    def test_the_last_lines(self, stacks: Path) -> None:
        assert processes.last_words(["a", "b", "c"], stacks, 2) == ["b", "c"]
        assert processes.last_words([], stacks, 2) == []
        assert self.words(stacks, "Current thread 0x1 (most recent call first):") == ["stderr"], (
            "only asked where it is"
        )

    def test_of_a_crash_where_python_was(self, stacks: Path) -> None:
        words = [
            "Fatal Python error: Segmentation fault",
            '  File "ctypes/__init__.py", line 519 in string_at',
            "  Cell In[7], line 2 in <module>",
        ]
        assert self.words(stacks, self.CRASH) == words, "not who called the cell"
        assert self.words(stacks, self.CRASH, 2) == words[:2]

    def test_of_a_crash_in_an_endpoint(self, stacks: Path) -> None:
        users = ['  File "ctypes/__init__.py", line 519 in string_at', '  File "/home/a/train.py", line 2 in step']
        engine = '  File "/src/monarch_nb/actor/engine/runner.py", line 4 in _execute'
        report = ["Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):", *users, engine]
        assert self.words(stacks, "\n".join(report)) == [report[0], *users]

    def test_of_a_crash_in_a_thread_without_python(self, stacks: Path) -> None:
        """It is no thread of faulthandler's. The main thread is the last of those that are."""
        report = [
            "Fatal Python error: Aborted",
            "",
            "Thread 0x2 (most recent call first):",
            '  File "a.py", line 1 in f',
        ]
        users = [
            '  File "/torch/distributed_c10d.py", line 3 in all_reduce',
            '  File "/home/a/train.py", line 2 in step',
        ]
        main = ["", "Thread 0x1 (most recent call first):", *users]
        assert self.words(stacks, "\n".join([*report, *main])) == [report[0], *users]

    def test_of_a_crash_outside_of_cells(self, stacks: Path) -> None:
        stack = [
            '  File "/src/monarch_nb/worker/rank.py", line 4 in serve',
            '  File "/src/main.py", line 1 in <module>',
        ]
        report = ["Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):", *stack]
        assert self.words(stacks, "\n".join(report)) == [report[0], *stack]

    def test_of_a_crash_that_is_cut_off(self, stacks: Path) -> None:
        assert self.words(stacks, "Fatal Python error: Aborted\n\nThread 1")[0].startswith("Fatal")


class TestExplainDeath:
    def explain(self, status: int | None, *, killed_by_us: bool = False, oom_kills_before: int = 1 << 60) -> str:
        death = processes.explain_death(
            7, status, killed_by_us=killed_by_us, oom_kills_before=oom_kills_before, stderr_tail=["last words"]
        )
        assert (death.pid, list(death.stderr_tail)) == (7, ["last words"])
        return death.likely_cause

    @pytest.mark.parametrize(
        ("number", "cause"),
        [
            (signal.SIGKILL, "killed by another process"),
            (signal.SIGSEGV, "segmentation fault"),
            (signal.SIGBUS, "/dev/shm"),
            (signal.SIGABRT, "aborted by native code"),
            (signal.SIGFPE, "arithmetic"),
            (signal.SIGILL, "illegal instruction"),
            (signal.SIGTERM, "asked to end"),
            (signal.SIGHUP, "killed by another process"),
            (signal.SIGRTMIN + 1, "killed by another process"),
        ],
    )
    def test_signals(self, number: int, cause: str) -> None:
        assert cause in self.explain(int(number))

    def test_a_process_that_gloo_ends(self) -> None:
        told = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 4096 vs 32. Received data size"
        for number, is_gloo in ((signal.SIGABRT, True), (signal.SIGKILL, False)):
            death = processes.explain_death(
                7, int(number), killed_by_us=False, oom_kills_before=1 << 60, stderr_tail=[], stderr=["terminate", told]
            )
            said = "Gloo got 4,096 bytes of a peer where this rank's collective takes 32 (Gloo sends tensors in parts"
            assert (said in death.likely_cause) is is_gloo

    def test_the_oom_killer(self) -> None:
        assert "out of memory" in self.explain(signal.SIGKILL, oom_kills_before=-1)
        assert "out of memory" not in self.explain(signal.SIGSEGV, oom_kills_before=-1)

    def test_our_own_doing(self) -> None:
        assert "did not stop when asked" in self.explain(signal.SIGKILL, killed_by_us=True, oom_kills_before=-1)

    def test_an_exit_code(self) -> None:
        death = processes.explain_death(7, 3 << 8, killed_by_us=False, oom_kills_before=0, stderr_tail=[])
        assert (death.HasField("signal"), death.exit_code) == (False, 3)
        assert "os._exit" in death.likely_cause

    def test_the_unknown_is_called_unknown(self) -> None:
        death = processes.explain_death(7, None, killed_by_us=False, oom_kills_before=0, stderr_tail=[])
        assert not death.HasField("signal")
        assert not death.HasField("exit_code")
        assert "unknown" in death.likely_cause

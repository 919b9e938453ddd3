"""Who a process is, how it ended, and ending it with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leaks import wait_for_end
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.processes import is_caught, thread_named
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
        later, rebooted = (state_pb2.ProcessIdentity.FromString(identity.SerializeToString()) for _ in range(2))
        later.start_ticks += 1
        rebooted.boot_id = "other"
        assert not any(map(processes.is_alive, (later, rebooted, state_pb2.ProcessIdentity())))
        child.kill()
        wait_for_end(child.pid, 10)
        assert not processes.is_alive(identity), "a zombie"
        child.wait()
        with pytest.raises(ProcessLookupError):
            processes.identify(child.pid)

    @pytest.mark.parametrize("name", ["b') S 1 1 (x'", "'é'.encode()[:1]"], ids=["brackets and spaces", "no text"])
    def test_odd_names(self, name: str) -> None:
        """As one that was cut in the middle of a character. Every process of the machine is looked at when one ends."""
        code = f"import ctypes; ctypes.CDLL(None).prctl(15, {name}, 0, 0, 0); print(flush=True); input()"
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=pipe, stdout=pipe) as odd:
            assert odd.stdout is not None
            odd.stdout.readline()
            assert processes.is_alive(processes.identify(odd.pid))
            processes.kill_trees([(state_pb2.ProcessIdentity(), "token-of-nobody")])
            odd.kill()


class TestReap:
    def test_orphans_but_nobody_that_somebody_waits_for(self) -> None:
        program = """\
import os, subprocess
from monarch_nb.allocator.processes import processes
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

    @pytest.mark.parametrize("is_dead", [False, True], ids=["alive", "dead already"])
    def test_the_session_and_whoever_carries_the_token(self, is_dead: bool) -> None:
        doomed, other = (self.start(token, new_session=True) for token in ("token-of-rank-1", "token-of-rank-2"))
        doomed_pids, other_pids = self.pids(doomed), self.pids(other)
        identity, stranger = (processes.identify(process.pid) for process in (doomed, other))
        stranger.start_ticks -= 1  # it has the pid of one that was before
        try:
            if is_dead:
                doomed.kill()
                doomed.wait()
            processes.kill_trees([(identity, "token-of-rank-1"), (stranger, ""), (state_pb2.ProcessIdentity(), "")])
            self.wait(doomed, doomed_pids)
            assert self.alive(doomed_pids) == [False, False, False]
            assert self.alive(other_pids) == [True, True, True]
        finally:
            processes.kill_trees([(processes.identify(other.pid), "token-of-rank-2")])
            self.wait(other, other_pids)

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
    SEGFAULT, ABORT = "Fatal Python error: Segmentation fault", "Fatal Python error: Aborted"
    CURRENT, FIRST = "Current thread 0x1 (most recent call first):", "Thread 0x1 (most recent call first):"
    CTYPES, USERS = '  File "ctypes/__init__.py", line 519 in string_at', '  File "/home/a/train.py", line 2 in step'
    SHELL = '  File "/site-packages/IPython/core/interactiveshell.py", line 3 in run_code'
    SERVE = '  File "/src/monarch_nb/worker/rank.py", line 4 in serve'
    ENGINE = '  File "/src/monarch_nb/actor/engine/runner.py", line 4 in _execute'
    MAIN = '  File "/src/main.py", line 1 in <module>'
    OTHER = "", "Thread 0x2 (most recent call first):", '  File "control.py", line 1 in run', ""
    CELL = '  File "<ipython-input-7-0a1b2c>", line 2 in <module>'

    @pytest.mark.parametrize(
        ("report", "words"),
        [
            ([CURRENT], ["stderr"]),  # it was only asked where it is
            (
                ["before", SEGFAULT, *OTHER, CURRENT, CTYPES, CELL, SHELL, SERVE, "", "Extension modules: numpy"],
                [SEGFAULT, CTYPES, "  Cell In[7], line 2 in <module>"],  # not who called the cell
            ),
            ([ABORT, "", CURRENT, CTYPES, USERS, ENGINE], [ABORT, CTYPES, USERS]),  # in an endpoint
            # In a thread without Python, which faulthandler does not see: the main thread is the last that it does.
            ([ABORT, *OTHER, FIRST, CTYPES, USERS], [ABORT, CTYPES, USERS]),
            ([ABORT, "", CURRENT, SERVE, MAIN], [ABORT, SERVE, MAIN]),  # outside of cells
            ([ABORT, "", "Thread 1"], [ABORT]),  # cut off
        ],
    )
    def test_of_a_crash_where_python_was(self, tmp_path: Path, report: list[str], words: list[str]) -> None:
        stacks = tmp_path / "3.stacks"
        assert processes.last_words(["a", "b", "c"], stacks, 2) == ["b", "c"]
        assert processes.last_words([], stacks, 2) == []
        stacks.write_text("\n".join(report))
        assert processes.last_words(["stderr"], stacks, 8) == words
        assert processes.last_words(["stderr"], stacks, 2) == words[:2]


class TestExplainDeath:
    def explain(self, status: int | None, *, killed_by_us: bool = False, oom_kills_before: int = 1 << 60) -> str:
        death = processes.explain_death(
            7, status, killed_by_us=killed_by_us, oom_kills_before=oom_kills_before, stderr_tail=["last words"]
        )
        assert (death.pid, list(death.stderr_tail)) == (7, ["last words"])
        return death.likely_cause

    def test_signals(self) -> None:
        causes = {
            signal.SIGKILL: "killed by another process",
            signal.SIGSEGV: "segmentation fault",
            signal.SIGBUS: "/dev/shm",
            signal.SIGABRT: "aborted by native code",
            signal.SIGFPE: "arithmetic",
            signal.SIGILL: "illegal instruction",
            signal.SIGTERM: "asked to end",
            signal.SIGHUP: "killed by another process",
            signal.SIGRTMIN + 1: "killed by another process",
        }
        for number, cause in causes.items():
            assert cause in self.explain(int(number))
        assert "out of memory" in self.explain(signal.SIGKILL, oom_kills_before=-1)
        assert "out of memory" not in self.explain(signal.SIGSEGV, oom_kills_before=-1)
        assert "did not stop when asked" in self.explain(signal.SIGKILL, killed_by_us=True, oom_kills_before=-1)

    def test_a_process_that_gloo_ends(self) -> None:
        told = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 4096 vs 32. Received data size"
        said = "Gloo got 4,096 bytes of a peer where this rank's collective takes 32 (Gloo sends tensors in parts"
        facts: dict[str, Any] = {"killed_by_us": False, "oom_kills_before": 1 << 60, "stderr_tail": []}
        for number, is_gloo in ((signal.SIGABRT, True), (signal.SIGKILL, False)):
            death = processes.explain_death(7, int(number), stderr=["terminate", told], **facts)
            assert (said in death.likely_cause) is is_gloo

    def test_an_exit_code_or_nothing_is_known(self) -> None:
        for status, cause in ((3 << 8, "os._exit"), (None, "unknown")):
            death = processes.explain_death(7, status, killed_by_us=False, oom_kills_before=0, stderr_tail=[])
            assert not death.HasField("signal")
            assert (death.exit_code if death.HasField("exit_code") else None) == (3 if status else None)
            assert cause in death.likely_cause


def test_what_has_no_handler_is_not_told() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        assert not is_caught(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert not is_caught(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        assert is_caught(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_caught(2**22 + 1, signal.SIGUSR1), "there is no such process"


def test_a_thread_is_found_by_what_the_kernel_calls_it() -> None:
    main = Path("/proc/self/comm").read_text().rstrip()
    found = thread_named(os.getpid(), main)
    assert Path(f"/proc/self/task/{found}/comm").read_text().rstrip() == main
    assert thread_named(os.getpid(), "nobody") is None
    assert thread_named(2**22 + 1, main) is None, "there is no such process"

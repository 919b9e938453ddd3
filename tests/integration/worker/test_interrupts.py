"""Interrupts: what they stop, what they must not touch, and what a rank says when it was freed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest

from e2e.ports import held_port
from integration.live import eventually
from integration.worker.harness import RankProcess, TemplateProcess, run_all
from monarch_nb.proto.run_pb2 import OUTCOME_ERROR, OUTCOME_INTERRUPTED, OUTCOME_OK, Cell, RankResult, RunSpec
from monarch_nb.proto.worker_pb2 import InterruptRun

SWALLOWING = """\
import time
class Slow:
    def __del__(self):
        print('started')
        time.sleep(100)
Slow()"""


SWALLOWING_ONCE = "import time\ntry:\n    print('started')\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    pass"

COUNTING = """\
import os, signal
def start():
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, lambda *_: os.write(tells, b"x"))
        os.write(tells, b"-")
        while True: signal.pause()
    os.read(told, 1)
    return pid, told"""


def start_and_wait(rank: RankProcess, code: str, marker: str = "started") -> RunSpec:
    """Start a cell and wait until it has printed `marker`."""
    spec = rank.submit(code)
    eventually(lambda: marker in rank.text("out", spec.number))
    return spec


def interrupted(rank: RankProcess, spec: RunSpec) -> RankResult:
    """Interrupt a run that would go on for longer than its result is waited for; how fast that is, the bench says."""
    assert rank.interrupt(spec.run_id)
    return rank.result()


PYTHON_CODE = {
    "loop": "print('started')\nwhile True: pass",
    "lock": "import threading\nprint('started')\nthreading.Event().wait()",
    "child": "import subprocess\nprint('started')\nsubprocess.run(['sleep', '100'])",
    "shell": "print('started')\n!sleep 100",
    "magic": "print('started')\n%time __import__('time').sleep(100)",
    "gather": "import asyncio\nprint('started')\nawait asyncio.gather(asyncio.sleep(100), asyncio.sleep(100))",
    "sync code in a cell that awaits": (
        "import asyncio, time\nawait asyncio.sleep(0)\nprint('started')\ntime.sleep(100)"
    ),
    "script": "%%writefile endless.py\nprint('started')\nwhile True: pass\n",
    "callback": (
        "import asyncio, time\n"
        "async def spin():\n    print('started')\n    time.sleep(100)\n"
        "task = asyncio.create_task(spin())\nawait asyncio.sleep(100)"
    ),
    "socket": "import socket\na, b = socket.socketpair()\nprint('started')\na.recv(1)",
    "repr": "import time\nclass Slow:\n    def __repr__(self): print('started'); time.sleep(100)\nSlow()",
    "pickle": "import time\nclass Slow:\n    def __reduce__(self): print('started'); time.sleep(100)\nSlow()",
    "figure": (
        "import time, matplotlib.pyplot as plt\n"
        "from matplotlib.artist import Artist\n"
        "class Slow(Artist):\n"
        "    def draw(self, r): print('started'); time.sleep(100)\n"
        "plt.figure().add_artist(Slow());"
    ),
}


@pytest.mark.parametrize("name", PYTHON_CODE)
def test_python_code_stops_at_once_and_everything_is_kept(rank: RankProcess, name: str) -> None:
    rank.ok("kept = 5")
    if name == "script":
        rank.ok(PYTHON_CODE[name])
    spec = start_and_wait(rank, "%run endless.py" if name == "script" else PYTHON_CODE[name])
    result = interrupted(rank, spec)
    if name != "figure":  # IPython's events print what their callbacks raise
        assert result.outcome == OUTCOME_INTERRUPTED
        assert (result.failure.name, result.failure.message) == ("KeyboardInterrupt", "interrupted")
        assert not result.group_aborted
        assert "monarch_nb" not in result.failure.traceback
    assert rank.ok("kept") == 5


def test_interrupted_tracebacks_end_with_the_users_line(template: TemplateProcess) -> None:
    ranks = template.fork(2)
    # In Python, not in C: what Python 3.13's json.dumps would do.
    code = "import json\ndef step():\n    sum(map(len, json.JSONEncoder().iterencode([[0]] * 20_000_000)))\nstep()"
    for rank in ranks:
        rank.submit(code, cell_number=3)
    eventually(lambda: all("in _iterencode_list" in rank.stack() for rank in ranks))
    for rank in ranks:
        rank.interrupt()
    results = [rank.result() for rank in ranks]
    assert {result.failure.where for result in results} == {"Cell In[3]:3"}
    assert len({result.failure.traceback for result in results}) == 1
    assert "encoder.py" not in results[0].failure.traceback


def test_an_interrupt_of_another_run_or_of_an_idle_rank_does_nothing(rank: RankProcess) -> None:
    assert not rank.interrupt()
    assert not rank.interrupt("some other run")
    spec = start_and_wait(rank, "import time\nprint('started')\ntime.sleep(0.3)\n'done'")
    assert not rank.interrupt("some other run")
    assert rank.value(rank.result()) == "done"
    assert not rank.interrupt(spec.run_id)
    assert rank.ok("import time; time.sleep(0.3); 'untouched'") == "untouched"


def test_an_interrupt_that_is_faster_than_its_run(rank: RankProcess) -> None:
    """They come on two connections."""
    spec = rank.spec_of(cell=Cell(code="ran = True\nwhile True: pass"))
    assert not rank.interrupt(spec.run_id)
    rank.send_run(spec)
    result = rank.result()
    assert (result.run_id, result.outcome) == (spec.run_id, OUTCOME_INTERRUPTED)
    assert result.failure.message == "interrupted"
    assert rank.ok("'ran' in globals()") is False


def test_a_signal_from_elsewhere_is_ctrl_c_for_code_that_runs_and_nothing_to_an_idle_rank(
    rank: RankProcess,
) -> None:
    for _ in range(2):
        os.kill(rank.pid, signal.SIGINT)
        # Many short naps: Python misses a signal that comes just before the system call of a long one.
        start_and_wait(rank, "import time\nprint('started')\nwhile True: time.sleep(0.01)")
        os.kill(rank.pid, signal.SIGINT)
        result = rank.result()
        assert (result.outcome, result.failure.name) == (OUTCOME_ERROR, "KeyboardInterrupt")


def test_interrupts_hit_only_their_run_whenever_they_come(rank: RankProcess) -> None:
    """Runs that end by themselves at about the moment of their interrupt: each ends one way or the other."""
    for i in range(100):
        spec = rank.submit(f"for _ in range({i * 300}): pass\n'done'")
        rank.interrupt(spec.run_id)
        result = rank.result()
        assert result.run_id == spec.run_id
        assert result.outcome in (OUTCOME_OK, OUTCOME_INTERRUPTED), result
        assert rank.ok(f"{i}") == i


def test_code_that_handles_its_interrupt_ends_as_it_likes(rank: RankProcess) -> None:
    code = "import time\ntry:\n    print('started')\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    "
    result = interrupted(rank, start_and_wait(rank, f"{code}time.sleep(0.3)\n'saved'"))
    assert result.outcome == OUTCOME_OK
    assert rank.value(result) == "saved"
    result = interrupted(rank, start_and_wait(rank, f"{code}raise RuntimeError('mine')"))
    assert (result.outcome, result.failure.name) == (OUTCOME_ERROR, "RuntimeError")
    spec = start_and_wait(rank, f"{code}print('again')\n    time.sleep(100)")
    rank.interrupt(spec.run_id)
    eventually(lambda: "again" in rank.text())
    assert interrupted(rank, spec).outcome == OUTCOME_INTERRUPTED, "by the second one"


def test_code_that_ignores_sigint_is_interrupted_all_the_same(rank: RankProcess) -> None:
    for handler in ("signal.SIG_IGN", "signal.default_int_handler"):
        code = f"import signal\nsignal.signal(signal.SIGINT, {handler})\nprint('started')\nwhile True: pass"
        for again in (code, "print('started')\nwhile True: pass"):
            assert interrupted(rank, start_and_wait(rank, again)).outcome == OUTCOME_INTERRUPTED


def test_a_handler_of_the_users_is_told_once_and_only_in_its_run(rank: RankProcess) -> None:
    code = (
        "import signal, time\ncalls = []\nsignal.signal(signal.SIGINT, lambda *_: calls.append(1))\nprint('started')\n"
        "while not calls: pass\ntime.sleep(1.5)\nlen(calls)"
    )
    assert rank.value(interrupted(rank, start_and_wait(rank, code))) == 1
    result = interrupted(rank, start_and_wait(rank, "print('started')\nwhile True: pass"))
    assert result.outcome == OUTCOME_INTERRUPTED


def test_an_interrupt_that_user_code_puts_off_comes_when_it_calls_the_handler_that_was_there_before(
    rank: RankProcess,
) -> None:
    code = (
        "import signal, time\ngot = []\nold = signal.signal(signal.SIGINT, lambda *args: got.append(args))\n"
        "print('started')\nwhile not got: time.sleep(0.01)\nsignal.signal(signal.SIGINT, old)\nold(*got[0])\n"
        "print('never here')"
    )
    result = interrupted(rank, start_and_wait(rank, code))
    assert (result.outcome, result.failure.name) == (OUTCOME_INTERRUPTED, "KeyboardInterrupt")
    assert "never here" not in rank.text()


BLOCKED = """\
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print('started')
while signal.SIGINT not in signal.sigpending(): time.sleep(0.01)
time.sleep(1.5)  # longer than anything is forced
print('written')
"""


def test_an_interrupt_of_code_that_blocks_the_signal_comes_when_it_is_unblocked(rank: RankProcess) -> None:
    code = f"{BLOCKED}signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\nprint('never here')"
    spec = start_and_wait(rank, code)
    assert interrupted(rank, spec).outcome == OUTCOME_INTERRUPTED
    assert rank.text("out", spec.number) == "started\nwritten\n"


def test_a_signal_that_a_cell_left_blocked_interrupts_the_next(rank: RankProcess) -> None:
    assert interrupted(rank, start_and_wait(rank, BLOCKED)).outcome == OUTCOME_OK
    spec = start_and_wait(rank, "print('started')\nwhile True: pass")
    assert interrupted(rank, spec).outcome == OUTCOME_INTERRUPTED


def test_an_interrupt_swallowed_by_a_destructor_is_raised_again(rank: RankProcess) -> None:
    result = interrupted(rank, start_and_wait(rank, f"{SWALLOWING}\nwhile True: pass"))
    assert result.outcome == OUTCOME_INTERRUPTED


def test_children_get_their_own_sigint(rank: RankProcess) -> None:
    code = (
        "import os, signal, time\nread, write = os.pipe()\npid = os.fork()\n"
        "if pid == 0:\n    try:\n        os.write(write, b'x'); time.sleep(100)\n"
        "    except KeyboardInterrupt:\n        os._exit(7)\n"
        "os.read(read, 1)\nos.kill(pid, signal.SIGINT)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert rank.ok(code) == 7


def test_what_a_run_has_started_gets_its_interrupt_and_what_was_there_before_does_not(rank: RankProcess) -> None:
    """As at Ctrl-C in a terminal and under torchrun, which is for a whole process group (pytorch's mnist_hogwild)."""
    rank.ok(f"{COUNTING}\nolder, told_older = start()")
    spec = start_and_wait(rank, "import time\nchild, told = start()\nprint('started')\ntime.sleep(100)")
    assert interrupted(rank, spec).outcome == OUTCOME_INTERRUPTED
    assert rank.ok("import select; select.select([told], [], [], 60); os.read(told, 9)") == b"x"
    assert interrupted(rank, start_and_wait(rank, SWALLOWING_ONCE)).outcome == OUTCOME_OK
    assert rank.ok("select.select([told_older, told], [], [], 0)[0]") == []
    rank.ok("for each in (older, child): os.kill(each, 9), os.waitpid(each, 0)")


# ---- process groups ----

JOIN = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nkept = torch.ones(1)"
REDUCE = "x = torch.ones(1)\ndist.all_reduce(x)\nx.item()"


def test_a_hung_collective_is_freed_and_the_next_group_works(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(3)
    assert {result.outcome for result in run_all(ranks, JOIN)} == {OUTCOME_OK}
    for rank in ranks[:2]:
        rank.submit("work = dist.all_reduce(torch.ones(1), async_op=True)\nwork.wait()", cell_number=5)
    for rank in ranks[:2]:
        rank.wait_hung()
    asked = [(rank, rank.question(interrupt=InterruptRun())) for rank in ranks[:2]]  # else one loses its peer first
    assert all(rank.answer(question).ok for rank, question in asked)
    results = [rank.result() for rank in ranks[:2]]
    assert {(result.outcome, result.group_aborted) for result in results} == {(OUTCOME_INTERRUPTED, True)}
    failures = [result.failure for result in results]
    assert {(failure.name, failure.where) for failure in failures} == {("KeyboardInterrupt", "Cell In[5]:2")}
    pattern = r"interrupted in .*wait.*; process group aborted, call"
    assert any(re.match(pattern, failure.message) for failure in failures)  # the other may have lost its peer first
    assert all("process group aborted, call" in failure.message for failure in failures)
    assert not any("distributed_c10d" in failure.traceback for failure in failures)
    ranks[2].abort_groups("rank 0 was interrupted")
    results = run_all(ranks, f"dist.init_process_group('gloo')\n{REDUCE}")
    assert [rank.value(result) for rank, result in zip(ranks, results, strict=True)] == [3, 3, 3]
    assert ranks[0].ok("kept.item()") == 1


def test_a_handler_of_the_users_waits_for_its_collective_and_a_second_press_frees_it(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(2)
    run_all(ranks, JOIN)
    code = "import signal\ncalls = []\nsignal.signal(signal.SIGINT, lambda *_: calls.append(1))\n"
    for _ in range(2):
        ranks[0].submit(f"{code}dist.all_reduce(torch.ones(1))")
        ranks[0].wait_hung()
        ranks[0].interrupt()
        assert ranks[0].where().HasField("handles_s"), "its peer may be about to come"
        ranks[0].interrupt()
        result = ranks[0].result()
        assert (result.failure.name, result.group_aborted) == ("KeyboardInterrupt", True)
        assert ranks[0].ok("calls") == [1]
        ranks[1].abort_groups("rank 0 was interrupted")
        results = run_all(ranks, f"dist.init_process_group('gloo')\n{REDUCE}")
        assert [result.outcome for result in results] == [OUTCOME_OK, OUTCOME_OK]


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as port:
        yield port


def test_an_init_at_a_wrong_address_is_freed_and_says_so_in_a_line(template: TemplateProcess, port: int) -> None:
    """Torch tries on for half an hour, deaf to interrupts, with a page of its stack at each attempt."""
    [rank] = template.fork()
    rank.ok("from monarch_nb.worker.groups import store as own; own._ATTEMPT_S = own._PATIENCE_S = 0.2")
    rank.submit(
        "import torch.distributed as dist\n"
        f"dist.init_process_group('gloo', 'tcp://127.0.0.1:{port}', rank=1, world_size=2)"
    )
    eventually(lambda: rank.text("err"))
    rank.interrupt()
    result = rank.result()
    assert result.outcome == OUTCOME_INTERRUPTED
    assert result.failure.message.startswith("interrupted in init_process_group")
    assert rank.text("err") == f"no store answers at 127.0.0.1:{port} yet: trying for 30 min\n"


def test_a_rank_that_is_about_to_enter_its_collective_knows_that_it_is_broken(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(2)
    run_all(ranks, JOIN)
    ranks[0].submit("dist.barrier()")
    ranks[0].wait_hung()
    start_and_wait(ranks[1], "print('started')\nwhile True: pass\ndist.barrier()")
    results = []
    for rank in ranks:  # one after the other: a rank looks for only 0.3 s whether its peers have broken the group
        assert rank.interrupt()
        results.append(rank.result())
    hung, late = results
    assert (late.outcome, late.group_aborted) == (OUTCOME_INTERRUPTED, True)
    assert late.failure.message.startswith("interrupted; process group aborted, call `dist.init_process_group()` again")
    assert hung.failure.message.startswith("interrupted in barrier; process group aborted")
    assert [result.outcome for result in run_all(ranks, f"{JOIN}\n{REDUCE}")] == [OUTCOME_OK, OUTCOME_OK]


@pytest.mark.parametrize("name", ["init_process_group", "new_group"])
def test_an_interrupt_between_the_steps_of_making_a_group(template: TemplateProcess, name: str) -> None:
    """Python code of torch's is interrupted: nothing hangs, but ranks have come to different steps."""
    ranks = template.fork_mesh(2)
    if name == "new_group":
        run_all(ranks, JOIN)
    code = (
        "import torch, torch.distributed as dist, torch.distributed.distributed_c10d as c10d\n"
        "real = c10d.PrefixStore\n"
        "def slow(*args, **kwargs):\n"
        "    print('started')\n"
        "    while True: pass\n"
        "slow.__code__ = slow.__code__.replace(co_filename=c10d.__file__, co_name='_slow')\n"
        "c10d.PrefixStore = slow\n"
        f"try: dist.{name}()\n"
        "finally: c10d.PrefixStore = real"
    )
    for rank in ranks:
        rank.submit(code)
    for rank in ranks:
        while "started" not in rank.text():
            pass
        assert rank.interrupt()
    for result in [rank.result() for rank in ranks]:
        assert (result.outcome, result.group_aborted) == (OUTCOME_INTERRUPTED, True)
        assert result.failure.message.startswith(f"interrupted in {name}; process group aborted")
    assert [result.outcome for result in run_all(ranks, f"{JOIN}\n{REDUCE}")] == [OUTCOME_OK, OUTCOME_OK]


def test_a_cell_can_not_go_on_after_its_collective_was_broken(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(2)
    run_all(ranks, JOIN)
    code = (
        "went_on = False\ntry:\n    dist.all_reduce(torch.ones(1))\nexcept RuntimeError:\n    pass\n"
        "for _ in range(10): pass\nwent_on = True"
    )
    spec = ranks[0].submit(code)
    ranks[0].wait_hung()
    result = interrupted(ranks[0], spec)
    assert result.outcome == OUTCOME_INTERRUPTED
    assert "all_reduce" in result.failure.message
    assert ranks[0].ok("went_on") is False


def test_a_collective_in_the_cleanup_after_an_interrupt_is_freed_too(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(2)
    run_all(ranks, JOIN)
    code = "import time\ntry:\n    print('started')\n    time.sleep(100)\nfinally:\n    dist.barrier()"
    result = interrupted(ranks[0], start_and_wait(ranks[0], code))
    assert result.outcome == OUTCOME_INTERRUPTED
    assert result.group_aborted


def test_an_abort_that_comes_late_spares_the_group_of_a_newer_run(template: TemplateProcess) -> None:
    """As when a cell is queued behind the interrupted one: it makes its group while the abort is on its way."""
    ranks = template.fork_mesh(2)
    run_all(ranks, JOIN)
    interrupted = ranks[0].submit("dist.all_reduce(torch.ones(1))")
    newer = RunSpec(run_id="newer", number=interrupted.number + 1, cell=Cell(code=f"{JOIN}\n{REDUCE}", want_value=True))
    ranks[0].wait_hung()
    ranks[0].interrupt(interrupted.run_id)
    ranks[0].send_run(newer)
    assert ranks[0].result().outcome == OUTCOME_INTERRUPTED
    assert ranks[0].wait_hung().collective == "init_process_group"
    for rank in ranks:
        rank.abort_groups("a run was interrupted", last_run=interrupted.number)  # rank 1 has the old group still
    ranks[1].send_run(newer)
    results = [rank.result() for rank in ranks]
    assert [result.outcome for result in results] == [OUTCOME_OK, OUTCOME_OK], results
    for rank in ranks:
        rank.abort_groups("a run was interrupted", last_run=interrupted.number)  # the group is made, the ranks idle
    assert [rank.value(result) for rank, result in zip(ranks, run_all(ranks, REDUCE), strict=True)] == [2, 2]
    for rank in ranks:
        rank.abort_groups("a run was interrupted", last_run=newer.number)
    assert {result.outcome for result in run_all(ranks, REDUCE)} == {OUTCOME_ERROR}


@pytest.mark.parametrize("code", ["print('started')", SWALLOWING], ids=["plain", "in a destructor"])
def test_a_cell_does_not_go_on_when_its_nccl_group_is_aborted(template: TemplateProcess, code: str) -> None:
    """An aborted communicator raises nothing by itself; stood in for by a Gloo group that says it is NCCL's."""
    ranks = template.fork_mesh(2)
    run_all(ranks, JOIN)
    ranks[0].ok(
        "torch.cuda.is_initialized = lambda: True\n"
        "import torch.distributed.distributed_c10d as c10d\n"
        "for group in c10d._world.pg_backend_config: c10d._world.pg_backend_config[group] = 'cuda:nccl'"
    )
    spec = start_and_wait(ranks[0], f"{code}\nwhile True: pass")
    ranks[0].abort_groups("rank 1 was restarted")
    result = ranks[0].result()
    assert result.run_id == spec.run_id
    assert (result.outcome, result.failure.name) == (OUTCOME_ERROR, "ProcessGroupAborted")
    assert "rank 1 was restarted" in result.failure.message


COMPUTES = {
    "cleanup that waits": (
        "import ctypes, time\n"
        "try:\n    print('started')\n    time.sleep(100)\nfinally:\n    ctypes.CDLL(None).usleep(800_000)"
    ),
    "backward": (
        "x = torch.rand(1000, 1000, requires_grad=True)\ny = x\nfor _ in range(8): y = y @ x\n"
        "y = y.sum()\nprint('started')\ny.backward()\nwhile True: pass"
    ),
}


@pytest.mark.parametrize("name", COMPUTES)
def test_an_interrupt_of_what_waits_for_nobody_does_not_cost_the_group(template: TemplateProcess, name: str) -> None:
    ranks = template.fork_mesh(2)
    run_all(ranks, JOIN)
    result = interrupted(ranks[0], start_and_wait(ranks[0], COMPUTES[name]))
    assert result.outcome == OUTCOME_INTERRUPTED
    assert not result.group_aborted
    assert [result.outcome for result in run_all(ranks, REDUCE)] == [OUTCOME_OK, OUTCOME_OK]

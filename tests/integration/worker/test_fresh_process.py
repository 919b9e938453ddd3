"""After the fork a rank is what a fresh process would be."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from integration.live import eventually
from integration.worker.harness import RankProcess, TemplateProcess
from monarch_nb.config import STACKS_SIGNAL
from signals import PYTHON_IGNORES, ignored_and_blocked, inherited


def test_the_environment_is_exactly_what_was_asked_for(template: TemplateProcess) -> None:
    [rank] = template.fork(environment={"MINE": "x", "PYTHONPATH": "/some/where"})
    environment = rank.ok("import os; dict(os.environ)")
    expected = {**rank.spec.environment, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    assert {name: value for name, value in environment.items() if not name.startswith("TORCH_NCCL_")} == expected
    assert "OPENBLAS_NUM_THREADS" not in environment
    assert (
        rank.ok("import subprocess; subprocess.run(['env'], capture_output=True, text=True).stdout").count("MINE=x")
        == 1
    )
    assert rank.ok("import sys; sys.path[:2]") == [rank.spec.directory, "/some/where"]


def test_presets(template: TemplateProcess) -> None:
    first, second = template.fork(2)
    assert second.ok("rank, world_size, local_rank, str(device), dist.__name__, __name__") == (
        1, 2, 1, "cpu", "torch.distributed", "__main__",
    )  # fmt: skip
    assert first.ok("rank") == 0


def test_a_leased_gpu_is_the_device_and_nothing_initialises_it(template: TemplateProcess) -> None:
    first, second = template.fork(2, {"CUDA_VISIBLE_DEVICES": "4,6"})
    assert second.ok("str(device)") == "cuda:1"
    assert first.ok("import torch; str(device), torch.cuda.is_initialized()") == ("cuda:0", False)
    # What torch will call when CUDA is initialised.
    last = "chosen = []; torch.cuda.set_device = chosen.append; torch.cuda._queued_calls[-1][0](); chosen"
    assert second.ok(f"import torch; {last}") == ["cuda:1"], "and what a bare 'cuda' means"


def test_directory_arguments_and_stdin(rank: RankProcess) -> None:
    (Path(rank.spec.directory) / "beside.py").write_text("value = 7")
    assert rank.ok("import os; os.getcwd()") == rank.spec.directory
    assert rank.ok("import beside; beside.value") == 7
    assert rank.ok("import sys; sys.argv, sys.stdin.read()") == (["cell"], "")


def test_session_name_and_oom_score(rank: RankProcess) -> None:
    assert os.getsid(rank.pid) == rank.pid
    assert Path(f"/proc/{rank.pid}/comm").read_text() == "rank 0\n"
    assert int(Path(f"/proc/{rank.pid}/oom_score_adj").read_text()) > 0


def test_random_states_differ_unless_seeded(template: TemplateProcess) -> None:
    ranks = template.fork(3)
    draw = (
        "import random, numpy, torch\n"
        "(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed())"
    )
    draws = [rank.ok(draw) for rank in ranks]
    for values in zip(*draws, strict=True):
        assert len(set(values)) == 3
    seeded = (
        "random.seed(1); numpy.random.seed(1); torch.manual_seed(1)\n"
        "random.random(), numpy.random.rand(), torch.rand(1)"
    )
    assert len({str(rank.ok(seeded)) for rank in ranks}) == 1


def test_thread_counts(template: TemplateProcess) -> None:
    count = (
        "import torch, numpy, threadpoolctl\n"
        "pools = threadpoolctl.threadpool_info()\n"
        "torch.get_num_threads(), {pool['num_threads'] for pool in pools if pool['internal_api'] == 'openblas'}"
    )
    one, two = template.fork(1)[0], template.fork(1, {"OMP_NUM_THREADS": "2"})[0]
    assert one.ok(count) == (1, {1})
    assert two.ok(count) == (2, {2})
    backward = (
        "x = torch.rand(300, 300, requires_grad=True)\n"
        "(x @ x).sum().backward()\n"
        "numpy.ones((300, 300)) @ numpy.ones((300, 300))\n"
        "x.grad.shape[0]"
    )
    assert two.ok(backward) == 300


def test_threads_that_a_cell_starts_compute_with_as_many_threads_as_the_cell(template: TemplateProcess) -> None:
    rank = template.fork(1, {"OMP_NUM_THREADS": "3"})[0]  # not the template's number, one a core, and a rare one
    code = """
import asyncio, os, threading, torch
from concurrent.futures import ThreadPoolExecutor
matrix = torch.rand(600, 600)
def count():
    before = os.listdir("/proc/self/task")
    matrix @ matrix
    return len(set(os.listdir("/proc/self/task")) - set(before)) + 1, torch.get_num_threads()
def in_thread():
    counted = []
    thread = threading.Thread(target=lambda: counted.append(count()))
    thread.start()
    thread.join()
    return counted[0]
def in_executor():
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(count).result()
[count(), in_thread(), in_executor(), await asyncio.to_thread(count)]"""
    assert rank.ok(code) == [(3, 3)] * 4


def test_the_garbage_collector_works(rank: RankProcess) -> None:
    code = """
import gc, weakref
class Node: pass
node = Node(); node.self = node; gone = weakref.ref(node); del node
gc.collect()
gc.isenabled(), gone() is None
"""
    assert rank.ok(code) == (True, True)


def test_signals_are_the_defaults_whatever_started_the_template(own_template: Callable[..., TemplateProcess]) -> None:
    with inherited():
        template = own_template()
    template.wait_ready()
    rank = template.fork(1)[0]
    assert ignored_and_blocked(Path(f"/proc/{rank.pid}/status").read_text()) == (PYTHON_IGNORES, set())
    of_a_child = rank.ok("import subprocess; subprocess.check_output(['cat', '/proc/self/status'], text=True)")
    assert ignored_and_blocked(of_a_child) == (set(), set())
    os.kill(rank.pid, signal.SIGHUP)
    assert rank.work.recv(1) == b""


def test_all_stacks_are_written_even_when_c_code_holds_the_gil(rank: RankProcess) -> None:
    # A regular expression that backtracks for ever holds the GIL.
    rank.submit("import re\ndef stuck():\n    re.match('(a+)+$', 'a' * 60 + 'b')\nstuck()")
    stacks = Path(rank.spec.stacks_file)

    def has_written() -> bool:
        os.kill(rank.pid, STACKS_SIGNAL)
        return "in stuck" in stacks.read_text()

    eventually(has_written)

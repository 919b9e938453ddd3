"""What people do in a training process works in a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.worker.harness import RankProcess, TemplateProcess, run_all
from monarch_nb.proto.run_pb2 import OUTCOME_OK

DATASET = """
import torch
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(i * i)
"""
LOAD = "sorted(x.item() for batch in DataLoader(Squares(), batch_size=2, num_workers=2{}) for x in batch)"
SQUARES = [i * i for i in range(8)]


def test_dataloader_workers_by_fork(rank: RankProcess) -> None:
    assert rank.ok(f"{DATASET}\n{LOAD.format('')}") == SQUARES
    persistent = (
        "loader = DataLoader(Squares(), num_workers=2, persistent_workers=True)\n[len(list(loader)) for _ in range(2)]"
    )
    assert rank.ok(persistent) == [8, 8]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_dataloader_workers_by_spawn(rank: RankProcess, method: str) -> None:
    result = rank.run(f"{DATASET}\n{LOAD.format(f', multiprocessing_context={method!r}')}")
    assert result.failure.name == "SpawnError"
    assert "%%writefile" in result.failure.message
    assert "Squares" in result.failure.message
    (Path(rank.spec.directory) / "squares.py").write_text(DATASET)
    code = (
        f"from torch.utils.data import DataLoader\n"
        f"from squares import Squares\n"
        f"{LOAD.format(f', multiprocessing_context={method!r}')}"
    )
    assert rank.ok(code, timeout_s=180) == SQUARES


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(rank: RankProcess, method: str) -> None:
    (Path(rank.spec.directory) / "work.py").write_text(
        "def double(x):\n    print('doubling', x, flush=True)\n    return 2 * x\n"
    )
    code = (
        f"import multiprocessing, work\n"
        f"with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
        f"    result = pool.map(work.double, range(4))\n"
        f"result"
    )
    assert rank.ok(code, timeout_s=60) == [0, 2, 4, 6]
    assert rank.text().count("doubling") == 4
    queue = (
        "q = multiprocessing.get_context('fork').Queue()\n"
        "p = multiprocessing.get_context('fork').Process(target=lambda: q.put(7)); p.start()\n"
        "x = q.get(); p.join()\n"
        "x, p.exitcode"
    )
    assert rank.ok(queue) == (7, 0)


def test_torch_multiprocessing_shares_tensors(rank: RankProcess) -> None:
    code = (
        "import torch, torch.multiprocessing as mp\nx = torch.zeros(3).share_memory_()\n"
        "p = mp.get_context('fork').Process(target=lambda: x.add_(1)); p.start(); p.join()\nx.sum().item()"
    )
    assert rank.ok(code) == 3


def test_a_failing_child_process_shows_its_traceback(rank: RankProcess) -> None:
    code = (
        "import multiprocessing as mp\n"
        "def fail(): raise ValueError('in the child')\n"
        "p = mp.get_context('fork').Process(target=fail); p.start(); p.join()\n"
        "p.exitcode"
    )
    assert rank.ok(code) == 1
    assert "ValueError: in the child" in rank.text("err")


def test_concurrent_futures(rank: RankProcess) -> None:
    code = (
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
        "fork = multiprocessing.get_context('fork')\n"
        "with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, mp_context=fork) as processes:\n"
        "    result = list(threads.map(abs, [-1])) + list(processes.map(abs, [-2]))\nresult"
    )
    assert rank.ok(code) == [1, 2]


def test_subprocess(rank: RankProcess) -> None:
    code = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import sys; print(1); print(2, file=sys.stderr)'], check=True)\n"
        "subprocess.check_output('echo $RANK', shell=True, text=True)"
    )
    assert rank.ok(code) == "0\n"
    assert (rank.text("out"), rank.text("err")) == ("1\n", "2\n")
    asynchronous = (
        "import asyncio\n"
        "p = await asyncio.create_subprocess_exec('echo', 'x', stdout=asyncio.subprocess.PIPE)\n"
        "(await p.communicate())[0], p.returncode"
    )
    assert rank.ok(asynchronous) == (b"x\n", 0)


@pytest.mark.slow
def test_torch_compile(rank: RankProcess) -> None:
    code = (
        "import torch\n"
        "@torch.compile\n"
        "def f(x): return torch.sin(x) + x * 2\n"
        "x = torch.ones(4)\n"
        "torch.allclose(f(x), torch.sin(x) + 2)"
    )
    assert rank.ok(code, timeout_s=280) is True


def test_backward_with_threads(template: TemplateProcess) -> None:
    [rank] = template.fork(1, {"OMP_NUM_THREADS": "2"})
    code = (
        "import torch\n"
        "model = torch.nn.Linear(500, 500)\n"
        "for _ in range(3): model(torch.rand(64, 500)).sum().backward()\n"
        "torch.set_num_threads(1)\n"
        "model.weight.grad.shape[0]"
    )
    assert rank.ok(code) == 500


def test_threads_and_asyncio(rank: RankProcess) -> None:
    code = (
        "import asyncio, threading\nfound = []\n"
        "def other_loop(): found.append(asyncio.run(asyncio.sleep(0.01, 'own loop')))\n"
        "thread = threading.Thread(target=other_loop); thread.start(); thread.join()\n"
        "found.append(await asyncio.to_thread(lambda: 'thread'))\n"
        "found.append(await asyncio.wait_for(asyncio.sleep(0.01, 'waited'), 5))\nfound"
    )
    assert rank.ok(code) == ["own loop", "thread", "waited"]


def test_an_error_in_a_thread_is_shown(rank: RankProcess) -> None:
    rank.ok("import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()")
    assert "ZeroDivisionError" in rank.text("err")


def test_logging_and_warnings(rank: RankProcess) -> None:
    rank.ok("import logging, warnings\nlogging.warning('from logging')\nwarnings.warn('from warnings')")
    assert "WARNING:root:from logging" in rank.text("err")
    assert "from warnings" in rank.text("err")
    rank.ok("logging.getLogger('x').error('later')")
    assert "ERROR:x:later" in rank.text("err")


def test_chdir_lasts(rank: RankProcess) -> None:
    rank.ok("import os; os.mkdir('below'); os.chdir('below')")
    assert rank.ok("os.getcwd()").endswith("/below")
    assert rank.run("raise ValueError").failure.where == "Run 3:1"


def test_signal_handlers(rank: RankProcess) -> None:
    code = (
        "import os, signal, time\n"
        "got = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        "signal.signal(signal.SIGALRM, lambda *_: got.append(2))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "time.sleep(0.2)\n"
        "got"
    )
    assert rank.ok(code) == [1, 2]


def test_scripts_with_a_main_guard_and_arguments(rank: RankProcess) -> None:
    script = Path(rank.spec.directory) / "script.py"
    script.write_text("import sys\nif __name__ == '__main__':\n    print(sys.argv)\n    result = 5\n")
    rank.ok("%run script.py --lr 3")
    assert rank.text() == "['script.py', '--lr', '3']\n"
    assert rank.ok("result") == 5
    assert (
        rank.ok("import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr', default=3); p.parse_args().lr")
        == 3
    )


def test_classes_of_cells_can_be_pickled_and_copied(rank: RankProcess) -> None:
    code = (
        "import copy, pickle, dataclasses, enum\n"
        "@dataclasses.dataclass\n"
        "class Config:\n"
        "    lr: float = 3\n"
        "class Kind(enum.Enum):\n"
        "    A = 1\n"
        "pickle.loads(pickle.dumps((Config(), Kind.A))) == (Config(), Kind.A), copy.deepcopy(Config()).lr"
    )
    assert rank.ok(code) == (True, 3)


def test_saving_and_loading(rank: RankProcess) -> None:
    code = (
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "torch.save(model.state_dict(), 'm.pt')\n"
        "model.load_state_dict(torch.load('m.pt'))\n"
        "torch.save(model, 'whole.pt'); torch.load('whole.pt', weights_only=False).weight.shape[0]"
    )
    assert rank.ok(code) == 2


def test_inspect_finds_the_source_of_cells(rank: RankProcess) -> None:
    rank.ok("def f():\n    return 5")
    assert rank.ok("import inspect; inspect.getsource(f)") == "def f():\n    return 5\n"


def test_torch_jit_and_hooks(rank: RankProcess) -> None:
    code = (
        "import torch\n"
        "m = torch.nn.Linear(1, 1)\n"
        "seen = []\n"
        "m.register_forward_hook(lambda *_: seen.append(1))\n"
        "m(torch.ones(1)); len(seen)"
    )
    assert rank.ok(code) == 1


def test_scripts_that_leave_traces(rank: RankProcess) -> None:
    rank.ok(
        "import gc, os, sys\n"
        "gc.freeze(); gc.disable()\n"
        "sys.argv = ['x', '--bad']\n"
        "sys.path.clear()\n"
        "del os.environ['WORLD_SIZE']"
    )
    assert rank.ok("1 + 1") == 2
    assert rank.run("1/0").failure.name == "ZeroDivisionError"


def test_distributed_data_parallel(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(2)
    code = """
import torch
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.rand(8, 4)).pow(2).mean().backward()
    optimizer.step()
model.module.weight.sum().item()
"""
    results = run_all(ranks, code)
    assert [result.outcome for result in results] == [OUTCOME_OK, OUTCOME_OK], results
    first, second = (rank.value(result) for rank, result in zip(ranks, results, strict=True))
    assert first == second

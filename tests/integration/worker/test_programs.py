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


def test_dataloader_workers_by_spawn(rank: RankProcess) -> None:
    load = LOAD.replace("workers=2", "workers=1")
    for method in ("spawn", "forkserver"):
        result = rank.run(f"{DATASET}\n{load.format(f', multiprocessing_context={method!r}')}")
        assert result.failure.name == "SpawnError"
        assert "%%writefile" in result.failure.message
        assert "Squares" in result.failure.message
    (Path(rank.spec.directory) / "squares.py").write_text(DATASET)
    load = load.format(", multiprocessing_context='spawn'")
    code = f"from torch.utils.data import DataLoader\nfrom squares import Squares\n{load}"
    assert rank.ok(code, timeout_s=180) == SQUARES


def test_multiprocessing(rank: RankProcess) -> None:
    (Path(rank.spec.directory) / "work.py").write_text(
        "def double(x):\n    print('doubling', x, flush=True)\n    return 2 * x\n"
    )
    for method in ("fork", "spawn"):
        code = (
            f"import multiprocessing, work\n"
            f"with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
            f"    result = pool.map(work.double, range(4))\n"
            f"result"
        )
        assert rank.ok(code) == [0, 2, 4, 6]
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


def test_subprocess(rank: RankProcess) -> None:
    assert rank.ok("import subprocess; subprocess.check_output('echo $RANK', shell=True, text=True)") == "0\n"
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


def test_an_error_in_a_thread_is_shown(rank: RankProcess) -> None:
    rank.ok("import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()")
    assert "ZeroDivisionError" in rank.text("err")


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
        "while len(got) < 2: time.sleep(0.01)\n"
        "got"
    )
    assert rank.ok(code) == [1, 2]


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


def test_inspect_finds_the_source_of_cells(rank: RankProcess) -> None:
    rank.ok("def f():\n    return 5")
    assert rank.ok("import inspect; inspect.getsource(f)") == "def f():\n    return 5\n"


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

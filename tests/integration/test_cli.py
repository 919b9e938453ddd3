"""`monarch-nb` on a real pool, as a user types it."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import monarch_nb
from integration.live import eventually
from leaks import leaks_of
from monarch_nb.cli.main import main
from monarch_nb.errors import NoSuchPool, RunFailed
from monarch_nb.provision import Node

pytestmark = pytest.mark.usefixtures("without_torch")


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """Run a command; return what it printed, stderr after stdout."""
    assert main(words) == status
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def test_a_pool_is_there_from_its_up_to_its_down(pool_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusal = "there is no pool 'minn'; did you mean mine? there are local, mine; monarch-nb up --pool minn makes"
    said(capsys, "up", "--pool", "mine", "--procs", "1")
    assert refusal in said(capsys, "run", "--pool", "minn", "--procs", "1", "train.py", status=1)
    dev = monarch_nb.reserve("dev", procs=1, pool="mine")
    assert said(capsys, "list", "--pool", "mine").splitlines()[1].startswith("dev ")
    assert refusal in said(capsys, "release", "dev", "--pool", "minn", status=1)
    dev.release()
    assert said(capsys, "down", "--pool", "mine").startswith("the pool 'mine' is down\n")
    with pytest.raises(NoSuchPool, match="there is no pool 'mine'; there is only local"):
        monarch_nb.reserve("dev", procs=1, pool="mine")
    assert leaks_of(pool_home) == []


def test_ranks_are_not_the_task_whose_shell_started_the_pool(
    pool_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As srun and mpirun set it: a script that asks Slurm first would be rank 0 everywhere."""
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    said(capsys, "up", "--procs", "2")
    dev = monarch_nb.reserve("dev", procs=2, preload=[])
    asks = "import os\nint(os.environ.get('SLURM_PROCID', os.environ.get('PMI_RANK', os.environ['RANK'])))"
    assert dev.mesh.run(asks).values == [0, 1]
    named = "{name for name in os.environ if name.startswith(('SLURM', 'OMPI_', 'PMI'))}"
    assert dev.mesh.run(named).values == [{"SLURM_CONF"}] * 2, "with which a rank finds the cluster"
    said(capsys, "down", "--force")


def test_a_day_with_the_local_pool(pool_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "starting 2 local nodes × 2 procs" in said(capsys, "up", "--nodes", "2", "--procs", "2")
    assert said(capsys, "up", "--nodes", "2") == "the pool 'local' is up: node0, node1\n"

    assert "(monarch-nb reserve NAME --nodes 1 --procs 2)" in said(capsys, "status"), "no more than fits"
    shape = "reserve", "trial", "--nodes", "2", "--procs", "1"
    assert "trial: 2 nodes × 1 proc, 2 ranks ready in " in said(capsys, *shape, "--time", "8h", "--env", "LR=1")
    assert "trial: 2 nodes × 1 proc, 2 ranks held already, " in said(capsys, *shape)
    assert "and held by trial " in said(capsys, "up", "--nodes", "1", status=1)
    assert said(capsys, "extend", "1h").startswith("trial: 1 h more, ")
    assert said(capsys, "restart", "trial", "-t", "1").startswith("rank 1 restarted in ")
    trial = monarch_nb.attach("trial")
    assert trial.mesh.run("__import__('os').environ['LR']").values == ["1", "1"]
    run = trial.mesh.submit("import time; time.sleep(600)")
    eventually(lambda: re.match(r"── ranks 0-1 .*time\.sleep\(600\)", said(capsys, "stacks"), re.DOTALL))
    assert said(capsys, "interrupt") == "interrupted run 2 on ranks 0-1\n"
    with pytest.raises(RunFailed):
        run.result()
    said(capsys, "release", "trial")

    dev = monarch_nb.reserve("dev", nodes=2, procs=1)
    dev.mesh.run("print('hello from', rank)\nprint('twice', end='')")
    assert "dev          " in said(capsys, "list")
    assert "1 of 2" in said(capsys, "status")
    [status] = json.loads(said(capsys, "status", "--json"))
    assert [held["name"] for held in json.loads(said(capsys, "list", "--json"))] == ["dev"]
    assert [(node["state"], node["procs_free"]) for node in status["nodes"]] == [("serves", 1), ("serves", 1)]
    assert [rank["state"] for rank in status["reservations"][0]["ranks"]] == ["idle", "idle"]
    assert all(rank["memory_bytes"] > 1 << 20 for rank in status["reservations"][0]["ranks"])

    main(["doctor", "--json"])  # whose status also says whether this machine has room
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["here"]["python"] == platform.python_version()
    assert [node["environment"]["python"] for node in diagnosis["nodes"]] == [platform.python_version()] * 2

    heading = "── run 1 (print('hello from', rank)) ──"
    assert said(capsys, "logs") == f"{heading}\n[0] hello from 0\n[1] hello from 1\n[0-1] twice\n"
    assert said(capsys, "logs", "--raw") == "[0] hello from 0\n[0] twice\n[1] hello from 1\n[1] twice\n"
    assert said(capsys, "logs", "dev", "-t", "1", "-n", "1") == f"{heading}\n[1] twice\n"
    assert said(capsys, "logs", "--run", "1", "--follow").endswith("[0-1] twice\n")
    assert "no run 9; the newest that printed is run 1" in said(capsys, "logs", "--run", "9", status=1)
    assert "no run 9;" in said(capsys, "logs", "--run", "9", "--follow", status=1)
    dev.mesh.run("rank")
    with pytest.raises(RunFailed):
        dev.mesh.run("raise ValueError('odd')", cell_number=12)
    failed = "── run 4, cell [12] (raise ValueError('odd')) ──\n[0-1] failed: ValueError: odd (Cell In[12]:1)"
    assert said(capsys, "logs").endswith(f"{failed}; `monarch-nb logs dev --run 4` shows the traceback\n")
    alone = said(capsys, "logs", "--run", "4")
    assert alone.startswith(f"{failed}\n")
    assert "----> 1 raise ValueError('odd')" in alone
    assert said(capsys, "logs", "--run", "3") == "run 3 (rank) printed nothing\n"
    assert "you hold dev" in said(capsys, "logs", "nope", status=1)

    dev.mesh.run("for step in range(9): print('step:', step, ' loss:', 9 - step + rank)")
    assert said(capsys, "plot").splitlines()[3].split() == ["loss", "0-1", "18", "1"]
    assert said(capsys, "plot", "dev", "--run", "5", "-t", "1").startswith("run 5\n")
    drawn = said(capsys, "plot", "--run", "5", "loss")
    assert drawn == said(capsys, "plot", "dev", "--run", "5", "loss")
    assert drawn.endswith("loss: 1 at step 8 on rank 0; last 1 (rank 0) to 2 (rank 1)\n")
    assert ("░" in drawn, "\x1b" in drawn) == (True, False)
    picture = tmp_path / "loss.svg"
    assert said(capsys, "plot", "loss", "--x", "step", "--svg", str(picture)) == f"wrote {picture}\n"
    assert picture.read_text().startswith("<svg")
    with pytest.raises(SystemExit):
        main(["plot", "los"])
    assert "none of the newest 5 runs printed los; nearest: loss (run 5)" in capsys.readouterr().err

    assert "held by dev" in said(capsys, "down", status=1)
    assert dev.mesh.run("rank").values == [0, 1], "a refused `down` changes nothing"
    released, kept = said(capsys, "release").splitlines()
    assert released == "released dev (2 nodes × 1 proc)"
    assert kept.startswith("monarch-nb logs dev shows its output for 7 more days; files on node0: ")
    assert (Path(kept.rpartition(": ")[2]) / "runs" / "1" / "0.out").read_text() == "hello from 0\ntwice"
    when, *shown = said(capsys, "logs", "dev", "--run", "1").splitlines()
    assert when.startswith("dev was released at ")
    assert shown == [heading, "[0] hello from 0", "[1] hello from 1", "[0-1] twice"]
    assert said(capsys, "plot", "dev", "--run", "5", "loss") == f"{drawn}{when}\n"
    assert said(capsys, "logs", "dev", "--raw", "-t", "1", "--run", "1") == "[1] hello from 1\n[1] twice\n"
    assert f"{failed}; `monarch-nb logs dev --run 4` shows the traceback\n" in said(capsys, "logs", "dev", "-n", "0")
    assert "----> 1 raise ValueError('odd')" in said(capsys, "logs", "dev", "--run", "4")
    assert "no reservation 'nope'" in said(capsys, "logs", "nope", status=1)
    assert said(capsys, "release", "dev", status=1) == "monarch-nb: no reservation 'dev'; you hold none\n"
    assert said(capsys, "release") == "you hold nothing in the pool local: there is nothing to release\n"

    assert said(capsys, "down").startswith("the pool 'local' is down")
    assert said(capsys, "down") == "no pool 'local' is up\n"
    silent = json.loads(said(capsys, "doctor", "--json", status=1))
    assert "monarch-nb up" in silent["error"]
    assert silent["here"]["packages"]["torch"] == torch.__version__
    assert leaks_of(pool_home) == []


def test_release_needs_a_choice(spare_pool: list[Node], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        monarch_nb.reserve(name, procs=1)
    with pytest.raises(SystemExit):
        main(["release"])
    assert "you hold one, two: name one, or --all" in capsys.readouterr().err
    assert said(capsys, "release", "--all") == "released one (1 node × 1 proc)\nreleased two (1 node × 1 proc)\n"


def test_a_reader_that_leaves_is_no_error(spare_pool: list[Node]) -> None:
    monarch_nb.reserve("dev", procs=1).mesh.run("for i in range(100_000): print('line', i)")
    command = f"{sys.executable} -m monarch_nb.cli.main logs dev --raw -n 0 | head -n 1"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr, run.returncode) == ("[0] line 0\n", "", 0)

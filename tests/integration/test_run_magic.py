"""`%mesh run` in a real kernel, on a real pool: scripts as a user writes them, and as a user gets them wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, Gate, eventually
from leaks import wait_for_end

TRAIN = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
print(sys.argv, total.item(), __name__, os.path.basename(__file__), "left" in globals())
dist.destroy_process_group()
left = True
"""
SHOWN = "[0-3] ['train.py', '--lr', '3e-4'] 6.0 __main__ train.py False"


@pytest.fixture
def scripts(kernel: Kernel, tmp_path: Path) -> Path:
    """Where the notebook lies; `train.py` is there, and the live ranks have a variable of the cells."""
    (tmp_path / "train.py").write_text(TRAIN)
    kernel.run("%%mesh\nmine = rank")
    return tmp_path


def test_a_script_again_and_again(kernel: Kernel, scripts: Path) -> None:
    for flags in ("", "-o codes --nnodes 1:2 --nproc_per_node=2"):
        assert kernel.run(f"%mesh run {flags} train.py --lr 3e-4") == SHOWN, "nothing of the first reaches the second"
    assert kernel.run("codes") == "[0, 0, 0, 0]"
    shown = "[2-3] ['train.py'] 1.0 __main__ train.py False\nranks 2-3 of the mesh are the script's ranks 0-1"
    assert kernel.run("%mesh run -t hosts=1 train.py") == shown
    assert "True" not in kernel.run("%%mesh\nprint('left' in globals(), mine)")
    assert kernel.run("%mesh run -i train.py --lr 3e-4") == SHOWN
    assert kernel.run("%%mesh\nprint(left, total.item())") == "[0-3] True 6.0"
    (scripts / "environ.py").write_text("import os\nprint(os.environ['FOO'])\n")
    assert kernel.run("%mesh run --env FOO=bar environ.py") == "[0-3] bar"
    note = kernel.run("%mesh run --local-ranks-filter 0 --master-port 29501 train.py")
    assert "--master-port: ignored" in note
    assert "[0,2] ['train.py'] 6.0" in note


def test_a_script_in_the_live_ranks_says_that_it_takes_the_cells_group(kernel: Kernel, scripts: Path) -> None:
    taken = "train.py has destroyed the process group of earlier cells: call dist.init_process_group() again"
    kernel.run("%%mesh\ndist.init_process_group('gloo')")
    shown = kernel.run("%mesh run -i train.py --lr 3e-4")
    assert "keeping the process group of 4 ranks" in shown
    assert taken in shown
    assert "there is no process group" in kernel.run("%%mesh\ndist.barrier()")
    assert kernel.run("%mesh run -i train.py --lr 3e-4") == SHOWN.replace("False", "True"), "it was its own"
    assert kernel.run("%%mesh\ndist.init_process_group('gloo')") == ""
    assert kernel.run("%%mesh\ndist.destroy_process_group()") == "", "who writes this in a cell means it"
    kernel.run("%%mesh\ndist.init_process_group('gloo')")
    assert taken in kernel.run("%%mesh\n%run -i train.py --lr 3e-4")


def test_a_line_from_elsewhere(kernel: Kernel, scripts: Path) -> None:
    (scripts / "level.py").write_text("import os, sys\nprint(os.environ['LEVEL'], sys.argv[1:])\n")
    note = "torchrun is left out: run starts the script itself"
    assert kernel.run("%mesh run torchrun --nproc_per_node 2 train.py --lr 3e-4") == f"{note}\n{SHOWN}"
    shown = kernel.run("%mesh submit LEVEL=3 python -u level.py --rank 0 -u")
    assert shown == "python is left out: run starts the script itself\n[0-3] 3 ['--rank', '0', '-u']"
    assert "is no shell: > would be an argument of level.py" in kernel.run("%mesh run level.py > out.txt")
    assert not (scripts / "out.txt").exists()
    assert kernel.run("%%mesh --rank 1,3\nprint(mine)") == "[1] 1\n[3] 3"
    assert kernel.run("%mesh get mine -r 1,3") == "[1, 3]"
    assert kernel.run("%mesh kill") == kernel.run("%mesh interrupt")


def test_it_fails_and_is_interrupted_as_a_cell(kernel: Kernel, scripts: Path) -> None:
    (scripts / "fails.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(3)\ntime.sleep(600)\n"
    )
    shown = kernel.run("%mesh run -o codes fails.py")
    assert "exited with code 3" in shown
    assert "fails.py:3" in shown
    assert "runpy" not in shown
    assert kernel.run("codes[1]") == "3"
    (scripts / "endless.py").write_text("import time\nprint('under way', flush=True)\ntime.sleep(600)\n")
    cell = kernel.start("%mesh run endless.py")
    kernel.wait(cell, "[0-3] under way")
    kernel.interrupt()
    shown = kernel.wait(cell)
    assert "KeyboardInterrupt\x1b[39m: interrupted ranks 0-3" in shown
    assert "Traceback" not in shown
    assert kernel.run("%%mesh\nprint(mine < 4)") == "[0-3] True"


def test_a_cell_that_handles_its_interrupt_has_ended_well(kernel: Kernel, scripts: Path) -> None:
    (scripts / "handles.py").write_text(
        "import pathlib, sys, time\ntry:\n    pathlib.Path(sys.argv[1] + str(rank)).touch()\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    steps = 7\n"
    )
    kernel.run("import monarch_nb\nmesh = monarch_nb.attach('dev').mesh")
    for name, cell in (
        ("cell", "%%mesh -o steps\n%run -i handles.py cell\nsteps"),
        ("call", "steps = mesh.run('%run -i handles.py call\\nsteps').values"),
    ):
        running = kernel.start(cell)
        eventually(lambda: len(list(scripts.glob(f"{name}?"))) == 4)  # noqa: B023
        kernel.interrupt()
        assert "interrupted; ranks 0-3 went on to the end" in kernel.wait(running)
        assert kernel.run("steps") == "[7, 7, 7, 7]"


def test_it_goes_on_in_the_background(kernel: Kernel, scripts: Path, gate: Gate) -> None:
    (scripts / "waits.py").write_text(f"print('begun')\n{gate.wait}\nprint('done')\n")
    cell = kernel.start("%mesh run --noblock -o run waits.py")
    kernel.wait(cell, "[0-3] begun")
    assert kernel.run("%%mesh\nprint(mine < 4)") == "[0-3] True", "cells do not wait for it"
    second = kernel.start("%mesh run train.py --lr 3e-4")
    kernel.wait(second, "waits for: ")
    gate.open(4)
    assert kernel.wait(second) == SHOWN
    kernel.wait(cell, "[0-3] done")
    assert kernel.run("run.done, run.title") == "(True, 'waits.py')"
    waiting = kernel.start("%mesh run -a waits.py")
    kernel.wait(waiting, "[0-3] begun")
    assert SHOWN in kernel.run("%mesh run --beside train.py --lr 3e-4"), "it does not wait"
    gate.open(4)


REFUSED = [
    ("nosuch.py", "node0, node1: there is no .*nosuch.py"),
    ("trian.py", "did you mean train.py"),
    ("program", "node0, node1: program is a directory without a __main__.py"),
    ("a.ipynb", "a.ipynb is a notebook: .*jupyter nbconvert --to script a.ipynb"),
    ("--nnodes 4 train.py", "2 nodes are held"),
    ("-m nosuch", "No module named nosuch"),
    ("-m package", "is a package and cannot be directly executed"),
    ("--no-python nosuch", "nosuch"),
    ("-i --env FOO=1 train.py", "have their environment already: leave out -i, or give --env to %mesh reserve"),
]


def test_what_can_not_be_run_is_explained(kernel: Kernel, scripts: Path) -> None:
    (scripts / "package").mkdir()
    (scripts / "package" / "__init__.py").write_text("")
    (scripts / "program").mkdir()
    for line, said in REFUSED:
        shown = kernel.run(f"%mesh run {line}")
        assert "UsageError" in shown, line
        assert re.search(said, shown), f"{line}: {shown}"
        assert "Traceback" not in shown, line
    (scripts / "typo.py").write_text("import os\nif True\n    pass\n")
    shown = kernel.run("%mesh run typo.py")
    assert shown.count("SyntaxError") == 1
    assert "typo.py, line 2" in shown or "typo.py:2" in shown
    assert kernel.run("%mesh run train.py --lr 3e-4") == SHOWN


ODD = {
    "leaves.py": ("import os\nos._exit(0)", ""),
    "leaves_early.py": ("import os\nos._exit(5)", "exited with code 5"),
    "becomes.py": ("import os\nos.execv('/bin/echo', ['echo', 'another program'])", "[0-3] another program"),
    "forks.py": (
        "import os\nif os.fork() == 0:\n    os.kill(os.getpid(), 9)\nos.wait()\nprint('parent')",
        "[0-3] parent",
    ),
    "silent.py": ("import os, sys\nsys.stdout.close()\nos.close(1)", ""),
    "lost.py": (
        "import os, tempfile\nhere = tempfile.mkdtemp()\nos.chdir(here)\nos.rmdir(here)\nprint('nowhere')",
        "[0-3] nowhere",
    ),
    "dies.py": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
}


def test_scripts_that_do_odd_things_cost_nobody_anything(kernel: Kernel, scripts: Path) -> None:
    for name, (code, said) in ODD.items():
        (scripts / name).write_text(f"{code}\n")
        shown = kernel.run(f"%mesh run {name}")
        assert said in shown if said else re.fullmatch(r"(4 ranks · [\d.]+ s)?", shown), f"{name}: {shown}"
    kernel.run("%%mesh -t 3\nimport os\nos._exit(1)")
    assert kernel.run("%mesh run train.py --lr 3e-4") == SHOWN, "a dead live rank does not matter"
    assert kernel.run("%%mesh -t 0-2\nprint(mine < 3)") == "[0-2] True"


def test_a_command_shows_each_node_s_output_and_ends_with_ctrl_c(kernel: Kernel, tmp_path: Path) -> None:
    shown = kernel.run('%mesh sh --env GREETING=hello -o codes echo "$GREETING  from" $NODE_RANK | tr a-z A-Z')
    assert "[0] HELLO  FROM 0" in shown
    assert "[2] HELLO  FROM 1" in shown
    assert "once on each of 2 nodes: [0] " in shown
    assert kernel.run("codes") == "[0, 0]"
    assert "once on each of" not in kernel.run("%mesh sh -t hosts=1 echo alone")
    assert "exited with code 7" in kernel.run("%mesh sh exit 7")
    assert "%mesh sh needs COMMAND" in kernel.run("%mesh sh --beside")
    shown = kernel.run("import monarch_nb\nmonarch_nb.attach().run('echo from python $NODE_RANK').values")
    assert "[0] from python 0" in shown
    assert "[2] from python 1" in shown
    cell = kernel.start(f"%mesh sh echo $BASHPID > {tmp_path}/$NODE_RANK; sleep 1000 & wait")
    paths = [tmp_path / "0", tmp_path / "1"]
    eventually(lambda: all(path.exists() and path.read_text().strip() for path in paths))
    kernel.interrupt()
    assert "interrupted" in kernel.wait(cell)
    for path in paths:
        wait_for_end(int(path.read_text()), TIMEOUT_S)

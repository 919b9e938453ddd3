"""The magics in a real kernel, on a real pool."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import Gate
from monarch_nb.shape import Extent, parse_targets

pytestmark = pytest.mark.usefixtures("shared_pool")
README = Path(__file__).resolve().parents[2] / "README.md"
COUNT = "import time\nfor i in range(600):\n    print('step', i)\n    time.sleep(0.05)"


@pytest.mark.quick
def test_the_hung_collective_of_the_readme(open_kernel: Callable[[], Kernel]) -> None:
    [section] = re.findall(r"^## A collective that hangs.*?^## ", README.read_text(), re.DOTALL | re.MULTILINE)
    hang, waiting, interrupted, go_on, went_on = re.findall(r"^```\w*\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    kernel = open_kernel()
    kernel.run("%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 4")
    kernel.run("%%mesh\nimport torch.distributed as dist\ndist.init_process_group('gloo')")
    kernel.run("%%mesh\nimport torch\nweights = torch.ones(3) * rank")
    cell = kernel.start(hang)
    kernel.wait(cell, waiting)
    kernel.interrupt()
    assert interrupted in re.sub(r"\x1b\[\d+m", "", kernel.wait(cell))
    assert kernel.run(go_on).strip() == went_on


def test_cells(kernel: Kernel) -> None:
    assert "already held, 4 ranks alive" in kernel.run("%mesh reserve dev --nodes 2 --procs 2")
    shown = kernel.run("%%mesh\nprint('hello')\nprint('I am', rank)\nlosses = [rank]")
    assert "[0-3] hello" in shown
    assert "[2] I am 2" in shown
    assert kernel.run("twice = %mesh pull rank * 2\ntwice") == "[0, 2, 4, 6]"
    kernel.run("lr = 1e-3\n%mesh push lr")
    assert kernel.run("%%mesh -t 1 -o kept\nlr * 10") != ""
    assert kernel.run("kept") == "[0.01]"
    assert "1 of 4 ranks failed" in kernel.run("%%mesh\n1 / (rank - 1)")
    assert kernel.complete("%%mesh\nloss") == ["losses"]
    assert kernel.complete("%mesh attach ") == ["dev"]
    kernel.run("%%mesh\nimport threading\ndef step(batch, lr=0.1):\n    'Do one.'")
    kernel.run("%%mesh -a\nthreading.Event().wait()")
    shown = kernel.inspect("%%mesh -t 3\nstep(")["data"]["text/plain"]
    assert all(part in shown for part in ("step(batch, lr=0.1)", "Do one.", "On rank 3.")), shown
    assert not kernel.inspect("step(")["found"]
    assert "object" in kernel.inspect("%%mesh\nobject")["data"]["text/plain"]
    kernel.run("%mesh interrupt")
    assert "4 of 4 ranks alive" in kernel.run("%mesh status")


def test_output_lands_in_the_cell_that_caused_it(kernel: Kernel, gate: Gate) -> None:
    slow = kernel.start(f"%%mesh --timeout 0.3\n{gate.wait}\nprint('late')")
    assert "TimeoutError" in kernel.wait(slow)
    background = kernel.start("%%mesh --noblock\nprint('behind')")
    kernel.wait(background)
    assert kernel.run("print('meanwhile')") == "meanwhile\n"
    gate.open(4)
    kernel.wait(slow, "[0-3] late")
    kernel.wait(background, "[0-3] behind")


def test_an_interrupt_frees_the_ranks(kernel: Kernel) -> None:
    cell = kernel.start(f"%%mesh\n{COUNT}")
    kernel.wait(cell, "[0-3] step 3")
    kernel.interrupt()
    shown = kernel.wait(cell)
    assert "[0-3] step 3" in shown
    assert "KeyboardInterrupt\x1b[39m: interrupted ranks 0-3" in shown
    assert "Traceback" not in shown
    assert kernel.run("%%mesh\nprint(i < 500)") == "[0-3] True"


def test_a_restart_of_the_kernel_leaves_the_ranks_alone(kernel: Kernel, gate: Gate) -> None:
    """Jupyter interrupts a kernel before it tells it to shut down."""
    patience = "from monarch_nb import interrupting\ninterrupting.SHUTDOWN_NOTICE_S = 60.0"
    code = f"print('begun')\n{gate.wait}\nprint('not interrupted')\nrank"
    for start in (f"%%mesh\n{code}", "%mesh attach --from-start", "print('joins')\nnext(dev.mesh.running()).join()"):
        kernel.run(patience)
        cell = kernel.start(start)
        kernel.wait(cell, "[0-3] begun" if start.startswith("%") else "joins")
        kernel.restart()
        kernel.run("import monarch_nb")
        assert "run 1, cell [4] still running: %mesh attach follows it" in kernel.run("%load_ext monarch_nb")
        kernel.run("dev = monarch_nb.attach('dev')")
    following = kernel.start("%mesh attach")
    gate.open(4)
    shown = kernel.wait(following)
    assert "[0-3] not interrupted" in shown
    assert "KeyboardInterrupt" not in shown
    again = kernel.run("%mesh attach --from-start")
    assert "[0-3] begun\n[0-3] not interrupted" in again
    assert "Out[3]: 3" in again


def test_a_lost_kernel_gets_everything_back(kernel: Kernel, open_kernel: Callable[[], Kernel], gate: Gate) -> None:
    steps = "for i in range({}):\n    print('step', i)\n    time.sleep(0.1)\n"
    code = f"import time\n{steps.format(20)}{gate.wait}\n{steps.format('20, 30')}"
    cell = kernel.start(f"%%mesh --noblock\n{code}")
    kernel.wait(cell, "step 15")  # nodes hear every half second what was shown
    kernel.kill()
    again = open_kernel()
    shown = again.run("%load_ext monarch_nb")
    assert (
        "attached to dev: 2 nodes × 2 procs, 4 ranks alive, run 1, cell [3] still running: %mesh attach follows it"
        in shown
    )
    following = again.start("%mesh attach")
    again.wait(following, "step 19")
    gate.open(4)
    shown = again.wait(following)
    sets = re.findall(r"\[(.*)\] step 29$", shown, re.MULTILINE)  # ranks may be a line apart where it went on
    assert sorted(rank for ranks in sets for rank in parse_targets(ranks, Extent({"ranks": 4}))) == [0, 1, 2, 3]
    assert "step 0\n" not in shown
    assert "was shown to the end: %mesh attach --from-start shows it again" in again.run("%mesh attach")
    assert again.run("%mesh pull i") == "[29, 29, 29, 29]"


def test_time_that_runs_out(open_kernel: Callable[[], Kernel]) -> None:
    kernel = open_kernel()
    shown = kernel.run("%load_ext monarch_nb\n%mesh reserve brief --procs 2 --time 8s")
    assert "2 ranks ready in" in shown
    finished = kernel.start("%%mesh\nprint('hello')")
    assert "hello" in kernel.wait(finished)
    kernel.wait(finished, "brief will be released at")
    endless = kernel.start("%%mesh\nimport threading\nthreading.Event().wait()")
    shown = kernel.wait(endless)
    assert "ReservationExpired\x1b[39m: brief was released at" in shown
    assert "Traceback" not in shown
    assert "its time of 8.0 s was up; %mesh reserve makes a new one" in kernel.run("%%mesh\nrank")
    kernel.kill()
    again = open_kernel()
    assert again.run("%load_ext monarch_nb").startswith("brief was released at ")


def test_environments(kernel: Kernel) -> None:
    shown = kernel.run("import numpy\n%mesh doctor")
    assert shown.startswith("dev: 2 nodes × 2 procs")
    assert "fine: monarch_nb" in shown
    assert "imported package" in shown
    assert "none on" not in shown, "the ranks have what this kernel has"
    assert " seen by all" in shown
    shown = kernel.run("%mesh pip --version")
    assert "[0] pip " in shown
    assert shown.endswith("pip ran once: all nodes share one environment")


def test_cells_run_on_the_mesh_while_on(kernel: Kernel) -> None:
    kernel.run("%mesh on -t 0:2")
    assert kernel.run("print('hello')") == "on mesh dev · ranks 0-1\n[0-1] hello"
    assert kernel.run("%%local\nprint('hello')") == "hello\n"
    kernel.run("%mesh off")
    assert kernel.run("print('hello')") == "hello\n"

"""What needs a kernel of its own: restarted or lost ones, time that runs out, ranks that hang as in the README."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import monarch_nb
from integration.kernels import PATIENT, Kernel
from integration.live import Gate, leave
from monarch_nb.shape import Extent, parse_targets

README = Path(__file__).resolve().parents[2] / "README.md"


def test_a_restart_of_the_kernel_leaves_the_ranks_alone(kernel: Kernel, gate: Gate) -> None:
    """Jupyter interrupts a kernel before it tells it to shut down."""
    code = f"print('begun')\n{gate.wait}\nprint('not interrupted')\nrank"
    kernel.run(PATIENT)
    cell = kernel.start(f"%%mesh\n{code}")
    kernel.wait(cell, "[0-3] begun")
    kernel.restart()
    assert "still running" in kernel.run("%load_ext monarch_nb")
    following = kernel.start("%mesh attach")
    gate.open(4)
    shown = kernel.wait(following)
    assert "[0-3] not interrupted" in shown
    assert "KeyboardInterrupt" not in shown
    again = kernel.run("%mesh attach --from-start")
    assert "[0-3] begun\n[0-3] not interrupted" in again
    assert "Out[3]: 3" in again


def test_a_lost_kernel_gets_everything_back(
    kernel: Kernel, open_kernel: Callable[[], Kernel], gate: Gate, tmp_path: Path
) -> None:
    kernel.run("from monarch_nb.client.connections import connection\nconnection.SHOWN_INTERVAL_S = 0.0")
    steps = "for i in range({}):\n    print('step', i)\n    time.sleep(0.1)\n"
    with closing(Gate(tmp_path)) as first:
        code = f"{steps.format(16)}{first.wait}\n{steps.format('16, 20')}{gate.wait}\n{steps.format('20, 30')}"
        cell = kernel.start(f"%%mesh --noblock\nimport time\n{code}")
        kernel.wait(cell, "step 15")
        kernel.run("%mesh status")  # nodes answer on connections on which they have heard what was shown
        kernel.kill()
        first.open(4)
        again = open_kernel()
        shown = again.run("%load_ext monarch_nb")
        assert "run 1, cell [4] still running" in shown
        following = again.start("%mesh attach")
        again.wait(following, "step 19")
    gate.open(4)
    shown = again.wait(following)
    sets = re.findall(r"\[(.*)\] step 29$", shown, re.MULTILINE)  # ranks may be a line apart where it went on
    assert sorted(rank for ranks in sets for rank in parse_targets(ranks, Extent({"ranks": 4}))) == [0, 1, 2, 3]
    assert "step 0\n" not in shown
    assert "was shown to the end" in again.run("%mesh attach")
    assert again.run("%mesh pull i") == "[29, 29, 29, 29]"


def test_time_that_runs_out(prompt: Kernel) -> None:
    assert "2 ranks ready in" in prompt.run("%load_ext monarch_nb\n%mesh reserve brief --procs 2 --time 1h")
    endless = prompt.start("%%mesh\nprint('begun')\nimport threading\nthreading.Event().wait()")
    prompt.wait(endless, "[0-1] begun")
    leave(monarch_nb.attach("brief"), 0.2)
    shown = prompt.wait(endless)
    assert "ReservationExpired\x1b[39m: brief was released at" in shown
    assert shown.count("brief was released at") == 1, "the error says it alone"
    assert "Traceback" not in shown
    assert re.search(r"its time of [\d.]+ s was up; %mesh reserve makes a new one", prompt.run("%%mesh\nrank"))
    prompt.restart()
    assert prompt.run("%load_ext monarch_nb").startswith("brief was released at ")


def test_a_release_elsewhere_is_told_and_ones_own_is_not(prompt: Kernel) -> None:
    hello = "%%mesh\nprint('hello')"
    prompt.run("%load_ext monarch_nb\n%mesh reserve gone --procs 1")
    first = prompt.start(hello)
    prompt.wait(first)
    assert "1 rank ready in" in prompt.run("%mesh reserve gone --procs 1 --replace")
    idle = prompt.start(hello)
    prompt.wait(idle)
    assert "was released" not in prompt.text(first) + prompt.text(idle)
    monarch_nb.attach("gone").release()
    said = r"gone was released at \S+ by .+: %mesh reserve gone makes a new one"
    assert re.search(said, prompt.wait(idle, "was released at"))
    for cell in (hello, "%mesh status"):
        assert re.search(said, prompt.run(cell))


@pytest.mark.quick
def test_the_hung_collective_of_the_readme(prompt: Kernel) -> None:
    [section] = re.findall(r"^## A collective that hangs.*?^## ", README.read_text(), re.DOTALL | re.MULTILINE)
    hang, waiting, interrupted, go_on, went_on = re.findall(r"^```\w*\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    prompt.run("%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 4")
    prompt.run("%%mesh\nimport torch.distributed as dist\ndist.init_process_group('gloo')")
    prompt.run("%%mesh\nimport torch\nweights = torch.ones(3) * rank")
    cell = prompt.start(hang)
    prompt.wait(cell, waiting)
    prompt.interrupt()
    assert interrupted in re.sub(r"\x1b\[\d+m", "", prompt.wait(cell))
    assert prompt.run(go_on).strip() == went_on

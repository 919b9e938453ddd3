"""What needs a kernel of its own: restarted or lost ones, and time that runs out."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import monarch_nb
from integration.kernels import PATIENT, Kernel
from integration.live import Gate, leave
from integration.stopped import all_asked
from monarch_nb.shape import Extent, parse_targets


def test_a_restart_of_the_kernel_leaves_the_ranks_alone(kernel: Kernel, gate: Gate) -> None:
    """Jupyter interrupts a kernel before it tells it to shut down. A breakpoint that they reach asks in the next."""
    code = f"print('begun')\n{gate.wait}\nbreakpoint()\nprint('not interrupted')\nrank"
    kernel.run(PATIENT)
    cell = kernel.start(f"%%mesh\n{code}")
    kernel.wait(cell, "[0-3] begun")
    kernel.restart()
    assert "still running" in kernel.run("%load_ext monarch_nb")
    following = kernel.start("%mesh attach")
    gate.open(4)
    all_asked(kernel, following, 4)
    kernel.answer("continue")
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


def test_two_notebooks_hear_of_each_other(prompt: Kernel, open_kernel: Callable[..., Kernel]) -> None:
    prompt.run("%load_ext monarch_nb\n%mesh reserve both --procs 2")
    assert "uses both" not in prompt.run("%mesh attach")
    endless = prompt.start("%%mesh\nprint('begun')\nimport threading\nthreading.Event().wait()")
    prompt.wait(endless, "[0-1] begun")
    other = open_kernel(name="b.ipynb")
    attached = other.run("%load_ext monarch_nb\n%mesh attach both --noblock")
    assert "a.ipynb uses both, too: cells wait for each other, and variables are shared" in attached
    other.run("%mesh interrupt")
    assert "interrupted from b.ipynb" in prompt.wait(endless)
    assert "b.ipynb uses both, too" in prompt.run("%mesh attach")
    prompt.run("%mesh release")


def test_time_that_runs_out(prompt: Kernel) -> None:
    assert "2 ranks ready in" in prompt.run("%load_ext monarch_nb\n%mesh reserve brief --procs 2 --time 1h")
    endless = prompt.start("%%mesh\nprint('begun')\nimport threading\nthreading.Event().wait()")
    prompt.wait(endless, "[0-1] begun")
    leave(monarch_nb.attach("brief"), 0.2)
    shown = prompt.wait(endless)
    assert "ReservationExpired\x1b[39m: brief was released at" in shown
    assert shown.count("brief was released at") == 1, "the error says it alone"
    assert "Traceback" not in shown
    said = r"its time of [\d.]+ s was up; %mesh reserve brief --nodes 1 --procs 2 makes a new one"
    assert re.search(said, prompt.run("%%mesh\nrank"))
    for read in ("logs", "plot"):
        assert re.match(r"brief was released at \S+: this is from what it printed\n", prompt.run(f"%mesh {read}"))
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
    said = r"gone was released at \S+ by .+: %mesh reserve gone --nodes 1 --procs 1 makes a new one"
    assert re.search(said, prompt.wait(idle, "was released at"))
    for cell in (hello, "%mesh status"):
        assert re.search(said, prompt.run(cell))

"""Curves in a notebook; in Python: test_metrics.py, in a terminal: test_cli.py."""

from __future__ import annotations

import re

from integration.kernels import Kernel
from integration.live import Gate

PRINTING = """
for step in range({steps}):
    print(f"step: {{step}}  loss: {{{loss} + rank}}  tps: {{9000 + step:,}}")
"""
LAST = "loss: {} at step {} on rank 0; last {} (rank 0) to {} (rank 3)"


def test_a_plot_of_two_runs_of_which_one_goes_on(kernel: Kernel, gate: Gate) -> None:
    kernel.run(f"%%mesh\n{PRINTING.format(steps=20, loss=1)}")
    going_on = f"{PRINTING.format(steps=30, loss=2)}{gate.wait}\nprint('step: 30  loss: 7')"
    kernel.run(f"%%mesh --noblock\n{going_on}")
    both = kernel.start("%mesh plot loss --run 1,2")
    first, second = LAST.format(1, 19, 1, 4), LAST.format(2, 29, 2, 5)
    shown = kernel.wait(both, second)
    assert [line for line in shown.splitlines() if not line.startswith(" ")] == ["run 1, cell [3]", "run 2, cell [4]"]
    assert first in shown
    gate.open(4)
    assert first in kernel.wait(both, "loss: 7 at step 30 on rank 0")
    magic = kernel.run("%mesh plot loss tps --run 1")
    assert (
        kernel.run("import monarch_nb\nmesh = monarch_nb.attach('dev').mesh\nmesh.plot('loss', 'tps', run=1)") == magic
    )
    assert "--run takes the number of a run" in kernel.run("%mesh plot loss --run 1,x")


def test_names_of_different_runs_and_of_one_that_has_yet_to_print(kernel: Kernel, gate: Gate) -> None:
    kernel.run("%%mesh\nfor step in range(20): print(f'step: {step}  loss: {step + rank}')")
    kernel.run("%%mesh\nfor step in range(20): print(f'step: {step}  acc: {step + rank}')")
    both = kernel.run("%mesh plot loss acc").splitlines()
    assert [line for line in both if not line.startswith(" ")] == ["run 1, cell [3]", "run 2, cell [4]"]
    assert [line.split(":")[0].strip() for line in both if line.startswith(" ")] == ["loss", "acc"]
    assert "older runs have loss (run 1)" in kernel.run("%mesh plot")
    said = "none of the newest 2 runs printed lr; there are acc (run 2), loss (run 1)"
    assert said in kernel.run("%mesh plot lr")
    kernel.run(f"%%mesh --noblock\nprint('tag: 1')\n{gate.wait}\nprint('step: 1  lr: 7')")
    plot = kernel.start("%mesh plot lr")
    kernel.wait(plot, "no line has lr so far")
    kernel.wait(kernel.start("%mesh plot ttag --run 3"), "no line has ttag so far; nearest: tag")
    gate.open(4)
    assert "goes on and has not printed" not in kernel.wait(plot, "lr: 7 at step 1 on rank 0")


def test_curves_and_lines_of_a_reservation_that_was_released(prompt: Kernel) -> None:
    prompt.run("%load_ext monarch_nb\n%mesh reserve curved --nodes 2 --procs 2")
    prompt.run(f"%%mesh\n{PRINTING.format(steps=20, loss=1)}")
    as_live = prompt.run("%mesh plot loss")
    prompt.run("%mesh release")
    said = r"curved was released at \d\d:\d\d: this is from what it printed\n"
    for line in ("plot loss", "plot loss --of curved"):
        assert re.sub(f"^{said}", "", prompt.run(f"%mesh {line}")) == as_live
    listed = prompt.run("%mesh plot -t 3")
    assert re.search(rf"{said}run 1, cell \[2\]\n(?s:.*)\n  loss +3 +20 +4", listed), listed
    assert re.search(rf"{said}.*── run 1, cell \[2\] .*step: 19", prompt.run("%mesh logs -n 1"), re.DOTALL)

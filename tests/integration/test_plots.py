"""Curves in a notebook; in Python: test_metrics.py, in a terminal: test_cli.py."""

from __future__ import annotations

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

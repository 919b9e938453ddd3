"""Curves in a notebook and in Python: one picture, whoever asks for it, in whichever kernel."""

from __future__ import annotations

from pathlib import Path

from integration.kernels import Kernel
from integration.live import Gate

PRINTING = """
for step in range({steps}):
    print(f"step: {{step}}  loss: {{{loss} + rank}}  tps: {{9000 + step:,}}")
"""
LAST = "loss: {} at step {} on rank 0; last {} (rank 0) to {} (rank 3)"


def test_python_draws_what_the_magic_draws(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(f"%%mesh\n{PRINTING.format(steps=50, loss=2.5)}")
    shown = kernel.run("%mesh plot loss tps")
    assert LAST.format(2.5, 49, 2.5, 5.5) in shown
    assert kernel.run("import monarch_nb\nmesh = monarch_nb.attach('dev').mesh\nmesh.plot('loss', 'tps')") == shown
    assert kernel.run("[run] = [run for run in mesh.past_runs()]\nplot = mesh.plot('loss', x='tps', run=run)") == ""
    assert kernel.run("print(plot)").splitlines()[0].split() == ["loss", *shown.splitlines()[0].split()]
    assert kernel.run(f"plot.save({str(tmp_path / 'loss.svg')!r})") == ""
    picture = (tmp_path / "loss.svg").read_text()
    assert picture.startswith("<svg")
    assert ">tps</text>" in picture
    assert "no line of run 1 has 'los'; nearest: loss" in kernel.run("mesh.plot('los')")


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
    assert "--run takes the number of a run" in kernel.run("%mesh plot loss --run 1,x")

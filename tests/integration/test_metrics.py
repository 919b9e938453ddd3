"""Numbers that live ranks print beside names: all of them, and curves of them while a run goes on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, eventually
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import UsageError

TRAINING = """
for step in range({steps}):
    loss = 1 / (step + 1) + rank * {spread}
    print(f"step: {{step:4d}}  \\x1b[32mloss: {{loss:8.5f}}\\x1b[0m  tps: {{9000 + step:,}}  memory: 1.02GiB(2.15%)")
"""


def curves(mesh: Mesh, number: int, *names: str, x: str = "") -> tuple[Any, list[Any]]:
    """Read until nothing more comes."""
    numbers = mesh.numbers(run=number)
    eventually(lambda: call(numbers.read(names, x, 1.0)))
    return numbers, numbers.pictures(names)


def test_all_numbers_of_a_run(mesh: Mesh) -> None:
    run = mesh.run(TRAINING.format(steps=50, spread=0.5))
    columns = run.metrics()
    assert list(columns) == ["rank", "step", "loss", "tps", "memory", "memory (%)"]
    assert [len(column) for column in columns.values()] == [400] * 6
    assert columns["rank"] == [rank for rank in range(8) for _ in range(50)]
    assert columns["step"] == list(range(50)) * 8
    assert columns["tps"] == [9000.0 + step for step in range(50)] * 8
    assert columns["loss"][51] == round(0.5 + 0.5, 5)
    of_some = mesh.metrics("loss", ranks=[2, 5], run=run.number)
    assert list(of_some) == ["rank", "step", "loss"]
    assert set(of_some["rank"]) == {2, 5}
    with pytest.raises(UsageError, match=r"no line of run [0-9]+ has 'los'; nearest: loss"):
        run.metrics(["los"])


def test_numbers_that_only_some_lines_have(mesh: Mesh) -> None:
    lines = ({"loss": math.inf, "epoch": 0.5}, {"eval_loss": "2.5", "epoch": 1.0}, "loss: 1.234,5")
    columns = mesh.run(f"inf = float('inf')\nif rank == 3: print(*{lines!r}, sep='\\n')").metrics()
    assert (columns["rank"], columns["step"]) == ([3, 3], [None, None])
    assert (columns["loss"], columns["eval_loss"]) == ([math.inf, None], [None, 2.5])


def test_a_curve_and_its_band(mesh: Mesh) -> None:
    same = mesh.run(TRAINING.format(steps=3000, spread=0))
    numbers, [picture] = curves(mesh, same.number, "loss")
    assert (numbers.share_read, numbers.ranks_read) == (1.0, 8)
    assert not any(picture.band)
    assert (picture.x, picture.xs[0], picture.xs[-1]) == ("step", 0, 2999)
    assert max(picture.ys) == 1.0
    assert len(picture.xs) < 3 * 1024
    differs = mesh.run(TRAINING.format(steps=3000, spread=1) + "\nif rank == 5: print('step: 3000 loss: inf')")
    _, [picture, rate] = curves(mesh, differs.number, "loss", "tps")
    assert picture.band[0][1:] == (pytest.approx(0.25, abs=0.3), 8.0)
    assert (picture.greatest.rank, picture.greatest.value) == (7, pytest.approx(7.00033))
    assert [(odd.rank, odd.x, odd.value) for odd in picture.odd] == [(5, 3000.0, math.inf)]
    assert not any(rate.band)
    _, [against] = curves(mesh, differs.number, "loss", x="tps")
    assert (against.x, against.xs[-1]) == ("tps", 11999.0)


def test_while_a_run_goes_on_and_from_another_kernel(mesh: Mesh, gate: Gate) -> None:
    code = f"""
print("step: 1 loss: 3.0")
{gate.wait}
print("step: 2 loss: 2.0")
"""
    run = mesh.submit(code, listener=(recorder := Recorder()))
    recorder.wait_for_text("loss: 3.0", 8)
    numbers = mesh.numbers(["loss"])
    assert numbers.number == run.number
    assert not call(numbers.read(["loss"], "", 0.5))
    gate.open(8)
    assert run.wait(TIMEOUT_S)
    eventually(lambda: call(numbers.read(["loss"], "", 0.5)))
    [picture] = numbers.pictures(["loss"])
    assert (list(picture.xs), list(picture.ys)) == ([1.0, 2.0], [3.0, 2.0])
    assert picture.count == 16


def test_plots_of_runs_and_what_they_refuse(mesh: Mesh) -> None:
    one, other = (mesh.run(TRAINING.format(steps=steps, spread=1)) for steps in (20, 30))
    assert [run.title for run in one.plot("loss").drawn()] == [f"run {one.number}"]
    both = mesh.plot("LOSS", run=[one, other.number], ranks=[0, 3])
    assert [run.pictures[0].count for run in both.drawn()] == [40, 60]
    with pytest.raises(
        UsageError, match=rf"name what to draw: run {other.number} has loss, tps, memory, memory \(%\)$"
    ):
        mesh.plot()
    with pytest.raises(UsageError, match="at most 12 names"):
        mesh.plot(*(f"name{number}" for number in range(13)), run=one)

"""notebooks/titan.ipynb: TorchTitan in actors of 2 × 2 CPU ranks, with a breakpoint that is answered as its text says,
and then once more in the same ranks, by another kernel that has nobody to ask."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
import torch

from integration.kernels import Kernel
from integration.notebooks import ANSI, CELL_TIMEOUT_S, NOTEBOOKS, execute
from integration.stopped import DBG, PDB

TITAN_0_2_2_NEEDS_TORCH_2_13 = not torch.__version__.startswith("2.13.")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(TITAN_0_2_2_NEEDS_TORCH_2_13, reason=f"torchtitan 0.2.2 is for torch 2.13: {torch.__version__}"),
    pytest.mark.skipif(find_spec("torchtitan") is None, reason="there is no torchtitan"),
]


@pytest.fixture
def folder(open_kernel: Callable[[], Kernel], tmp_path: Path) -> Path:
    """Where copies of the notebook run, beside its shim."""
    shutil.copy(NOTEBOOKS / "titan_on_cpu.py", tmp_path)
    return tmp_path


def losses(text: str) -> dict[int, float]:
    """Return the losses that rank 0 logged, by step."""
    shown = re.findall(r"step: +(\d+) +loss: +(\S+)", ANSI.sub("", text))
    return {int(step): float(loss) for step, loss in shown}


def train_as_the_text_says(kernel: Kernel, text: str, code: str) -> tuple[str, dict[str, str]]:
    """Run the cell that stops at a breakpoint and type what the table before it says.

    Returns: all that the cell shows, and what each line that was typed showed.
    """
    cell = kernel.start(code)
    shown = {}
    prompt = DBG
    kernel.asked(cell, prompt)
    for line in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE):
        kernel.answer(line)
        if line == "continue":
            break
        prompt = {"attach": PDB, "detach": DBG}.get(line.split()[0], prompt)
        kernel.asked(cell, prompt)
        shown[line] = kernel.answered(cell)
    return kernel.wait(cell, timeout_s=CELL_TIMEOUT_S), shown


def test_titan_trains_stops_and_trains_on(open_kernel: Callable[[], Kernel], folder: Path) -> None:
    kernel = open_kernel()
    cells = nbformat.read(NOTEBOOKS / "titan.ipynb", as_version=4).cells
    shown = {}
    for before, cell in zip([None, *cells], cells, strict=False):
        if cell.cell_type != "code" or cell.source == "%mesh release":
            continue
        if "look_at=5" in cell.source:
            first, answers = train_as_the_text_says(kernel, before.source, cell.source)
        else:
            shown[cell.source] = kernel.wait(kernel.start(cell.source), timeout_s=CELL_TIMEOUT_S)

    assert "[0-3] (5, 640)" in answers["p trainer.step, trainer.ntokens_seen"]
    assert "[0-3] ((512, 256), (2048, 256))" in next(text for line, text in answers.items() if "to_local" in line)
    assert "ParallelAwareDataloader" in answers["p self.dataloader"]
    assert list(losses(first)) == list(range(1, 11))
    assert losses(first)[10] < losses(first)[1] - 1
    second = shown["trainers.train.call().get()"]
    assert "Loading the checkpoint from titan/outputs/checkpoint/step-10" in second
    assert list(losses(second)) == list(range(11, 21))
    assert losses(second)[20] < losses(first)[1] - 2
    looked = next(text for code, text in shown.items() if "%%mesh" in code)
    assert "[0-3] step 20, learning rate 0.001, 1,540,928 of 6,163,712 parameters here" in looked
    curves = shown["%mesh plot loss grad_norm --run {runs[0]},{runs[1]}"]
    assert all(word in curves for word in ("loss", "grad_norm", "step 10", "step 20")), curves
    log = shown["%mesh logs --run {runs[-1]} -t 3 -n 8"]
    assert "(titan.train)" in log
    assert re.search(r"\[3\].*step: 20 ", ANSI.sub("", log))

    again = execute("titan", folder)
    assert "4 ranks alive" in again.text("%mesh reserve")
    assert "passed: nobody can answer here" in again.text("look_at=5")
    assert losses(again.text("look_at=5")) == losses(first)
    assert losses(again.text("trainers.train.call().get()")) == losses(second)
    assert "released" in again.text("%mesh release")
    kernel.keep(NOTEBOOKS / "titan.ipynb")  # the one in which somebody answered

"""What eight ranks print in several lines at once is shown rank by rank, wherever it is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from integration.kernels import Kernel
from integration.live import Gate

PRINT = "import os, torch\nprint(torch.arange(6.0).reshape(3, 2) + 10 + 10 * int(os.environ['RANK']))\n"


def _rows(rank: int) -> list[str]:
    first, *others = (f"[{10 * rank + row}., {10 * rank + row + 1}.]" for row in (10, 12, 14))
    lines = [f"tensor([{first},", *(f"        {row}," for row in others)]
    return [f"[{rank}] {line}" for line in (*lines[:-1], lines[-1].removesuffix(",") + "])")]


def _ranks_shown(shown: str) -> list[int]:
    """Return of which ranks tensors are shown, each of them whole."""
    lines = re.findall(r"\[[\d,-]+\] (?:tensor\(|  ).*", shown)
    tensors = [lines[at : at + 3] for at in range(0, len(lines), 3)]
    ranks = [int(tensor[0][1]) for tensor in tensors]
    assert tensors == [_rows(rank) for rank in ranks], shown
    return sorted(ranks)


EVERY = list(range(8))


def test_tensors_of_eight_ranks(prompt: Kernel, gate: Gate, tmp_path: Path) -> None:
    """In cells, scripts, logs and what `%mesh attach` shows again, and in a terminal."""
    (tmp_path / "tensors.py").write_text(PRINT)
    assert "8 ranks ready" in prompt.run("%load_ext monarch_nb\n%mesh reserve whole --nodes 2 --procs 4")
    assert _ranks_shown(prompt.run(f"%%mesh\n{PRINT}")) == EVERY
    assert _ranks_shown(prompt.run("%mesh run tensors.py")) == EVERY
    typed = [sys.executable, "-m", "monarch_nb.cli.main", "run", "whole", "tensors.py"]
    done = subprocess.run(typed, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=100, check=True)
    assert _ranks_shown(done.stdout) == EVERY, "in a pipe, which only grows"
    assert _ranks_shown(prompt.run("%mesh logs --run 1 -n 0")) == EVERY
    cell = prompt.start(f"%%mesh\n{PRINT}print('printed')\n{gate.wait}")
    prompt.wait(cell, "[0-7] printed")
    prompt.restart()
    again = prompt.start("%load_ext monarch_nb\n%mesh attach whole --run 4")  # also what the kernel before it had shown
    prompt.wait(again, "[0-7] printed")
    gate.open(8)
    assert _ranks_shown(prompt.wait(again)) == EVERY
    prompt.run("%mesh release")

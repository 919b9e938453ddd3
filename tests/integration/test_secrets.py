"""Secrets of ours are in no traceback, log or notebook, whatever fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.kernels import Kernel

pytestmark = pytest.mark.slow

RECORD = """
import json, secrets
from pathlib import Path
made, token_hex = [], secrets.token_hex
def recorded(size=None):
    made.append(token_hex(size))
    Path({told!r}).write_text(json.dumps(made))
    return made[-1]
secrets.token_hex = recorded
"""
DEFINE = """%%mesh
import platform, torch
from monarch_nb.worker.saving import reading, writing
get_ipython().run_line_magic("xmode", "Verbose")
class Stops(torch.optim.SGD):
    stops_at = ""
    def state_dict(self):
        if self.stops_at == "save":
            raise KeyboardInterrupt
        return super().state_dict()
    def load_state_dict(self, state):
        if self.stops_at == "load":
            raise BaseException("no loading here")
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = Stops([parameter], lr=0.1)
def train():
    for _ in range(3):
        parameter.grad = torch.ones(3)
        optimizer.step()
"""
FAILURES = [
    ("optimizer.stops_at = 'load'", "%mesh load a", "no loading here"),
    ("reading.load = None", "%mesh load a", "'NoneType' object is not callable"),
    ("save, writing.save = writing.save, None", "%mesh save a", "'NoneType' object is not callable"),
    ("platform.machine = None", "%mesh diff --env", "'NoneType' object is not callable"),
    ("writing.save, optimizer.stops_at = save, 'save'", "%mesh save a --every 1steps", "ranks save by themselves in a"),
    ("", "%%mesh\ntrain()", "KeyboardInterrupt"),
]
"""What breaks a thing of ours, or of people's, in the ranks; what then fails, and what is shown of it."""
STATE = ("state.sqlite", "accepted-runs")
"""What a node keeps of runs and meshes for its next allocator: no log, and for its user alone."""


def test_no_secret_is_in_a_notebook_or_a_log(kernel: Kernel, shared_home: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    kernel.run(RECORD.format(told=str(told)))
    kernel.run(DEFINE)
    assert "saved" in kernel.run("%mesh save a")
    shown = ""
    for breaks, line, why in FAILURES:
        kernel.run(f"%%mesh\n{breaks}")
        text = kernel.run(line)
        assert why in text, text
        shown += text
    shown += "".join(kernel.run(f"%mesh {command}") for command in ("status", "logs", "stacks", "doctor"))
    files = [path for path in [*shared_home.rglob("*"), *tmp_path.rglob("*")] if path.is_file() and path != told]
    kept = {path: path.read_bytes() for path in files if not path.name.startswith(STATE)}
    assert any(path.suffix == ".log" for path in kept)
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in {*files} - kept.keys())
    secrets = json.loads(told.read_text())
    assert len(secrets) >= len(FAILURES) - 1
    for secret in secrets:
        assert secret not in shown
        assert [str(path) for path, content in kept.items() if secret.encode() in content] == []
    kernel.restart()  # without what is recorded, which other tests have no place for

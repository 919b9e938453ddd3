"""A node that an engine takes away: its allocator gets SIGTERM, and a moment later everything is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.live import TIMEOUT_S, eventually
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import MonarchNbError

EVALUATES = '''
"""Makes no step of a training, and saves by itself when it is to end, as with Lightning: in its loop."""
import pathlib, signal, sys, threading, time

directory, is_to_end = pathlib.Path(sys.argv[1]), threading.Event()
signal.signal(signal.SIGTERM, lambda *_: is_to_end.set())
(directory / "begun").touch()
while not is_to_end.wait(0.05):
    pass
time.sleep(2)  # a large model
(directory / "saved").touch()
'''
TRAINS = """
import pathlib, sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.rand(8, 4)).square().mean().backward()
    optimizer.step()
    (pathlib.Path(sys.argv[1]) / "trains").touch()
"""


@pytest.mark.slow
def test_scripts_that_train_are_saved_and_others_have_time_to_save_themselves(lab: Lab, tmp_path: Path) -> None:
    """All with `--at-end`, which waits for a step that one of the scripts never makes."""
    node = lab.start(flags=["--temporary", "1h", "--grace", "8s"])
    dev = reserve("dev", procs=1)
    dev.mesh.autosave(tmp_path / "saves", at_end=True)
    for name, text in (("evaluates.py", EVALUATES), ("trains.py", TRAINS)):
        (tmp_path / name).write_text(text)
    scripts = (str(tmp_path / name) for name in ("evaluates.py", "trains.py"))
    evaluates, trains = (dev.mesh.submit_script(script, str(tmp_path), beside=True) for script in scripts)
    eventually(lambda: all((tmp_path / name).exists() for name in ("begun", "trains")))
    node.process.send_signal(signal.SIGTERM)
    node.process.wait(TIMEOUT_S)
    assert (tmp_path / "saved").exists()
    [of_run] = (tmp_path / "saves").iterdir()
    assert (of_run / "0001" / "save.json").exists()
    evaluates.result(TIMEOUT_S)
    with pytest.raises(MonarchNbError):
        trains.result(TIMEOUT_S)

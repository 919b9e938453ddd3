"""Hosts of a stand-in for LSF: asked for, waited for, used, found again, lost, and given back without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.live import eventually
from integration.ways import HEARS, AnyQueue, AnyWay
from leaks import processes_of
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.errors import UsageError

if TYPE_CHECKING:
    from integration.lsf.conftest import Lsf


class TestLsf(AnyWay, AnyQueue):
    """What holds for every way holds for LSF, as far as its stand-in does what it does."""

    is_network = False
    unheld_s = 15.0  # its stand-in takes longer to begin on a busy machine


def test_what_stands_after_the_dashes_is_for_bsub_and_the_run_limit_is_the_limit(way: Lsf) -> None:
    dev = reserve("dev", nodes=2, procs=2, preload=[], time="20m", on="lsf", on_arguments=["-q", "gpu", "-P", "a b"])
    told = (way.directory / "jobs" / "1" / "told").read_text()
    assert told == "-J monarch-nb-dev -n 4 -R span[ptile=2] -W 20 -o /dev/null -q gpu -P a b"
    assert 17 * 60 < dev.status().time_left_s < 20 * 60
    assert sorted(dev.node_names[node] for node in range(2)) == ["h1", "h2"], "as LSF calls them"
    dev.extend("21m")
    assert (way.directory / "jobs" / "1" / "limit").read_text() == "41"
    with pytest.raises(UsageError, match=r"does not let you extend job 1 \(.*hard limit.*bmod -W 999 1, or save"):
        dev.extend(60.0 * (999 - 41))
    dev.release()


INSIDE = """
import monarch_nb
dev = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[], on="lsf")
print(dev.mesh.run("import os\\nos.environ['LSB_JOBID']").values)
print(sorted(dev.node_names[node] for node in range(2)))
monarch_nb.attach("dev").release()
print("released")
"""


@pytest.mark.slow
def test_a_job_that_is_there_is_used(way: Lsf, tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text(INSIDE)
    line = f"{sys.executable} {tmp_path}/inside.py > {tmp_path}/said 2>&1"
    subprocess.run(["bsub", "-n", "2", "-R", "span[ptile=1]"], input=line, text=True, check=True)
    eventually(lambda: not way.left())
    assert (tmp_path / "said").read_text().splitlines() == ["['1', '1']", "['h1', 'h2']", "released"]
    assert len(list((way.directory / "jobs").iterdir())) == 1, "no other job was asked for"


@pytest.mark.usefixtures("way")
def test_scripts_hear_what_the_engine_tells_the_allocator(tmp_path: Path) -> None:
    """A script that has no handler for a warning is not ended by it."""
    heard = tmp_path / "heard"
    heard.mkdir()
    script = tmp_path / "train.py"
    script.write_text(HEARS)
    dev = reserve("dev", procs=2, preload=[], on="lsf", files=False)
    try:
        home = Path(os.environ[HOME_VARIABLE])
        words = f"{sys.executable} -m monarch_nb.allocator "
        ours = {each.pid: each for each in processes_of(home) if each.command.startswith(words)}
        [allocator] = [pid for pid, each in ours.items() if each.parent not in ours]  # the others are forks of it
        dev.mesh.submit_script(str(script), str(heard))
        eventually(lambda: {each.name for each in heard.iterdir()} == {"0", "1"})
        os.kill(allocator, signal.SIGUSR1)
        eventually(lambda: (heard / "0").read_text() == "SIGUSR1 ")
        os.kill(allocator, signal.SIGTERM)
        eventually(lambda: (heard / "1").read_text() == "SIGTERM ", 20.0)
        assert (heard / "0").read_text() == "SIGUSR1 SIGTERM "
    finally:
        dev.release()

"""A line of the shell on every node of what is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.live import TIMEOUT_S, Recorder
from leaks import wait_for_end
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.errors import RunFailed

pytestmark = [pytest.mark.shape(nodes=2, procs=2), pytest.mark.usefixtures("mesh")]

TRAIN = r"""
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
facts = sys.argv[1:], total.item(), os.environ["GROUP_RANK"], os.environ["LOCAL_WORLD_SIZE"], os.getcwd()
os.write(1, f"{facts}\n".encode())  # at once: the processes of a node share its output
dist.destroy_process_group()
"""


def told(dev: Reservation, command: str, **options: Any) -> Recorder:
    """Run a command to its end; return what it told."""
    recorder = Recorder()
    assert dev.run(command, listener=recorder, **options).values == [0, 0]
    return recorder


class TestCommands:
    @pytest.mark.slow
    def test_torchrun_without_flags_runs_on_all_nodes(self, dev: Reservation, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        said = told(dev, f"torchrun {script} --lr 3e-4")
        directory = dev.mesh.run("import os; os.getcwd()").values[0]
        for number, rank in enumerate((0, 2)):
            lines = [line for line in said.text(rank).splitlines() if line.startswith("(")]
            assert lines == [str((["--lr", "3e-4"], 6.0, str(number), "2", directory))] * 2

    def test_it_is_told_of_nodes_not_of_ranks(self, dev: Reservation) -> None:
        names = "RANK LOCAL_RANK WORLD_SIZE TORCHELASTIC_RUN_ID GROUP_RANK PET_NODE_RANK NODE_RANK NNODES"
        command = "".join(f'echo "{name}=${name}"; ' for name in (*names.split(), "NPROC_PER_NODE", "MINE"))
        port = "command -v torchrun | grep -q . && echo $MASTER_ADDR:$MASTER_PORT"
        said = told(dev, f"{command} {port}", env={"MINE": "a b"})
        lines = [said.text(rank).splitlines() for rank in (0, 2)]
        unset = ["RANK=", "LOCAL_RANK=", "WORLD_SIZE=", "TORCHELASTIC_RUN_ID=", "GROUP_RANK="]
        for number, own in enumerate(lines):
            numbers = [f"PET_NODE_RANK={number}", f"NODE_RANK={number}"]
            assert own[:-1] == [*unset, *numbers, "NNODES=2", "NPROC_PER_NODE=2", "MINE=a b"]
        assert lines[0][-1] == lines[1][-1], "all nodes know the same port"

    def test_a_node_on_which_it_fails_is_named_and_the_other_ends(self, dev: Reservation) -> None:
        command = 'if [ "$NODE_RANK" = 1 ]; then echo no such data >&2; exit 3; fi; sleep 1000 & wait'
        with pytest.raises(RunFailed) as caught:
            dev.run(command, timeout_s=TIMEOUT_S)
        [failure, other] = sorted(caught.value.failures.values(), key=lambda each: each.is_consequence)
        assert (failure.rank, failure.exit_code) == (2, 3)
        assert failure.host == dev.node_names[1]
        assert str(caught.value).startswith(
            f"node {failure.host}: ProcessEnded: exited with code 3; node {other.host}: "
        )
        assert repr(caught.value.run).endswith(f" on nodes {other.host}, {failure.host}: done>")
        assert (other.rank, other.kind) == (0, "interrupted")
        assert caught.value.run.kept_values == [None, 3]

    def test_an_interrupt_ends_all_that_it_has_started(self, dev: Reservation, tmp_path: Path) -> None:
        recorder = Recorder()
        line = f"setsid sleep 1000 & echo $! > {tmp_path}/$NODE_RANK; echo under way; wait"
        run = dev.submit(line, listener=recorder)
        recorder.wait_for_text("under way", 2)
        assert run.interrupt().stopped == (0, 2)
        for number in range(2):
            wait_for_end(int((tmp_path / str(number)).read_text()), TIMEOUT_S)

"""Ranks save by themselves while they train, at the end of the same step."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.worker.harness import RankProcess, TemplateProcess, run_all
from monarch_nb.proto.run_pb2 import OUTCOME_OK, ArmSaves, SaveNow, SavesStatus

PREPARE = """
import torch, time, os
from torch.nn.parallel import DistributedDataParallel
if not dist.is_initialized():
    dist.init_process_group("gloo")
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history, done = [], 0

def one_step():
    global done
    loss = model(torch.rand(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    history.append(round(float(model.module.weight.detach().sum()), 6))

def train(steps):
    for _ in range(steps):
        one_step()

def train_until(path, longest=100_000):
    "Train until a file is there, as all ranks agree."
    for _ in range(longest):
        one_step()
        stop = torch.tensor(float(os.path.exists(path)))
        dist.all_reduce(stop)
        if stop:
            break
"""
LOAD = """
from monarch_nb.worker.saving import entry
from monarch_nb.worker.saving.asked import LoadRequest
report = entry.load(LoadRequest({directory!r}, names=("model", "optimizer")), {secret!r}, range(world_size))
round(float(model.module.weight.detach().sum()), 6), int(optimizer.state_dict()["state"][0]["step"])
"""


def ok(ranks: Sequence[RankProcess], code: str) -> list[object]:
    """Run a cell on all; return its values."""
    results = run_all(ranks, code)
    assert [result.outcome for result in results] == [OUTCOME_OK] * len(ranks), results
    return [rank.value(result) for rank, result in zip(ranks, results, strict=True)]


def arm(ranks: Sequence[RankProcess], directory: Path, **how: object) -> None:
    armed = ArmSaves(secret=uuid.uuid4().hex, directory=str(directory), keep=100, **how)
    for rank in ranks:
        rank.ask(arm_saves=armed)


def load(ranks: Sequence[RankProcess], path: str) -> list[object]:
    return ok(ranks, LOAD.format(directory=path, secret=uuid.uuid4().hex))


def saves(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


@pytest.fixture
def ranks(template: TemplateProcess) -> list[RankProcess]:
    ranks = template.fork_mesh(3)
    ok(ranks, PREPARE)
    return ranks


def test_every_so_many_steps_all_ranks_save_at_the_same_one(ranks: list[RankProcess], tmp_path: Path) -> None:
    arm(ranks, tmp_path, every_steps=4)
    ok(ranks, "train(6)")
    ok(ranks, "train(5)")  # steps go on being counted from cell to cell
    histories = ok(ranks, "history")
    first, second = saves(tmp_path)
    for path, steps in ((first, 4), (second, 8)):
        assert load(ranks, str(path)) == [(history[steps - 1], steps) for history in histories]  # type: ignore[index]
    assert "every 4 steps" in ranks[0].text("err", 2)
    assert [rank.text("err", 2) for rank in ranks[1:]] == ["", ""]


def test_a_request_while_a_cell_trains_is_kept_at_one_step_by_all(ranks: list[RankProcess], tmp_path: Path) -> None:
    arm(ranks, tmp_path / "saves")
    for rank in ranks:
        rank.start(f"train_until({str(tmp_path / 'stop')!r})")
    for _ in range(3):
        status: SavesStatus = ranks[1].ask(save_now=SaveNow(why="a test", within_s=60)).saves  # one of them is enough
        assert not status.problem
    told = [rank.ask(saves={}).saves for rank in ranks]  # type: ignore[arg-type]
    (tmp_path / "stop").touch()
    assert [rank.result().outcome for rank in ranks] == [OUTCOME_OK] * 3
    assert len({(each.step, each.path) for each in told}) == 1
    histories = ok(ranks, "history")
    step = told[0].step
    assert load(ranks, told[0].path) == [(history[step - 1], step) for history in histories]  # type: ignore[index]
    assert len(saves(tmp_path / "saves")) == 3
    assert ranks[0].text("err", 2).count("(a test)") == 3

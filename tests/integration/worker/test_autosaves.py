"""Ranks save by themselves while they train, after the same step."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from framing import send_frame
from integration.live import eventually
from integration.worker.harness import RankProcess, TemplateProcess, run_all
from monarch_nb.proto.run_pb2 import OUTCOME_INTERRUPTED, OUTCOME_OK, ArmSaves, SaveNow, SavesStatus
from monarch_nb.proto.worker_pb2 import ControlRequest, InterruptRun, ToRank

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


LATE = """
import threading
from monarch_nb.worker.autosaves.keeper import Keeper
carry, after_step, asked = Keeper._carry, Keeper._after_step, []
heard, is_there = threading.Event(), threading.Event()

def carry_late(self, armed, keys, request, number):
    "Answer the others once this rank's own training has come as far."
    asked.append(request.step)
    heard.set()
    is_there.wait(20)
    return carry(self, armed, keys, request, number)

def go_on_late(self, armed):
    if self._part.place.steps == 4:
        heard.wait(20)
    after_step(self, armed)
    if self._part.place.steps == 4:
        is_there.set()

if rank == 2:
    Keeper._carry, Keeper._after_step = carry_late, go_on_late
"""


SLOW = """
import threading
from monarch_nb.worker.autosaves.keeper import Keeper
carry, after_step, hold = Keeper._carry, Keeper._after_step, Keeper._hold
is_further = threading.Event()

class Slow(threading.Event):
    "Whoever waits for it goes on once the training is at its next save, or beyond it."
    def wait(self, timeout=None):
        return super().wait(timeout) and is_further.wait(20)

def carry_slowly(self, *request):
    self._saved = Slow()
    return carry(self, *request)

def after_step_beyond(self, armed):
    if self._part.place.steps == 5:
        is_further.set()
    after_step(self, armed)

def hold_at_the_next(self):
    if self._part.place.steps == 4:
        is_further.set()
    hold(self)

Keeper._carry, Keeper._after_step, Keeper._hold = carry_slowly, after_step_beyond, hold_at_the_next
"""


ASKED = """
import threading
from monarch_nb.worker.autosaves.keeper import Keeper
carry, save_now, is_asked = Keeper._carry, Keeper.save_now, threading.Event()

class Late(threading.Event):
    "The keeper hears that all is saved when somebody has asked for another save."
    def wait(self, timeout=None):
        return super().wait(timeout) and is_asked.wait(20)

def carry_late(self, *request):
    self._saved = Late()
    return carry(self, *request)

def save_now_noted(self, *asked):
    save_now(self, *asked)
    is_asked.set()

if rank == 0:
    Keeper._carry, Keeper.save_now = carry_late, save_now_noted
"""


HANG = """
from pathlib import Path
from monarch_nb.worker.saving import writing
write = writing._write

def hang(*_):
    "As on storage that is gone: only an interrupt ends it."
    Path({begun!r}, str(rank)).touch()
    while True:
        time.sleep(0.01)

writing._write = hang
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


def test_a_rank_that_hears_of_a_step_just_before_it_comes_there_does_not_ask_again(
    ranks: list[RankProcess], tmp_path: Path
) -> None:
    ok(ranks, LATE)
    arm(ranks, tmp_path, every_steps=4)
    ok(ranks, "train(6)")
    status: SavesStatus = ranks[2].ask(save_now=SaveNow(why="a test", within_s=60)).saves  # after what it asks else
    assert not status.problem
    assert ok(ranks, "asked")[2] == [4, 0]
    assert len(saves(tmp_path)) == 2


def test_a_save_that_was_agreed_on_before_is_no_answer_to_who_asks_for_one(
    ranks: list[RankProcess], tmp_path: Path
) -> None:
    ok(ranks, ASKED)
    arm(ranks, tmp_path, every_steps=2)
    ok(ranks, "train(3)")
    status: SavesStatus = ranks[0].ask(save_now=SaveNow(why="a test", within_s=60)).saves
    assert (status.problem, status.why, Path(status.path).name) == ("", "a test", "0002")


def test_steps_that_are_quicker_than_the_keeper_are_saved_all_the_same(
    ranks: list[RankProcess], tmp_path: Path
) -> None:
    ok(ranks, SLOW)
    arm(ranks, tmp_path, every_steps=2)
    ok(ranks, "train(5)")
    assert len(saves(tmp_path)) == 2


def test_a_request_while_a_cell_trains_is_kept_at_one_step_by_all(ranks: list[RankProcess], tmp_path: Path) -> None:
    arm(ranks, tmp_path / "saves")
    for rank in ranks:
        rank.start(f"train_until({str(tmp_path / 'stop')!r})")
    for _ in range(3):
        status: SavesStatus = ranks[1].ask(save_now=SaveNow(why="a test", within_s=60)).saves  # one of them is enough
        assert not status.problem
    for rank in ranks:  # each says so when it has heard that all is on the disk
        eventually(lambda rank=rank: rank.ask(saves={}).saves.path == status.path)  # type: ignore[misc, arg-type]
    told = [rank.ask(saves={}).saves for rank in ranks]  # type: ignore[arg-type]
    (tmp_path / "stop").touch()
    assert [rank.result().outcome for rank in ranks] == [OUTCOME_OK] * 3
    assert len({(each.step, each.path) for each in told}) == 1
    histories = ok(ranks, "history")
    step = told[0].step
    assert load(ranks, told[0].path) == [(history[step - 1], step) for history in histories]  # type: ignore[index]
    assert len(saves(tmp_path / "saves")) == 3
    assert ranks[0].text("err", 2).count("(a test)") == 3


def test_a_round_of_two_optimizers_with_accumulated_gradients_is_a_step(
    ranks: list[RankProcess], tmp_path: Path
) -> None:
    """In a function, whose locals are saved: the generator steps last, after two backwards of each."""
    arm(ranks, tmp_path, every_steps=3)
    ok(
        ranks,
        "def gan(rounds):\n"
        "    critic, maker = torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)\n"
        "    of_critic = torch.optim.Adam(critic.parameters())\n"
        "    of_maker = torch.optim.Adam(maker.parameters())\n"
        "    for _ in range(rounds):\n"
        "        for optimizer in (of_critic, of_maker):\n"
        "            for _ in range(2):\n"
        "                critic(maker(torch.rand(3, 2))).sum().backward()\n"
        "            optimizer.step()\n"
        "gan(4)\n",
    )
    # The first round has a step for each call, so the third step is that of the second round.
    [path] = saves(tmp_path)
    assert "at step 3 (every 3 steps): " in ranks[0].text("err", 2)
    steps = ok(
        ranks,
        "critic, maker = torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)\n"
        "of_critic, of_maker = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())\n"
        "from monarch_nb.worker.saving import entry\n"
        "from monarch_nb.worker.saving.asked import LoadRequest\n"
        f"names = ('critic', 'maker', 'of_critic', 'of_maker')\n"
        f"_ = entry.load(LoadRequest({str(path)!r}, names=names), {uuid.uuid4().hex!r}, range(world_size))\n"
        "[int(each.state_dict()['state'][0]['step']) for each in (of_critic, of_maker)]",
    )
    assert steps == [[2, 2]] * 3


def test_a_rank_that_makes_no_step_holds_nobody_up_for_long(ranks: list[RankProcess], tmp_path: Path) -> None:
    stop = str(tmp_path / "stop")
    arm(ranks, tmp_path / "saves")
    train = (
        "net = torch.nn.Linear(2, 1); own = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        f"while not os.path.exists({stop!r}):\n"
        "    net(torch.rand(1, 2)).sum().backward()\n"
        "    own.step()"
    )
    runs = [rank.start(train) for rank in ranks[:2]]
    ranks[2].start(f"while not os.path.exists({stop!r}): time.sleep(0.01)")
    status = ranks[0].ask(save_now=SaveNow(why="a test", within_s=3)).saves
    assert status.problem == "there was no more time"
    request = ControlRequest(request=1000, save_now=SaveNow(why="a test", within_s=50))
    send_frame(ranks[1].control, ToRank(control=request).SerializeToString())
    while not all(ranks[0].where().line.endswith(":3") for _ in range(50)):
        pass  # it holds before its next step when it is seen nowhere else
    assert ranks[0].interrupt(runs[0].run_id)
    assert ranks[0].result().outcome == OUTCOME_INTERRUPTED
    (tmp_path / "stop").touch()
    assert [rank.result().outcome for rank in ranks[1:]] == [OUTCOME_OK] * 2
    assert not ranks[1].receive_from(ranks[1].control).control.saves.problem, "all are idle now, and save"
    assert len(saves(tmp_path / "saves")) == 1


def test_an_interrupt_of_a_run_that_waits_behind_a_save_between_two_runs_ends_the_save(
    ranks: list[RankProcess], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    ok(ranks, HANG.format(begun=str(begun)))
    arm(ranks, tmp_path / "saves")
    ranks[0].question(save_now=SaveNow(why="a test", within_s=60))
    eventually(lambda: len(list(begun.iterdir())) == 3)
    for rank in ranks:
        rank.question(interrupt=InterruptRun(run_id=rank.submit("rank").run_id))
    assert [rank.result().outcome for rank in ranks] == [OUTCOME_INTERRUPTED] * 3
    assert not list((tmp_path / "saves").iterdir()), "what was half made is gone"
    assert ok(ranks, "writing._write = write; done") == [0] * 3, "all names are there"

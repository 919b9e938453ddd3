"""What a save finds in the functions that train."""

from __future__ import annotations

import torch

from monarch_nb.worker.autosaves.armed import only_local, reached


class Trainer:
    """Of a program, which holds what it trains."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(2, 1)
        self.schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(self.net.parameters(), lr=0.1), 1)

    def train(self) -> dict[str, object]:
        scaler = torch.amp.GradScaler("cpu")
        return reached({"known": self.net}, [self.schedule.optimizer]) if scaler else {}


def test_locals_attributes_and_the_optimizer_that_steps() -> None:
    trainer = Trainer()
    found = trainer.train()
    assert found["schedule"] is trainer.schedule
    assert found["optimizer"] is trainer.schedule.optimizer
    assert "scaler" in found
    assert "net" not in found, "it has a name already"


def test_plain_locals_are_named_as_not_saved() -> None:
    def train(epoch: int) -> dict[str, str]:
        net = torch.nn.Linear(2, 1)
        best, batch, nothing, history = 0.5, torch.ones(2), None, [net]
        loss = net(batch).sum()
        assert loss.requires_grad
        assert (nothing, best, len(history)) == (None, 0.5, 1)
        return only_local({"net", "best"})

    assert set(train(3)) == {"epoch", "batch", "history"}


def test_a_model_that_nobody_names_is_found_by_its_parameters() -> None:
    whole = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    hidden = frozenset({whole})  # no local has a state
    optimizer = [torch.optim.SGD(whole.parameters(), lr=0.1)]
    del whole
    found = reached({"optimizer": optimizer[0]}, optimizer)
    assert found == {"model": next(iter(hidden))}


def test_containers_of_what_trains_count_as_what_is_in_them() -> None:
    nets = {"g": torch.nn.Linear(2, 2), "d": torch.nn.Linear(2, 1)}
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets.values()]

    def train() -> dict[str, object]:
        both, known, new = nets, list(nets.values()), optimizers
        return reached({"nets": both}, known and new)

    assert train() == {"new": optimizers}, "no optimizer_2, and no model"

    def loop() -> dict[str, object]:
        for each in optimizers:
            each.zero_grad()
        every = optimizers
        return reached({"nets": nets}, every)

    assert set(loop()) == {"every"}, "not the variable of a loop over it"

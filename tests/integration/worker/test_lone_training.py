"""A rank that trains without a process group tells clients which model, once a run."""

from __future__ import annotations

import json
from collections.abc import Sequence

from integration.worker.harness import RankProcess, TemplateProcess
from monarch_nb.proto.run_pb2 import OUTCOME_OK, Display

TRAIN = """
import torch
def train(width=3, steps=5, **options):
    model = torch.nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), **{'lr': 0.1} | options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(2, width)).sum().backward()
        optimizer.step()
"""


def told(ranks: Sequence[RankProcess], code: str) -> list[list[str]]:
    """Run a cell; return what each rank told of training alone."""
    numbers = [rank.submit(code).number for rank in ranks]
    assert [rank.result().outcome for rank in ranks] == [OUTCOME_OK] * len(ranks)
    displays = [[mark.display for mark in rank.marks(number)] for rank, number in zip(ranks, numbers, strict=True)]
    alone = Display.KIND_TRAINS_ALONE
    return [[json.loads(each.content_json) for each in own if each.kind == alone] for own in displays]


def test_models_alike_have_one_signature_and_others_another(template: TemplateProcess) -> None:
    ranks = template.fork(2)
    [[model], [same]] = told(ranks, f"{TRAIN}\ntrain()")
    assert model == same
    assert told(ranks, "torch.manual_seed(4); train(); train()") == [[model], [model]]
    others = [told(ranks[:1], f"train({change})") for change in ("width=4", "lr=0.2", "momentum=0.9")]
    assert len({model, *(signature for [[signature]] in others)}) == 4


def test_what_is_no_training_is_not_told(template: TemplateProcess) -> None:
    assert told(template.fork(2), f"{TRAIN}\ntrain(steps=1)") == [[], []]
    assert told(template.fork(1), f"{TRAIN}\ntrain()") == [[]]


def test_in_a_group_nothing_is_told_and_after_it_again(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(2)
    assert told(ranks, f"{TRAIN}\ndist.init_process_group('gloo'); train()") == [[], []]
    assert [len(own) for own in told(ranks, "dist.destroy_process_group(); train()")] == [1, 1]

"""Numbers with names, of lines as people's scripts print them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.lines.named import read

TITAN = (
    "[rank0]:[titan] 2026-11-25 10:54:00,123 - root - INFO - step:  5  loss:  7.80102  grad_norm:  0.7800  "
    "memory:  1.02GiB(2.15%)  tps: 9,012  tflops: 1.20  mfu: 30.10%"
)
NANOCHAT = (
    "step 00010/21400 (0.05%) | loss: 6.912345 | lrm: 1.00 | dt: 300.12ms | tok/sec: 1,234,567 | bf16_mfu: 30.10 | "
    "epoch: 1 | total time: 1.20m"
)
BAR = "Epoch 1:  67%|██████▋   | 2/3 [00:00<00:00, 55.56it/s, v_num=0, train_loss=2.310]"

SEEN_RUNNING = [
    # transformers 5.24: Trainer with logging_steps=2, its evaluation and its bar
    (
        "{'loss': '1.96', 'grad_norm': '6.081', 'learning_rate': '3.75e-05', 'epoch': '0.5'}",
        {"loss": 1.96, "grad_norm": 6.081, "learning_rate": 3.75e-05, "epoch": 0.5},
        "epoch",
    ),
    ("100%|██████████| 4/4 [00:00<00:00, 12.61it/s]", {"it/s": 12.61}, [4, 4]),
    # Lightning 2.6.6 with TQDMProgressBar
    (
        "Epoch 1: 100%|██████████| 3/3 [00:00<00:00, 561.24it/s, train_loss=0.0766]",
        {"Epoch": 1, "it/s": 561.24, "train_loss": 0.0766},
        [3, 3, 1],
    ),
    # a print of a dict, Python 3.11
    (str({"loss": 2.3125, "lr": 1e-4, "step": 7}), {"loss": 2.3125, "lr": 1e-4, "step": 7}, [7]),
    (str({"train": {"loss": float("nan")}}), {"loss": float("nan")}, "line"),
]
FROM_SOURCE = [
    # torchtitan 0.2.2, components/metrics.py, under torchrun
    (
        TITAN,
        {"step": 5, "loss": 7.80102, "grad_norm": 0.78, "memory": 1.02, "memory (%)": 2.15, "tps": 9012}
        | {"tflops": 1.2, "mfu": 30.1},
        [5],
    ),
    (
        "[titan] 2026-11-25 10:54:00,123 - root - INFO - validate step: 10  loss:  7.1234  tps: 9,012",
        {"validate_step": 10, "loss": 7.1234, "tps": 9012},
        [10],
    ),
    # nanochat 92d63d4, scripts/base_train.py
    (
        NANOCHAT,
        {"step": 10, "step (%)": 0.05, "loss": 6.912345, "lrm": 1, "dt": 300.12, "tok/sec": 1234567}
        | {"bf16_mfu": 30.1, "epoch": 1, "total_time": 1.2},
        [10, 21400, 1],
    ),
    ("Step 00010 | Validation bpb: 1.234567", {"Step": 10, "Validation_bpb": 1.234567}, [10]),
    # Lightning's bar with a version of a logger
    (BAR, {"Epoch": 1, "it/s": 55.56, "v_num": 0, "train_loss": 2.31}, [2, 3, 1]),
    # nanoGPT, train.py
    (
        "iter 0: loss 10.9331, time 12345.67ms, mfu -100.00%",
        {"iter": 0, "loss": 10.9331, "time": 12345.67, "mfu": -100},
        [0],
    ),
    (
        "step 250: train loss 2.4001, val loss 2.5002",
        {"step": 250, "train_loss": 2.4001, "val_loss": 2.5002},
        [250],
    ),
    # PyTorch's examples: mnist, imagenet
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.297471", {"Train_Epoch": 1, "Loss": 2.297471}, [640, 60000, 1]),
    (
        "Epoch: [0][  10/5005]\tTime  0.532 ( 0.601)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.00 (  0.10)",
        {"Epoch": 0, "Time": 0.532, "Loss": 6.9, "Acc@1": 0},
        [10, 5005, 0],
    ),
    # Keras' bar
    (
        "5/100 ━━━━━━━━━━ 1s 12ms/step - accuracy: 0.5012 - loss: 0.3000",
        {"accuracy": 0.5012, "loss": 0.3},
        [5, 100],
    ),
]
OTHERS = [
    ("loss=tensor(2.3041, device='cuda:0') lr=np.float64(0.001)", {"loss": 2.3041, "lr": 0.001}, "line"),
    ("train/loss 2.31 step 5", {"train/loss": 2.31, "step": 5}, [5]),
    ("loss: inf  grad_norm: -inf", {"loss": float("inf"), "grad_norm": float("-inf")}, "line"),
    ("tokens: 1,024 took 3.2 s, loss 2.3", {"tokens": 1024, "took": 3.2, "loss": 2.3}, "line"),
    ("INFO:root:step: 5 loss: 2.5", {"step": 5, "loss": 2.5}, [5]),
    ("epoch 2 step 5 loss 2.5", {"epoch": 2, "step": 5, "loss": 2.5}, [5, 2]),
    ("{'loss': 2.5, 'epoch': 0.5, 'step': 5}", {"epoch": 0.5, "step": 5, "loss": 2.5}, [5]),
    ("Epoch 1, batch 30, loss = 0.5", {"Epoch": 1, "batch": 30, "loss": 0.5}, "line"),
    ("layer12.grad: 0.5 top5 0.9", {"layer12.grad": 0.5, "top5": 0.9}, "line"),
    # what is no number, or has no name
    ("loss: 1.234,5 acc 1,5", {}, "line"),
    ("time 12:30:45 date: 2025-11-26 ip 127.0.0.1:8080 v1.2.3 sha 3fa9c2 hex 0x7f", {}, "line"),
    ("The quick brown fox jumped over 5 dogs", {}, "line"),
    ("[1, 2, 3] (0.9,0.95)", {}, "line"),
]


@pytest.mark.parametrize(("line", "numbers", "step"), SEEN_RUNNING + FROM_SOURCE + OTHERS)
def test_numbers_of_real_lines(line: str, numbers: dict[str, float], step: Any) -> None:
    named = read(line)
    assert {field.name: field.value for field in named.fields} == pytest.approx(numbers, nan_ok=True)
    assert (named.step.kind if isinstance(step, str) else [part.value for part in named.step.parts]) == step


def test_units() -> None:
    units = {field.name: field.unit for field in read(TITAN).fields}
    assert units["memory"] == "GiB"
    assert units["memory (%)"] == "%"
    assert [field.unit for field in read("iter time: 300.12 ms (step), it 3.1it/s").fields] == ["ms", "it/s"]


def test_a_step_is_counted_on_over_epochs() -> None:
    step = read(BAR).step
    assert step.at(*(part.value for part in step.parts)) == 5


NAMES = st.from_regex(r"[a-z][a-z_/]{0,10}[a-z]", fullmatch=True)


@given(NAMES, st.floats(-1e12, 1e12), st.sampled_from([": ", "=", " = ", ": '", '": ']))
def test_whatever_python_prints_is_read_back(name: str, value: float, between: str) -> None:
    [field] = [each for each in read(f"{name}{between}{value!r}").fields if each.name == name]
    assert field.value == value
    assert field.name == name


@given(st.text())
def test_any_text_is_a_line(text: str) -> None:
    for field in read(text).fields:
        assert text[field.start : field.end] == field.text
        assert isinstance(field.value, float)

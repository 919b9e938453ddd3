"""What `--watch nan` takes from a training."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.harness import Bench, Outcome, Row, Shape, program

STEPS = 2
_MOST = 0.03


def watch(bench: Bench) -> Outcome:
    """Train in turns with and without it, a few steps at a time: what other programs take from the processor's caches
    changes by more than the watch costs, but not from one turn to the next."""
    times: dict[str, list[float]] = {"plain": [], "grad": [], "all": []}
    asked: Mapping[str, Mapping[str, Any]] = {
        "plain": {},
        "grad": {"watch": {}},
        "all": {"watch": {"what": ["grad", "loss", "param"]}},
    }
    with bench.reserved(1, 1) as reservation:
        mesh = reservation.mesh
        mesh.run(program("small_gpt.py"))
        for _ in range(bench.repeats(40, 15)):
            for name, instruments in asked.items():
                times[name] += mesh.run(f"train({STEPS})", instruments=instruments).values
    lost, lost_of_all = (
        median(taken / plain for taken, plain in zip(times[name], times["plain"], strict=True)) - 1
        for name in ("grad", "all")
    )
    told = f"{lost:+.1%} ({lost_of_all:+.1%} with nan=loss,grad,param)"
    return Outcome(told, lost <= _MOST, f"{median(times['plain']) * 1e3:.0f} ms a step without")


ROWS = [
    Row(
        "watch",
        "what `%%mesh --watch nan` takes from each step of a small GPT on a CPU",
        f"at most {_MOST:.0%}",
        f"A GPT of 3.5 million parameters, 1,024 tokens a step, one rank with one thread. 40 turns of {STEPS} steps, "
        "with and without it: the median of what the faster step of a turn takes more, in seconds of a processor. The "
        "program is `bench/programs/small_gpt.py`.",
        watch,
        Shape(1, 1),
    ),
]

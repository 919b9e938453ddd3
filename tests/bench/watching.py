"""What `--watch nan` and `--deterministic` take from a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.harness import Bench, Outcome, Row, Shape, program

STEPS = 12
_MOST = 0.03


def watch(bench: Bench) -> Outcome:
    """Train in turns with and without it; the fastest step of each counts."""
    times: dict[str, list[float]] = {"plain": [], "grad": [], "all": []}
    asked: Mapping[str, Mapping[str, Any]] = {
        "plain": {},
        "grad": {"watch": {}},
        "all": {"watch": {"what": ["grad", "loss", "param"]}},
    }
    with bench.reserved(1, 1) as reservation:
        mesh = reservation.mesh
        mesh.run(program("small_gpt.py"))
        for _ in range(bench.repeats(9, 3)):
            for name, instruments in asked.items():
                times[name] += mesh.run(f"train({STEPS})", instruments=instruments).values
    plain, grad, everything = (min(times[name]) for name in asked)
    lost = grad / plain - 1
    told = f"{lost:+.1%} ({everything / plain - 1:+.1%} with nan=loss,grad,param)"
    return Outcome(told, lost <= _MOST, f"{plain * 1e3:.0f} ms a step without")


ROWS = [
    Row(
        "watch",
        "what `%%mesh --watch nan` takes from each step of a small GPT on a CPU",
        f"at most {_MOST:.0%}",
        f"A GPT of 3.5 million parameters, 1,024 tokens a step, one rank with one thread: the fastest step of 9 times "
        f"{STEPS}, with and without it in turns, in seconds of a processor. The program is "
        "`tests/bench/programs/small_gpt.py`.",
        watch,
        Shape(1, 1),
    ),
]

"""The file that https://www.speedscope.app opens: https://www.speedscope.app/file-format-schema.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch_nb.client.flames.trees import Flame, Frame
from monarch_nb.ground.rank_sets import name_ranks

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(name: str, flames: Sequence[Flame]) -> dict[str, Any]:
    """Return the content of the file: a profile for each group of ranks.

    Args:
        name: of the whole: "run 12".
    """
    numbers: dict[Frame, int] = {}
    profiles = []
    for flame in flames:
        samples, weights = [], []
        for stack, seconds in flame.stacks():
            samples.append([numbers.setdefault(frame, len(numbers)) for frame in stack])
            weights.append(round(seconds, 6))
        profiles.append(
            {
                "type": "sampled",
                "name": name_ranks(flame.ranks),
                "unit": "seconds",
                "startValue": 0,
                "endValue": round(sum(weights), 6),
                "samples": samples,
                "weights": weights,
            }
        )
    return {
        "$schema": SCHEMA,
        "exporter": "monarch_nb",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in numbers]},
        "profiles": profiles,
    }


def _frame(frame: Frame) -> dict[str, Any]:
    told: dict[str, Any] = {"name": str(frame) if frame.line else frame.function}
    if frame.file:
        told["file"] = frame.file
    if frame.line:
        told["line"] = frame.line
    return told

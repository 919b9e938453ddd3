"""What counts as a step, with one optimizer and with several."""

from __future__ import annotations

import pytest

from monarch_nb.worker.autosaves.steps import StepCounter


def completed(calls: str) -> str:
    """Return the calls of optimizers, those that complete a step as capitals."""
    counter = StepCounter()
    return "".join(name.upper() if counter.completes(name) else name for name in calls)


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        ("aaaa", "AAAA"),
        ("dgdgdg", "DGdGdG"),  # a GAN: the generator ends a round
        ("dddddgdddddgdddddg", "DDDDDGdddddGdddddG"),  # WGAN: five critic's steps for each of the generator's
        ("gdddgdddgddd", "GDDDgddDgddD"),  # the same, the generator first
        ("abcabcabc", "ABCabCabC"),
        ("aaabbb", "AAABBB"),  # one model after the other
        ("abab" + "a" * 20, "ABaB" + "a" * 17 + "AAA"),  # the loop has changed
    ],
)
def test_steps(calls: str, steps: str) -> None:
    assert completed(calls) == steps

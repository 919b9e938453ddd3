"""Numbers with names beside them, as programs print them."""

import pytest

from monarch_nb.client.meshes.scaling import numbers_in


@pytest.mark.parametrize(
    ("line", "name", "number"),
    [
        ("tokens: 12,345", "tokens", 12345),
        ("tokens=12345", "tokens", 12345),
        ("tokens = 1_000_000 done.", "tokens", 1e6),
        ("{'loss': 2.5, 'tokens': 12, 'lr': 3e-4}", "lr", 3e-4),
        ('{"tokens": -1.5}', "tokens", -1.5),
        ("train/loss 2.31", "train/loss", 2.31),
        ("\x1b[31mstep:  5\x1b[0m  \x1b[32mloss:  7.80102\x1b[39m  tps: 9,012", "tps", 9012),
        ("step: 1 tokens: 5 tokens: 6", "tokens", 6),
        ("tokens/s: 900", "tokens/s", 900),
        ("loss: inf", "loss", float("inf")),
        ("mfu: 30.1%", "mfu", 30.1),
        ("finished with tokens=7.", "tokens", 7),
    ],
)
def test_a_number_and_its_name(line: str, name: str, number: float) -> None:
    assert numbers_in(line)[name] == number


def test_what_is_not_a_number_of_that_name() -> None:
    for line in ("tokens: 1.234,5", "tokens: 1,2", "tokens: 1.2M", "tokens: none", "my_tokens: 3", "tokens"):
        assert "tokens" not in numbers_in(line)

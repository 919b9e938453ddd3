"""What stands below a cell that looked for what went wrong, and which flags it takes."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.notebook.cells.instruments import instruments_of, watch_lines
from monarch_nb.notebook.syntax.command_line import parse
from monarch_nb.notebook.syntax.declarations import CELL


def test_only_what_was_looked_at_is_finite() -> None:
    of_rank: dict[str, Any] = {"steps": 3, "backward_passes": 0, "looked_at": 0, "what": ["grad"], "found": ""}
    found = {0: of_rank, 1: {**of_rank, "looked_at": 2}, 2: {**of_rank, "steps": 0}}
    nothing, some, no_step = watch_lines(found)
    assert "nothing was looked at" in nothing
    assert some.startswith("--watch: 2 of 3 steps on rank 1 looked at, all gradients finite; nan=loss")
    assert no_step == "--watch: nothing was looked at on rank 2: no optimizer of torch's made a step there"
    assert watch_lines(found, has_failed=True) == [some]
    both = {**of_rank, "looked_at": 3, "what": ["grad", "loss"]}
    assert watch_lines({0: both}) == ["--watch: 3 steps on rank 0, all gradients and losses finite"]
    assert watch_lines({0: {**both, "what": ["grad", "loss", "param"]}}) == ["--watch: 3 steps on rank 0, all finite"]


def test_a_scaler_that_leaves_out_all_steps_is_named() -> None:
    told = {"steps": 0, "backward_passes": 5, "looked_at": 0, "what": ["grad"], "found": ""}
    (line,) = watch_lines({0: told})
    assert line.startswith(
        "--watch: no gradients were looked at on rank 0: backward was called 5 times, and no optimizer"
    )
    assert "GradScaler" in line
    assert line.endswith("nan=loss looks at the loss")


def test_a_flag_without_the_one_that_it_belongs_to() -> None:
    for line in ("--profile-steps 2", "--profile-ranks 0", "--profile=python --profile-steps 2"):
        with pytest.raises(UsageError, match="belongs to --profile"):
            instruments_of(parse(CELL, line))

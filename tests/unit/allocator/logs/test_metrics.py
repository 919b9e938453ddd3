"""Whether a reading of numbers is complete."""

from __future__ import annotations

from pathlib import Path

from monarch_nb.allocator.logs.metrics import Reading
from monarch_nb.allocator.logs.stored import StoredFiles
from monarch_nb.lines.extraction import Extraction
from monarch_nb.lines.thinning import line_of

LONG_PAST_S, EVER_S = -1.0, float("inf")


def printed(runs: Path, rank: int, *lines: str, output: int = 1) -> StoredFiles:
    """Return the output of a rank."""
    files = StoredFiles(runs, output, rank)
    files.path("out").parent.mkdir(parents=True, exist_ok=True)
    files.path("out").write_text("".join(f"{line}\n" for line in lines))
    return files


def test_time_that_is_up_after_the_last_line_takes_nothing_away(tmp_path: Path) -> None:
    reading = Reading(Extraction(None))
    assert reading.read_on([printed(tmp_path, 0, "step: 1 loss: 2")], LONG_PAST_S, is_over=True)
    assert (reading.ranks_read, reading.read_bytes) == (1, reading.size_bytes)


def test_the_ranks_that_time_was_too_short_for_are_read_when_it_is_asked_again(tmp_path: Path) -> None:
    reading = Reading(Extraction(None))
    files = [printed(tmp_path, rank, "step: 1 loss: 2") for rank in range(2)]
    assert not reading.read_on(files, LONG_PAST_S, is_over=True)
    assert reading.ranks_read == 1
    assert reading.read_on(files, LONG_PAST_S, is_over=True)
    assert reading.ranks_read == 2


def test_steps_that_begin_anew_each_epoch_are_counted_on(tmp_path: Path) -> None:
    lines = [f"epoch {epoch} step {step} loss {epoch - step / 10:g}" for epoch in range(3) for step in range(4)]
    lines[5] = "epoch 1 step 1 loss nan"  # a line of another kind
    reading = Reading(Extraction(["loss"]))
    ranks = [printed(tmp_path, 0, *lines), printed(tmp_path, 1, *lines[::2])]
    assert reading.read_on(ranks, EVER_S, is_over=True)
    [(key, curve)] = reading.curves.items()
    assert key == ("loss", "", "step")
    assert line_of(curve.ranks[0])[0] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert sorted(curve.ranks[1]) == [0, 2, 4, 6, 8, 10], "ranks that print more seldom are beside the others"
    assert (curve.odd[0].x, curve.last[0]) == (5, (11, 1.7))


def test_a_run_that_was_started_again_goes_on_at_its_steps(tmp_path: Path) -> None:
    before = printed(tmp_path, 0, *(f"step {step} loss 1" for step in (0, 10, 20, 30)))
    after = printed(tmp_path, 0, *(f"step {step} loss 1" for step in (20, 30, 40)), output=2)
    reading = Reading(Extraction(["loss"]))
    assert reading.read_on([before, after], EVER_S, is_over=True)
    assert sorted(reading.curves["loss", "", "step"].ranks[0]) == [0, 10, 20, 30, 40]


def test_against_a_number_that_was_asked_for_nothing_is_counted_on(tmp_path: Path) -> None:
    reading = Reading(Extraction(["loss"], "step"))
    assert reading.read_on(
        [printed(tmp_path, 0, "step 0 loss 2", "step 1 loss 1", "step 0 loss 3")], EVER_S, is_over=True
    )
    assert sorted(reading.curves["loss", "", "step"].ranks[0]) == [0, 1]

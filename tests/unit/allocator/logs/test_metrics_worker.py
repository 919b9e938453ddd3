"""Whether a reading of numbers is complete."""

from __future__ import annotations

from pathlib import Path

from monarch_nb.allocator.logs.metrics_worker import Reading
from monarch_nb.allocator.logs.stored import StoredFiles
from monarch_nb.lines.extraction import Extraction

LONG_PAST_S = -1.0


def printed(runs: Path, rank: int, *lines: str) -> StoredFiles:
    """Return the output of a rank."""
    files = StoredFiles(runs, 1, rank)
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

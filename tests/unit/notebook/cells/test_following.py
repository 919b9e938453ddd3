"""How long a cell waits for a run."""

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.runs.results import RunStops
from monarch_nb.notebook.cells.following import RunTimeout, wait_for
from unit.notebook.fakes import nothing


def test_a_stop_that_can_not_be_answered_does_not_keep_the_time_from_being_up() -> None:
    stops = RunStops()
    stops.note(0, 1, on=True)
    run: Any = SimpleNamespace(stops=stops, wait_news=stops.news.wait, done=False)
    asked: list[bool] = []

    def answer() -> None:
        asked.append(True)
        assert len(asked) < 100_000, "it asks for ever"
        stops.remind()

    with pytest.raises(RunTimeout):
        wait_for(run, 0.001, nothing, answer)

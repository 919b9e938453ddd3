"""In whose name actors are called: how a cell ends what it has called."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.actors.calls import Callers


def test_a_look_at_the_calls_while_the_cell_ends_takes_no_run_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would not wait for what was printed, which would be missing in the cell."""
    done: list[str] = []
    run: Any = SimpleNamespace(
        id="calls", end=lambda: done.append("ended"), wait_printed=lambda _: done.append("waited for")
    )
    nothing: Any = SimpleNamespace(mesh=lambda _: None)
    callers = Callers(nothing, nothing, list)
    callers._current._runs["mesh"] = run

    async def end(_: Iterable[Any], *, is_interrupted: bool) -> None:
        callers._look_again()

    monkeypatch.setattr(callers._behind, "end", end)
    assert callers.end_cell(is_interrupted=False) is False
    assert done == ["ended", "waited for"]

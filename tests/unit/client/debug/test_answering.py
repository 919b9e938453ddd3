"""What is said to those who leave the debugger's prompt."""

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.debug import terminal
from monarch_nb.client.debug.answering import Answering, Screen


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([2], "rank 2 stays where it is, and this program waits for it: monarch-nb debug dev in"),
        ([0, 2], "ranks 0,2 stay where they are, and this program waits for them: monarch-nb debug dev in"),
    ],
)
def test_who_leaves_the_prompt_is_told_who_stays(monkeypatch: pytest.MonkeyPatch, ranks: list[int], said: str) -> None:
    stops = [SimpleNamespace(rank=rank, number=1) for rank in ranks]
    monkeypatch.setattr("monarch_nb.client.debug.answering.Debugger", lambda _: SimpleNamespace(stops=lambda: stops))
    monkeypatch.setattr("monarch_nb.client.debug.answering.can_answer", lambda: True)
    run: Any = SimpleNamespace(
        mesh=SimpleNamespace(reservation=SimpleNamespace(name="dev")), wait=lambda timeout_s: False
    )
    lines: list[str] = []
    Answering(run, Screen(lambda _: "quit", lines.append, terminal.SCREEN.stays))()
    [line] = lines
    assert line.startswith(said)
    assert line.endswith("interrupts it" if len(ranks) == 1 else "interrupts them")

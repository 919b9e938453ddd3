"""What is said of a run whose ranks are looked at again and again."""

from collections.abc import Iterable, Mapping

import pytest

from monarch_nb.client.connections.events import Event, Notice
from monarch_nb.client.runs.watching.waits_watch import WaitsWatch
from monarch_nb.proto import run_pb2

INTERVAL_S = 3.0


def at(*collectives: str) -> dict[int, run_pb2.Where]:
    """Where ranks are, from rank 0 on; those without a collective compute."""
    states = run_pb2.Where
    return {
        rank: run_pb2.Where(
            state=states.STATE_COLLECTIVE if name else states.STATE_RUNNING, collective=name, line=f"a.py:{len(name)}"
        )
        for rank, name in enumerate(collectives)
    }


APART, TOGETHER = at("recv", "recv", ""), at("recv", "recv", "recv")


class Looks:
    """Looks of a run on which no rank has ended, one every three seconds."""

    def __init__(self, left_out: Mapping[int, str] | None = None) -> None:
        self.told: list[str] = []
        self.watch = WaitsWatch({}, self._never, lambda: left_out or {}, self._note)
        self.now_s = 100.0

    async def _never(self) -> None:
        raise AssertionError("looks are given by hand")

    def _note(self, event: Event) -> None:
        assert isinstance(event, Notice)
        self.told.append(event.text)

    def add(self, *looks: dict[int, run_pb2.Where], printed: Iterable[int] = ()) -> list[str]:
        for number, look in enumerate(looks):
            self.watch.printed = number in printed
            self.watch._is_calm(look, self.now_s)
            self.now_s += INTERVAL_S
        return self.told


@pytest.mark.parametrize("apart", [APART, at("recv", "recv", "barrier")])
def test_a_standstill_is_said_when_it_lasts(apart: dict[int, run_pb2.Where]) -> None:
    assert Looks().add(apart, apart) == []
    [text] = Looks().add(apart, apart, apart, apart)
    assert "ranks 0-1 wait in recv (a.py:4)" in text


def test_it_goes_when_they_go_on() -> None:
    looks = Looks()
    assert looks.add(APART, APART, APART, TOGETHER)[1:] == [""]
    assert looks.watch.past == ""


@pytest.mark.parametrize(
    "looks",
    [
        (TOGETHER, TOGETHER, TOGETHER),
        (at("", "", ""), at("", "", ""), at("", "", "")),
        (APART, at("recv", "", ""), APART, APART),
        (APART, TOGETHER, APART, APART),
    ],
)
def test_ranks_that_make_progress_are_left_in_peace(looks: tuple[dict[int, run_pb2.Where], ...]) -> None:
    assert Looks().add(*looks) == []


def test_ranks_that_print_make_progress() -> None:
    assert Looks().add(APART, APART, APART, APART, printed=[2]) == []


def test_ranks_that_all_wait_for_those_that_were_left_out() -> None:
    """As `init_process_group()` does in a cell on some ranks."""
    assert Looks({3: "not in this run"}).add(TOGETHER, TOGETHER) == []
    [text] = Looks({3: "not in this run"}).add(TOGETHER, TOGETHER, TOGETHER)
    assert text.startswith("ranks 0-2 wait in recv (a.py:4); rank 3 not in this run: interrupt")


def test_ranks_that_compute_on_their_own_wait_for_nobody() -> None:
    assert Looks({3: "not in this run"}).add(*[at("", "", "")] * 4) == []

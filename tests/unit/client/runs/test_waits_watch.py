"""What is said of a run whose ranks are looked at again and again."""

import asyncio
from collections.abc import Collection, Iterable, Mapping

import pytest

from monarch_nb.client.connections.events import Event, Notice, Result
from monarch_nb.client.runs import waits
from monarch_nb.client.runs.waits import FREES, WaitsWatch
from monarch_nb.proto import run_pb2

INTERVAL_S = 3.0
GROUP = "the default group"


def at(*collectives: str, call: int = 0) -> dict[int, run_pb2.Where]:
    """Where ranks are, from rank 0 on, in a call of the default group; those without a collective compute."""
    states = run_pb2.Where
    return {
        rank: run_pb2.Where(
            state=states.STATE_COLLECTIVE if name else states.STATE_RUNNING,
            collective=name,
            line=f"a.py:{len(name)}",
            call=run_pb2.Call(collective=name, group=GROUP) if name and call else None,
            calls={GROUP: call} if call else None,
        )
        for rank, name in enumerate(collectives)
    }


APART, TOGETHER = at("recv", "recv", ""), at("recv", "recv", "recv")


async def no() -> bool:
    """Nobody waits in vain."""
    return False


def never() -> None:
    raise AssertionError("nobody waits in vain")


class Looks:
    """Looks of a run on which no rank has ended, one every three seconds."""

    def __init__(
        self, left_out: Mapping[int, str] | None = None, ended: Iterable[int] = (), stopped: Collection[int] = ()
    ) -> None:
        self.told: list[str] = []
        results = {rank: Result(rank, "ok", 1.0) for rank in ended}
        left = left_out or {}
        self.watch = WaitsWatch(results, self._never, lambda: left, self._note, no, never, stopped=lambda: stopped)
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
    looks = Looks(stopped=[2])
    assert "rank 2, which is at a breakpoint (a.py:0). Type" in looks.add(*[APART] * 4)[0]
    assert looks.watch.past.endswith("was at a breakpoint (a.py:0)")


def test_it_goes_when_they_go_on() -> None:
    looks = Looks()
    assert looks.add(APART, APART, APART, TOGETHER)[1:] == [""]
    assert looks.watch.past == ""


def test_ranks_that_make_progress_are_left_in_peace() -> None:
    computing = at("", "", "")
    for looks in (
        (TOGETHER, TOGETHER, TOGETHER),
        (computing, computing, computing),
        (APART, at("recv", "", ""), APART, APART),
        (APART, TOGETHER, APART, APART),
    ):
        assert Looks().add(*looks) == []
    assert Looks().add(APART, APART, APART, APART, printed=[2]) == []
    assert Looks({3: "the run is not on"}).add(*[computing] * 4) == []
    calling = [at("all_reduce", "all_reduce", "all_reduce", call=call) for call in (4, 9, 14)]
    assert Looks(ended=[3]).add(*calling) == []


def test_ranks_that_all_wait_for_those_that_were_left_out() -> None:
    """As `init_process_group()` does in a cell on some ranks."""
    assert Looks({3: "the run is not on"}).add(TOGETHER, TOGETHER) == []
    [text] = Looks({3: "the run is not on"}).add(TOGETHER, TOGETHER, TOGETHER)
    assert text == (
        "Stuck: ranks 0-2 wait in recv (a.py:4) for rank 3, which the run is not on; run it without -t, or use a group "
        f"of these ranks. {FREES.format(them='them')}"
    )


def steps(*numbers: int) -> list[dict[int, run_pb2.Where]]:
    """Looks at training whose rank 2 is always seen in its data loader: each rank has made so many calls."""
    return [at("backward", "backward", "", call=number) for number in numbers]


def test_ranks_that_call_more_collectives_go_on_though_they_are_seen_at_the_same_lines() -> None:
    assert Looks().add(*steps(8, 32, 56, 80, 104)) == []
    [told, taken_back] = Looks().add(*steps(8, 8, 8, 9, 33))
    assert "for rank 2, which is at a.py:0" in told
    assert taken_back == ""


def test_one_that_computes_at_other_lines_goes_on() -> None:
    looks = [APART | {2: run_pb2.Where(state=run_pb2.Where.STATE_RUNNING, line=f"b.py:{line}")} for line in range(5)]
    assert Looks().add(*looks) == []
    [text] = Looks(ended=[3]).add(*looks[:2])
    assert "for rank 3, which finished the cell" in text, (
        "the others wait for one that does not come, whatever this one does"
    )


def test_two_looks_are_enough_when_calls_do_not_match() -> None:
    unlike = at("all_reduce", "all_gather", "all_gather", call=4)
    assert Looks().add(unlike) == []
    [text] = Looks().add(unlike, unlike)
    assert "call 4 in the default group is all_reduce on rank 0, all_gather on ranks 1-2" in text
    assert Looks().add(unlike, at("all_reduce", "all_gather", "all_gather", call=5)) == []
    assert len(Looks().add(unlike, unlike, printed=[0])) == 1, "what was printed before does not end it"


class TestBeforeAnInterrupt:
    async def _past(self, where: dict[int, run_pb2.Where] | None, *, has_looked: bool = True) -> str:
        async def look() -> dict[int, run_pb2.Where] | None:
            return where

        watch = WaitsWatch({}, look, dict, lambda _: None, no, never)
        watch._has_looked = has_looked
        await watch.look_before_interrupt()
        return watch.past

    async def test_one_look_tells_what_does_not_match(self) -> None:
        unlike = at("all_reduce", "all_gather", call=4)
        assert "call 4 in the default group is all_reduce on rank 0, all_gather on rank 1" in await self._past(unlike)
        assert await self._past(APART) == await self._past(None) == "", "it may end by itself"
        assert await self._past(unlike, has_looked=False) == "", "it has just begun"

    async def test_ranks_that_do_not_answer_hold_up_no_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits, "_LAST_LOOK_S", 0.0)
        watch = WaitsWatch({}, asyncio.get_running_loop().create_future, dict, lambda _: None, no, never)
        watch._has_looked = True
        await watch.look_before_interrupt()
        assert watch.past == ""

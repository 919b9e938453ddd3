"""Whatever the order in which main threads and keepers go on: no deadlock, and the same step on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import pytest

from monarch_nb.worker.autosaves.agreement import (
    ANSWER_S,
    HOLD_S,
    PAUSE_S,
    SAVE,
    Part,
    Place,
    Request,
    Round,
    objection,
    targets,
)


class Store:
    """Of all ranks, in memory. A get of what is not there is a fault: no keeper may wait in the store."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str, /) -> None:
        self.values[key] = value

    def get(self, key: str, /) -> bytes:
        return self.values[key].encode()

    def add(self, key: str, amount: int, /) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values[key].encode()

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.values for key in keys)


Program = Sequence[str]
"""What a main thread does: `begin`, `step` (which needs the step before of all that run), `alone` (which needs nobody),
`end`. A call of an endpoint ends with `pause`, and the next one begins with `go on`. At a `stop` it does nothing more:
it hangs, or has died."""

TRAINS = ("begin", "step", "step", "end")
CALLS = ("begin", "step", "pause", "go on", "step", "pause", "go on", "step", "pause")


class Rank:
    def __init__(self, store: Store, rank: int, size: int, program: Program, request: Request, run: int) -> None:
        self.program, self.position, self.run = program, 0, run
        self.part = Part()
        self.round = Round(store, request, rank, size, self.part, 0.0)
        self.round._life = str(rank)
        self.verdict = ""
        self.at: Place | None = None

    @property
    def done(self) -> bool:
        return self.position == len(self.program)

    def state(self) -> tuple[object, ...]:
        part = tuple(sorted((name, repr(value)) for name, value in vars(self.part).items()))
        return self.position, self.verdict, self.at, self.round._phase, part


class World:
    """All ranks. A move is a main thread's or a keeper's."""

    def __init__(self, programs: Sequence[Program], request: Request | None = None, runs: Sequence[int] = ()) -> None:
        self.store = Store()
        asked = request or Request("every 10 min")
        ranks = range(len(programs))
        self.ranks = [
            Rank(self.store, rank, len(programs), programs[rank], asked, runs[rank] if runs else 7) for rank in ranks
        ]

    def moves(self) -> list[tuple[str, int]]:
        return [(who, rank) for rank in range(len(self.ranks)) for who in ("main", "keeper")]

    def move(self, who: str, number: int, now_s: float = 0.0) -> None:
        rank = self.ranks[number]
        if who == "main":
            self._main(rank)
        elif not rank.verdict:
            rank.verdict = rank.round.advance(now_s)
            if rank.verdict:
                rank.at = rank.part.place
                if rank.verdict == SAVE:
                    assert rank.part.holding, "a rank saves while it goes on"
                rank.part.settle()

    def _main(self, rank: Rank) -> None:
        part = rank.part
        part.holding = part.must_hold()
        if part.holding or rank.done:
            return
        match rank.program[rank.position]:
            case "begin":
                part.begin(rank.run)
            case "step":
                others = [each for each in self.ranks if "step" in each.program and each.run == rank.run]
                if any(self._completed(each) < self._completed(rank) for each in others):
                    return  # the collective of this step waits
                part.step()
            case "alone":
                part.step()
            case "end":
                part.end()
            case "pause":
                part.end(pauses=True)
            case "go on":
                if not part.go_on(rank.run, self._completed(rank)):
                    return
            case "stop":
                return
        rank.position += 1
        part.holding = part.must_hold()

    @staticmethod
    def _completed(rank: Rank) -> int:
        return rank.program[: rank.position].count("step")

    def state(self) -> tuple[object, ...]:
        return tuple(sorted(self.store.values.items())), *(rank.state() for rank in self.ranks)

    @property
    def is_over(self) -> bool:
        return all(rank.done and rank.verdict for rank in self.ranks)

    def check(self) -> None:
        """All have the same verdict, and those that train saved at the same step."""
        assert len({rank.verdict for rank in self.ranks}) == 1
        if self.ranks[0].verdict == SAVE:
            places = [rank.at for rank in self.ranks if rank.at]
            trains = {(place.run, place.steps) for place in places if place.pauses or not place.ended}
            assert len({run for run, _ in trains}) == len(trains)


def everything(world: World) -> Iterator[World]:
    """Yield the world at the end of every order of moves; fail where nobody can go on."""
    seen, open_ = {world.state()}, [world]
    while open_:
        here = open_.pop()
        nexts: list[World] = []
        for times_s in ((0.0,), (0.0, 2 * PAUSE_S)):  # time goes on where nobody else does
            for move in here.moves() if not nexts else ():
                there = copy.deepcopy(here)
                for now_s in times_s:
                    there.move(*move, now_s=now_s)
                state = there.state()
                if state != here.state():
                    nexts.append(there)
                    if state not in seen:
                        seen.add(state)
                        open_.append(there)
        if not nexts:
            assert here.is_over, f"nobody goes on: {here.state()}"
            yield here


@pytest.mark.parametrize(
    ("programs", "may_save"),
    [
        ((TRAINS, TRAINS), True),
        ((TRAINS, ()), True),  # the other executes nothing
        (((), ()), True),
        ((("begin", "alone", "end", "begin", "end"), ("begin", "alone", "end")), True),
        ((("begin", "end"), TRAINS), True),  # a cell in which one rank makes no step
        ((("begin", "alone", "end"), ("begin", "alone", "alone", "end")), True),  # may end with an objection
        ((CALLS[:6], CALLS[:6]), True),
        ((CALLS, ()), True),
    ],
)
def test_every_order_of_two_ranks_ends_with_one_verdict(programs: Sequence[Program], may_save: bool) -> None:
    verdicts = set()
    for world in everything(World(programs)):
        world.check()
        verdicts.add(world.ranks[0].verdict)
    assert (SAVE in verdicts) == may_save


@pytest.mark.parametrize("program", [TRAINS, CALLS[:6]], ids=["a cell", "endpoints that make a step each"])
def test_one_step_that_is_asked_for_is_saved_on_all(program: Program) -> None:
    world = World((program, program), Request("every 2 steps", 7, 2))
    for rank in (0, 1, 0, 1):
        world.move("main", rank)
    for end in everything(world):
        end.check()
        assert end.ranks[0].verdict == SAVE
        assert {(rank.at.run, rank.at.steps) for rank in end.ranks if rank.at} == {(7, 2)}


def run(world: World, rounds: int, now_s: float = 0.0) -> None:
    for _ in range(rounds):
        for move in world.moves():
            world.move(*move, now_s=now_s)


def test_a_rank_that_does_not_come_is_named_and_the_others_go_on() -> None:
    world = World((TRAINS, ("begin", "stop"), TRAINS))
    for rank in (0, 2):
        world.ranks[rank].program = ("begin", "alone", "alone", "end")
    for rank in range(3):
        world.move("main", rank)
    run(world, 10)
    assert not world.ranks[0].done
    run(world, 10, HOLD_S + 1)
    assert {rank.verdict for rank in world.ranks} == {f"rank 1 made no step for {HOLD_S:g} s"}
    assert world.ranks[0].done


def again(world: World, request: Request) -> None:
    """The ranks' keepers carry another request."""
    world.store.values.clear()
    for number, rank in enumerate(world.ranks):
        rank.verdict, rank.at = "", None
        rank.round = Round(world.store, request, number, len(world.ranks), rank.part, 0.0)
        rank.round._life = str(number)


@pytest.mark.parametrize("step", [0, 3])
def test_nobody_waits_again_for_a_rank_that_was_left_out_until_it_steps(step: int) -> None:
    trains = ("begin", *["alone"] * 200, "stop")
    world = World((trains, ("begin", "stop")), Request("every 2 steps", 7, 2) if step else None)
    for rank in (0, 1):
        world.move("main", rank)
    run(world, 10)
    run(world, 10, HOLD_S + 1)
    assert {rank.verdict for rank in world.ranks} == {f"rank 1 made no step for {HOLD_S:g} s"}
    again(world, Request("every 3 steps", 7, step) if step else Request("every 10 min"))
    world.move("keeper", 1)
    run(world, 3)
    assert {rank.verdict for rank in world.ranks} == {"rank 1 has made no step since the others waited for it"}
    again(world, Request("the end", is_last=True))
    run(world, 3)
    assert {rank.verdict for rank in world.ranks} == {""}, "the last time they wait"
    again(world, Request("every 10 min"))
    for rank in world.ranks:
        rank.program = trains
        rank.part.settle()
    world.move("main", 1)
    run(world, 100)
    assert {rank.verdict for rank in world.ranks} == {SAVE}


def test_a_keeper_that_does_not_answer_is_named() -> None:
    world = World((TRAINS, TRAINS, TRAINS))
    moves = [move for move in world.moves() if move != ("keeper", 1)]
    for now_s in (0.0, 0.0, 0.0, ANSWER_S + 1, ANSWER_S + 1):
        for move in moves:
            world.move(*move, now_s=now_s)
    assert {world.ranks[rank].verdict for rank in (0, 2)} == {"rank 1 did not answer"}


def test_a_rank_that_was_started_again_ends_the_request() -> None:
    world = World((TRAINS, TRAINS))
    world.move("keeper", 1)
    world.ranks[1].round = Round(world.store, Request("x"), 1, 2, Part(), 0.0)
    run(world, 3)
    assert {rank.verdict for rank in world.ranks} == {"rank 1 was started again meanwhile"}


def test_what_does_not_belong_together_is_said() -> None:
    at = [Place(7, 10, ended=False), Place(7, 9), Place(7, 10, ended=False), Place(3, 4), Place(7, 0)]
    said = "ranks have made different numbers of steps: rank 1 ended after step 9, ranks 0,2 at step 10"
    assert objection(at) == said
    assert objection([Place(7, 9), Place(7, 10)]) == ""  # both have ended: they are saved as they are
    going = [Place(7, 3, ended=False), Place(7, 4, ended=False), Place(8, 1, ended=False), Place(2, 9)]
    assert targets(going) == {7: 5, 8: 2, 2: 10}

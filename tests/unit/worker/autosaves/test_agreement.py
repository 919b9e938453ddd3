"""Whatever the order in which main threads and keepers go on: no deadlock, and the same step on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest

from monarch_nb.worker.autosaves.agreement import (
    AHEAD_S,
    ANSWER_S,
    BEYOND,
    HOLD_S,
    PAUSE_S,
    SAVE,
    Part,
    Place,
    Request,
    Round,
    Training,
    objection,
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
"""What threads do that execute user code: `begin` a run or `call` an endpoint, `step` (which needs the step before of
all that train), `alone` (which needs nobody), `end`. At a `stop` it does nothing more: it hangs, or has died."""

TRAINS = ("begin", "step", "step", "step", "end")
CALLS = ("call", "step", "end") * 2


class Rank:
    def __init__(self, store: Store, rank: int, size: int, program: Program, request: Request, run: int) -> None:
        self.program, self.position, self.run = program, 0, run
        self.part = Part(nullcontext())
        self.actor = Training(run, "actor")
        self.executed: Training | None = None
        self.holds = False
        self.begin_round(store, rank, size, request)

    def begin_round(self, store: Store, rank: int, size: int, request: Request) -> None:
        self.round = Round(store, request, rank, size, self.part)
        self.round._life = str(rank)
        self.request, self.verdict = request, ""
        self.at: Place | None = None

    @property
    def done(self) -> bool:
        return self.position == len(self.program)

    @property
    def completed(self) -> int:
        return self.program[: self.position].count("step")

    def state(self) -> tuple[object, ...]:
        part, round_ = self.part, self.round
        of_part = part.place, part.holding, part.arrived, part.leaves, part.is_idle, part._limit
        return self.position, self.holds, self.verdict, self.at, round_._has_heard, round_._aims_in, *of_part

    def go_on(self, others: Sequence[Rank]) -> None:
        """Do what comes next, unless this rank is to hold before its next step."""
        if self.done:
            return
        part, what = self.part, self.program[self.position]
        self.holds = self.holds and part.must_hold()
        part.holding = self.holds and what in ("step", "alone")
        if part.holding:
            return
        match what:
            case "begin" | "call":
                training = self.actor if what == "call" else Training(self.run)
                if not part.enter(training):
                    return
                self.executed = training
            case "step" | "alone":
                trains = [each for each in others if "step" in each.program and each.run == self.run]
                if what == "step" and any(each.completed < self.completed for each in trains):
                    return  # the collective of this step waits
                assert self.executed is not None
                part.step(self.executed, 2 * AHEAD_S * (self.executed.steps + 1))
                if self.request.step == self.executed.steps:
                    part.hold_here()
            case "end":
                assert self.executed is not None
                part.exit(self.executed, 0.0)
            case "stop":
                return
        self.position += 1
        self.holds = part.must_hold()


class World:
    """All ranks. A move is a main thread's or a keeper's."""

    def __init__(self, programs: Sequence[Program], request: Request | None = None, runs: Sequence[int] = ()) -> None:
        self.store = Store()
        size, asked = len(programs), request or Request("every 10 min")
        runs = runs or [7] * size
        self.ranks = [Rank(self.store, rank, size, programs[rank], asked, runs[rank]) for rank in range(size)]

    def moves(self) -> list[tuple[str, int]]:
        return [(who, rank) for rank in range(len(self.ranks)) for who in ("main", "keeper")]

    def move(self, who: str, number: int, now_s: float = 0.0) -> None:
        rank = self.ranks[number]
        if who == "main":
            rank.go_on(self.ranks)
        elif not rank.verdict:
            rank.verdict = rank.round.advance(now_s)
            if rank.verdict:
                rank.at = rank.part.place
                if rank.verdict == SAVE:
                    assert rank.part.holding or rank.part.is_idle, "a rank saves while it goes on"
                rank.part.settle()

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
            trains = {(place.training, place.steps) for place in places if not place.ended and place.steps}
            assert len({training for training, _ in trains}) == len(trains)


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
    ("programs", "verdicts"),
    [
        ((TRAINS, TRAINS), {SAVE, BEYOND, "meanwhile"}),
        ((TRAINS, ()), {SAVE, "meanwhile"}),  # the other executes nothing
        (((), ()), {SAVE}),
        ((("begin", "alone", "end", "begin", "end"), ("begin", "alone", "end")), {SAVE, BEYOND, "meanwhile"}),
        ((("begin", "end"), TRAINS), {SAVE, BEYOND, "meanwhile"}),  # a cell in which one rank makes no step
        ((("begin", "alone", "end"), ("begin", *["alone"] * 3, "end")), {SAVE, BEYOND, "meanwhile", "different"}),
        ((CALLS, CALLS), {SAVE, BEYOND, "meanwhile", "actors compute"}),
        ((CALLS, ()), {SAVE, "meanwhile", "actors compute"}),
    ],
)
def test_every_order_of_two_ranks_ends_with_one_verdict(programs: Sequence[Program], verdicts: set[str]) -> None:
    found = set()
    for world in everything(World(programs)):
        world.check()
        verdict = world.ranks[0].verdict
        found |= {each for each in verdicts if each in verdict} or {verdict}
    assert found == verdicts


@pytest.mark.parametrize(
    ("program", "training"), [(TRAINS, "7"), (CALLS, "actor")], ids=["a cell", "endpoints that make a step each"]
)
def test_one_step_that_is_asked_for_is_saved_on_all(program: Program, training: str) -> None:
    world = World((program, program), Request("every 2 steps", training, 2))
    for rank in world.ranks:
        while rank.completed < 1:
            rank.go_on(world.ranks)
    for end in everything(world):
        end.check()
        assert end.ranks[0].verdict == SAVE
        assert {(rank.at.training, rank.at.steps) for rank in end.ranks if rank.at} == {(training, 2)}


def run(world: World, rounds: int, now_s: float = 0.0) -> None:
    for _ in range(rounds):
        for move in world.moves():
            world.move(*move, now_s=now_s)


def test_who_is_beyond_the_step_says_so_and_the_next_one_is_further_ahead() -> None:
    trains = ("begin", *["alone"] * 20, "stop")
    world = World((trains, trains))
    slow, quick = world.ranks
    for rank, steps in ((slow, 2), (quick, 5)):
        for _ in range(1 + steps):
            rank.go_on(world.ranks)
    for times in (1, 2, 4):
        again(world, Request("every 10 min", *slow.part.ahead(2 * times - 2, 0.0)))
        for _ in range(3):
            for number in (0, 1):
                world.move("keeper", number)
        beyond = f"rank 1 {BEYOND} {2 + times}" if times < 4 else ""
        assert {rank.verdict for rank in world.ranks} == {beyond}
    run(world, 10)
    assert {(rank.verdict, rank.at.steps) for rank in world.ranks if rank.at} == {(SAVE, 6)}


def test_how_far_ahead_a_step_is_announced_depends_on_how_long_one_takes() -> None:
    part, training = Part(nullcontext()), Training(7)
    assert part.ahead(1, 0.0) == ("", 0), "nothing trains"
    part.enter(training)
    assert part.ahead(1, 0.0) == ("7", 1), "nobody knows yet"
    for number in range(1, 4):
        part.step(training, number * AHEAD_S / 4)
    assert part.ahead(1, 0.75 * AHEAD_S) == ("7", 3 + 5)
    assert part.ahead(2, 0.75 * AHEAD_S) == ("7", 3 + 9)
    part.step(training, 100 * AHEAD_S)
    assert part.ahead(1, 110 * AHEAD_S) == ("7", 4 + 1), "there may be little time"
    assert part.ahead(1, 199 * AHEAD_S) == ("7", 4 + 2), "it ends in less than a second"
    part.step(training, 100.01 * AHEAD_S)
    assert part.ahead(1, 110 * AHEAD_S) == ("7", 5 + 2), "the next one takes longer than those before"
    now_s = 200 * AHEAD_S
    for number in range(200):
        now_s += AHEAD_S * (0.001 if number % 10 else 0.091)  # a hundred in a second
        part.step(training, now_s)
    assert 50 < part.ahead(1, now_s)[1] - training.steps < 200, "the last one alone says little"
    part.exit(training, 110 * AHEAD_S)
    part.enter(Training(8))
    assert part.ahead(1, 110 * AHEAD_S) == ("8", 1), "another training has other steps"


def test_a_rank_that_does_not_come_is_named_and_the_others_go_on() -> None:
    world = World((TRAINS, ("begin", "stop"), TRAINS))
    for rank in (0, 2):
        world.ranks[rank].program = ("begin", *["alone"] * 9, "end")
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
        rank.begin_round(world.store, number, len(world.ranks), request)


def test_nobody_waits_again_for_a_rank_that_was_left_out_until_it_steps() -> None:
    trains = ("begin", *["alone"] * 200, "stop")
    world = World((trains, ("begin", "stop")))
    for rank in (0, 1):
        world.move("main", rank)
    run(world, 10)
    run(world, 10, HOLD_S + 1)
    assert {rank.verdict for rank in world.ranks} == {f"rank 1 made no step for {HOLD_S:g} s"}
    again(world, Request("every 10 min"))
    world.move("keeper", 1)
    run(world, 3)
    assert {rank.verdict for rank in world.ranks} == {"rank 1 has made no step since the others waited for it"}
    again(world, Request("the end", is_last=True))
    run(world, 3)
    assert {rank.verdict for rank in world.ranks} == {""}, "the last time they wait"
    for each in world.ranks:
        each.program = trains
        each.part.settle()
    world.move("main", 1)
    again(world, Request("every 10 min", "7", 100))
    run(world, 110)
    assert {rank.verdict for rank in world.ranks} == {SAVE}


def test_a_keeper_that_does_not_answer_is_named() -> None:
    world = World((TRAINS, (), ()))
    moves = [move for move in world.moves() if move != ("keeper", 1)]
    for now_s in (*[0.0] * 3, *[ANSWER_S + 1] * 2):
        for move in moves:
            world.move(*move, now_s=now_s)
    assert {world.ranks[rank].verdict for rank in (0, 2)} == {"rank 1 did not answer"}


def test_a_rank_that_was_started_again_ends_the_request_and_saves_nothing() -> None:
    world = World(((), ()))
    first, restarted = world.ranks
    for is_late in (False, True):
        again(world, Request("x"))
        world.move("keeper", 1)
        if is_late:
            world.move("keeper", 0)
        restarted.begin_round(world.store, 1, 2, restarted.request)
        restarted.round._life = "another"
        for number in (1, 0, 1):
            world.move("keeper", number)
        assert first.verdict == (SAVE if is_late else "rank 1 was started again meanwhile")
        assert restarted.verdict == "rank 1 was started again meanwhile", "it has nothing of what was to be saved"


def test_who_is_interrupted_says_so() -> None:
    world = World((TRAINS, ("begin", "stop")), Request("x", "7", 1))
    world.ranks[0].program = ("begin", "alone", "alone", "end")
    run(world, 4)
    assert world.ranks[0].part.holding
    world.ranks[0].part.be_interrupted()
    run(world, 2)
    assert {rank.verdict for rank in world.ranks} == {"rank 0 was interrupted"}
    world.ranks[0].part.be_interrupted()
    assert not world.ranks[0].part.leaves, "it waits for nothing"


def test_what_does_not_belong_together_is_said() -> None:
    at = [Place(7, 10, ended=False), Place(7, 9), Place(7, 10, ended=False), Place(3, 4), Place(7, 0)]
    said = "ranks have made different numbers of steps: rank 1 ended after step 9, ranks 0,2 at step 10"
    assert objection(at) == said
    assert objection([Place(7, 9), Place(7, 10)]) == ""  # both have ended: they are saved as they are
    of_actors = [Place(7, 3, ended=False, actor="a"), Place(8, 3, ended=False, actor="a")]
    assert objection([*of_actors, Place(8, 1, ended=False)]) == ""

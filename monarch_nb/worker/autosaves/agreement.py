"""How all ranks of a mesh save at the end of the same step, while their training's own groups are left alone.

A step ends where the next one begins: ranks hold there (see steps). Each rank has a main thread that trains, and a
keeper, a thread that talks to the other ranks' keepers through the mesh's store. A request goes:

1. Each keeper reads how many steps its main thread has completed, and tells the others. From this moment on the main
   thread holds at the end of its next step. So a rank that has told c steps completes at most c + 1.
2. The target is one more than the greatest count. No rank is beyond it, and each goes on until it has completed it.
   Nobody waits below the target: a rank that holds sooner waits only for the keepers' counts, which need no step.
3. Each rank says where it holds. One that has finished the cell, or executes none, says so, and does not hold.
4. When all have said it and all hold at the target, those that execute nothing hold for a moment as well. Then the
   verdict is to save. Every other verdict names a reason, and all go on.

Every wait ends: whoever waits too long gives the verdict that nothing is saved. The first verdict counts. A rank for
which the others have held in vain says so in the next request, and nobody holds for it again until it steps, unless the
request is the last one.

`Part` and `Round` do no waiting: whoever calls them does, and brings the time. A run that all ranks count alike may
also ask for one certain step (`--every 500steps`): then the first two points are left out.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from monarch_nb.config import cadence, patience
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.groups.rendezvous import Store

SAVE = "save"
"""The verdict; others say why nothing is saved."""
NO_STEP = "made no step for"
"""In a verdict: the others have held for a rank in vain."""
STILL_NO_STEP = "has made no step since the others waited for it"
"""How a verdict ends when nobody holds for such a rank again."""
DIFFERENT_STEPS = "ranks have made different numbers of steps"
"""How a verdict begins when what they hold does not belong together."""
ANSWER_S = patience(30.0)
"""So long a keeper waits for what needs no step: a rank whose C code holds the GIL may be slow."""
PAUSE_S = cadence(1.0)
"""So long a training that makes a step in each of many calls may pause and still come to its next step."""
HOLD_S = patience(60.0)
"""So long a main thread holds for ranks that have not come to the target."""


@dataclass(frozen=True)
class Place:
    """Where a rank's main thread is.

    Attributes:
        run: the number of the run that it executes, or executed last; 0: none yet.
        steps: how many steps of it are complete.
        ended: it executes nothing now.
        pauses: it ended, and may go on: each call of an endpoint makes some steps of the run.
    """

    run: int = 0
    steps: int = 0
    ended: bool = True
    pauses: bool = False

    def encode(self) -> str:
        return f"{self.run} {self.steps} {int(self.ended)} {int(self.pauses)}"

    @classmethod
    def decode(cls, text: str) -> Place:
        run, steps, ended, pauses = map(int, text.split())
        return cls(run, steps, bool(ended), bool(pauses))


@dataclass(frozen=True)
class Request:
    """A save that somebody wants.

    Attributes:
        why: for people, as in "every 10 min".
        run, step: the step at whose end; 0: whichever comes next.
        is_last: the ranks may be ended as soon as it is done: nothing is left to be written behind.
    """

    why: str
    run: int = 0
    step: int = 0
    is_last: bool = False

    def encode(self) -> str:
        return json.dumps([self.why, self.run, self.step, self.is_last])

    @classmethod
    def decode(cls, text: str) -> Request:
        return cls(*json.loads(text))


class Part:
    """One rank's part. The main thread tells what it does, the keeper what is wanted; both under one lock.

    Attributes:
        place: where the main thread is.
        holding: the main thread waits, or is about to.
    """

    def __init__(self) -> None:
        self.place = Place()
        self.holding = False
        self._final: Place | None = None
        self._told = Place()
        self._limit: tuple[int, int] | None = None
        self._is_aimed = self._comes = False
        self._left_out: Place | None = None
        self._arrived: Place | None = None

    # ---- the main thread

    def begin(self, run: int, steps: int = 0) -> None:
        """A run begins, or goes on after so many steps. First `must_hold` is asked."""
        self.place = Place(run, steps, ended=False)

    def go_on(self, run: int, steps: int) -> bool:
        """A run goes on that had ended after so many steps. Return False when it is to wait, as what it left is being
        saved."""
        if self._comes and self.place.ended:
            return False
        self.begin(run, steps)
        return True

    def step(self) -> None:
        """A step is complete."""
        self.place = replace(self.place, steps=self.place.steps + 1)

    def end(self, *, pauses: bool = False) -> None:
        """The run has ended, or pauses."""
        self.place = replace(self.place, ended=True, pauses=pauses)
        if self._final is None and not pauses:
            self._final = self.place

    def must_hold(self) -> bool:
        """Return whether the main thread is to wait: asked at the end of a step, before a run, and between runs."""
        if self.place.ended:
            return self._comes
        return self._is_at_limit()

    def _is_at_limit(self) -> bool:
        return self._limit is not None and self.place.run == self._limit[0] and self.place.steps >= self._limit[1]

    # ---- the keeper

    def ask(self, request: Request) -> Place:
        """A request begins: return where the main thread is. It holds at the end of its next step, or of the one that
        is asked for."""
        self._told, self._final, self._comes, self._arrived = self.place, None, False, None
        self._is_aimed = bool(request.step)
        if request.step:
            self._limit = (request.run, request.step) if self.place.steps <= request.step else None
        else:
            is_over = self.place.ended and not self.place.pauses
            self._limit = None if is_over else (self.place.run, self.place.steps + 1)
        return self.place

    def aim(self, targets: Mapping[int, int]) -> None:
        """The target of each run is known."""
        self._is_aimed = True
        if self._limit is not None:
            self._limit = self._limit[0], targets[self._limit[0]]

    def arrival(self, paused_s: float = 0.0) -> Place | None:
        """Return where the main thread is for this request; None while it is on its way.

        Args:
            paused_s: for how long its run has paused.
        """
        self._arrived = self._place_of_arrival(paused_s)
        return self._arrived

    def _place_of_arrival(self, paused_s: float) -> Place | None:
        if self._told.ended and not self._told.pauses:
            return self._told
        if self.place.pauses:
            return self.place if paused_s > PAUSE_S or (self._is_aimed and self._is_at_limit()) else None
        if self._final is not None:
            return self._final
        if self._limit is None:  # it is beyond the step that was asked for
            return self.place
        return self.place if self._is_aimed and self.must_hold() and self.holding else None

    def come(self) -> bool:
        """All have arrived: hold, also if the main thread executes nothing. Return False when it has begun another run
        since it arrived, or made more steps of that run."""
        self._comes, place, arrived = True, self.place, self._arrived or self.place
        if (place.pauses or place.run == arrived.run) and (place.run, place.steps) != (arrived.run, arrived.steps):
            return False
        return place.ended or self.must_hold()

    def leave_out(self) -> None:
        """The others have held for this rank in vain: they do not again until it steps, or runs something else."""
        self._left_out = self._told

    @property
    def is_left_out(self) -> bool:
        """Whether it has made no step since."""
        return self.place == self._left_out

    def settle(self) -> None:
        """The request is over: the main thread is free."""
        self._limit, self._comes, self._final = None, False, None


def targets(told: Iterable[Place]) -> dict[int, int]:
    """Return the step at whose end the ranks of each run hold. Where a rank has ended the run, no step is left for the
    others to hold at: they end it too."""
    found: dict[int, int] = {}
    for place in told:
        found[place.run] = max(found.get(place.run, 0), place.steps + 1)
    return found


def objection(arrived: Sequence[Place]) -> str:
    """Return why what the ranks hold does not belong together; empty when it does. A rank that made no step of a run,
    or made steps of others only, agrees with all."""
    for run in {place.run for place in arrived if place.pauses or not place.ended}:
        there = {rank: place for rank, place in enumerate(arrived) if place.run == run and place.steps}
        counts = {place.steps for place in there.values()}
        if len(counts) > 1:
            said = []
            for count in sorted(counts):
                ranks = [rank for rank, place in there.items() if place.steps == count]
                ended = all(there[rank].ended for rank in ranks)
                how = f"ended after step {count}" if ended else f"at step {count}"
                said.append(f"{name_ranks(ranks)} {how}")
            return f"{DIFFERENT_STEPS}: {', '.join(said)}"
    return ""


class _Phase(Enum):
    TELL = auto()
    AIM = auto()
    ARRIVE = auto()
    COME = auto()
    HERE = auto()
    VERDICT = auto()


class Round:
    """One request, as one rank's keeper carries it. `advance` is called again and again, under the lock of the part.

    Args:
        store: of all ranks; its keys are this request's alone.
        request: the same on all ranks.
        rank, size: who this is, and of how many.
        part: this rank's.
        now_s: the time.
    """

    def __init__(self, store: Store, request: Request, rank: int, size: int, part: Part, now_s: float) -> None:
        self._store, self._rank, self._size, self._part = store, rank, size, part
        self._request = request
        self._life = uuid.uuid4().hex[:8]
        self._phase = _Phase.TELL
        self._since_s = self._there_since_s = now_s
        self._place_before = part.place
        self._held_since_s: float | None = None

    def advance(self, now_s: float) -> str:
        """Do what can be done now; return the verdict once there is one, and "" before."""
        if self._store.check(["verdict"]):
            verdict = _text(self._store.get("verdict"))
            if NO_STEP in verdict and self._phase == _Phase.ARRIVE:
                self._part.leave_out()
            return verdict
        if self._part.place != self._place_before:
            self._place_before, self._there_since_s = self._part.place, now_s
        before = None
        while before != self._phase:
            before = self._phase
            self._step(now_s - self._there_since_s)
            if self._phase != before:
                self._since_s = now_s
        self._look_at_clock(now_s)
        return ""

    def give_up(self, why: str) -> None:
        """Give the verdict that nothing is saved, unless there is one."""
        self._decide(why)

    def is_first(self) -> bool:
        """Return whether this rank is the first of those that execute a run."""
        if self._part.place.ended:
            return False
        before = (f"arrived/{rank}" for rank in range(self._rank))
        return all(not self._store.check([key]) or self._place(key).ended for key in before)

    def _step(self, paused_s: float) -> None:
        part = self._part
        match self._phase:
            case _Phase.TELL if part.is_left_out and not self._request.is_last:
                self._decide(f"rank {self._rank} {STILL_NO_STEP}")
                self._phase = _Phase.VERDICT
            case _Phase.TELL:
                place = part.ask(self._request)
                if self._request.step:
                    self._phase = _Phase.ARRIVE
                elif self._say("told", place.encode()):
                    self._store.set("targets", json.dumps(list(targets(self._all("told")).items())))
                    self._phase = _Phase.AIM
                else:
                    self._phase = _Phase.AIM
            case _Phase.AIM if self._store.check(["targets"]):
                part.aim(dict(json.loads(_text(self._store.get("targets")))))
                self._phase = _Phase.ARRIVE
            case _Phase.ARRIVE if (arrival := part.arrival(paused_s)) is not None:
                if self._say("arrived", arrival.encode()):
                    if why := objection(self._all("arrived")):
                        self._decide(why)
                    else:
                        self._store.set("come", "1")
                self._phase = _Phase.COME
            case _Phase.COME if self._store.check(["come"]):
                if not part.come():
                    self._decide(f"rank {self._rank} has begun another run meanwhile")
                self._phase = _Phase.HERE
            case _Phase.HERE if part.holding and part.must_hold():
                if self._say("here", "1"):
                    self._decide(SAVE)
                self._phase = _Phase.VERDICT

    def _look_at_clock(self, now_s: float) -> None:
        """Whoever waits too long ends it for all."""
        if self._phase in (_Phase.AIM, _Phase.HERE, _Phase.VERDICT) and now_s - self._since_s > ANSWER_S:
            self._decide(f"{self._missing('told' if self._phase == _Phase.AIM else 'here')} did not answer")
        if not (self._part.holding and self._part.must_hold()):
            self._held_since_s = None
        elif self._held_since_s is None:
            self._held_since_s = now_s
        elif now_s - self._held_since_s > HOLD_S:
            self._decide(f"{self._missing('arrived')} {NO_STEP} {HOLD_S:g} s")

    def _say(self, what: str, value: str) -> bool:
        """Tell the others something; return whether all have told it now."""
        told = f"{self._life} {value}"
        if _text(self._store.compare_set(f"{what}/{self._rank}", "", told)) != told:
            self._decide(f"rank {self._rank} was started again meanwhile")
            return False
        return self._store.add(f"{what}/count", 1) == self._size

    def _all(self, what: str) -> list[Place]:
        return [self._place(f"{what}/{rank}") for rank in range(self._size)]

    def _place(self, key: str) -> Place:
        return Place.decode(_text(self._store.get(key)).partition(" ")[2])

    def _missing(self, what: str) -> str:
        missing = [rank for rank in range(self._size) if not self._store.check([f"{what}/{rank}"])]
        return name_ranks(missing) if missing else "a rank"

    def _decide(self, verdict: str) -> None:
        self._store.compare_set("verdict", "", verdict)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()

"""How all ranks of a mesh save at the end of the same step, while their training's own groups are left alone.

A step ends where the next one begins: ranks hold there (see steps). Each rank has threads that train, and a keeper, a
thread that talks to the other ranks' keepers through the mesh's store. A request goes:

1. Who wants a save announces a step ahead: it will have completed it in about a second. For a run that it does not
   execute, the first rank that hears of the request announces one.
2. Each rank goes on until it has completed that step, and holds. One that is beyond it when it hears of it says so: all
   go on, and the next request looks twice as far ahead.
3. A rank that executes nothing has arrived, and does not hold. If it begins something before all have arrived, it says
   so, and all go on.
4. When all have arrived, the verdict is to save. Every other verdict names a reason, and all go on.

Nobody waits below the step: a rank that holds has done all that the others need to come there. Every wait ends: whoever
waits too long gives the verdict that nothing is saved. The first verdict counts. A rank for which the others have held
in vain says so in the next request, and nobody holds for it again until it steps, unless the request is the last one.

`Part` and `Round` do no waiting: whoever calls them does, and brings the time.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from monarch_nb.config import cadence, patience
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.groups.rendezvous import Store, text_of
from monarch_nb.worker.steps import StepCounter

SAVE = "save"
"""The verdict; others say why nothing is saved."""
BEYOND = "came beyond step"
"""In a verdict: the next request looks further ahead."""
NO_STEP = "made no step for"
"""In a verdict: the others have held for a rank in vain."""
STILL_NO_STEP = "has made no step since the others waited for it"
"""How a verdict ends when nobody holds for such a rank again."""
ACTORS_COMPUTE = "actors compute"
"""How a verdict begins when what actors hold changes just now."""
DIFFERENT_STEPS = "ranks have made different numbers of steps"
"""How a verdict begins when what they hold does not belong together."""
AHEAD_S = cadence(1.0)
"""So far ahead is the step that is announced: all keepers look at the store twice meanwhile."""
ANSWER_S = patience(30.0)
"""So long a keeper waits for what needs no step: a rank whose C code holds the GIL may be slow."""
_QUICKEST_S = 0.001
STEPS_ON_AVERAGE = 10
"""About so many steps count for how long the next ones take: one alone may be a hundred times quicker than those before
it on a busy machine, and a step that is announced too far ahead holds the save up."""
PAUSE_S = cadence(1.0)
"""So long an actor may do nothing and still come to its next step."""
HOLD_S = patience(60.0)
"""So long a rank holds for others that have not come to the step."""


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Attributes:
        run: the number of the run that it executes, or executed last; 0: none yet.
        steps: how many steps of it are complete.
        ended: it makes no more.
        actor: the uid of the actor that trains, in one endpoint after the other: its steps are counted from its first
            one on.
    """

    run: int = 0
    steps: int = 0
    ended: bool = True
    actor: str = ""

    @property
    def training(self) -> str:
        """What is the same on all ranks that are to make the same steps."""
        return self.actor or str(self.run)

    def encode(self) -> str:
        return json.dumps([self.run, self.steps, self.ended, self.actor])

    @classmethod
    def decode(cls, text: str) -> Place:
        return cls(*json.loads(text))


@dataclass(frozen=True)
class Request:
    """A save that somebody wants.

    Attributes:
        why: for people, as in "every 10 min".
        training, step: at the end of which step of what; empty: who wants it does not train.
        is_last: the ranks may be ended as soon as it is done: nothing is left to be written behind.
    """

    why: str
    training: str = ""
    step: int = 0
    is_last: bool = False

    def encode(self) -> str:
        return json.dumps([self.why, self.training, self.step, self.is_last])

    @classmethod
    def decode(cls, text: str) -> Request:
        return cls(*json.loads(text))


@dataclass(eq=False)
class Training:
    """What makes steps: a run, or an actor, whose endpoints may make one each.

    Attributes:
        run: its number; of an actor the one in whose name it was called last.
        actor, name: the uid and the name of an actor.
        steps: how many are complete, as `counter` counts them.
        stepped_s, step_s: when the last one was complete, and how long it took. average_s: how long the last ones took.
        executed: how often it is executed now.
        optimizers: those that have stepped since it was entered, by their numbers.
    """

    run: int = 0
    actor: str = ""
    name: str = ""
    steps: int = 0
    stepped_s: float = 0.0
    step_s: float = math.inf
    average_s: float = 0.0
    executed: int = 0
    counter: StepCounter = field(default_factory=StepCounter)
    optimizers: dict[int, Any] = field(default_factory=dict)


class Part:
    """One rank's part. The threads that train tell what they do, the keeper what is wanted.

    Args:
        lock: held while anything changes.

    Attributes:
        training: saves wait for its steps: what trains, or has trained last.
        steps_since: how many steps have been made since the last save.
        holding: a thread waits, or is about to.
        arrived: this rank stays where it is until the verdict.
        leaves: why it can not stay there; empty if it can.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self.training = Training()
        self.steps_since = 0
        self.holding = self.arrived = False
        self.leaves = ""
        self._executed = 0
        self._idle_since_s = 0.0
        self._limit: tuple[str, int] | None = None
        self._left_out: Place | None = None

    @property
    def place(self) -> Place:
        """Where this rank is."""
        training = self.training
        ended = not (training.executed or training.actor)
        return Place(training.run, training.steps, ended, training.actor)

    @property
    def is_idle(self) -> bool:
        """Whether this rank executes nothing."""
        return not self._executed

    @property
    def computes_besides(self) -> bool:
        """Whether what it executes does not train, as far as is known."""
        return bool(self._executed) and not self.training.executed

    # ---- who executes user code

    def enter(self, training: Training) -> bool:
        """Something begins that may train. Return False when it is to wait and enter again: what this rank holds may
        be saved just now."""
        with self._lock:
            if self.arrived and not self._executed:
                self.leaves = "has begun another run meanwhile"
                return False
            if not self.training.executed and (training.steps or not training.actor):
                self.training = training
            self._executed += 1
            training.executed += 1
            return True

    def step(self, training: Training, now_s: float) -> bool:
        """A step is complete; return whether saves wait for those of this training."""
        with self._lock:
            if training.steps:
                training.step_s = now_s - training.stepped_s
                known_s = training.average_s or training.step_s
                training.average_s = known_s + (training.step_s - known_s) / STEPS_ON_AVERAGE
            training.stepped_s = now_s
            training.steps += 1
            if not self.training.executed:
                self.training = training
            if training is not self.training:
                return False
            self.steps_since += 1
            return True

    def exit(self, training: Training, now_s: float) -> None:
        """What has entered ends."""
        with self._lock:
            self._executed -= 1
            training.executed -= 1
            self._idle_since_s = now_s

    def hold_here(self) -> bool:
        """A save is wanted at the end of this step; return False when one is under way."""
        with self._lock:
            is_first = self._limit is None
            if is_first:
                self._limit = self.place.training, self.training.steps
            return is_first

    def must_hold(self) -> bool:
        """Return whether to wait: who trains, at the end of a step; where nothing is executed, who begins something."""
        with self._lock:
            return self._is_at_limit() if self._executed else self.arrived

    def be_interrupted(self) -> None:
        """Who waits is interrupted: all are to go on."""
        with self._lock:
            if self.must_hold():
                self.leaves = "was interrupted"

    def _is_at_limit(self) -> bool:
        if self._limit is None:
            return False
        training, step = self._limit
        return self.place.training == training and self.training.steps >= step

    # ---- the keeper

    def ahead(self, times: int, now_s: float) -> tuple[str, int]:
        """Return what trains and the step to announce; nothing where nothing trains.

        Args:
            times: how many times AHEAD_S to look ahead, if steps take as long as the last ones.
        """
        with self._lock:
            if self._limit is not None and self._is_at_limit():
                return self._limit
            if self.place.ended:
                return "", 0
            gone_s = max(now_s - self.training.stepped_s, 0.0)
            step_s = max(self.training.step_s, self.training.average_s, gone_s, _QUICKEST_S)
            return self.place.training, self.training.steps + 1 + int((gone_s + times * AHEAD_S) / step_s)

    def aim(self, training: str, step: int) -> bool:
        """A step is announced. Return False when this rank is beyond it, or may be in a moment."""
        with self._lock:
            if self.place.training != training:  # it has just begun something else
                return True
            at = self.training.steps
            if at > step or (at == step and self.training.executed and not self._is_at_limit()):
                return False
            self._limit = training, step
            return True

    def arrive(self, now_s: float) -> Place | None:
        """Return where this rank stays until the verdict; None while it is on its way."""
        with self._lock:
            if self._executed:
                self.arrived = self.holding and self._is_at_limit()
            else:
                self.arrived = self.place.ended or now_s - self._idle_since_s > PAUSE_S
            return self.place if self.arrived else None

    def settle(self) -> None:
        """The request is over: this rank goes on."""
        with self._lock:
            self._limit, self.arrived, self.leaves = None, False, ""

    def leave_out(self) -> None:
        """The others have held for this rank in vain: they do not again until it steps, or runs something else."""
        self._left_out = self.place

    @property
    def is_left_out(self) -> bool:
        """Whether it has made no step since."""
        return self.place == self._left_out


def objection(arrived: Sequence[Place]) -> str:
    """Return why what the ranks hold does not belong together; empty when it does. A rank that made no step of a
    training, or made steps of others only, agrees with all."""
    for training in {place.training for place in arrived if not place.ended}:
        there = {rank: place for rank, place in enumerate(arrived) if place.training == training and place.steps}
        counts = {place.steps for place in there.values()}
        if len(counts) > 1:
            first = [rank for rank, place in there.items() if place.steps == max(counts)]
            if all(there[rank].ended for rank in first):
                return f"{name_ranks(first)} {BEYOND} {min(counts)}"
            said = []
            for count in sorted(counts):
                ranks = [rank for rank, place in there.items() if place.steps == count]
                ended = all(there[rank].ended for rank in ranks)
                how = f"ended after step {count}" if ended else f"at step {count}"
                said.append(f"{name_ranks(ranks)} {how}")
            return f"{DIFFERENT_STEPS}: {', '.join(said)}"
    return ""


class Round:
    """One request, as one rank's keeper carries it. `advance` is called again and again.

    Args:
        store: of all ranks; its keys are this request's alone.
        request: the same on all ranks.
        rank, size: who this is, and of how many.
        part: this rank's.
        times: how many times AHEAD_S this rank looks ahead, where it announces a step.
    """

    def __init__(self, store: Store, request: Request, rank: int, size: int, part: Part, times: int = 1) -> None:
        self._store, self._request, self._rank, self._size, self._part = store, request, rank, size, part
        self._times = times
        self._life = uuid.uuid4().hex[:8]
        self._has_heard = False
        self._aims_in = ""
        self._arrived_s: float | None = None

    def advance(self, now_s: float) -> str:
        """Do what can be done now; return the verdict once there is one, and "" before."""
        if self._store.check(["verdict"]):
            return self._end(text_of(self._store.get("verdict")))
        if not self._has_heard and not self._hear():
            return ""
        if self._part.leaves:
            self.decide(f"rank {self._rank} {self._part.leaves}")
        elif self._arrived_s is None:
            self._come(now_s)
        else:
            self._look_at_clock(now_s - self._arrived_s)
        return ""

    def decide(self, verdict: str) -> None:
        """Give the verdict, unless there is one."""
        self._store.compare_set("verdict", "", verdict)

    def is_first(self) -> bool:
        """Return whether this rank is the first of those that train."""
        before = (f"arrived/{rank}" for rank in range(self._rank))
        return not self._part.place.ended and all(not self._store.check([key]) or self._at(key).ended for key in before)

    def _hear(self) -> bool:
        """Tell the others that this rank has heard of the request; return whether it takes part."""
        self._has_heard = True
        if text_of(self._store.compare_set(f"heard/{self._rank}", "", self._life)) != self._life:
            self.decide(f"rank {self._rank} was started again meanwhile")
            return False
        if self._part.is_left_out and not self._request.is_last:
            self.decide(f"rank {self._rank} {STILL_NO_STEP}")
            return False
        return True

    def _come(self, now_s: float) -> None:
        part, place = self._part, self._part.place
        if part.computes_besides:
            self.decide(f"{ACTORS_COMPUTE} on rank {self._rank}")
            return
        if not place.ended and place.training != self._aims_in:
            self._aims_in, step = place.training, self._announced(place.training, now_s)
            if not part.aim(place.training, step):
                self.decide(f"rank {self._rank} {BEYOND} {step}")
                return
        if (arrived := part.arrive(now_s)) is not None:
            self._arrived_s = now_s
            self._store.set(f"arrived/{self._rank}", arrived.encode())
            if self._store.add("arrived", 1) == self._size:
                self.decide(objection([self._at(f"arrived/{rank}") for rank in range(self._size)]) or SAVE)

    def _announced(self, training: str, now_s: float) -> int:
        """Return the step of what this rank trains; announce it where nobody has."""
        if training == self._request.training:
            return self._request.step
        _, step = self._part.ahead(self._times, now_s)
        return int(text_of(self._store.compare_set(f"step/{training}", "", str(step))))

    def _look_at_clock(self, waited_s: float) -> None:
        """Who waits too long ends it for all."""
        if waited_s > ANSWER_S and (silent := self._missing("heard")):
            self.decide(f"{silent} did not answer")
        elif waited_s > HOLD_S and not self._part.is_idle:
            self.decide(f"{self._missing('arrived')} {NO_STEP} {HOLD_S:g} s")

    def _end(self, verdict: str) -> str:
        if NO_STEP in verdict and self._arrived_s is None:
            self._part.leave_out()
        if verdict == SAVE and self._arrived_s is None:  # it was another process that has
            return f"rank {self._rank} was started again meanwhile"
        return verdict

    def _at(self, key: str) -> Place:
        return Place.decode(text_of(self._store.get(key)))

    def _missing(self, what: str) -> str:
        missing = [rank for rank in range(self._size) if not self._store.check([f"{what}/{rank}"])]
        return name_ranks(missing) if missing else ""

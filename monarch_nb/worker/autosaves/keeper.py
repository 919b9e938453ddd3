"""What saves a rank by itself: every so often, or because the end is near. See agreement for how ranks find the step.

The thread that trains tells the keeper what it does, and holds when it is to: the main thread, or that of an actor's
endpoint. The keeper's own thread talks to the other ranks' keepers over the mesh's store. It looks at the store now and
then: a wait there holds the connection, in C++ code, where nothing that happens on this rank could wake it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError, SaveError
from monarch_nb.proto.run_pb2 import ArmSaves, SaveNow, SavesStatus
from monarch_nb.times import duration
from monarch_nb.worker.autosaves.agreement import (
    ACTORS_COMPUTE,
    BEYOND,
    DIFFERENT_STEPS,
    SAVE,
    STILL_NO_STEP,
    Part,
    Place,
    Request,
    Round,
    Training,
)
from monarch_nb.worker.groups.rendezvous import Store, text_of
from monarch_nb.worker.saving.asked import near
from monarch_nb.worker.steps import OptimizerNames, Watch

if TYPE_CHECKING:
    from monarch_nb.worker.autosaves.armed import Saved

LOOK_EVERY_S = cadence(0.5)
"""How often the store is looked at while nothing goes on."""
TALK_EVERY_S = cadence(0.02)
_HOLD_LOOK_S = cadence(1.0)
AGAIN_S = cadence(1.0)
"""A request of somebody who has little time is made again so soon, when ranks could not agree."""
CONNECT_TIMEOUT = timedelta(seconds=20)
_ROOT = "monarch_nb/saves-by-themselves"


@dataclass(frozen=True)
class Wanted:
    """A save that all ranks have agreed on.

    Attributes:
        armed: how it is to be made. request: why, and for whom.
        number: the same on all ranks, and new.
        place: where this rank is.
        optimizers: those that have stepped in the run that this rank executes.
        speaks: this rank says in its cell what came of it: the first of those that execute one.
        actors: the names of those that have trained in their endpoints.
        for_others: other ranks were asked for it because their node's end is near, and this one was not, yet.
    """

    armed: ArmSaves
    request: Request
    number: int
    place: Place
    optimizers: tuple[Any, ...]
    speaks: bool
    actors: tuple[str, ...] = ()
    for_others: bool = False


class Keeper:
    """The saves that this rank makes by itself. Nothing but a count of steps is kept while none is armed.

    Attributes:
        steps_taken: of all trainings of this rank so far.

    Args:
        rank, size: who this is, and of how many.
        connect: makes a connection to the store that all ranks have.
        prepare: does what takes long, once, before ranks hold for a save.
        prefix: returns what keeps keys apart from those of others, made from a store.
        save: saves, with all other ranks, which do the same; on the thread that trains, or else on the main thread.
        when_idle: has the main thread call something when it executes nothing, and soon.
        between_runs: calls something on the main thread while no run executes there, until somebody interrupts it.
        for_script: a script meets signals as it would without us.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        connect: Callable[[timedelta], Any],
        prepare: Callable[[], object],
        prefix: Callable[[str, Any], Store],
        save: Callable[[Wanted], Saved],
        when_idle: Callable[[Callable[[], None]], object],
        between_runs: Callable[[Callable[[], None]], None],
        for_script: bool = False,
    ) -> None:
        self._for_script = for_script
        self._rank, self._size = rank, size
        self._connect, self._prepare, self._prefix, self._save = connect, prepare, prefix, save
        self._is_prepared = False
        self._when_idle, self._between_runs = when_idle, between_runs
        self._part = Part(threading.RLock())
        self._run = Training()
        self._actors: dict[str, Training] = {}
        self._of_threads: dict[int, Training] = {}
        self._names = OptimizerNames()
        self.watch = Watch(self.stepped)
        self._armed: ArmSaves | None = None
        self._thread: threading.Thread | None = None
        self._status = SavesStatus()
        self._wake = threading.Event()
        self.steps_taken = 0
        self._changed = self._is_for_others = False
        self._times = 1
        self._wish = ""
        self._due_s = 0.0
        self._urgent: list[_Urgent] = []
        self._waiter: Any = None
        self._decision: Wanted | None = None
        self._saved = threading.Event()
        self._lines: list[str] = []
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._forget)

    # ---- what the control thread asks for

    def arm(self, wanted: ArmSaves, done: Callable[[SavesStatus], None]) -> None:
        """Save by itself from now on, as is said; or no more, when it has no secret. Call `done` when it was looked
        whether that is possible: storage may take its time."""
        if self._armed is not None and self._armed.secret == wanted.secret:
            done(self.status())
            return
        self._armed = wanted if wanted.secret else None
        self._status = SavesStatus(armed=self._armed)
        self._is_for_others = False
        self._lines = []
        self._changed, self._wish = True, ""
        training = self._part.training
        self._part.steps_since = training.steps if training.executed else 0
        self._due_s = time.monotonic() + wanted.every_s
        self._wake.set()
        if self._armed is None:
            done(self.status())
            return
        self._when_idle(self._mind_signals)
        arguments = (self._armed, self._thread, done)
        self._thread = threading.Thread(target=self._keep, args=arguments, name="monarch_nb-saves", daemon=True)
        self._thread.start()

    def save_now(self, wanted: SaveNow, done: Callable[[SavesStatus], None]) -> None:
        """Save as soon as all ranks can; call `done` when it is done, or there is no more time for it."""
        if self._armed is None or self._will_do(self._armed, wanted.fresh_s):
            self._is_for_others = False  # it has had that save: what it asks for next is another one
            done(self.status())
            return
        self._urgent.append(_Urgent(wanted, time.monotonic() + wanted.within_s, done))
        self._wake.set()

    def _will_do(self, armed: ArmSaves, fresh_s: float) -> bool:
        """Return whether the last save is what is asked for: another node has just asked for it because of the same
        end, or nothing was executed since, and it is surely on disk."""
        if not self._status.path or time.time() - self._status.saved_at > fresh_s:
            return False
        return self._is_for_others or not (self._changed or armed.background)

    def status(self) -> SavesStatus:
        """Return what is armed, and what was saved last."""
        told = SavesStatus()
        told.CopyFrom(self._status)
        return told

    def _forget(self) -> None:
        """In a child that the user forks: it is no rank."""
        self._armed = None

    # ---- what threads tell that execute user code

    def begin_run(self, number: int) -> None:
        """A run is about to begin. It waits for what is being saved."""
        self._mind_signals()
        self._run = Training(number)
        while not self._part.enter(self._run):
            self._between_runs(self._hold)
        self._changed = True
        self._of_threads[threading.get_ident()] = self._run

    def end_run(self) -> None:
        """The run has ended."""
        self._end(self._run)

    def begin_endpoint(
        self, number: int, uid: str, name: str, is_interrupted: Callable[[], bool]
    ) -> Callable[[], None]:
        """An endpoint of an actor is about to begin, on this thread, in the name of a run. It waits for what is being
        saved, unless it is interrupted. Return what to call at its end."""
        training = self._actors.setdefault(uid, Training(actor=uid, name=name))
        while not self._part.enter(training):
            if is_interrupted():
                return lambda: None
            self._wake.set()
            time.sleep(TALK_EVERY_S)  # an interrupt could spoil the books of a condition
        training.run = number or training.run
        self._of_threads[threading.get_ident()] = training
        if training is self._part.training and self._part.must_hold():
            self.watch.call_between(self._hold)
        return functools.partial(self._end, training)

    def _end(self, training: Training) -> None:
        if training is self._part.training:
            self.watch.call_off()
            self._say()
        training.optimizers.clear()
        self._part.exit(training, time.monotonic())
        self._wake.set()

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped; on whichever thread."""
        training = self._of_threads.get(threading.get_ident())
        if training is None or not training.executed:
            return
        name = self._names.of(optimizer)
        if self._armed is not None:
            training.optimizers[name] = optimizer
        if training.counter.completes(name) and self._part.step(training, time.monotonic()):
            self._changed = True
            self.steps_taken += 1
            if self._armed is not None:
                self._after_step(self._armed)

    def _after_step(self, armed: ArmSaves) -> None:
        if armed.every_steps and self._part.steps_since % armed.every_steps == 0 and self._part.hold_here():
            self._wish, self._due_s = f"every {armed.every_steps:,} steps", 0.0
            self._wake.set()
        self._say()
        if self._part.must_hold():
            self.watch.call_between(self._hold)

    def _mind_signals(self) -> None:
        """On the main thread: the engine may tell every process of a job that it ends, and ranks are to save first.
        The allocator hears it too, and ends them."""
        if self._armed is None or not self._armed.at_end or self._for_script:
            return
        for number in (signal.SIGTERM, signal.SIGUSR1):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if os.getpid() != self._pid or self._armed is None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _hold(self) -> None:
        """Wait for the verdict, and save when that is what it is."""
        raised: BaseException | None = None
        while True:
            try:
                while self._decision is None and self._part.must_hold():
                    waiter = allocate_lock()  # of no condition, whose books an interrupt could spoil
                    waiter.acquire()
                    self._waiter, self._part.holding = waiter, True
                    self._wake.set()
                    if self._part.must_hold():
                        waiter.acquire(timeout=_HOLD_LOOK_S)
                break
            except BaseException as error:  # noqa: BLE001 -- an interrupt: raised when all ranks know of it
                raised = error
                self._part.be_interrupted()
        self._part.holding = False
        self._carry_out()
        if raised is not None:
            raise raised

    def _idle(self) -> None:
        """Called when the main thread executes nothing, or later."""
        if self._decision is not None:
            self._between_runs(self._carry_out)

    def _carry_out(self) -> None:
        """Save, where that was agreed on."""
        wanted, self._decision = self._decision, None
        if wanted is None:
            return
        try:
            if self._part.place != wanted.place:
                raise SaveError("an interrupt came between")
            saved = self._save(wanted)
        except BaseException as error:
            name = "" if isinstance(error, MonarchNbError) else f"{type(error).__name__}: "
            is_interrupt = isinstance(error, KeyboardInterrupt)
            self._status.problem = "interrupted" if is_interrupt else f"{name}{error}"
            if wanted.speaks:
                self._lines.append(f"not saved ({wanted.request.why}): {'interrupted' if is_interrupt else error}")
            if not isinstance(error, Exception):  # whatever else it is, the training goes on
                raise
        else:
            place = wanted.place
            self._status.path, self._status.saved_at, self._status.why = saved.path, time.time(), wanted.request.why
            self._status.run, self._status.step = place.run, 0 if place.ended else place.steps
            self._status.problem = ""
            self._is_for_others = wanted.for_others
            if wanted.speaks:
                verb = "saving in" if wanted.armed.background else "saved"
                at = f"at step {place.steps:,} ({wanted.request.why})"
                self._lines.append(f"{verb} {near(saved.path)} {at}: {saved.describe()}")
            self._changed = not self._part.is_idle
        finally:
            self._part.steps_since = 0
            self._part.settle()  # at once: the next step may be one to save after
            self._saved.set()
        if not self._part.is_idle:
            self._say()

    def _say(self) -> None:
        """Write what there is to say into the output of the cell."""
        while self._lines:
            sys.stderr.write(f"{self._lines.pop(0)}\n")

    # ---- the keeper's thread

    def _keep(self, armed: ArmSaves, before: threading.Thread | None, done: Callable[[SavesStatus], None]) -> None:
        """Talk to the other ranks as long as this is what is armed."""
        self._status.problem = _why_not_there(armed.directory)
        done(self.status())
        if before is not None:
            before.join()
        is_lost = False
        while self._armed is armed:
            try:
                store = self._connect(CONNECT_TIMEOUT)
                if is_lost:  # for a moment: an interrupt breaks this connection with those of groups
                    self._status.problem, is_lost = "", False
                self._talk(armed, self._prefix(f"{_ROOT}/{_public(armed.secret)}", store))
            except Exception as error:  # noqa: BLE001 -- mostly the store is gone; this must be there for the next save
                said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                self._status.problem, is_lost = f"ranks can not agree on a save: {said}", True
                self._free()
                time.sleep(AGAIN_S)
        self._free()

    def _talk(self, armed: ArmSaves, store: Store) -> None:
        number = int(store.add("current", 0))
        while self._armed is armed:
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()
            if self._part.place != Place() and not self._is_prepared:
                self._is_prepared = True
                self._prepare()
            keys = self._prefix(str(number), store)
            if (wanted := self._wanted(armed)) is not None:
                keys.compare_set("request", "", wanted.encode())
            elif not keys.check(["request"]):
                continue
            request = Request.decode(text_of(keys.get("request")))
            verdict = self._carry(armed, keys, request, number)
            store.compare_set("current", str(number), str(number + 1))
            number += 1
            self._settle(armed, request, verdict)

    def _wanted(self, armed: ArmSaves) -> Request | None:
        if self._part.place == Place():  # nothing was ever run here: there is nothing to lose
            self._answer(list(self._urgent))
            return None
        now_s = time.monotonic()
        ahead = self._part.ahead(self._times, now_s)
        for urgent in self._urgent:
            if now_s >= urgent.again_s:
                return Request(urgent.wanted.why, *ahead, urgent.wanted.is_last)
        if now_s >= self._due_s and (self._wish or (armed.every_s and self._changed)):
            return Request(self._wish or f"every {duration(armed.every_s)}", *ahead)
        return None

    def _carry(self, armed: ArmSaves, keys: Store, request: Request, number: int) -> str:
        """Carry a request to its end; return the verdict."""
        round_ = Round(keys, request, self._rank, self._size, self._part, self._times)
        while not (verdict := round_.advance(time.monotonic())):
            if self._armed is not armed:  # others may have left it, too
                round_.decide(f"rank {self._rank} is to save in this way no more")
            if self._urgent and all(time.monotonic() > urgent.until_s for urgent in self._urgent):
                round_.decide("there was no more time")
            self._wake.wait(TALK_EVERY_S)
            self._wake.clear()
        if verdict != SAVE:
            self._free()
            if round_.is_first() and self._armed is armed and not self._is_no_news(verdict):
                self._lines.append(f"not saved ({request.why}): {verdict}")
            return verdict
        is_written = request.is_last or not armed.background
        asked = list(self._urgent) if is_written else []  # who asks from now on wants a later save
        self._wish = ""
        self._saved.clear()
        place, speaks = self._part.place, round_.is_first()
        optimizers = tuple(self._part.training.optimizers.values())
        actors = tuple(sorted(each.name for each in list(self._actors.values()) if each.steps))
        for_others = request.is_last and not asked
        self._decision = Wanted(armed, request, number, place, optimizers, speaks, actors, for_others)
        if self._part.is_idle:
            self._when_idle(self._idle)
        self._wake_waiter()
        self._saved.wait()
        self._answer(asked)
        return verdict

    def _is_no_news(self, verdict: str) -> bool:
        return verdict.endswith(STILL_NO_STEP) or BEYOND in verdict or self._is_passing(verdict)

    def _is_passing(self, verdict: str) -> bool:
        """Return whether it may be otherwise in a moment: some ranks were between two calls, and others were not."""
        of_endpoints = verdict.startswith((DIFFERENT_STEPS, ACTORS_COMPUTE))
        return "meanwhile" in verdict or (of_endpoints and bool(self._part.training.actor))

    def _settle(self, armed: ArmSaves, request: Request, verdict: str) -> None:
        """A request is over."""
        now_s = time.monotonic()
        again_s = now_s + AGAIN_S
        if verdict == SAVE:
            self._times = 1
            if not self._wish:
                self._due_s = now_s + armed.every_s
            return
        self._status.problem, self._status.why = verdict, request.why
        if BEYOND in verdict:
            self._times *= 2
            again_s = now_s
            self._wake.set()
        if BEYOND in verdict or self._is_passing(verdict):
            self._due_s = again_s
        else:
            self._wish, self._due_s = "", now_s + armed.every_s
        self._answer([urgent for urgent in self._urgent if again_s > urgent.until_s])
        for urgent in self._urgent:
            urgent.again_s = again_s

    def _answer(self, asked: list[_Urgent]) -> None:
        for urgent in asked:
            self._urgent.remove(urgent)
            urgent.done(self.status())

    def _free(self) -> None:
        """Have this rank go on."""
        self._part.settle()
        self._wake_waiter()

    def _wake_waiter(self) -> None:
        if self._waiter is not None:
            with suppress(RuntimeError):  # it goes on already
                self._waiter.release()


@dataclass
class _Urgent:
    wanted: SaveNow
    until_s: float
    done: Callable[[SavesStatus], None]
    again_s: float = 0.0


def _public(secret: str) -> str:
    """Return what is equal where a secret is: the store tells its keys to anybody who reaches its port."""
    return hashlib.blake2b(secret.encode(), digest_size=12).hexdigest()


def _why_not_there(directory: str) -> str:
    """Return why saves can not lie in a directory, which is made where it is not there; empty when they can."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        return f"can not save in {directory}: {error.strerror}"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"can not save in {directory}: no permission to write there"
    return ""

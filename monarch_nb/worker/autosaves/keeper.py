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
from typing import Any, Protocol

from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto.run_pb2 import ArmSaves, SaveNow, SavesStatus
from monarch_nb.times import duration
from monarch_nb.worker.autosaves.agreement import DIFFERENT_STEPS, SAVE, STILL_NO_STEP, Part, Place, Request, Round
from monarch_nb.worker.autosaves.steps import OptimizerNames, StepCounter, Watch
from monarch_nb.worker.groups.rendezvous import Store
from monarch_nb.worker.saving.places import near

LOOK_EVERY_S = cadence(0.5)
"""How often the store is looked at while nothing goes on."""
TALK_EVERY_S = cadence(0.02)
_HOLD_LOOK_S = cadence(1.0)
AGAIN_S = cadence(1.0)
"""A request of somebody who has little time is made again so soon, when ranks could not agree."""
ACTORS_COMPUTE = "actors compute"
"""How a verdict begins when what actors hold changes just now."""
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
    """

    armed: ArmSaves
    request: Request
    number: int
    place: Place
    optimizers: tuple[Any, ...]
    speaks: bool
    actors: tuple[str, ...] = ()


class Saved(Protocol):
    """What came of it."""

    @property
    def path(self) -> str: ...

    def describe(self) -> str:
        """Return what was saved, in a line."""


def _locked(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def locked(self: _SharedPart, *arguments: Any, **named: Any) -> Any:
        with self.lock:
            return method(self, *arguments, **named)

    return locked


class _SharedPart(Part):
    """A part that two threads use."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    begin = _locked(Part.begin)
    go_on = _locked(Part.go_on)
    step = _locked(Part.step)
    end = _locked(Part.end)
    must_hold = _locked(Part.must_hold)
    ask = _locked(Part.ask)
    aim = _locked(Part.aim)
    arrival = _locked(Part.arrival)
    come = _locked(Part.come)
    leave_out = _locked(Part.leave_out)
    settle = _locked(Part.settle)


class Keeper:
    """The saves that this rank makes by itself. Nothing but a count of steps is kept while none is armed.

    Attributes:
        steps_taken: of all trainings of this rank so far.

    Args:
        rank, size: who this is, and of how many.
        connect: makes a connection to the store that all ranks have.
        prepare: does what takes long, once, before ranks hold for a save.
        prefix: returns what keeps keys apart from those of others, made from a store.
        save: saves, with all other ranks, which do the same; on the main thread.
        when_idle: has the main thread call something when it executes nothing, and soon.
        for_script: a script meets signals as it would without us.
        computes: whether other threads execute user code: what they change can not be saved meanwhile.
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
        computes: Callable[[], bool],
        for_script: bool = False,
    ) -> None:
        self._for_script = for_script
        self._rank, self._size = rank, size
        self._connect, self._prepare, self._prefix, self._save = connect, prepare, prefix, save
        self._is_prepared = False
        self._when_idle, self._computes = when_idle, computes
        self._main = threading.main_thread().ident
        self._trains = self._main
        self._endpoints: dict[int, _Endpoint] = {}
        self._trained: _Trained | None = None
        self._actors: set[str] = set()
        self._is_saving = False
        self._choosing = threading.Lock()
        self._part: Part = _SharedPart()
        self._steps, self._names = StepCounter(), OptimizerNames()
        self.watch = Watch(self.stepped)
        self._optimizers: dict[int, Any] = {}
        self._armed: ArmSaves | None = None
        self._status = SavesStatus()
        self._wake = threading.Event()
        self._steps_before = self.steps_taken = 0
        self._changed = False
        self._wish: Request | None = None
        self._urgent: list[_Urgent] = []
        self._in_round = False
        self._due_s = 0.0
        self._waiter: Any = None
        self._decision: Wanted | None = None
        self._saved = threading.Event()
        self._was_interrupted = False
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
        self._lines = []
        self._steps_before = 0
        self._changed = True
        self._due_s = time.monotonic() + wanted.every_s
        self._wake.set()
        if self._armed is None:
            done(self.status())
            return
        self._when_idle(self._mind_signals)
        threading.Thread(target=self._keep, args=(self._armed, done), name="monarch_nb-saves", daemon=True).start()

    def save_now(self, wanted: SaveNow, done: Callable[[SavesStatus], None]) -> None:
        """Save as soon as all ranks can; call `done` when it is done, or there is no more time for it."""
        is_fresh = bool(self._status.path) and time.time() - self._status.saved_at < wanted.fresh_s
        if self._armed is None or is_fresh:
            done(self.status())
            return
        self._urgent.append(_Urgent(wanted, time.monotonic() + wanted.within_s, done))
        self._wake.set()

    def status(self) -> SavesStatus:
        """Return what is armed, and what was saved last."""
        told = SavesStatus()
        told.CopyFrom(self._status)
        return told

    def _forget(self) -> None:
        """In a child that the user forks: it is no rank."""
        self._armed = None

    # ---- what the main thread tells

    def begin_run(self, number: int) -> None:
        """A run is about to begin."""
        self._mind_signals()
        self._changed = True
        if self._trains == self._main:
            self._hold()
        with self._choosing:
            if self._trains == self._main:  # else an endpoint trains: saves do not wait for this run
                self._steps = StepCounter()
                self._optimizers.clear()
                self._part.begin(number)

    def end_run(self) -> None:
        """The run has ended."""
        if self._trains == self._main:
            self._end()

    def begin_endpoint(self, number: int, actor: str, is_interrupted: Callable[[], bool]) -> None:
        """An endpoint of an actor is about to begin, on this thread, in the name of a run. If the thread has made steps
        in an endpoint before, the training goes on: each call may make a single one. It waits for what is being saved,
        unless it is interrupted, and then does nothing."""
        own = threading.get_ident()
        self._endpoints[own] = _Endpoint(number, actor)
        trained = self._trained
        if trained is None or (trained.thread, trained.actor) != (own, actor):
            return
        while not self._goes_on(trained):  # what it left is being saved
            if is_interrupted():
                return
            time.sleep(TALK_EVERY_S)  # an interrupt could spoil the books of a condition
        if self._trains == own and self._part.must_hold():
            self.watch.call_between(self._hold)

    def _goes_on(self, trained: _Trained) -> bool:
        """Have saves wait for a thread again that trains in one endpoint after the other, unless something else trains.
        Return False when it is to wait first."""
        with self._choosing:
            if self._trains != self._main or not self._part.place.ended:
                return True
            if self._is_saving or not self._part.go_on(trained.run, trained.steps):
                return False
            self._trains, self._steps = trained.thread, trained.counter
            self._steps_before -= trained.steps
            return True

    def end_endpoint(self) -> None:
        """The endpoint of this thread has ended."""
        own = threading.get_ident()
        endpoint = self._endpoints.pop(own, None)
        if self._trains == own:
            place = self._part.place
            self._trained = _Trained(own, endpoint.actor if endpoint else "", place.run, place.steps, self._steps)
            try:
                self._end(pauses=True)
            finally:
                self._trains = self._main

    def _end(self, *, pauses: bool = False) -> None:
        """What the rank trains in has ended; or it pauses, until the next call of an endpoint."""
        self.watch.call_off()
        self._steps_before += self._part.place.steps
        self._part.end(pauses=pauses)
        self._optimizers.clear()
        self._wake.set()
        if self._decision is not None:  # an interrupt came between
            self._hold()
        self._say()

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped; on whichever thread."""
        own, name = threading.get_ident(), self._names.of(optimizer)
        endpoint = self._endpoints.get(own)
        if endpoint is not None:
            self._actors.add(endpoint.actor)
            if own != self._trains:
                self._steps_of(endpoint, own, name)
        if own != self._trains or self._part.place.ended:
            return
        if self._armed is not None:
            self._optimizers[name] = optimizer
        if not self._steps.completes(name):
            return
        self._part.step()
        self._changed = True
        self.steps_taken += 1
        if self._armed is not None:
            self._after_step(self._armed)

    def _steps_of(self, endpoint: _Endpoint, thread: int, name: int) -> None:
        """An optimizer has stepped in an endpoint: from now on saves wait for its thread, where nothing else trains.
        Its steps before count as well: all ranks count alike, whenever each of them came to look at it."""
        with self._choosing:
            is_idle = self._trains == self._main and self._part.place.ended and not self._in_round
            if not endpoint.number or not is_idle:
                endpoint.add(name)
                return
            self._trains = thread
            self._steps = endpoint.counter
            self._optimizers.clear()
            self._part.begin(endpoint.number, endpoint.steps)

    def _after_step(self, armed: ArmSaves) -> None:
        place = self._part.place
        steps = self._steps_before + place.steps
        if armed.every_steps and steps % armed.every_steps == 0 and not self._in_round:
            self._wish = Request(f"every {armed.every_steps:,} steps", place.run, place.steps)
            self._part.ask(self._wish)
            self._wake.set()
        if self._lines:
            self._say()
        if self._part.must_hold() or self._decision is not None:
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

    def _idle(self) -> None:
        """Called when the main thread executes nothing, or later."""
        if self._part.place.ended:
            self._hold()

    def _hold(self) -> None:
        """Wait as long as this rank is to, and save when all have agreed on it."""
        raised: BaseException | None = None
        try:
            while self._decision is None and self._part.must_hold():
                waiter = allocate_lock()  # of no condition, whose books an interrupt could spoil
                waiter.acquire()
                self._waiter, self._part.holding = waiter, True
                self._wake.set()
                if self._part.must_hold():
                    waiter.acquire(timeout=_HOLD_LOOK_S)
        except BaseException as error:  # noqa: BLE001 -- an interrupt: raised when what all have agreed on is done
            raised = error
        self._was_interrupted = raised is not None and self._decision is None
        self._part.holding = False
        if self._decision is not None:
            self._carry_out()
        self._wake.set()
        if raised is not None:
            raise raised

    def _carry_out(self) -> None:
        """Save what was agreed on."""
        wanted, self._decision = self._decision, None
        assert wanted is not None
        try:
            saved = self._save(wanted)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the training goes on
            name = "" if isinstance(error, MonarchNbError) else f"{type(error).__name__}: "
            self._status.problem = f"{name}{error}"
            if wanted.speaks:
                self._lines.append(f"not saved ({wanted.request.why}): {error}")
        else:
            place = wanted.place
            self._status.path, self._status.saved_at, self._status.why = saved.path, time.time(), wanted.request.why
            self._status.run, self._status.step = place.run, 0 if place.ended else place.steps
            self._status.problem = ""
            at = "" if place.ended else f" at step {place.steps:,}"
            if wanted.speaks:
                verb = "saving in" if wanted.armed.background else "saved"
                self._lines.append(f"{verb} {near(saved.path)}{at} ({wanted.request.why}): {saved.describe()}")
            self._changed = not place.ended
            if wanted.request.step:  # they are counted from here on, on all ranks
                self._steps_before = 0 if place.ended else -place.steps
        finally:
            self._in_round = False  # at once: the next step may be one to save after
            self._saved.set()
        self._say()

    def _say(self) -> None:
        """Write what there is to say into the output of the cell."""
        lines, self._lines = self._lines, []
        for line in lines:
            sys.stderr.write(f"{line}\n")

    # ---- the keeper's thread

    def _keep(self, armed: ArmSaves, done: Callable[[SavesStatus], None]) -> None:
        """Talk to the other ranks as long as this is what is armed."""
        self._status.problem = _why_not_there(armed.directory)
        done(self.status())
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
                time.sleep(AGAIN_S)
            finally:
                self._free_main()

    def _talk(self, armed: ArmSaves, store: Store) -> None:
        number = int(store.add("current", 0))
        while self._armed is armed:
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()
            if self._armed is not armed:  # that woke it
                return
            if self._part.place.run and not self._is_prepared:
                self._is_prepared = True
                self._prepare()
            keys = self._prefix(str(number), store)
            wish = self._take_wish(armed)
            if wish is not None:
                keys.compare_set("request", "", wish.encode())
            elif not keys.check(["request"]):
                continue
            request = Request.decode(_text(keys.get("request")))
            verdict = self._carry(armed, keys, request, number)
            store.compare_set("current", str(number), str(number + 1))
            number += 1
            self._settled(armed, request, verdict)

    def _take_wish(self, armed: ArmSaves) -> Request | None:
        now_s = time.monotonic()
        if self._wish is not None:
            wish, self._wish = self._wish, None
            return wish
        if not self._part.place.run:  # nothing was ever run here: there is nothing to lose
            while self._urgent:
                self._urgent.pop().done(self.status())
            return None
        for urgent in self._urgent:
            if now_s >= urgent.again_s:
                return Request(urgent.wanted.why, is_last=urgent.wanted.is_last)
        if armed.every_s and now_s >= self._due_s and self._changed:
            return Request(f"every {duration(armed.every_s)}")
        return None

    def _carry(self, armed: ArmSaves, keys: Store, request: Request, number: int) -> str:
        """Carry a request to its end; return the verdict."""
        self._in_round, self._was_interrupted = True, False
        round_ = Round(keys, request, self._rank, self._size, self._part, time.monotonic())
        asked_idle = False
        try:
            while not (verdict := round_.advance(time.monotonic())):
                if self._was_interrupted:
                    round_.give_up(f"rank {self._rank} was interrupted")
                if self._armed is not armed:  # others may have left it, too
                    round_.give_up(f"rank {self._rank} is to save in this way no more")
                if self._part.place.ended and self._part.must_hold() and not asked_idle:
                    asked_idle = True
                    if self._computes():
                        round_.give_up(f"{ACTORS_COMPUTE} on rank {self._rank}")
                    self._when_idle(self._idle)
                if self._urgent and all(time.monotonic() > urgent.until_s for urgent in self._urgent):
                    round_.give_up("there was no more time")
                self._wake_main()
                self._wake.wait(TALK_EVERY_S)
                self._wake.clear()
            if verdict == SAVE:
                self._saved.clear()
                optimizers, speaks = tuple(self._optimizers.values()), round_.is_first()
                actors = tuple(sorted(self._actors))
                self._is_saving = True
                self._decision = Wanted(armed, request, number, self._part.place, optimizers, speaks, actors)
                self._free_main()
                self._saved.wait()
            elif round_.is_first() and self._armed is armed and not self._is_no_news(verdict):
                self._lines.append(f"not saved ({request.why}): {verdict}")
            return verdict
        finally:
            self._is_saving = False
            if self._in_round:  # else what trains has left it, and may hold for its next request
                self._free_main()
                self._in_round = False

    def _is_no_news(self, verdict: str) -> bool:
        return verdict.endswith(STILL_NO_STEP) or (self._trained is not None and self._is_passing(verdict))

    def _is_passing(self, verdict: str) -> bool:
        """Return whether it may be otherwise in a moment: some ranks were between two calls, and others were not."""
        of_endpoints = verdict.startswith((DIFFERENT_STEPS, ACTORS_COMPUTE))
        return "meanwhile" in verdict or (of_endpoints and self._trained is not None)

    def _settled(self, armed: ArmSaves, request: Request, verdict: str) -> None:
        """A request is over."""
        if self._wish == request:  # the others asked for it first
            self._wish = None
        if verdict != SAVE:
            self._status.problem, self._status.why = verdict, request.why
            if request.step and verdict.startswith(DIFFERENT_STEPS):  # they were armed between two runs
                self._wish = Request(request.why)
        now_s = time.monotonic()
        soon_s = AGAIN_S if self._is_passing(verdict) else armed.every_s
        self._due_s = now_s + min(soon_s, armed.every_s)
        for urgent in list(self._urgent):
            if verdict == SAVE or now_s + AGAIN_S > urgent.until_s:
                self._urgent.remove(urgent)
                urgent.done(self.status())
            else:
                urgent.again_s = now_s + AGAIN_S

    def _wake_main(self) -> None:
        """Let the main thread look whether it is still to hold."""
        if self._waiter is not None and not self._part.must_hold():
            with suppress(RuntimeError):
                self._waiter.release()

    def _free_main(self) -> None:
        self._part.settle()
        if self._waiter is not None:
            with suppress(RuntimeError):  # it goes on already
                self._waiter.release()


class _Endpoint:
    """An endpoint that is executed, and the steps that it has made while nobody waited for it."""

    def __init__(self, number: int, actor: str) -> None:
        self.number, self.actor = number, actor
        self.steps, self.counter = 0, StepCounter()

    def add(self, optimizer: int) -> None:
        """An optimizer has stepped."""
        self.steps += self.counter.completes(optimizer)


@dataclass(frozen=True)
class _Trained:
    """What the endpoint that has trained last leaves to the next one on its thread: the run in whose name it began, and
    its steps so far."""

    thread: int
    actor: str
    run: int
    steps: int
    counter: StepCounter


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


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()

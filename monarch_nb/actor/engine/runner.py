"""An actor of this process: its thread, which executes one message after the other."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from monarch_nb.actor.engine.calls import Call
from monarch_nb.actor.engine.failing import WITHDRAWN, Failed, MeshFailure, SettingUp, describe, stopped
from monarch_nb.actor.engine.handles import Birth, Handle, Identity, Place, region_of
from monarch_nb.actor.engine.mailbox import Declared, Mailbox, Message, Port, find_method
from monarch_nb.actor.engine.messages import ANSWER, FAILED, Value
from monarch_nb.actor.engine.outside import ActorState, Address, Execution
from monarch_nb.config import patience
from monarch_nb.shape import Extent, Point

if TYPE_CHECKING:
    from monarch_nb.actor.engine.process import Process

INTERRUPTED_S = patience(1.0)
"""How long a new actor waits until the one that it replaces, which was interrupted, stops: it may be stuck."""
CLEAN_UP_S = patience(10.0)
"""How long it waits for the `__cleanup__` of that one."""
CHILDREN_S = patience(10.0)
"""How long an actor that ends waits until those that it spawned have ended."""
_TURN = 64
"""After so many messages that did not wait for anything, tasks of an async actor get a turn."""


class Step:
    """A message that is executed now.

    Attributes:
        rank, extent: the actor's place in the mesh that was addressed.
        facts: what others keep with it (the Context).
    """

    __slots__ = ("execution", "extent", "facts", "message", "rank", "runner")

    def __init__(self, runner: Runner, message: Message, execution: Execution, rank: int, extent: Extent) -> None:
        self.runner, self.message, self.execution = runner, message, execution
        self.rank, self.extent = rank, extent
        self.facts: Any = None

    @property
    def point(self) -> Point:
        """The actor's place in the mesh that was addressed."""
        return Point(self.rank, self.extent)

    def is_waiting_thread(self) -> bool:
        """Whether the calling code holds up the actor's other messages while it waits."""
        if self.execution.is_over or self.execution.is_concurrent:
            return False
        if self.execution.task is None:
            return threading.get_ident() == self.execution.thread
        try:
            return asyncio.current_task() is self.execution.task
        except RuntimeError:  # another thread, without a loop
            return False


current_step: contextvars.ContextVar[Step | None] = contextvars.ContextVar("monarch_nb_actor_step", default=None)
current_home: contextvars.ContextVar[Process | None] = contextvars.ContextVar("monarch_nb_actor_home", default=None)


class Runner:
    """An actor of this process.

    Args:
        process: whose.
        birth: what is known of it.
        rank: its place in its mesh.
        value: class and arguments, still packed.
        sender, call: who is told when it ends.
        old: the runner of the actor that it replaces, for which it waits a moment.
        set_up: of its process, for which it waits.

    Attributes:
        at_end: called when it has ended: what it leaves in its process goes. None of them raises.
    """

    def __init__(
        self,
        process: Process,
        birth: Birth,
        rank: int,
        value: Value,
        sender: Address,
        call: int,
        old: Runner | None,
        set_up: SettingUp | None,
    ) -> None:
        self.process, self.birth, self.rank = process, birth, rank
        handle = birth.handle
        self.identity = Identity(handle.name, handle.class_name, handle.uid, rank, handle.extent, birth.creator)
        self.title = self.identity.title
        self.instance: Any = None
        self.ended = threading.Event()
        self.sets_up = SettingUp() if birth.is_first else None
        self.children: dict[str, Handle] = {}
        self.at_end: list[Callable[[], object]] = []
        self.called = 0
        self.refuses: Failed | None = None
        self.is_noted = False  # by the process, that it has ended
        self.watch: Call | None = None  # of its owner
        self._value, self._owner, self._call = value, sender, call
        self._old, self._set_up = old, set_up
        self._kind: type = object
        self._methods: dict[str, Declared] = {}
        self._steps: list[Step] = []
        self._places: dict[Place, tuple[int, Extent]] = {}
        self._loop = asyncio.new_event_loop() if birth.is_async else None
        self._mailbox: Mailbox[Message | Callable[[], object]] = Mailbox(self._loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped_by: list[tuple[Address, int]] = []
        self._is_stopped = self._is_ending = False
        self._ending_lock = threading.Lock()

    @property
    def uid(self) -> str:
        """Of its mesh."""
        return self.birth.handle.uid

    @property
    def has_set_up(self) -> bool:
        """Whether it was there to set its process up, and has: now it only owns what it has spawned."""
        return self.sets_up is not None and self.sets_up.is_over and self.refuses is None

    def start(self) -> None:
        """Begin, on a thread of its own."""
        name = f"monarch-actor-{'event-loop' if self._loop else 'driver'} {self.title}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, message: Message) -> None:
        """Take a message. From any thread; it only queues."""
        self._mailbox.put(message)
        if self.refuses is not None:
            self._refuse_waiting()

    def stop(self, reason: str, sender: Address, call: int) -> None:
        """End it: what it executes is interrupted, of which who waits for it learns now, and what waits is refused.
        `call` is answered when it has ended."""
        if call and not self.tell_end(sender, call):
            self.process.reply_to(sender, call, -1, ANSWER, None)
        own = current_step.get()
        self._is_stopped = True
        if self.refuses is None:
            self.refuses = stopped(f"actor {self.title} was stopped: {reason}")
            for step in list(self._steps):
                if own is None or step.execution is not own.execution:
                    self._answer_failed(step.message, step.rank, self.refuses)
                    step.message.call, step.message.port = 0, None
                    self.process.outside.interrupt(step.execution)
        self._refuse_waiting()
        self._mailbox.put_first(lambda: self._end(None))

    def wait_end(self) -> None:
        """Wait until it has ended, after `stop`; for one that is stuck only a moment."""
        if not self.ended.wait(INTERRUPTED_S) and self._is_ending:
            self.ended.wait(CLEAN_UP_S)

    def withdraw(self, run_id: str) -> list[Callable[[], None]]:
        """Take out the messages that wait in the name of a run (empty: all); return what answers them, which may take
        a while. From any thread."""
        taken = self._mailbox.withdraw(
            lambda item: isinstance(item, Message) and bool(item.endpoint) and item.is_of(run_id)
        )
        return [functools.partial(self.refuse, item, WITHDRAWN) for item in taken if isinstance(item, Message)]

    def refuse(self, message: Message, failed: Failed) -> None:
        """Answer a message that is not executed."""
        self._answer_failed(message, self._place(message.place)[0], failed)

    def tell_end(self, sender: Address, call: int) -> bool:
        """Answer a call when it has ended; return whether that is to come."""
        with self._ending_lock:
            if self.ended.is_set():
                return False
            self._stopped_by.append((sender, call))
            return True

    def abort(self, reason: str) -> None:
        """Let it fail, after what it executes."""
        error = RuntimeError(reason)
        self._mailbox.put_first(lambda: self.fail(error))

    def supervise(self, failure: MeshFailure) -> None:
        """Have it handle the failure of a mesh that it owns: before what waits, and in a loop at once."""
        if self._loop is None:
            self._mailbox.put_first(lambda: self._supervise(failure))
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._spawn_task(self._supervise(failure)))

    def state(self) -> ActorState:
        """Return it for people who ask."""
        failure = self.refuses.traceback or self.refuses.text if self.refuses is not None else ""
        running = [step.execution for step in list(self._steps)]
        handle = self.birth.handle
        return ActorState(
            handle.name,
            handle.class_name,
            handle.uid,
            self.rank,
            len(self._mailbox),
            self.called,
            running,
            failure,
            is_ending=self._is_stopped and not self.ended.is_set(),
        )

    def executions(self) -> list[Execution]:
        """Return what it executes now."""
        return [step.execution for step in list(self._steps)]

    # On the actor's own thread.

    def _run(self) -> None:
        current_home.set(self.process)
        not_set_up = self._set_up.wait() if self._set_up is not None else None
        if self._old is not None:
            self._old.wait_end()
        self._old = self._set_up = None
        if self._loop is None:
            _run_now(self._live(not_set_up))
            return
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live(not_set_up))
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _live(self, not_set_up: Failed | None) -> None:
        """Take one message after the other. Without a loop nothing in here awaits."""
        self._be_born(not_set_up)
        turns = 0
        while not self.ended.is_set():
            try:
                item = self._mailbox.pop() if self._loop is not None else self._mailbox.get()
                if item is None:
                    turns = 0
                    await self._mailbox.arrived()
                elif not isinstance(item, Message):
                    if isinstance(work := item(), Coroutine):
                        await work
                elif self.refuses is not None:
                    self._answer_failed(item, self._place(item.place)[0], self.refuses)
                else:
                    await self._take(item)
                    turns += 1
                    if turns % _TURN == 0 and self._loop is not None:
                        await asyncio.sleep(0)
            except KeyboardInterrupt:  # of an execution that was over already
                if self._loop is not None:
                    raise

    def _be_born(self, not_set_up: Failed | None) -> None:
        message = Message("__init__", None, self._value, self._owner, 0, None, self.birth.caller, self.birth.runs)
        if not_set_up is not None:
            self._fail(not_set_up, not_set_up, message, self.rank)
            return
        step = self._begin(message)
        try:
            with self.process.outside.executing(step.execution):
                self._kind, values, named = self._value.load()
                self.instance = self._kind(*values, **named)
        except BaseException as error:  # noqa: BLE001 -- whatever the user's __init__ raises
            self._over(step)
            self.fail(error, message, self.rank)
        else:
            self._over(step)
        finally:
            del self._value

    def _begin(self, message: Message) -> Step:
        rank, extent = self._place(message.place)
        handle = self.birth.handle
        execution = Execution(
            handle.name, handle.class_name, handle.uid, message.endpoint, rank, message.caller, message.runs
        )
        step = Step(self, message, execution, rank, extent)
        if self._loop is not None:
            execution.loop, execution.task = self._loop, asyncio.current_task()
        self._steps.append(step)
        current_step.set(step)
        return step

    def _over(self, step: Step) -> None:
        step.execution.is_over = True
        self._steps.remove(step)
        current_step.set(None)
        self.called += 1

    def _place(self, place: Place | None) -> tuple[int, Extent]:
        if place is None:
            return self.rank, self.birth.handle.extent
        found = self._places.get(place)
        if found is None:
            region = region_of(place)
            index = region.index_of(self.rank)
            found = self._places[place] = index or 0, region.extent
        return found

    def _method(self, key: str) -> Declared:
        found = self._methods.get(key)
        if found is None:
            found = self._methods[key] = find_method(self._kind, key)
        return found

    async def _take(self, message: Message) -> None:
        """Execute a message in this task, or in one of its own when its endpoint is concurrent."""
        if not message.endpoint:
            self._answer(message, self._place(message.place)[0], None)
            return
        try:
            is_concurrent = self._method(message.endpoint).is_concurrent
        except AttributeError:
            is_concurrent = False
        if is_concurrent:
            self._spawn_task(self._execute(message, is_concurrent=True))
        else:
            await self._execute(message, is_concurrent=False)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, message: Message, *, is_concurrent: bool) -> None:
        step, is_explicit = self._begin(message), False
        step.execution.is_concurrent = is_concurrent
        try:
            with self.process.outside.executing(step.execution):
                values, named = message.value.load()
                method = self._method(message.endpoint)
                is_explicit = method.is_explicit
                if is_explicit:
                    values = (self._port(step), *values)
                result = method.method(self.instance, *values, **named)
                if isinstance(result, Coroutine):
                    if self._loop is None:
                        result.close()
                        raise TypeError(
                            f"{message.endpoint} is an async def method, but its actor's endpoints are all def, so it "
                            "has no event loop to run on"
                        )
                    result = await result
        except BaseException as error:  # noqa: BLE001 -- whatever the user's endpoint raises
            self._over(step)
            self._raised(step, is_explicit, error)
        else:
            self._over(step)
            self._returned(step, is_explicit, result)
        finally:
            task = step.execution.task
            while task is not None and task.cancelling() and not is_concurrent:
                task.uncancel()

    def _port(self, step: Step) -> Port[Any]:
        message = step.message
        if message.port is not None:
            return message.port.at(step.rank)
        return self.process.port_to(message.sender, message.call, step.rank)

    def _answer(self, message: Message, rank: int, value: Any) -> None:
        if message.port is not None:
            message.port.at(rank).send(value)
        elif message.call:
            self.process.reply_to(message.sender, message.call, rank, ANSWER, value)

    def _answer_failed(self, message: Message, rank: int, failed: Failed) -> None:
        title = f"{self.birth.handle.name}.{message.endpoint}"
        if message.port is not None:
            message.port.at(rank).exception(self.process.error_of(title, rank, self._place(message.place)[1], failed))
        elif message.call:
            self.process.reply_to(message.sender, message.call, rank, FAILED, failed)

    def _returned(self, step: Step, is_explicit: bool, result: Any) -> None:
        """Answer when the step is over: whoever has the answer finds the actor idle."""
        try:
            if not is_explicit:
                self._answer(step.message, step.rank, result)
        except BaseException as error:  # noqa: BLE001 -- whatever the user's result raises when it is pickled
            self._raised(step, is_explicit, error)
        else:
            if self.sets_up is not None:
                self.sets_up.end()

    def _raised(self, step: Step, is_explicit: bool, error: BaseException) -> None:
        message = step.message
        if self.sets_up is not None:
            self.fail(error, message, step.rank)
            return
        is_interrupt = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        if is_interrupt and (step.execution.interrupted or isinstance(error, KeyboardInterrupt)):
            self._answer_failed(message, step.rank, describe("interrupted", error))
            return
        is_awaited = bool(message.call or message.port is not None) and not is_explicit
        if is_awaited and isinstance(error, Exception | asyncio.CancelledError):
            self._answer_failed(message, step.rank, describe("error", error))
            return
        self.fail(error, message, step.rank)

    def _refuse_waiting(self) -> None:
        """Answer what waits that this actor does not any more."""
        refuses = self.refuses or stopped("it has ended")
        for item in self._mailbox.clear():
            if isinstance(item, Message):
                self._answer_failed(item, self._place(item.place)[0], refuses)

    def fail(self, error: BaseException, message: Message | None = None, rank: int = 0) -> None:
        """Let it not answer any more, tell its owner and who waits for `message`, and clean up. On its thread."""
        failed = describe("stopped", error)
        if message is not None:
            is_broadcast = not message.call and message.port is None and message.endpoint != "__init__"
            title = f"{self.birth.handle.name}.{message.endpoint}{' (broadcast)' if is_broadcast else ''}"
            failed = failed._replace(title=title, runs=message.runs)
        self._fail(failed, failed.earlier(), message, rank)

    def _fail(self, failed: Failed, later: Failed, message: Message | None, rank: int) -> None:
        if self.refuses is not None:
            return
        self.refuses = later
        if self.sets_up is not None:
            self.sets_up.end(failed)
        if message is not None:
            self._answer_failed(message, rank, failed)
        self._refuse_waiting()
        self.process.reply_to(self._owner, self._call, self.rank, FAILED, failed)
        self._mailbox.put_first(lambda: self._end(RuntimeError(f"actor {self.title} failed: {failed.traceback}")))

    async def _end(self, error: Exception | None) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.children and self._loop is not None:
            await asyncio.to_thread(self.process.stop_children, self, CHILDREN_S)
        else:
            self.process.stop_children(self, CHILDREN_S)
        try:
            result = self._hook("__cleanup__", error)
            if isinstance(result, Coroutine):
                await result
        except BaseException as problem:  # noqa: BLE001 -- whatever the user's hook raises
            self._has_ended(problem)
        else:
            self._has_ended(None)

    def _has_ended(self, problem: BaseException | None) -> None:
        if self.sets_up is not None:
            self.sets_up.end(self.refuses)
        has_failed = self.process.note_end(self)
        self.instance = None
        for leave in list(self.at_end):
            leave()
        if problem is not None:
            failed = describe("stopped", problem)
            self.process.reply_to(self._owner, self._call, self.rank, FAILED, failed)
        elif not has_failed:
            self.process.reply_to(self._owner, self._call, self.rank, ANSWER, None)
        with self._ending_lock:
            self.ended.set()
        for sender, call in self._stopped_by:
            self.process.reply_to(sender, call, -1, ANSWER, None)

    def _hook(self, name: str, argument: object) -> object:
        """Call `__cleanup__` or `__supervise__`, if it has one."""
        method = getattr(self.instance, name, None)
        if method is None:
            return None
        step = self._begin(Message(name, None, self.process.nothing, self._owner, 0, None, self.title, {}))
        try:
            with self.process.outside.executing(step.execution):
                return method(argument)
        finally:
            self._over(step)

    async def _supervise(self, failure: MeshFailure) -> None:
        try:
            handled = self._hook("__supervise__", failure)
            if isinstance(handled, Coroutine):
                handled = await handled
        except Exception as error:  # noqa: BLE001 -- whatever the user's hook raises
            error.add_note("This error occurred while handling a supervision event from its child.")
            self.fail(error)
            return
        if not handled:
            self.fail(
                RuntimeError(
                    f"{self.identity!r} failed because it did not handle a supervision event from its child. "
                    f"The child's event was: {failure.event}"
                )
            )


def _run_now(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that does not await."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("an actor without a loop has awaited")

"""What is said between the pdb of a stopped thread and whoever answers it, by way of the control thread.

The control thread never waits: a command is answered when pdb asks for the next line, or when its time is over.
"""

import math
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from enum import Enum, auto

from monarch_nb.config import cadence
from monarch_nb.ground import interrupting
from monarch_nb.proto.run_pb2 import DebugAnswer, DebugCommand, Stop
from monarch_nb.worker.text import encodable

Answer = Callable[[DebugAnswer], None]

LOOK_S = cadence(0.1)
"""So often a thread that waits for a line looks whether it was interrupted: in other threads than the main one an
exception that is sent to them does not end a wait."""
GOES_ON_S = cadence(0.3)
"""Code that was told to continue has so long to come to the next breakpoint before it is said to be gone."""
MAX_TEXT_CHARACTERS = 200_000
_PROMPT_CHARACTERS = 16
NOT_DONE = "not executed: the line before is not done yet\n"


class State(Enum):
    """What the thread does."""

    ASKING = auto()
    RUNNING = auto()
    """It executes what it was told to; pdb will ask again."""
    FREE = auto()
    """It goes on; pdb asks again only at the next breakpoint."""
    OVER = auto()


class Told(BaseException):
    """Raised where pdb waits for a line, when it is told what no line says: to go on, or to quit."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.action = action


class Conversation:
    """The stdin and stdout of a pdb.

    Args:
        number: of the stop.
        wake: called when an answer is due sooner than the control thread knows.

    Attributes:
        at: where the thread is.
        is_stopped: whether it is listed: it waits, or executes only what it was told to.
    """

    def __init__(self, number: int, wake: Callable[[], None]) -> None:
        self.number = number
        self.at = Stop(stop=number)
        self._wake = wake
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._sleeper = allocate_lock()
        self._sleeper.acquire()
        self._order: DebugCommand | None = None
        self._early: DebugCommand | None = None  # came between a stop and the first prompt
        self._executes = False
        self._state = State.FREE
        self._text: list[str] = []
        self._characters = 0
        self._last_text = ""
        self._prompt = ""
        self._stopped_at = time.monotonic()
        self._waiting: list[tuple[float, Answer]] = []

    # ---- pdb's side, on its thread ----

    def write(self, text: str) -> int:
        """Say something."""
        with self._lock:
            self._characters += len(text)
            if self._characters <= MAX_TEXT_CHARACTERS or len(text) <= _PROMPT_CHARACTERS:
                self._text.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back: whoever asked gets it with the next prompt."""

    @interrupting.waits
    def readline(self) -> str:
        """Ask, and return the line that comes; an interrupt ends the wait.

        Raises:
            Told: something else came.
        """
        self._ask()
        while not self._sleeper.acquire(timeout=LOOK_S):
            pass
        with self._lock:
            order, self._order = self._order, None
        assert order is not None
        if order.action != DebugCommand.ACTION_LINE:
            raise Told(order.action)
        return order.line.rstrip("\n") + "\n"

    def stop(self) -> None:
        """The thread has stopped, and will ask."""
        with self._lock:
            self._stopped_at = time.monotonic()
            self._state = State.RUNNING

    def go_on(self, state: State) -> None:
        """The thread goes on, and pdb asks no more (for now)."""
        by_s = time.monotonic() + GOES_ON_S
        with self._lock:
            self._state = state
            if state is not State.RUNNING:
                self._executes, self._early = False, None
            if state is State.FREE:
                self._waiting = [(min(deadline, by_s), answer) for deadline, answer in self._waiting]
        if state is State.OVER:
            self.expire(math.inf)
        self._wake()

    def _ask(self) -> None:
        with self._lock:
            text, newline, self._prompt = "".join(self._text).rpartition("\n")
            if self._characters > MAX_TEXT_CHARACTERS:
                text += f"\n… {self._characters - len(text):,} characters left out …"
            self._text, self._characters = [text + newline], 0
            self._state, self._executes = State.ASKING, False
            if self._early is not None:
                early, self._early = self._early, None
                self._begin(early)
                return
            waiting, self._waiting = self._waiting, []
            answer_with = self._answer() if waiting else None
        for _, answer in waiting:
            assert answer_with is not None
            answer(answer_with)

    # ---- the other side, on the control thread ----

    @property
    def is_stopped(self) -> bool:
        return self._state in (State.ASKING, State.RUNNING) and self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come of it."""
        return self._state is State.OVER or not self._thread.is_alive()

    def stop_now(self) -> Stop:
        """Return where it is, and for how long."""
        stop = Stop()
        stop.CopyFrom(self.at)
        stop.since_s = time.monotonic() - self._stopped_at
        stop.executes = self._executes
        return stop

    def take(self, command: DebugCommand, answer: Answer) -> None:
        """Pass a command on; `answer` is called when pdb asks again, or when the command's time is over."""
        is_question = command.action == DebugCommand.ACTION_LINE and not command.line
        with self._lock:
            if self._state is State.ASKING and not is_question:
                self._begin(command)
            elif self._state is State.RUNNING and not (self._executes or self._early or is_question):
                self._early = command
            elif self._state is not State.RUNNING:
                answer(self._answer())
                return
            elif (self._executes or self._early) and command.action == DebugCommand.ACTION_LINE and not is_question:
                answer(DebugAnswer(state=DebugAnswer.STATE_RUNNING, text=NOT_DONE, at=self.stop_now()))
                return
            self._waiting.append((time.monotonic() + command.wait_s, answer))

    def _begin(self, command: DebugCommand) -> None:
        """Have pdb do it; the answer is what comes of this alone."""
        self._order, self._state, self._executes = command, State.RUNNING, True
        self._text, self._last_text = [], ""
        self._sleeper.release()

    def next_deadline(self) -> float | None:
        """When `expire` must be called."""
        with self._lock:
            return min((deadline for deadline, _ in self._waiting), default=None)

    def expire(self, now: float) -> None:
        """Answer those whose time is over."""
        with self._lock:
            due = [each for each in self._waiting if each[0] <= now]
            self._waiting = [each for each in self._waiting if each[0] > now]
            answer_with = self._answer() if due else None
        for _, answer in due:
            assert answer_with is not None
            answer(answer_with)

    def _answer(self) -> DebugAnswer:
        """Return what is to be said now; of a thread that waits, at least what it said last."""
        states = {State.ASKING: DebugAnswer.STATE_PROMPT, State.RUNNING: DebugAnswer.STATE_RUNNING}
        state = states.get(self._state, DebugAnswer.STATE_GONE)
        if not self._thread.is_alive():
            state = DebugAnswer.STATE_GONE
        text, self._text = "".join(self._text), []
        self._last_text += text
        is_prompt = state == DebugAnswer.STATE_PROMPT
        return DebugAnswer(
            state=state,
            text=encodable(self._last_text if is_prompt and not text else text),
            at=self.stop_now(),
            prompt=encodable(self._prompt) if is_prompt else "",
        )

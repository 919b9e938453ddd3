"""The control thread of a rank: answers while the main thread is busy or stuck.

It accepts all connections, hands work connections to the main thread, and serves the control connection itself. It
watches the mail connection until there is mail: only then somebody has to read it.
"""

import os
import selectors
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from google.protobuf.message import DecodeError

from monarch_nb.actor.engine.outside import ActorState
from monarch_nb.config import STACKS_THREAD, patience
from monarch_nb.ground.frames import FrameError, FrameSplitter, encode_frame
from monarch_nb.ground.printing import encodable
from monarch_nb.proto.run_pb2 import ActorStatus, Call, DebugAnswer, SavesStatus, Where
from monarch_nb.proto.worker_pb2 import ControlReply, ControlRequest, FromRank, Hello, ToRank
from monarch_nb.worker.autosaves.keeper import Keeper
from monarch_nb.worker.become_rank import name_process
from monarch_nb.worker.control import completion
from monarch_nb.worker.control.executions import Executions
from monarch_nb.worker.control.interrupts import (
    BETWEEN_RUNS,
    PRESS_INTERVAL_S,
    ActiveRun,
    Activities,
    Activity,
    Interrupter,
)
from monarch_nb.worker.control.sampler import Looker, Seen
from monarch_nb.worker.debug.debugger import Debugger
from monarch_nb.worker.groups import breaking, calls
from monarch_nb.worker.mail import Post
from monarch_nb.worker.runs.results import send_all
from monarch_nb.worker.shell import streams
from monarch_nb.worker.user_code import UserCode, awaited_frames, describe_threads, other_threads, outwards

_SEND_TIMEOUT_S = patience(2.0)
_RECEIVE_BYTES = 1 << 16


@dataclass
class _Peer:
    """A connection that the control thread reads."""

    connection: socket.socket
    splitter: FrameSplitter
    is_control: bool = False


class ControlThread(threading.Thread):
    """Serves one control connection; a newer one replaces the older.

    Args:
        listener: where the allocator connects.
        activities: all that executes user code.
        executions: what actors execute.
        actors: returns the actors of this rank.
        withdraw: called with the id of a run that is interrupted, in whose name messages may wait for them; empty for
            all.
        interrupter: knows the active run.
        user_code: knows the user's frames.
        entries: the code of the functions that call user code: frames below are not shown.
        namespace: the user's, for completion and inspection.
        debugger: knows the threads that have stopped.
        post: takes the mail connections.
        keeper: saves by itself.
        on_work: called with a new work connection, its splitter and the messages that came with the hello.
        on_abort: called after process groups were broken.
        on_exit: called to end the process; must not return late.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        activities: Activities,
        executions: Executions,
        actors: Callable[[], Sequence[ActorState]],
        withdraw: Callable[[str], None],
        interrupter: Interrupter,
        user_code: UserCode,
        entries: set[CodeType],
        namespace: dict[str, Any],
        debugger: Debugger,
        post: Post,
        keeper: Keeper,
        on_work: Callable[[socket.socket, FrameSplitter, list[ToRank]], None],
        on_abort: Callable[[], None],
        on_exit: Callable[[], None],
    ) -> None:
        super().__init__(name="monarch_nb-control", daemon=True)
        self._listener = listener
        self._activities, self._executions = activities, executions
        self._actors, self._withdraw = actors, withdraw
        self._interrupter = interrupter
        self._user_code = user_code
        self._entries = entries
        self._namespace, self._debugger = namespace, debugger
        self._replies: deque[tuple[_Peer, ControlReply]] = deque()
        self._post, self._keeper = post, keeper
        self._calls = calls.Calls()
        self._on_work, self._on_abort, self._on_exit = on_work, on_abort, on_exit
        self._looker = Looker(self._seen, user_code, lambda: keeper.steps_taken)
        self._selector = selectors.PollSelector()
        self._control: _Peer | None = None
        self._watched_mail: socket.socket | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._flush_at: float | None = None
        self._press_at: float | None = None
        self._sockets = {listener}
        self._accepting = threading.Lock()
        os.register_at_fork(
            before=self._accepting.acquire, after_in_parent=self._accepting.release, after_in_child=self._close_in_child
        )

    def wake_for_text(self) -> None:
        """Text was printed: flush it a little later. From any thread."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"t")

    def wake(self) -> None:
        """An answer is there, or due sooner than this thread knows. From any thread."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"a")

    def press(self) -> None:
        """Something was interrupted: see to it now. From any thread."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"p")

    def forget_socket(self, connection: socket.socket) -> None:
        """A connection that was handed over is about to be closed. From any thread."""
        self._sockets.discard(connection)

    def _close_in_child(self) -> None:
        """In a child that the user forks (and once, not in its children): hold none of the rank's sockets open."""
        self._accepting.release()
        if self._sockets:
            for each in self._sockets:
                each.close()
            self._sockets.clear()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def run(self) -> None:
        name_process(STACKS_THREAD)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        while True:
            events = self._selector.select(self._timeout_s())
            try:
                for key, _ in events:
                    key.data()
                self._keep_appointments()
            except Exception:  # noqa: BLE001 -- whatever goes wrong, this thread must be there to free the rank
                traceback.print_exc()

    def _timeout_s(self) -> float | None:
        times = [at for at in (self._flush_at, self._press_at, self._debugger.next_deadline()) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _keep_appointments(self) -> None:
        now = time.monotonic()
        if self._flush_at is not None and self._flush_at <= now:
            self._flush_at = None
            streams.flush_unflushed()
        if self._press_at is not None and self._press_at <= now:
            presses = [self._interrupter.press(), self._executions.press()]
            self._press_at = now + PRESS_INTERVAL_S if any(presses) else None
        self._debugger.expire(now)
        while self._replies:
            self._send(*self._replies.popleft())

    def _woken(self) -> None:
        why = os.read(self._wake_read, 4096)
        if b"t" in why and self._flush_at is None:  # put off by every run, it would never come; files would stay open
            self._flush_at = time.monotonic() + streams.FLUSH_AFTER_S
        if b"p" in why:
            self._press_at = time.monotonic()

    # ---- connections ----

    def _accept(self) -> None:
        with suppress(OSError):
            with self._accepting:  # no fork may come between the two
                connection, _ = self._listener.accept()
                self._sockets.add(connection)
            connection.setblocking(False)
            peer = _Peer(connection, FrameSplitter())
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(peer))

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(_RECEIVE_BYTES)
            messages = deque(ToRank.FromString(frame) for frame in peer.splitter.feed(data))
        except BlockingIOError:
            return
        except (OSError, FrameError, DecodeError):  # the peer is gone, or does not speak this protocol
            data, messages = b"", deque()
        if not data:
            self._close(peer)
        while messages:
            message = messages.popleft()
            if peer.is_control:
                self._answer(peer, message.control)
            elif message.hello.channel == Hello.CHANNEL_CONTROL:
                if self._control is not None:
                    self._close(self._control)
                self._control, peer.is_control = peer, True
            elif message.hello.channel == Hello.CHANNEL_WORK:
                self._selector.unregister(peer.connection)
                self._on_work(peer.connection, peer.splitter, list(messages))
                return
            elif message.hello.channel == Hello.CHANNEL_MAIL:
                self._selector.unregister(peer.connection)
                self._take_mail_connection(peer.connection)
                return
            else:
                self._close(peer)
                return

    def _take_mail_connection(self, connection: socket.socket) -> None:
        self._leave_mail()
        if self._post.take(connection):
            self._watched_mail = connection
            self._selector.register(connection, selectors.EVENT_READ, self._hand_mail_over)

    def _hand_mail_over(self) -> None:
        if (connection := self._watched_mail) is not None:
            self._leave_mail()
            self._post.first_mail(connection)

    def _leave_mail(self) -> None:
        if self._watched_mail is not None:
            self._selector.unregister(self._watched_mail)
            self._watched_mail = None

    def _close(self, peer: _Peer) -> None:
        with suppress(KeyError, ValueError):  # it was closed already
            self._selector.unregister(peer.connection)
        self._sockets.discard(peer.connection)
        peer.connection.close()
        if self._control is peer:
            self._control = None

    # ---- requests ----

    def _answer(self, peer: _Peer, request: ControlRequest) -> None:
        reply = ControlReply(request=request.request, ok=True)
        if request.HasField("debug"):
            self._debugger.command(request.debug, lambda answer: self._answer_later(peer, reply, answer))
            return
        if request.HasField("arm_saves"):
            self._keeper.arm(request.arm_saves, lambda status: self._answer_later(peer, reply, status))
            return
        if request.HasField("save_now"):
            self._keeper.save_now(request.save_now, lambda status: self._answer_later(peer, reply, status))
            return
        try:
            self._fill(reply, request)
        except Exception:  # noqa: BLE001 -- odd objects of the user's must not end the thread that frees the rank
            reply.ok = False
            traceback.print_exc()
        self._send(peer, reply)
        if request.HasField("exit"):
            self._on_exit()

    def _answer_later(self, peer: _Peer, reply: ControlReply, answer: DebugAnswer | SavesStatus) -> None:
        """From any thread: only this one writes to its connections."""
        if isinstance(answer, SavesStatus):
            reply.saves.CopyFrom(answer)
        else:
            reply.debug.CopyFrom(answer)
        self._replies.append((peer, reply))
        self.wake()

    def _send(self, peer: _Peer, reply: ControlReply) -> None:
        try:
            frame = encode_frame(FromRank(control=reply).SerializeToString())
            send_all(peer.connection, frame, _SEND_TIMEOUT_S)
        except OSError:
            self._close(peer)

    def _fill(self, reply: ControlReply, request: ControlRequest) -> None:
        match request.WhichOneof("message"):
            case "interrupt":
                run_id, by, whence = request.interrupt.run_id, request.interrupt.by, request.interrupt.whence
                reply.ok = any([self._interrupter.request(run_id, by, whence), self._executions.request(run_id)])
                self._withdraw(run_id)  # then: what waits for these messages ends with them, and was interrupted
                self._press_soon()
            case "interrupt_actors":
                reply.actors.extend(self._describe(actor) for actor in self._actors())
                self._fill_between(reply)
                self._withdraw("")
                self._executions.request("")
                self._interrupter.end_between()
                self._press_soon()
            case "where":
                reply.where.CopyFrom(self._where(request.where.run_id))
            case "stack":
                reply.stack = self._stack()
            case "actors":
                reply.actors.extend(self._describe(actor) for actor in self._actors())
                self._fill_between(reply)
            case "complete":
                matches, start = completion.complete(request.complete.code, request.complete.cursor, self._namespace)
                reply.completions.extend(map(encodable, matches))
                reply.completion_start = start
            case "inspect":
                reply.inspection = encodable(completion.describe(request.inspect, self._namespace, self._user_code))
            case "stops":
                reply.stops.extend(self._debugger.stops())
            case "saves":
                reply.saves.CopyFrom(self._keeper.status())
            case "looks":
                reply.looks.CopyFrom(self._looker.watched(request.looks.last_s))
            case "abort_groups":
                abort = request.abort_groups
                if not abort.if_torn or breaking.is_torn(peer_died=abort.peer_died):
                    follows = abort.if_torn and not abort.peer_died
                    self._abort_groups(abort.reason, abort.last_run, follows=follows)
            case "exit":
                pass
            case _:
                reply.ok = False

    def _fill_between(self, reply: ControlReply) -> None:
        active = self._interrupter.active
        if active is not None and not active.run_id:
            reply.where.CopyFrom(self._place_of_main(active))

    def _press_soon(self) -> None:
        self._press_at = time.monotonic() + PRESS_INTERVAL_S

    def _abort_groups(self, reason: str, last_run: int, *, follows: bool) -> None:
        self._activities.break_groups(reason, last_run, follows=follows, freed=self._interrupter.active)
        self._press_soon()
        self._on_abort()

    def _where(self, run_id: str) -> Where:
        """Return where the main thread is, or with the id of a run of calls, who of those that it has called waits in a
        collective, else who runs longest."""
        active = self._interrupter.active
        called = self._executions.of_run(run_id) if run_id and (active is None or active.run_id != run_id) else []
        if called:
            called.sort(key=lambda each: each.started_s)
            places = [self._place(each, each.frames(), run_id) for each in called]
            return next((place for place in places if place.state == Where.STATE_COLLECTIVE), places[0])
        if active is None or (active.run_id and run_id not in ("", active.run_id)):
            (call, counts), (size, number) = self._calls.last(), calls.world(())
            return Where(
                state=Where.STATE_IDLE,
                call=Call(**vars(call)) if call else None,
                calls=counts,
                world_size=size,
                world_rank=number,
                busy_besides=self._is_busy_besides() or self._interrupter.has_tasks(),
            )
        return self._place_of_main(active)

    def _place_of_main(self, active: ActiveRun) -> Where:
        place = self._place(active, self._frames(active), active.run_id)
        if not active.run_id:
            place.line = BETWEEN_RUNS
        return place

    def _seen(self) -> Seen | None:
        """Return what executes user code now: the main thread, or the actor's that has done so for the longest time."""
        active = self._interrupter.active
        if active is not None:
            return Seen(active.thread, active.native_thread(), self._frames(active), active.run_id)
        longest = min(self._executions, key=lambda each: each.started_s, default=None)
        if longest is None:
            return None
        return Seen(longest.thread, longest.native_thread(), longest.frames())

    def _place(self, activity: Activity, frames: list[FrameType], run_id: str) -> Where:
        collective = (breaking.collective(frames[0]) if frames else None) or ""
        call, counts = self._calls.look(frames, collective)
        size, number = calls.world(frames)
        if call is not None:
            collective = collective or call.collective
        return Where(
            state=Where.STATE_COLLECTIVE if collective else Where.STATE_RUNNING,
            run_id=run_id,
            collective=collective,
            line=encodable(self._user_code.line_of_stack(frames)),
            running_s=time.monotonic() - activity.started_s,
            call=Call(**vars(call)) if call else None,
            calls=counts,
            handles_s=None if activity.delivered_at is None else int(time.monotonic() - activity.delivered_at),
            world_size=size,
            world_rank=number,
            busy_besides=bool(collective) and self._is_busy_besides(),
        )

    def _is_busy_besides(self) -> bool:
        """Return whether something may call collectives besides the main thread: an endpoint, a save, whoever debugs
        this rank, or a thread that is in torch.distributed."""
        return (
            any(self._executions)
            or bool(self._debugger.stops())
            or any(_calls_collectives(*thread) for thread in other_threads({self.ident or 0}))
        )

    def _describe(self, actor: ActorState) -> ActorStatus:
        status = ActorStatus(
            name=encodable(actor.name),
            class_name=encodable(actor.class_name),
            uid=actor.uid,
            waiting=actor.waiting,
            called=actor.called,
            failure="" if actor.is_ending else encodable(actor.failure),
            ending=actor.is_ending,
            pid=actor.pid,
            memory_bytes=actor.memory_bytes,
            actor_rank=actor.rank if actor.pid else None,
        )
        if actor.running:
            oldest = min(actor.running, key=lambda execution: execution.started_s)
            status.running, status.caller = encodable(oldest.endpoint), encodable(oldest.caller)
            status.running_s = time.monotonic() - oldest.started_s
            status.where.line = encodable(actor.line)
            for each in self._executions:
                if each.execution is oldest:
                    status.where.CopyFrom(self._place(each, each.frames(), each.run_id))
        return status

    def _stack(self) -> str:
        active = self._interrupter.active
        main = self._frames(active) if active is not None else None
        executions = list(self._executions)
        actors = [(f"actor {each.title}", each.frames()) for each in executions]
        ours = {self.ident or 0, *(each.thread for each in executions)}
        others = [(f"thread {name}", list(outwards(frame))) for name, frame in other_threads(ours)]
        return encodable(describe_threads(self._user_code, main, actors + others))

    def _frames(self, active: ActiveRun) -> list[FrameType]:
        """Return the main thread's frames of user code and below, innermost first."""
        main = threading.main_thread().ident
        frames = list(outwards(sys._current_frames().get(main or 0)))
        for position, frame in enumerate(frames):
            if frame.f_code in self._entries:
                return frames[:position]
        return awaited_frames(active.task.get_coro()) if active.task is not None else []


def _calls_collectives(name: str, frame: FrameType) -> bool:
    """Return whether a thread saves, or is in torch.distributed."""
    in_torch = any("/torch/distributed/" in each.f_code.co_filename for each in outwards(frame))
    return in_torch or name.startswith("monarch_nb-save") or breaking.collective(frame) is not None

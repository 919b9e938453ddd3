"""Ranks without an allocator: forked processes whose main threads run functions, and a control thread in each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from integration.live import TIMEOUT_S, asleep, eventually
from monarch_nb.worker.groups import breaking, forming, store

_fork = multiprocessing.get_context("fork")


class Failure:
    """What a function raised on a rank.

    Attributes:
        name, text: the class and message, as the user would see them.
        raw: the original error's message.
    """

    def __init__(self, error: BaseException) -> None:
        shown = breaking.readable(error) or error
        self.name, self.text, self.raw = type(shown).__name__, str(shown), str(error)
        self.traceback = "".join(traceback.format_exception(error))

    def __repr__(self) -> str:
        return f"{self.name}: {self.text}"


class ForkedRanks:
    """A store and `world_size` ranks. Functions are pickled by value; they get the rank's namespace as a dict.

    Example:
        >>> with ForkedRanks(4) as ranks:
        ...     ranks.run(lambda space: dist.init_process_group("gloo"))
    """

    def __init__(self, world_size: int, **environment: str) -> None:
        self.world_size, self.environment = world_size, environment
        self.processes: dict[int, Any] = {}
        self.work: dict[int, Connection] = {}
        self.control: dict[int, Connection] = {}

    def __enter__(self) -> ForkedRanks:
        receive, send = _fork.Pipe(duplex=False)
        self.store = _fork.Process(target=store.serve, args=("127.0.0.1", send.send), daemon=True)
        self.store.start()
        send.close()
        self.port = receive.recv()
        for rank in range(self.world_size):
            self.fork(rank)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.processes.values(), self.store]:
            process.kill()
            process.join()

    def fork(self, rank: int) -> None:
        work, its_work = _fork.Pipe()
        control, its_control = _fork.Pipe()
        theirs = [*self.work.values(), *self.control.values(), work, control]
        process = _fork.Process(target=self._live, args=(rank, its_work, its_control, theirs), daemon=True)
        process.start()
        its_work.close()
        its_control.close()
        self.processes[rank], self.work[rank], self.control[rank] = process, work, control

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].join()

    def submit(self, function: Callable[[dict[str, Any]], Any], ranks: Iterable[int] | None = None) -> None:
        for rank in self._all(ranks):
            self.work[rank].send_bytes(cloudpickle.dumps(function))

    def collect(self, ranks: Iterable[int] | None = None) -> list[Any]:
        deadline, results = time.monotonic() + TIMEOUT_S, []
        for rank in self._all(ranks):
            if not self.work[rank].poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"rank {rank} is in {self.where([rank])} after {TIMEOUT_S} s")
            results.append(self.work[rank].recv())
        return results

    def run(self, function: Callable[[dict[str, Any]], Any], ranks: Iterable[int] | None = None) -> list[Any]:
        """Run to the end; fail when a rank did."""
        self.submit(function, ranks)
        results = self.collect(ranks)
        failures = [result for result in results if isinstance(result, Failure)]
        assert not failures, failures[0].traceback
        return results

    def where(self, ranks: Iterable[int] | None = None) -> list[str | None]:
        return self._ask("where", ranks)

    def break_groups(self, ranks: Iterable[int] | None = None, reason: str = "interrupted") -> list[bool]:
        return self._ask(("break", reason), ranks)

    def interrupt(self, ranks: Iterable[int] | None = None) -> None:
        """Send SIGINT, which counts only while a function runs."""
        for rank in self._all(ranks):
            os.kill(self.processes[rank].pid, signal.SIGINT)

    def wait_until_in(self, name: str, ranks: Iterable[int] | None = None) -> None:
        """Wait until the main threads of `ranks` sleep in the collective `name`."""
        eventually(lambda: all(self._sleeps_in(name, rank) for rank in self._all(ranks)))

    def _sleeps_in(self, name: str, rank: int) -> bool:
        pid = self.processes[rank].pid
        before = asleep(pid)
        return self.where([rank]) == [name] and before is not None and before == asleep(pid)

    def _ask(self, question: Any, ranks: Iterable[int] | None) -> list[Any]:
        chosen = self._all(ranks)
        for rank in chosen:
            self.control[rank].send(question)
        assert all(self.control[rank].poll(TIMEOUT_S) for rank in chosen), f"not all of {chosen} answer"
        return [self.control[rank].recv() for rank in chosen]

    def _all(self, ranks: Iterable[int] | None) -> list[int]:
        return list(range(self.world_size) if ranks is None else ranks)

    def _live(self, rank: int, work: Connection, control: Connection, theirs: list[Connection]) -> None:
        for connection in theirs:
            connection.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)  # not pytest's
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(self.world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.port),
            RES_OPTIONS="timeout:1 attempts:1",  # torch looks up the names of addresses, and DNS may be slow
            CUDA_VISIBLE_DEVICES="",
            **self.environment,
        )
        forming.install()
        broken = threading.Event()
        threading.Thread(target=_answer, args=(control, broken), daemon=True).start()
        space: dict[str, Any] = {"rank": rank, "world_size": self.world_size}
        while True:
            function = cloudpickle.loads(work.recv_bytes())
            _forget(broken)
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                result = function(space)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            except BaseException as error:  # noqa: BLE001 - user code
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                result = Failure(error)
            _forget(broken)
            work.send(result)


def _forget(broken: threading.Event) -> None:
    if broken.is_set():
        broken.clear()
        breaking.forget_groups()


def _answer(control: Connection, broken: threading.Event) -> None:
    while True:
        match control.recv():
            case "where":
                control.send(breaking.collective(sys._current_frames()[threading.main_thread().ident or 0]))
            case ("break", reason):
                broken.set()
                control.send(breaking.break_groups(reason))

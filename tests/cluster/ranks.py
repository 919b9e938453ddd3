"""Ranks without processes, and what a node has in the place of its Supervisor."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import os
import traceback
from collections import deque
from pathlib import Path
from typing import Any

from cluster.clock import Life, running
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.supervisor import RankProcess
from monarch_nb.errors import SpawnError
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire_pb
from monarch_nb.worker.runs.values import load_variables, store_value

FIRST_PID = 1 << 29
"""Above every pid that Linux gives: nobody is killed by mistake."""


class Rank:
    """The process of a rank: it executes cells in a namespace of its own, on the loop. Cells may `await sleep(s)`,
    `print(...)` and `die(signal)`, and they have `rank`, `pid` and `env`. What it has done it keeps until an allocator
    has stored it."""

    _pids = itertools.count(FIRST_PID)

    def __init__(self, spec: wire_pb.RankSpec) -> None:
        self.spec, self.pid = spec, next(self._pids)
        self.life = Life(f"rank {spec.rank}")
        self.status: int | None = None
        self.supervisor: ScriptedSupervisor | None = None
        self.process: RankProcess | None = None
        self.told: list[str] = []
        """The kinds of what the control thread was told."""
        self.runs_on = {"rank": spec.rank, "sleep": asyncio.sleep, "die": self.die, "pid": self.pid}
        self.runs_on["env"] = dict(spec.environment)
        self._queue: deque[run_pb2.RunSpec] = deque()
        self._running, self._task = "", None
        self._done: list[str] = []
        self._results: dict[str, run_pb2.RankResult] = {}

    # the allocator's side: what a RankLink and its MailLink are

    is_open = True
    sent_s = 0.0

    @property
    def mail(self) -> Rank:
        return self

    def send(self, *_: object) -> bool:
        return True

    def close(self) -> None:
        self.supervisor = None

    def start(self, encoded: bytes) -> None:
        run = wire_pb.ToRank.FromString(encoded).run
        if self.status is None and run.run_id not in (self._running, *self._done):
            self._queue.append(run)
            self._go_on()

    def forget_results(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            self._results.pop(run_id, None)

    def tell(self, request: wire_pb.ControlRequest) -> bool:
        kind = request.WhichOneof("message") or ""
        self.told.append(kind)
        if kind == "interrupt" and self._task is not None and request.interrupt.run_id in ("", self._running):
            self._task.cancel()
        elif kind == "exit":
            self.end(0)
        return self.status is None

    async def control(self, request: wire_pb.ControlRequest, timeout_s: float) -> wire_pb.ControlReply | None:
        if not self.tell(request):
            return None
        state = run_pb2.Where.STATE_RUNNING if self._running else run_pb2.Where.STATE_IDLE
        return wire_pb.ControlReply(ok=True, where=run_pb2.Where(state=state, run_id=self._running))

    def hello(self) -> wire_pb.RankHello:
        results = list(self._results.values())
        return wire_pb.RankHello(
            rank=self.spec.rank, pid=self.pid, running=self._running, done=self._done, results=results
        )

    # its own side

    def die(self, signal: int = 9) -> None:
        """End by a signal, at once."""
        self.end(signal)
        raise asyncio.CancelledError

    def end(self, status: int) -> None:
        if self.status is None:
            self.status, self.life.is_over = status, True
            if self.supervisor is not None:
                self.supervisor.on_end(self)

    def _go_on(self) -> None:
        if not self._running and self._queue:
            run = self._queue.popleft()
            self._running = run.run_id
            self._task = self.life.call(asyncio.get_running_loop().create_task, self._execute(run))

    async def _execute(self, run: run_pb2.RunSpec) -> None:
        result = run_pb2.RankResult(run_id=run.run_id, rank=self.spec.rank, outcome=run_pb2.OUTCOME_OK)
        files = RankFiles(Path(self.spec.log_directory), run.output, self.spec.rank)
        began_s = asyncio.get_running_loop().time()
        try:
            value = await self._body(run, Path(self.spec.log_directory, str(run.output)))
            store_value(result, value, self.spec.blob_directory)
        except asyncio.CancelledError:
            if self.status is not None:
                return
            result.outcome = run_pb2.OUTCOME_INTERRUPTED
            result.failure.name = "KeyboardInterrupt"
        except Exception as error:  # noqa: BLE001 (it is the cell's)
            result.outcome = run_pb2.OUTCOME_ERROR
            result.failure.name, result.failure.message = type(error).__name__, str(error)
            result.failure.traceback = traceback.format_exc()
        result.duration_s = asyncio.get_running_loop().time() - began_s
        result.end.CopyFrom(files.end())
        self._done.append(run.run_id)
        self._results[run.run_id] = result
        self._running, self._task = "", None
        if self.supervisor is not None:
            self.supervisor.on_result(self, result)
        self._go_on()

    async def _body(self, run: run_pb2.RunSpec, directory: Path) -> Any:
        kind = run.WhichOneof("body")
        if kind == "push":
            self.runs_on.update(load_variables(Path(self.spec.blob_directory, run.push.blob)))
            return None
        if kind == "pull":
            return eval(run.pull.expression, self.runs_on)
        if kind == "end_groups":
            return 0

        def printed(*words: object) -> None:
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / f"{self.spec.rank}.out").open("a") as file:
                print(*words, file=file)

        self.runs_on["print"] = printed
        tree = ast.parse(run.cell.code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        await self._evaluate(compile(tree, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if last is None:
            return None
        expression = ast.Expression(last.value)
        return await self._evaluate(compile(expression, "cell", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    async def _evaluate(self, code: Any) -> Any:
        value = eval(code, self.runs_on)
        return await value if inspect.iscoroutine(value) else value


class ScriptedSupervisor:
    """A Supervisor whose processes are the machine's scripted ranks; they outlive it, as real ones do."""

    def __init__(self, node: Any) -> None:
        life = running.get()
        assert life is not None
        self.paths, self._life, self._machine = node.paths, life, life.machine
        self._loop = asyncio.get_running_loop()
        self._node = node
        self.ranks: dict[tuple[str, int], RankProcess] = {}
        self.leaving: set[RankProcess] = set()
        self.stores: dict[str, int] = {}

    @property
    def templates(self) -> Any:
        return self

    ready, error = asyncio.Event(), ""

    def keep_warm(self, *_: object) -> None:
        pass

    async def template(self, *_: object, **__: object) -> None:
        if self._machine.fails_to_spawn:
            raise SpawnError(self._machine.fails_to_spawn)
        await asyncio.sleep(0)

    async def needs_own(self, *_: object) -> Any:
        return [], {}, []

    async def adopt(self, *_: object) -> None:
        pass

    async def fork_ranks(self, _: object, planned: list[tuple[state_pb2.RankRecord, wire_pb.RankSpec]]) -> Any:
        await asyncio.sleep(self._machine.fork_s)
        made = []
        for record, spec in planned:
            rank = Rank(spec)
            record.process.pid, record.process.boot_id = rank.pid, processes.boot_id()
            self._machine.ranks[rank.pid] = rank
            made.append(self._take(record, rank))
        return made

    async def adopt_rank(self, record: state_pb2.RankRecord) -> None:
        rank = self._machine.ranks[record.process.pid]
        process = self._take(record, rank)
        if rank.status is None:
            self._node.on_hello(process, rank.hello())
        else:
            self.on_end(rank)

    def _take(self, record: state_pb2.RankRecord, rank: Rank) -> RankProcess:
        link: Any = rank
        process = RankProcess(record.mesh_id, record.rank, record, link, link, 0)
        rank.supervisor, rank.process = self, process
        self.ranks[record.mesh_id, record.rank] = process
        self._node.on_there(process, True)
        return process

    def on_result(self, rank: Rank, result: run_pb2.RankResult) -> None:
        """A rank has finished a run: its allocator hears of it in its own time."""
        if not self._life.is_over and rank.process not in self.leaving:
            self._life.call(self._loop.call_soon, self._node.on_result, rank.process, result)

    def on_end(self, rank: Rank) -> None:
        """A process has ended."""
        if not self._life.is_over:
            self._life.call(self._loop.call_soon, self._reap, rank)

    def _reap(self, rank: Rank) -> None:
        process = rank.process
        if process is not None and self.ranks.get((process.mesh_id, process.rank)) is process:
            del self.ranks[process.mesh_id, process.rank]
            self._node.on_death(process, rank.status)

    def kill(self, ranks: Any) -> None:
        for process in ranks:
            process.killed_by_us = True
            process.link.end(9)

    def retire(self, ranks: Any) -> None:
        for process in ranks:
            if self.ranks.get((process.mesh_id, process.rank)) is process:
                del self.ranks[process.mesh_id, process.rank]
                self._node.on_there(process, False)
            self.leaving.add(process)

    async def end(self, ranks: Any, *, patience_s: float = 0.0) -> None:
        doomed = list(ranks)
        self.retire(doomed)
        await asyncio.sleep(0)
        for process in doomed:
            process.link.end(9)
            self.leaving.discard(process)

    async def fork_store(self, mesh_id: str, *_: object) -> tuple[int, int]:
        await asyncio.sleep(0)
        self.stores[mesh_id] = 29500
        return os.getpid(), 29500

    def watch_store(self, mesh_id: str, pid: int) -> None:
        self.stores[mesh_id] = 29500

    async def end_store(self, mesh_id: str) -> None:
        self.stores.pop(mesh_id, None)

    def stacks(self, process: RankProcess) -> Path:
        return self.paths.stacks(process.home_id, process.rank, "")

    def explain_death(self, process: RankProcess, status: int | None, stderr: list[str]) -> run_pb2.Death:
        pid = process.record.process.pid
        told: Any = {"killed_by_us": process.killed_by_us, "oom_kills_before": processes.oom_kills()}
        return processes.explain_death(pid, status, stderr=stderr, stderr_tail=stderr, **told)

    async def close(self, *, end_processes: bool) -> None:
        if end_processes:
            await self.end(list(self.ranks.values()))

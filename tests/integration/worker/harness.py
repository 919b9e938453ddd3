"""Plays the allocator to a real template process and real ranks."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from framing import receive_frame, send_frame
from integration.live import TIMEOUT_S, asleep, eventually
from monarch_nb.ground.frames import FrameSplitter, pack_pickle, unpack_pickle
from monarch_nb.proto.run_pb2 import OUTCOME_OK, Cell, Mark, Pull, Push, RankResult, RunSpec, Tree, Where
from monarch_nb.proto.worker_pb2 import (
    AbortGroups,
    ControlReply,
    ControlRequest,
    ExitRank,
    ExitTemplate,
    ForgetExits,
    ForgetResults,
    Forked,
    ForkRanks,
    ForkStore,
    FromRank,
    FromTemplate,
    GetCompletions,
    GetStack,
    GetWhere,
    Hello,
    InterruptRun,
    RankHello,
    RankSpec,
    TemplateReady,
    ToRank,
    ToTemplate,
)

_TEMPLATE_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def connect(path: Path | str, timeout_s: float = TIMEOUT_S) -> socket.socket:
    """Connect to a Unix socket that appears soon."""
    deadline = time.monotonic() + timeout_s
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


class TemplateProcess:
    """A template process in a directory of its own under /tmp."""

    def __init__(self, preload: Sequence[str] = ("torch",), environment: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mnb-w-", dir="/tmp"))
        self.socket_path = self.directory / "template"
        self.log_path = self.directory / "template.log"
        self.work_directory = self.directory / "work"
        self.work_directory.mkdir()
        arguments = [argument for module in preload for argument in ("--preload", module)]
        command = [sys.executable, "-m", "monarch_nb.worker.template", "--socket", str(self.socket_path), *arguments]
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **_TEMPLATE_ENVIRONMENT, **(environment or {})},
                start_new_session=True,
            )
        self._numbers = itertools.count()
        self._children: list[int] = []
        self.ranks: list[RankProcess] = []
        self.received: list[FromTemplate] = []
        try:
            self.connection = connect(self.socket_path)
        except BaseException:
            self.connection = socket.socket()
            self.close()
            raise

    def wait_ready(self) -> TemplateReady:
        """Wait until it has imported everything."""
        message = self.receive()
        assert message.HasField("ready"), message
        return message.ready

    def reconnect(self) -> TemplateReady:
        """Connect anew, as a restarted allocator does."""
        self.connection.close()
        self.connection = connect(self.socket_path)
        return self.wait_ready()

    def send(self, message: ToTemplate) -> None:
        send_frame(self.connection, message.SerializeToString())

    def receive(self) -> FromTemplate:
        frame = receive_frame(self.connection)
        assert frame is not None, f"the template hung up:\n{self.log_path.read_text()}"
        return FromTemplate.FromString(frame)

    def receive_kind(self, kind: str) -> Any:
        """Return the next message of a kind; others are kept in `received`."""
        for index, message in enumerate(self.received):
            if message.HasField(kind):  # type: ignore[arg-type]
                return getattr(self.received.pop(index), kind)
        while True:
            message = self.receive()
            if message.HasField(kind):  # type: ignore[arg-type]
                return getattr(message, kind)
            self.received.append(message)

    def rank_spec(self, rank: int, world_size: int, environment: Mapping[str, str] | None = None) -> RankSpec:
        """Return a spec as the allocator would make it."""
        number = next(self._numbers)
        variables = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world_size),
            "GROUP_RANK": "0",
            "NODE_RANK": "0",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo",
            "MONARCH_NB_RANK_TOKEN": self.directory.name,
        }
        return RankSpec(
            mesh_id="mesh",
            rank=rank,
            environment={**variables, **(environment or {})},
            directory=str(self.work_directory),
            socket=str(self.directory / f"r{number}"),
            log_directory=str(self.directory / "runs"),
            blob_directory=str(self.directory / "blobs"),
            stacks_file=str(self.directory / f"{rank}.stacks"),
        )

    def fork_specs(self, specs: Sequence[RankSpec]) -> list[int]:
        """Fork ranks; return their pids."""
        self.send(ToTemplate(fork_ranks=ForkRanks(request=1, ranks=specs)))
        forked: Forked = self.receive_kind("forked")
        self._children += forked.pids
        assert not forked.error, forked.error
        return list(forked.pids)

    def fork(self, count: int = 1, environment: Mapping[str, str] | None = None) -> list[RankProcess]:
        """Fork ranks 0 to count-1 and connect to them."""
        specs = [self.rank_spec(rank, count, environment) for rank in range(count)]
        pids = self.fork_specs(specs)
        ranks = [RankProcess(self, spec, pid) for spec, pid in zip(specs, pids, strict=True)]
        self.ranks += ranks
        return ranks

    def fork_store(self, environment: Mapping[str, str] | None = None) -> int:
        """Fork a store process; return its port."""
        request = ForkStore(request=2, host="127.0.0.1", environment=environment or {"PATH": os.environ["PATH"]})
        self.send(ToTemplate(fork_store=request))
        forked: Forked = self.receive_kind("forked")
        self._children += forked.pids
        assert not forked.error, forked.error
        return forked.store_port

    def fork_mesh(self, count: int) -> list[RankProcess]:
        """Fork ranks that can use torch.distributed."""
        return self.fork(count, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.fork_store())})

    def forget_exits(self, pids: Sequence[int]) -> None:
        self.send(ToTemplate(forget_exits=ForgetExits(pids=pids)))
        self.fork_specs([])  # answered in order

    def end_children(self) -> None:
        """Kill all ranks and stores."""
        for rank in self.ranks:
            rank.disconnect()
        for pid in self._children:
            _kill_session(pid)
        self.ranks.clear()
        self._children.clear()
        shutil.rmtree(self.directory / "runs", ignore_errors=True)

    def exit(self) -> int:
        """Tell it to exit; return the exit status."""
        self.send(ToTemplate(exit=ExitTemplate()))
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        """End everything that was started."""
        self.end_children()
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class RankProcess:
    """A rank, seen from the allocator."""

    def __init__(self, template: TemplateProcess, spec: RankSpec, pid: int) -> None:
        self.spec, self.pid, self.rank = spec, pid, spec.rank
        self._template = template
        self._numbers = itertools.count(1)
        self._requests = itertools.count(1)
        self.work, self.hello = self.connect_work()
        self.control = self.connect_control()

    # ---- connections ----

    def connect_work(self) -> tuple[socket.socket, RankHello]:
        connection = connect(self.spec.socket)
        send_frame(connection, ToRank(hello=Hello(channel=Hello.CHANNEL_WORK)).SerializeToString())
        return connection, self.receive_from(connection).hello

    def connect_control(self) -> socket.socket:
        connection = connect(self.spec.socket)
        send_frame(connection, ToRank(hello=Hello(channel=Hello.CHANNEL_CONTROL)).SerializeToString())
        return connection

    def disconnect(self) -> None:
        self.work.close()
        self.control.close()

    def reconnect(self) -> RankHello:
        """As a restarted allocator does."""
        self.disconnect()
        self.work, self.hello = self.connect_work()
        self.control = self.connect_control()
        return self.hello

    def receive_from(self, connection: socket.socket) -> FromRank:
        frame = receive_frame(connection)
        if frame is None:
            log = self._template.log_path.read_text()
            raise AssertionError(f"rank {self.rank} hung up:\n{log}{self.text('err')}")
        return FromRank.FromString(frame)

    # ---- runs ----

    def spec_of(self, **body: Any) -> RunSpec:
        return RunSpec(run_id=uuid.uuid4().hex, number=next(self._numbers), **body)

    def submit(self, code: str, *, cell_number: int = 0, want_value: bool = True, tree: Tree | None = None) -> RunSpec:
        """Send a cell; return at once."""
        spec = self.spec_of(cell=Cell(code=code, cell_number=cell_number, want_value=want_value), tree=tree)
        self.send_run(spec)
        return spec

    def send_run(self, spec: RunSpec) -> None:
        send_frame(self.work, ToRank(run=spec).SerializeToString())

    def result(self, timeout_s: float = TIMEOUT_S) -> RankResult:
        """Wait for the next result."""
        self.work.settimeout(timeout_s)
        while True:
            message = self.receive_from(self.work)
            if message.HasField("result"):
                return message.result

    def start(self, code: str, **options: Any) -> RunSpec:
        """Submit a cell and wait until it runs."""
        spec = self.submit(code, **options)
        eventually(lambda: self.where().run_id == spec.run_id)
        return spec

    def run(self, code: str, *, timeout_s: float = TIMEOUT_S, **options: Any) -> RankResult:
        """Run a cell to its end."""
        self.submit(code, **options)
        return self.result(timeout_s)

    def ok(self, code: str, **options: Any) -> Any:
        """Run a cell that must not fail; return its value."""
        result = self.run(code, **options)
        assert result.outcome == OUTCOME_OK, f"{result.failure.traceback}\n{result.failure.message}"
        assert not result.value_error, result.value_error
        return self.value(result)

    def value(self, result: RankResult) -> Any:
        """Return the value of a result."""
        match result.WhichOneof("value"):
            case "value_inline":
                return unpack_pickle(result.value_inline)
            case "value_blob":
                return unpack_pickle((Path(self.spec.blob_directory) / result.value_blob).read_bytes())
        return None

    def push(self, variables: Mapping[str, Any]) -> RankResult:
        directory = Path(self.spec.blob_directory)
        directory.mkdir(exist_ok=True)
        name = f"{uuid.uuid4().hex}.push"
        (directory / name).write_bytes(b"".join(pack_pickle(dict(variables), cloudpickle.dumps)))
        self.send_run(self.spec_of(push=Push(blob=name)))
        return self.result()

    def pull(self, expression: str) -> RankResult:
        self.send_run(self.spec_of(pull=Pull(expression=expression)))
        return self.result()

    def forget(self, *run_ids: str) -> None:
        send_frame(self.work, ToRank(forget_results=ForgetResults(run_ids=run_ids)).SerializeToString())

    # ---- control ----

    def ask(self, timeout_s: float = TIMEOUT_S, **message: Any) -> ControlReply:
        return self.answer(self.question(**message), timeout_s)

    def question(self, **message: Any) -> int:
        """Ask without waiting; return the number of the question, for `answer`."""
        request = ControlRequest(request=next(self._requests), **message)
        send_frame(self.control, ToRank(control=request).SerializeToString())
        return request.request

    def answer(self, question: int, timeout_s: float = TIMEOUT_S) -> ControlReply:
        self.control.settimeout(timeout_s)
        reply = self.receive_from(self.control).control
        assert reply.request == question
        return reply

    def interrupt(self, run_id: str = "") -> bool:
        return self.ask(interrupt=InterruptRun(run_id=run_id)).ok

    def where(self) -> Where:
        return self.ask(where=GetWhere()).where

    def stack(self) -> str:
        return self.ask(stack=GetStack()).stack

    def complete(self, code: str, cursor: int | None = None) -> list[str]:
        position = len(code) if cursor is None else cursor
        return list(self.ask(complete=GetCompletions(code=code, cursor=position)).completions)

    def abort_groups(self, reason: str, last_run: int = 0) -> None:
        self.ask(abort_groups=AbortGroups(reason=reason, last_run=last_run))

    def exit(self) -> None:
        self.ask(exit=ExitRank())

    def wait_where(self, state: Where.State.ValueType, line: str = "") -> Where:
        """Wait until the main thread is in a state (and at a line)."""

        def is_there() -> Where | None:
            where = self.where()
            return where if where.state == state and line in where.line else None

        return eventually(is_there)

    def wait_hung(self, run_id: str = "", thread: int = 0) -> Where:
        """Wait until a thread sleeps in a collective: not only in its function, where it may be about to begin.

        Args:
            run_id: of the run of calls of which it is part; empty for what the main thread runs.
            thread: its id; 0 for the main thread.
        """

        def hangs() -> Where | None:
            before = asleep(self.pid, thread)
            where = self.ask(where=GetWhere(run_id=run_id)).where
            sleeps = before is not None and before == asleep(self.pid, thread)
            return where if sleeps and where.state == Where.STATE_COLLECTIVE else None

        return eventually(hangs)

    # ---- output ----

    def text(self, kind: str = "out", number: int | None = None) -> str:
        """Return what a run printed (the newest by default)."""
        runs = Path(self.spec.log_directory)
        if number is None:
            number = max((int(path.parent.name) for path in runs.glob(f"*/{self.rank}.{kind}")), default=0)
        path = runs / str(number) / f"{self.rank}.{kind}"
        return path.read_bytes().decode(errors="replace") if path.exists() else ""

    def marks(self, number: int) -> list[Mark]:
        path = Path(self.spec.log_directory) / str(number) / f"{self.rank}.marks"
        data = path.read_bytes() if path.exists() else b""
        return [Mark.FromString(frame) for frame in FrameSplitter().feed(data)]


def run_all(ranks: Sequence[RankProcess], code: str, **options: Any) -> list[RankResult]:
    """Run a cell on all ranks at once."""
    for rank in ranks:
        rank.submit(code, **options)
    return [rank.result() for rank in ranks]


def values(ranks: Sequence[RankProcess], code: str) -> list[object]:
    """Run a cell that must not fail on all ranks at once; return its values."""
    results = run_all(ranks, code)
    assert not any(result.HasField("failure") for result in results), results[0].failure.traceback
    return [rank.value(result) for rank, result in zip(ranks, results, strict=True)]


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended

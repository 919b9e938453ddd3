# `many_nodes.py FIRST COUNT PROCS`: so many nodes of a local pool in one process, numbered from FIRST. Their allocators
# are real, each with its own server, database and files; their ranks are stand-ins that answer at once. Run with
# MONARCH_NB_HOME set; ends when it is told to.
import asyncio
import itertools
import json
import os
import pickle
import random
import re
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from monarch_nb.allocator import node as node_room
from monarch_nb.allocator.api.access import Access
from monarch_nb.allocator.api.guard import Guard
from monarch_nb.allocator.api.service import AllocatorService
from monarch_nb.allocator.logs.output import DirectoryWatch
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes.processes import identify
from monarch_nb.allocator.processes.supervisor import RankProcess, Supervisor
from monarch_nb.config import FACTS_MIME, NodePaths, pool_directory, private_directory, run_file
from monarch_nb.ground.frames import pack_pickle
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.channel import make_server, open_channel
from monarch_nb.worker.shell.facts import facts_of

FLOOD_LINES = 2_500
"""More than 64 kB, of which an allocator forwards 24 (logs/output.py)."""
LOOK_S = 0.1
STEP_S = 0.2
NAN_RANK = 77
_CLOCK = re.compile(r"\d\d:\d\d:\d\d,\d{3}")


class StandInMail:
    sent_s = 0.0

    def send(self, frame: bytes) -> None:
        pass


class StandInLink:
    """A rank that is there at once: its cell is one expression, whose value and output it gives back."""

    def __init__(self, record: state_pb2.RankRecord, runs: Path, supervisor: "StandIns") -> None:
        self._rank, self._runs, self._supervisor = record.rank, runs, supervisor
        self.mail = StandInMail()
        self.process: RankProcess | None = None

    def start(self, encoded_run: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._run, wire.ToRank.FromString(encoded_run).run, 0)

    def _run(self, run: run_pb2.RunSpec, looks: int) -> None:
        """Do what the cell says: `pass`, `print TEXT`, `flood LOOKS` (prints more than is forwarded, as often),
        `replay FILE` (see `_replay`), or an expression."""
        result = run_pb2.RankResult(run_id=run.run_id, rank=self._rank, outcome=run_pb2.OUTCOME_OK, untouched=True)
        verb, _, rest = run.cell.code.partition(" ")
        if verb in ("print", "flood"):
            text = f"{rest}\n" if verb == "print" else f"step of rank {self._rank}: all is well\n" * FLOOD_LINES
            with run_file(self._runs, run.output, self._rank, "out").open("ab") as file:
                file.write(text.encode())
                result.end.stdout_bytes, result.untouched = file.tell(), False
            if verb == "flood" and looks < int(rest):
                asyncio.get_running_loop().call_later(LOOK_S, self._run, run, looks + 1)
                return
        elif verb == "replay":
            recorded = json.loads(Path(rest).read_text())["train"]
            asyncio.get_running_loop().create_task(self._replay(run, result, recorded))
            return
        elif verb != "pass":
            value = eval(run.cell.code, {"rank": self._rank})
            result.bundle_json = json.dumps({"data": {"text/plain": repr(value), FACTS_MIME: facts_of(value)}})
            if run.cell.want_value:
                result.value_inline = b"".join(pack_pickle(value, pickle.dumps))
        self._answer(result)

    def _answer(self, result: run_pb2.RankResult) -> None:
        result.duration_s = 0.001 + self._rank / 1e6
        if self.process is not None:  # else it was released
            self._supervisor.answered(self.process, result)

    async def _replay(self, run: run_pb2.RunSpec, result: run_pb2.RankResult, texts: list[str]) -> None:
        """Print what one of 8 recorded ranks printed while it trained, line by line, each at its own time and with the
        time of day that it is; rank `NAN_RANK` has no loss at one step."""
        chance, text = random.Random(self._rank), texts[self._rank % len(texts)]
        if self._rank == NAN_RANK:
            text = text.replace("loss:  5.52144", "loss:      nan")
        for line in text.splitlines(keepends=True):
            await asyncio.sleep(chance.uniform(0.9, 1.1) * STEP_S if "step:" in line else 0)
            now = datetime.now().strftime("%H:%M:%S,%f")[:12]
            with run_file(self._runs, run.output, self._rank, "err").open("ab") as file:
                file.write(_CLOCK.sub(now, line).encode())
                result.end.stderr_bytes, result.untouched = file.tell(), False
        self._answer(result)

    def forget_results(self, run_ids: list[str]) -> None:
        pass

    def tell(self, request: wire.ControlRequest) -> bool:
        return True

    async def control(self, request: wire.ControlRequest, timeout_s: float) -> None:
        return None


class StandIns(Supervisor):
    """Processes of a node that are none."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.templates: Any = self
        self.ready, self.error = asyncio.Event(), ""
        self.ready.set()

    async def needs_own(self, *_: object) -> Any:
        return [], {}, []

    async def template(self, *_: object, **__: object) -> Any:
        return None

    async def fork_ranks(
        self, template: object, planned: list[tuple[state_pb2.RankRecord, wire.RankSpec]]
    ) -> list[RankProcess]:
        ranks = []
        for record, _ in planned:
            link: Any = StandInLink(record, self.paths.runs(record.mesh_id), self)
            link.process = rank = RankProcess(record.mesh_id, record.rank, record, link, None, 0)  # type: ignore[arg-type]
            self.ranks[rank.mesh_id, rank.rank] = rank
            self._node.on_there(rank, True)
            ranks.append(rank)
        return ranks

    def answered(self, rank: RankProcess, result: run_pb2.RankResult) -> None:
        self._node.on_result(rank, result)

    async def end(self, ranks: Iterable[RankProcess], *, patience_s: float = 0.0) -> None:
        for rank in ranks:
            del self.ranks[rank.mesh_id, rank.rank]
            self._node.on_there(rank, False)
            rank.link.process = None  # type: ignore[attr-defined]

    async def fork_store(self, mesh_id: str, template: object, host: str, port: int = 0) -> tuple[int, int]:
        return os.getpid(), 1

    async def end_store(self, mesh_id: str) -> None:
        pass


async def start(number: int, procs: int, facts: dict[str, object]) -> Any:
    """Start one node; return its server."""
    paths = NodePaths(private_directory(pool_directory() / f"node{number}"))
    for sockets in (paths.sockets.parent, paths.sockets):
        private_directory(sockets)
    node = Node(
        paths,
        f"node{number}",
        procs=procs,
        gpus=[],
        python=sys.executable,
        preload=[],
        isolated=True,
        address=paths.address,
        open_channel=open_channel,
    )
    node.records.read()
    node.mail.start()
    server = make_server()
    access = Access(node)
    Guard(AllocatorService(node, access), access, paths.directory).serve_on(server)
    server.add_insecure_port(paths.address)
    await server.start()
    paths.facts.write_text(json.dumps(facts))
    return server


async def main(first: int, count: int, procs: int) -> None:
    watch = DirectoryWatch(asyncio.get_running_loop())  # a user has few
    node_room.Supervisor, node_room.DirectoryWatch = StandIns, lambda _: watch  # type: ignore[misc, assignment]
    process = identify(os.getpid())
    facts = {"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": process.boot_id}
    servers = [await start(number, procs, facts) for number in itertools.islice(itertools.count(first), count)]
    print("ready", flush=True)
    await asyncio.gather(*(server.wait_for_termination() for server in servers))


_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
with suppress(KeyboardInterrupt):
    asyncio.run(main(*map(int, sys.argv[1:])))

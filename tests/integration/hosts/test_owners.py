"""What people may do with each other's reservations: nothing, or what the owner grants, and no longer than that."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.hosts.lab import Allocator, Lab
from integration.hosts.people import TIMEOUT_S, Person
from integration.live import eventually
from monarch_nb import Reservation, list_reservations, reserve
from monarch_nb.cli.main import main
from monarch_nb.config import PROTOCOL
from monarch_nb.errors import AccessDenied, MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2
from monarch_nb.proto.allocator_pb2_grpc import AllocatorStub
from monarch_nb.rpc.channel import open_channel
from monarch_nb.rpc.status import error_from_json, translate
from monarch_nb.trust.identity import Identity, load_identity
from monarch_nb.trust.pools import paths_of


@pytest.fixture
def node(lab: Lab) -> Allocator:
    return lab.start()


@pytest.fixture
def bob(lab: Lab, node: Allocator, tmp_path: Path) -> Person:
    return Person(lab, "bob", tmp_path)


@pytest.fixture
def dev(node: Allocator) -> Iterator[Reservation]:
    """What alice holds, with a secret in the environment of its ranks."""
    held = reserve("dev", procs=2, preload=[], env={"TOKEN": "hunter2"}, time="8h")
    yield held
    held.release()


def stolen_requests(dev: Reservation, run_id: str) -> dict[str, Any]:
    """Return requests of somebody who has learnt every id of a reservation."""
    mesh_id = dev.mesh.id
    return {
        "ReadLogs": pb.ReadLogsRequest(mesh_id=mesh_id),
        "WatchLog": pb.WatchLogRequest(mesh_id=mesh_id),
        "ReadLines": pb.ReadLinesRequest(mesh_id=mesh_id),
        "SearchLog": pb.SearchLogRequest(mesh_id=mesh_id, text="secret"),
        "ReadMetrics": pb.ReadMetricsRequest(mesh_id=mesh_id, number=1),
        "Control": pb.ControlRanksRequest(mesh_id=mesh_id, ranks=[0], stack=True),
        "Drop": pb.DropRequest(mesh_id=mesh_id, run_ids=[run_id]),
        "Restart": pb.RestartRequest(mesh_id=mesh_id, ranks=[0]),
        "Extend": pb.ExtendRequest(reservation_id=dev.id, time_s=1.0),
        "Release": pb.ReleaseRequest(reservation_id=dev.id, why="its time was up"),
        "Share": pb.ShareRequest(reservation_id=dev.id, to="bob", right=pb.RIGHT_RUN),
        "ListFiles": files_pb2.ListFilesRequest(reservation_id=dev.id),
        "ReadFile": files_pb2.ReadFileRequest(path=b"/etc/hostname"),
        "Spawn": pb.SpawnRequest(reservation_id=dev.id, mesh_id="m" * 32, ranks=1),
        "ReadBlob": pb.ReadBlobRequest(mesh_id=mesh_id, blob="b"),
    }


async def outcomes(address: str, identity: Identity, requests: dict[str, Any]) -> dict[str, MonarchNbError | None]:
    """Return what each request is refused with."""
    told: dict[str, MonarchNbError | None] = {}
    async with asyncio.timeout(TIMEOUT_S), open_channel(address, identity) as channel:
        stub: Any = AllocatorStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        for method, request in requests.items():
            call = getattr(stub, method)(request)
            told[method] = None
            try:
                async for _ in call if hasattr(call, "__aiter__") else _once(call):
                    pass
            except Exception as error:  # noqa: BLE001 (gRPC's)
                told[method] = translate(error, "host1")  # type: ignore[arg-type]
    return told


async def _once(call: Any) -> Any:
    yield await call


async def submitted(address: str, identity: Identity, submit: pb.Submit) -> MonarchNbError:
    """Return what a run is refused with."""
    async with asyncio.timeout(TIMEOUT_S), open_channel(address, identity) as channel:
        stub: Any = AllocatorStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        session = stub.Session()
        await session.write(pb.SessionRequest(open=pb.Open(protocol=PROTOCOL)))
        await session.write(pb.SessionRequest(submit=submit))
        while True:
            for event in (await session.read()).events:
                if event.HasField("refused"):
                    return error_from_json(event.refused.error_json)
                assert event.HasField("opened"), event


class TestStrangers:
    def test_they_see_that_it_is_taken_by_whom_and_until_when_and_nothing_else(
        self, dev: Reservation, bob: Person
    ) -> None:
        dev.mesh.run("print('secret output')")
        (line,) = bob.run(
            "import monarch_nb; (info,) = monarch_nb.list_reservations(); "
            "print(info, info.left and 'ends', info.holder)"
        )
        assert line.endswith("ends alice")
        assert "owner='alice'" in line
        for secret in ("hunter2", "secret", dev.mesh.id, str(Path.cwd())):
            assert secret not in line

    def test_attaching_says_whose_it_is(self, dev: Reservation, bob: Person) -> None:
        (line,) = bob.run(
            "import monarch_nb\ntry: monarch_nb.attach('dev')\nexcept monarch_nb.MonarchNbError as e: print(repr(e))"
        )
        assert line.startswith("AccessDenied(\"dev is alice's: alice can let you see what runs on it")

    def test_whoever_knows_its_ids_can_do_no_more(self, dev: Reservation, bob: Person, node: Allocator) -> None:
        run = dev.mesh.submit("print('secret output')")
        run.wait()
        requests = stolen_requests(dev, run.id)
        told = asyncio.run(outcomes(node.address, bob.identity, requests))
        assert {method: type(error) for method, error in told.items()} == dict.fromkeys(requests, AccessDenied)
        told = asyncio.run(outcomes(node.address, load_identity(paths_of("lab").node), requests))
        assert {method: type(error) for method, error in told.items()} == dict.fromkeys(requests, AccessDenied)
        cell = run_pb2.RunSpec(run_id="his", cell=run_pb2.Cell(code="import os; os.environ['TOKEN']"))
        submit = pb.Submit(mesh_id=dev.mesh.id, run=cell, ranks=[0], all_ranks=[0], give_number=True, owner="alice")
        assert isinstance(asyncio.run(submitted(node.address, bob.identity, submit)), AccessDenied)
        assert dev.mesh.run("rank").values == [0, 1]

    def test_who_made_the_pool_releases_what_others_hold(self, bob: Person, capsys: pytest.CaptureFixture[str]) -> None:
        bob.run("import monarch_nb; monarch_nb.reserve('his', procs=1, preload=[])")
        assert [(info.name, info.owner, info.right) for info in list_reservations()] == [("his", "bob", "")]
        assert main(["release", "--pool", "lab", "bob/his"]) == 0
        assert capsys.readouterr().out == "released his of bob\n"
        assert list_reservations() == []


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]  # it has ended
    return line.rstrip("\n")


def line_with(process: subprocess.Popen[str], *texts: str) -> str:
    while not any(text in (line := line_of(process)) for text in texts):
        pass
    return line


BOBS_CELL = """
import monarch_nb
dev = monarch_nb.attach("dev")
run = dev.mesh.submit("print('his output'); hers + rank", listener=lambda event: print(event, flush=True))
print(run.wait() and run.values, flush=True)
"""
BOBS_VIEW = """
import monarch_nb
dev = monarch_nb.attach("dev")
(hers,) = dev.mesh.runs()
print(hers, dev.mesh.interrupt(), sep="\\n", flush=True)
code = "import time; print('his output'); time.sleep(1000)"
run = dev.mesh.submit(code, listener=lambda event: print(event, flush=True))
later = dev.mesh.submit("1", listener=lambda event: print(event, flush=True))
input()
for ask in (dev.status, dev.mesh.status):
    try:
        ask()
    except monarch_nb.errors.AccessDenied as error:
        print(error, flush=True)
"""
CALLS = """
import monarch_nb
from monarch_nb.actor import Actor, current_rank, endpoint

class Counter(Actor):
    @endpoint
    async def add(self, data):
        assert len(data) == 5_000_000
        return current_rank().rank

dev = monarch_nb.attach("dev")
try:
    print(sorted(dev.mesh.spawn("counters", Counter).add.call(b"x" * 5_000_000).get().values()))
except Exception as error:
    print("refused" if "alice can let you call its actors" in str(error) else str(error))
"""
ATTACHES = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "monarch_nb")
while True:
    shell.run_cell("%mesh attach dev")
    print(input(), flush=True)
"""
COMPARES = """
import monarch_nb
dev = monarch_nb.attach("dev")
print("no answer:", "no answer" in str(dev.doctor()))
for change in (lambda: dev.grow(2), lambda: dev.shrink("-1"), lambda: dev.replace("host1")):
    try:
        change()
    except monarch_nb.errors.AccessDenied as error:
        print(error)
"""
EXAMINES = """
import monarch_nb
print(monarch_nb.attach("dev").doctor())
"""
FOLLOWS = """
import monarch_nb
dev = monarch_nb.attach("dev")
try:
    for record in dev.mesh.logs(follow=True):
        print(record.text.strip(), flush=True)
except monarch_nb.MonarchNbError as error:
    print(repr(error), flush=True)
"""


class TestShares:
    def test_who_may_run_cells_waits_in_the_same_queue_and_hears_for_whose(
        self, dev: Reservation, bob: Person, tmp_path: Path
    ) -> None:
        dev.share("bob", "run")
        assert dev.shares == {"bob": "run"}
        go_on = tmp_path / "go-on"
        hers = dev.mesh.submit(
            f"import os, time\nhers = 10\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)"
        )
        with bob.begin(BOBS_CELL) as process:
            try:
                heard = line_of(process)
                assert "waits for: alice's run 1" in heard, heard
                assert [info.owner for info in dev.mesh.runs()] == ["", "bob"]
                go_on.touch()
                hers.wait()
                said, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        assert said.splitlines()[-1] == "[10, 11]", errors
        assert "his output" in said

    def test_each_sees_whose_cell_runs_and_who_shares_it_no_longer(self, dev: Reservation, bob: Person) -> None:
        assert "issued to 'bbo' in the pool lab; did you mean bob?" in dev.share("bbo")
        dev.unshare("bbo")
        assert dev.share("bob", "run") == ""
        hers = dev.mesh.submit("import time\ntime.sleep(1000)")
        with bob.begin(BOBS_VIEW) as process:
            try:
                assert line_of(process) == "alice's run 1 (import time)"
                assert line_of(process).startswith("alice's run 1 goes on: the owner of the mesh interrupts all cells")
                assert "waits for: alice's run 1" in line_of(process)
                eventually(lambda: len(dev.mesh.runs()) == 3)  # both of his wait for hers
                assert not hers.done
                hers.interrupt()
                while "his output" not in line_of(process):
                    pass
                assert "interrupted bob's run 2 on ranks 0-1" in str(dev.mesh.interrupt())
                heard: list[str] = []
                for stopped in ("dropped by alice before it began", "interrupted by alice"):
                    while not any(stopped in line for line in heard):
                        heard.append(line_of(process))
                dev.unshare("bob")
                said, errors = process.communicate("ended\n", timeout=TIMEOUT_S)
            finally:
                process.kill()
        assert said.splitlines()[-2:] == ["alice no longer shares dev with you (%mesh detach leaves it)"] * 2, errors

    def test_who_may_read_compares_the_nodes_and_changes_nothing(self, dev: Reservation, bob: Person) -> None:
        dev.share("bob")
        doctor, *refused = bob.run(COMPARES)
        assert doctor == "no answer: False"
        assert refused == ["dev is alice's: only alice can change which nodes it has"] * 3

    def test_who_may_read_is_told_what_doctor_does_not_look_at_for_him(
        self, node: Allocator, bob: Person, tmp_path: Path
    ) -> None:
        (shared := tmp_path / "data").mkdir()
        dev = reserve("dev", procs=2, preload=[], shared=shared, python=sys.executable)
        try:
            dev.share("bob")
            said = "\n".join(bob.run(EXAMINES))
            assert f": {sys.executable} with its torch and packages, the shared storage {shared}; " in said
            assert said.endswith("; alice can let you (%mesh share dev --to bob --run)")
            assert re.search(r"^fine: monarch_nb \S+, clocks, disk of the node's directory", said, re.MULTILINE)
            dev.share("bob", "run")
            said = "\n".join(bob.run(EXAMINES))
            assert "not looked at" not in said
            assert "shared storage" in said
        finally:
            dev.release()

    def test_who_is_let_in_again_follows_what_still_runs(self, dev: Reservation, bob: Person) -> None:
        hers = dev.mesh.submit("import time\nwhile True: print('tick'); time.sleep(0.1)")
        over = "alice no longer shares dev with you"
        dev.share("bob")
        with bob.begin(ATTACHES) as process:
            try:
                first = line_with(process, "tick", over)
                dev.unshare("bob")
                line_with(process, over)
                dev.share("bob")
                print("again", file=process.stdin, flush=True)
                line_with(process, "again")
                again = line_with(process, "tick", over)
            finally:
                process.kill()
        assert "tick" in first
        assert "tick" in again
        assert not hers.done

    def test_actors_answer_those_who_may_run_cells(self, dev: Reservation, bob: Person) -> None:
        dev.share("bob", "run")
        assert bob.run(CALLS) == ["[0, 1]"]
        dev.share("bob", "read")
        assert bob.run(CALLS.replace("5_000_000", "5")) == ["refused"]

    def test_who_may_read_follows_the_log_until_it_is_shared_no_longer(self, dev: Reservation, bob: Person) -> None:
        dev.share("bob")
        dev.mesh.run("print('a line') if rank == 0 else None")
        with bob.begin(FOLLOWS) as process:
            try:
                assert line_of(process) == "a line"
                denied = bob.run(
                    "import monarch_nb\ntry: monarch_nb.attach('dev').mesh.run('1')\n"
                    "except monarch_nb.MonarchNbError as e: print(e)"
                )
                assert "alice can let you run cells on it" in denied[-1]
                dev.unshare("bob")
                assert line_of(process).startswith("AccessDenied(")
            finally:
                process.kill()
        assert dev.shares == {}


def test_what_a_revoked_person_holds_is_named_and_the_named_command_releases_it(
    bob: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    bob.run("import monarch_nb; monarch_nb.reserve('his', procs=1, preload=[])")
    assert main(["pool", "revoke", "lab", "bob"]) == 0
    told = capsys.readouterr().out
    [command] = re.findall(r"^still held: bob/his, whose ranks go on; monarch-nb (.*) ends them$", told, re.MULTILINE)
    assert main(command.split()) == 0
    assert not list_reservations()
    assert main(["pool", "revoke", "lab", "bob"]) == 0
    assert "still held" not in capsys.readouterr().out

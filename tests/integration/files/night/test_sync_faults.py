"""Syncs that are disturbed: by files that come and go, by nodes and clients that die, by clients that are hostile."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from integration.files.copies import Names, assert_same, copies, module, names_in
from integration.live import client, eventually, kill
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.files import local_tree
from monarch_nb.client.files.reading import open_file
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.files.chunks import hash_of
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.provision.local import LocalProvisioner
from monarch_nb.rpc.status import error_from_json

pytestmark = pytest.mark.usefixtures("without_torch")

RANKS = 8
BIG_BYTES = 24 << 20
HALT = """
def halt(what, done_bytes, total_bytes):
    if "sending" in what and done_bytes:
        print("in the middle")
        threading.Event().wait()
"""
"""A client's progress function that does not return: the sync goes no further."""
local = LocalProvisioner()


def pids() -> dict[str, int]:
    return {node.node_id: node.pid for node in local.nodes() if node.pid is not None}


def up() -> None:
    local.up(nodes=4, procs=2, isolate=True)


def trees(reservation: Reservation) -> list[Names]:
    return [names_in(copy) for copy in copies(reservation)]


def once(action: Callable[[], object]) -> Callable[[str, int, int], None]:
    """Return a progress function that does something in the middle of a sync."""
    left = [action]

    def progress(what: str, done_bytes: int, total_bytes: int) -> None:
        if "sending" in what and done_bytes and left:
            left.pop()()

    return progress


class TestFiles:
    def test_unreadable(self, synced: Reservation) -> None:
        Path("secret.txt").write_text("not for us")
        Path("secret.txt").chmod(0)
        Path("closed").mkdir(mode=0)
        Path("model.py").write_text(module(1))
        with _as_nobody_special():
            report = synced.sync()
        assert dict(report.local[""].refused) == {b"secret.txt": "permission denied", b"closed": "permission denied"}
        assert [tree.keys() for tree in trees(synced)] == [{b"model.py"}] * 4
        Path("closed").chmod(0o755)
        Path("secret.txt").chmod(0o644)
        with _as_nobody_special():
            assert not synced.sync().local[""].refused
        assert [tree.keys() for tree in trees(synced)] == [{b"model.py", b"secret.txt", b"closed"}] * 4

    def test_files_that_come_and_go_meanwhile(self, synced: Reservation, project: Path) -> None:
        Path("model.py").write_text(module(1))
        Path("busy").mkdir()
        stop = threading.Event()

        def disturb() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                path = Path(f"busy/{number % 7}")
                path.write_bytes(os.urandom(number % 5 * 100_000))
                Path(f"busy/d{number % 3}").mkdir(exist_ok=True)
                Path(f"busy/d{number % 3}/x").write_text(str(number))
                if number % 2:
                    path.rename(f"busy/moved{number % 4}")
                    subprocess.run(["rm", "-rf", f"busy/d{(number + 1) % 3}"], check=True)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            seen = []
            for number in range(5):
                Path("model.py").write_text(module(number))
                seen.append(synced.mesh.run("import model; model.value()").values)
        finally:
            stop.set()
            thread.join()
        assert seen == [[number] * RANKS for number in range(5)]
        synced.sync()
        assert_same(synced, project)

    def test_a_file_that_never_rests_is_left_out(
        self, synced: Reservation, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("known.txt", "model.py"):
            Path(name).write_text(module("old"))
        synced.mesh.run("import model")
        Path("model.py").write_text(module("new"))
        restless = ("known.txt", "fresh.txt")
        for name in restless:  # nobody has asked for it before: nodes have a cache of what other tests wrote
            Path(name).write_bytes(os.urandom(7))
        sizes_bytes = itertools.count(8)  # times alone may be equal: clocks of file systems are coarse

        def open_as_it_changes(root: bytes, path: bytes) -> int:
            if os.fsdecode(path) in restless:
                (project / os.fsdecode(path)).write_bytes(os.urandom(next(sizes_bytes)))
            return open_file(root, path)

        with monkeypatch.context() as patch:
            patch.setattr(local_tree, "open_file", open_as_it_changes)
            report = synced.sync()
        assert [path for path, _ in report.local[""].refused] == [b"fresh.txt", b"known.txt"]
        assert synced.mesh.run("model.value()", sync=False).values == ["new"] * RANKS
        for copy in copies(synced):
            assert (copy / "known.txt").read_text() == module("old")
            assert not (copy / "fresh.txt").exists()
        assert not synced.sync().local[""].refused
        assert_same(synced, project)

    def test_a_file_that_grows_meanwhile(self, synced: Reservation, project: Path) -> None:
        Path("log.txt").write_bytes(os.urandom(BIG_BYTES))

        def append() -> None:
            with open("log.txt", "ab") as file:
                file.write(b"more")

        def rewrite() -> None:
            Path("log.txt").write_bytes(os.urandom(2 << 20))

        synced.sync(progress=once(append))
        synced.sync()
        assert_same(synced, project)
        Path("log.txt").write_bytes(os.urandom(BIG_BYTES))
        synced.sync(progress=once(rewrite))
        synced.sync()
        assert_same(synced, project)

    def test_the_project_is_gone(self, synced: Reservation, project: Path) -> None:
        Path("model.py").write_text(module(1))
        synced.sync()
        before = trees(synced)
        project.rename(project.with_name("away"))
        with pytest.raises(UsageError, match="is gone"):
            synced.mesh.run("1")
        assert trees(synced) == before
        project.with_name("away").rename(project)
        assert synced.mesh.run("import model; model.value()").values == [1] * RANKS


class TestNodes:
    @pytest.mark.parametrize("victim", ["node0", "node1", "node3"])
    def test_killed_in_the_middle(self, synced: Reservation, project: Path, victim: str) -> None:
        Path("model.py").write_text(module("old"))
        Path("big.bin").write_bytes(os.urandom(1000))
        assert synced.mesh.run("import model; model.value()").values == ["old"] * RANKS
        before = trees(synced)[0]
        Path("model.py").write_text(module("new"))
        Path("big.bin").write_bytes(os.urandom(BIG_BYTES))
        with pytest.raises(NodeUnreachable, match=victim):
            synced.sync(progress=once(lambda: kill(pids()[victim])))
        after, number = names_in(project), int(victim[4:])
        assert trees(synced) == [before if node == number else after for node in range(4)]
        up()
        assert trees(synced)[number] == before
        listing = "import os; sorted(set(os.listdir()) - {'__pycache__'}), os.path.getsize('big.bin')"
        seen = synced.mesh.select([2 * number, 2 * number + 1]).run(listing, sync=False).values
        assert seen == [(["big.bin", "model.py"], 1000)] * 2
        assert synced.mesh.run("model.value()").values == ["new"] * RANKS
        assert_same(synced, project)

    def test_killed_while_it_puts_files_in_place(self, synced: Reservation, project: Path) -> None:
        for number in range(500):
            Path(f"f{number}").write_text("old")
        synced.sync()
        before = trees(synced)[0]
        for number in range(500):
            Path(f"f{number}").write_text("the new one")
        watched, pid = os.open(copies(synced)[2], os.O_RDONLY), pids()["node2"]
        stop = threading.Event()

        def kill_at_first_sight() -> None:
            while not stop.is_set():
                if os.stat("f0", dir_fd=watched).st_size != 3 or os.stat("f499", dir_fd=watched).st_size != 3:
                    kill(pid)
                    return

        thread = threading.Thread(target=kill_at_first_sight)
        thread.start()
        try:
            synced.sync()
        except NodeUnreachable as error:
            assert "node2" in str(error)  # noqa: PT017 (it may have been faster than its murderer)
        finally:
            stop.set()
            thread.join()
            os.close(watched)
        up()
        assert trees(synced)[2] in (before, names_in(project))
        synced.sync()
        assert_same(synced, project)

    def test_killed_between_syncs(self, synced: Reservation, project: Path) -> None:
        Path("model.py").write_text(module("one"))
        synced.mesh.run("import model")
        kill(pids()["node1"])
        Path("model.py").write_text(module("two"))
        with pytest.raises(NodeUnreachable, match="node1"):
            synced.sync()
        others = synced.mesh.select([0, 1, 4, 5, 6, 7])
        assert others.run("model.value()").values == ["two"] * 6
        up()
        assert synced.mesh.run("model.value()").values == ["two"] * RANKS
        assert_same(synced, project)

    def test_killed_and_back_while_nothing_changed(self, synced: Reservation, project: Path) -> None:
        Path("model.py").write_text(module("one"))
        synced.mesh.run("import model")
        for pid in pids().values():
            kill(pid)
        up()
        assert synced.mesh.run("model.value()").values == ["one"] * RANKS
        Path("model.py").write_text(module("two"))
        report = synced.sync()
        assert report.files == 1, "they know what they have"
        assert synced.mesh.run("model.value()").values == ["two"] * RANKS

    def test_one_that_other_nodes_do_not_reach_gets_them_from_here(
        self, synced: Reservation, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(synced.files.connections[2], "node_address", "unix:/nowhere")
        Path("model.py").write_text(module("one"))
        synced.sync()
        assert_same(synced, project)

    def test_a_new_rank_has_the_files(self, synced: Reservation) -> None:
        Path("model.py").write_text(module(1))
        synced.sync()
        synced.mesh.restart([3])
        assert synced.mesh.run("import model; model.value()", sync=False).values == [1] * RANKS


class TestClients:
    def test_killed_in_the_middle_of_the_first_sync(self, synced: Reservation, project: Path) -> None:
        Path("big.bin").write_bytes(os.urandom(BIG_BYTES))
        with client(f"{HALT}monarch_nb.attach('synced').sync(progress=halt)") as other:
            assert other.line() == "in the middle"
        assert trees(synced) == [{}] * 4
        synced.sync()
        assert_same(synced, project)

    def test_killed_in_the_middle_of_a_later_one(self, synced: Reservation, project: Path) -> None:
        Path("model.py").write_text(module("old"))
        synced.sync()
        before = trees(synced)
        Path("model.py").write_text(module("new"))
        Path("big.bin").write_bytes(os.urandom(BIG_BYTES))
        with client(f"{HALT}monarch_nb.attach('synced').sync(progress=halt)") as other:
            assert other.line() == "in the middle"
        assert trees(synced) == before
        assert synced.mesh.run("import model; model.value()").values == ["new"] * RANKS
        assert_same(synced, project)

    def test_interrupted(self, synced: Reservation, project: Path) -> None:
        Path("model.py").write_text(module("old"))
        synced.sync()
        before = trees(synced)
        Path("big.bin").write_bytes(os.urandom(BIG_BYTES))
        program = """
import signal
dev = monarch_nb.attach('synced')
def stop_a_node(what, done_bytes, total_bytes):
    if "sending" in what and done_bytes and stop:
        os.kill(stop.pop(), signal.SIGSTOP)
        print("in the middle")
stop = [STOPPED]
try:
    dev.sync(progress=stop_a_node)
except KeyboardInterrupt:
    print("interrupted")
sys.stdin.readline()
dev.sync()
print("done")
"""
        pid = pids()["node3"]
        try:
            with client(program.replace("STOPPED", str(pid))) as other:
                assert other.line() == "in the middle"
                other.interrupt()
                assert other.line() == "interrupted"
                os.kill(pid, signal.SIGCONT)
                assert trees(synced) == before
                other.tell()
                assert other.line() == "done"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert_same(synced, project)

    def test_two_on_the_same_files(self, synced: Reservation, project: Path) -> None:
        program = """
mesh = monarch_nb.attach('synced').mesh
for line in sys.stdin:
    print(sorted(set(mesh.run("import model; model.value()").values)))
"""
        with client(program) as other:
            for number in range(0, 10, 2):
                Path("model.py").write_text(module(number))
                assert synced.mesh.run("import model; model.value()").values == [number] * RANKS
                Path("model.py").write_text(module(number + 1))
                other.tell()
                assert other.line() == str([number + 1])
                assert synced.mesh.run("model.value()").values == [number + 1] * RANKS
        assert_same(synced, project)

    def test_one_adds_a_directory_and_the_other_removes_it(self, synced: Reservation, tmp_path: Path) -> None:
        library = tmp_path / "library"
        library.mkdir()
        (library / "helpers.py").write_text(module("one"))
        program = """
dev = monarch_nb.attach('synced')
print(dev.mesh.run("import helpers; helpers.value()").values[0])
sys.stdin.readline()
dev.files.remove('library')
print("removed")
"""
        synced.files.add(library)
        synced.sync()
        with client(program) as other:
            assert other.line() == "one", "who comes later has it"
            other.tell()
            assert other.line() == "removed"
        eventually(lambda: synced.status(memory=False) and not synced.files.added)
        (library / "helpers.py").write_text(module("two"))
        assert not synced.sync().anything
        assert not any((copy / "library").exists() for copy in copies(synced))
        (news,) = synced.files.record.take_news()
        assert news.startswith(f"another kernel removed {library}")
        synced.mesh.restart()
        find = "import importlib.util; importlib.util.find_spec('helpers')"
        assert synced.mesh.run(find).values == [None] * RANKS

    def test_two_with_different_files(self, synced: Reservation, project: Path, tmp_path: Path) -> None:
        Path("model.py").write_text(module("of the first"))
        synced.sync()
        mine = tmp_path / "mine"
        mine.mkdir()
        (mine / "model.py").write_text(module("of the second"))
        program = f"""
os.chdir({str(mine)!r})
dev = monarch_nb.attach('synced')
print(dev.mesh.run("import model; model.value()").values[0])
print(dev.files.instead_of(os.getcwd()))
print(dev.files.add({str(mine)!r}))
print(dev.mesh.run("from mine import model; model.value()").values[0])
print(dev.files.instead_of(os.getcwd()))
"""
        with client(program) as other:
            assert other.line() == "of the first"
            assert other.line() == f"{socket.gethostname()}:{project}"
            assert other.line() == "mine"
            assert other.line() == "of the second"
            assert other.line() == ""
        Path("model.py").write_text(module("edited"))
        assert synced.mesh.run("import model; model.value()").values == ["edited"] * RANKS
        assert synced.files.instead_of(str(project)) == ""


class TestFullDisk:
    def test_the_node_is_named_and_has_what_it_had(self, one_node_is_small: None, project: Path) -> None:
        Path("model.py").write_text(module("old"))
        dev = reserve("dev", nodes=3, procs=1)
        assert dev.mesh.run("import model; model.value()").values == ["old"] * 3
        before = trees(dev)
        Path("model.py").write_text(module("new"))
        Path("big.bin").write_bytes(os.urandom(BIG_BYTES))
        for _ in range(2):
            with pytest.raises(FilesError, match=r"^node1: the disk is full.*its copy is as it was$") as caught:
                dev.mesh.run("ran = True")
            assert caught.value.node == "node1"
        assert trees(dev)[1] == before[1]
        assert dev.mesh.run("'ran' in globals(), model.value()", sync=False).values[1] == (False, "old")
        others = dev.mesh.select([0, 2])
        assert others.run("'ran' in globals(), model.value()").values == [(False, "new")] * 2
        Path("big.bin").unlink()
        assert dev.mesh.run("model.value()").values == ["new"] * 3
        assert_same(dev, project)
        dev.release()


def entry(path: bytes, **fields: object) -> pb.TreeEntry:
    return pb.TreeEntry(**{"path": path, "kind": pb.TreeEntry.KIND_FILE, "mode": 0o644, **fields})  # type: ignore[arg-type]


def link(path: bytes, target: bytes) -> pb.TreeEntry:
    return entry(path, kind=pb.TreeEntry.KIND_SYMLINK, target=target)


HOSTILE = {
    "up": pb.TreeChange(changed=[entry(b"../outside")]),
    "up after all": pb.TreeChange(changed=[entry(b"a/../../outside")]),
    "absolute": pb.TreeChange(changed=[entry(b"/tmp/outside")]),
    "an empty name": pb.TreeChange(changed=[entry(b"a//b")]),
    "NUL": pb.TreeChange(changed=[entry(b"nul\0")]),
    "the root": pb.TreeChange(changed=[entry(b"")]),
    "a long name": pb.TreeChange(changed=[entry(b"x" * 300)]),
    "a link to /": pb.TreeChange(changed=[link(b"link", b"/etc")]),
    "a link up": pb.TreeChange(changed=[link(b"link", b"a/../../..")]),
    "through a link": pb.TreeChange(changed=[link(b"link", b"."), entry(b"link/inside")]),
    "a size without content": pb.TreeChange(changed=[entry(b"huge", size_bytes=1 << 62)]),
    "a huge chunk": pb.TreeChange(
        changed=[entry(b"huge", size_bytes=1 << 31, hashes=bytes(32), sizes_bytes=[1 << 31])]
    ),
    "set-uid": pb.TreeChange(changed=[entry(b"set-uid", mode=0o4755)]),
    "of no kind": pb.TreeChange(changed=[entry(b"kind", kind=77)]),
    "below a file": pb.TreeChange(changed=[entry(b"file/child"), entry(b"file")]),
    "removes up": pb.TreeChange(removed=[b"../model.py"]),
    "removes elsewhere": pb.TreeChange(removed=[b"/etc/hostname"]),
    "a mount up": pb.TreeChange(mount="..", changed=[entry(b"x")]),
    "a mount below": pb.TreeChange(mount="a/b", changed=[entry(b"x")]),
    "a mount elsewhere": pb.TreeChange(mount="/tmp", changed=[entry(b"x")]),
    "of another notebook": pb.TreeChange(changed=[entry(b"theirs")], source="elsewhere:/project"),
}


class TestHostile:
    @pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
    def test_refused(self, synced: Reservation, change: pb.TreeChange) -> None:
        Path("model.py").write_text(module(1))
        synced.sync()
        before = trees(synced)
        above = names_in_directory(copies(synced)[0].parent)
        told = _next_change(synced, [])
        told.MergeFrom(change)
        assert isinstance(error_from_json(_sent(synced, told).error_json), UsageError)
        assert trees(synced) == before
        assert names_in_directory(copies(synced)[0].parent) == above
        Path("model.py").write_text(module(2))
        assert synced.mesh.run("import model; model.value()").values == [2] * RANKS

    @pytest.mark.parametrize("reservation_id", ["../../..", "", "/tmp", "a" * 32])
    def test_workspaces_of_nobody(self, synced: Reservation, reservation_id: str) -> None:
        change = pb.TreeChange(version="1", whole=True, source="x", changed=[entry(b"x")])
        request = pb.SyncTreeRequest(reservation_id=reservation_id, change=change)
        before = names_in_directory(copies(synced)[0].parent.parent)
        with pytest.raises(MonarchNbError):
            call(synced.files.connections[0].unary("SyncTree", request))
        first = pb.PutChunksRequest(reservation_id=reservation_id, version="1", batch=pb.ChunkBatch(hashes=bytes(32)))
        with contextlib.suppress(MonarchNbError):  # or they are dropped
            call(_put(synced, first))
        assert names_in_directory(copies(synced)[0].parent.parent) == before

    @pytest.mark.parametrize("content", [b"evil", b"too much", bytes(1 << 30)], ids=["other", "more", "a bomb"])
    def test_content_that_is_another(self, synced: Reservation, content: bytes) -> None:
        Path("model.py").write_text(module(1))
        synced.sync()
        before = trees(synced)
        name = hash_of(b"good")
        change = _next_change(synced, [entry(b"evil", size_bytes=4, hashes=name, sizes_bytes=[4])])
        assert _sent(synced, change).missing == name
        batch = pb.ChunkBatch(hashes=name, sizes_bytes=[4], data=zstandard.compress(content))
        request = pb.PutChunksRequest(reservation_id=synced.id, version=change.version, batch=batch)
        stored = call(_put(synced, request))
        assert isinstance(error_from_json(stored.nodes[0].error_json), MonarchNbError)
        assert trees(synced) == before
        Path("model.py").write_text(module(2))
        assert synced.mesh.run("import model; model.value()").values == [2] * RANKS


def _next_change(reservation: Reservation, changed: list[pb.TreeEntry]) -> pb.TreeChange:
    """Return a change of what node0 has, as its client would make it."""
    status = reservation.files.status()["node0"]
    assert isinstance(status, pb.WorkspaceReply)
    (mount,) = status.mounts
    return pb.TreeChange(source=mount.source, version="hostile", base=mount.version, changed=changed)


def _sent(reservation: Reservation, change: pb.TreeChange) -> pb.NodeSynced:
    request = pb.SyncTreeRequest(reservation_id=reservation.id, change=change)
    reply: pb.SyncTreeReply = call(reservation.files.connections[0].unary("SyncTree", request))
    return reply.nodes[0]


async def _put(reservation: Reservation, *requests: pb.PutChunksRequest) -> pb.PutChunksReply:
    async def messages() -> object:
        for request in requests:
            yield request

    reply: pb.PutChunksReply = await reservation.files.connections[0].send_stream("PutChunks", messages(), 30)  # type: ignore[arg-type]
    return reply


def names_in_directory(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"staging"}


@contextmanager
def _as_nobody_special() -> Iterator[None]:
    """This thread may read no more than its user may, though that be root."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    libc = ctypes.CDLL(None, use_errno=True)
    header = Header(0x20080522, 0)
    before, none = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(ctypes.byref(header), before) == 0
    none[1], none[4] = before[1], before[4]  # what it may have back
    assert libc.capset(ctypes.byref(header), none) == 0
    try:
        yield
    finally:
        assert libc.capset(ctypes.byref(header), before) == 0


@pytest.fixture
def one_node_is_small(pool_home: Path) -> Iterator[None]:
    """An isolated pool of 3 nodes, of which node1 has a disk of 16 MB."""
    directory = pool_home / "local" / "node1"
    directory.mkdir(parents=True)
    (pool_home / "local").chmod(0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "none", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        local.up(nodes=3, procs=1, isolate=True)
        yield
    finally:
        local.down(force=True)
        subprocess.run(["umount", "--lazy", str(directory)], check=True)  # whether all have ended is looked at later
        subprocess.run(["rm", "-rf", str(pool_home / "local")], check=True)

"""Syncs that are disturbed: by files that come and go, by nodes and clients that die, by clients that are hostile."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.files.copies import Names, assert_same, copies, module, names_in
from integration.live import client, kill
from monarch_nb.allocator.files.mounts import Manifest
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import FilesError, NodeUnreachable
from monarch_nb.files.content import new_hash
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

RANKS = 8
BIG_BYTES = 24 << 20
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


class TestNodes:
    def test_killed_in_the_middle(self, synced: Reservation, project: Path) -> None:
        victim = "node1"
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
        for name in ("model.py", "data.txt"):
            Path(name).write_text(module("old"))
        assert synced.mesh.run("import model; model.value()").values == ["old"] * RANKS
        kill(pids()["node1"])
        _half_way(copies(synced)[1], Path("model.py"), module("newer"))
        up()
        with pytest.raises(FilesError, match=r"node1: some files are of the version before.*%mesh sync goes on"):
            synced.mesh.run("ran = True", sync=False)
        assert synced.mesh.select([0, 1]).run("model.value()", sync=False).values == ["old"] * 2
        Path("data.txt").write_text("newest")
        assert not synced.sync().kept
        assert synced.mesh.run("'ran' in globals(), model.value()").values[2] == (False, "old")
        assert_same(synced, project)

    def test_one_that_other_nodes_do_not_reach_gets_them_from_here(
        self, synced: Reservation, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(synced.files.connections[2], "node_address", "unix:/nowhere")
        Path("model.py").write_text(module("one"))
        synced.sync()
        assert_same(synced, project)


def _half_way(tree: Path, file: Path, text: str) -> None:
    """Leave a copy as an allocator leaves it that is killed after it put a file in place, and before all others."""
    manifest = Manifest(tree.parent / "manifest")
    mount = manifest.read()[""]
    (tree / file).write_text(text)
    facts = (tree / file).stat()
    there = pb.TreeEntry()
    there.CopyFrom(mount.entries[os.fsencode(file)])
    there.size_bytes, there.modified_ns, there.hash = facts.st_size, facts.st_mtime_ns, new_hash(text.encode()).digest()
    manifest.begin(mount, {os.fsencode(file): [there], b"data.txt": []})
    manifest.close()


class TestClients:
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

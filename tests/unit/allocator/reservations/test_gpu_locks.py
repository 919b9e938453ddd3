"""GPUs that no two allocators of a machine lease: whose they are, how long that lasts, and what others can do to it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_nb.allocator.processes.processes import seconds_since_boot, user_name
from monarch_nb.allocator.reservations import gpu_locks
from monarch_nb.allocator.reservations.gpu_locks import GpuLocks
from monarch_nb.allocator.state.lease import Limits, why_not_free
from monarch_nb.allocator.state.state import Lease
from monarch_nb.config import GPU_LOCKS_VARIABLE
from monarch_nb.errors import CapacityError, PoolError
from monarch_nb.ground import file_locks
from monarch_nb.proto import allocator_pb2 as pb

Make = Callable[[str], GpuLocks]
ME = user_name(os.getuid())
NOBODY = 65534
GPUS = [pb.Gpu(index=index, uuid=f"GPU-{index}") for index in range(4)]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user for a while")


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Not made yet, where every user can reach it."""
    parent = Path(tempfile.mkdtemp(prefix="mnb-locks-", dir="/tmp"))
    parent.chmod(0o777)
    monkeypatch.setenv(GPU_LOCKS_VARIABLE, str(parent / "gpus"))
    yield parent / "gpus"
    shutil.rmtree(parent)


@pytest.fixture
def allocator(directory: Path) -> Iterator[Make]:
    """Make the locks of one allocator of several."""
    made: list[GpuLocks] = []

    def make(node: str) -> GpuLocks:
        made.append(GpuLocks(Path(node), GPUS))
        return made[-1]

    yield make
    for locks in made:
        locks.close(released=True)


def lease(*gpus: int, owner: str = ME, name: str = "dev", left_s: float = 0.0) -> Lease:
    limits = Limits(left_s)
    limits.confirm(seconds_since_boot())
    return Lease(pb.ReserveRequest(owner=owner, name=name, gpus=len(gpus)), list(gpus), limits=limits)


def test_another_allocator_sees_who_holds_a_gpu_and_until_when(allocator: Make) -> None:
    ours, theirs = allocator("a"), allocator("b")
    assert theirs.held_by_others() == {}
    ours.take("r", lease(1, 3, left_s=3600.0))
    assert ours.held_by_others() == {}, "one's own are no others'"
    held = theirs.held_by_others()
    assert {index: (holder.owner, holder.reservation) for index, holder in held.items()} == {
        1: (ME, "dev"),
        3: (ME, "dev"),
    }
    assert held[1].until == pytest.approx(time.time() + 3600, abs=60)
    said = why_not_free(pb.Gpu(index=1, held_by=held[1]))
    assert said.startswith(f"GPU 1 is held by {ME} (dev) until ")
    ours.note("r", lease(1, 3))
    assert theirs.held_by_others()[3].until == 0
    ours.release("r")
    assert theirs.held_by_others() == {}


def test_a_lock_ends_with_the_last_process_that_holds_it(allocator: Make, directory: Path) -> None:
    """The allocator dies first, and a rank goes on."""
    ours, theirs = allocator("a"), allocator("b")
    ours.take("r", lease(2))
    [file] = ours.files("r")
    told, tell = os.pipe()
    rank = os.fork()
    if not rank:
        file_locks.hold(os.open(file, os.O_RDONLY))
        ours.close(released=False)
        os.write(tell, b"!")
        signal.pause()
    os.read(told, 1)
    ours.close(released=False)
    assert theirs.held_by_others()[2].owner == ME
    os.kill(rank, signal.SIGKILL)
    os.waitpid(rank, 0)
    assert theirs.held_by_others() == {}
    assert [path.name for path in directory.iterdir()] == [Path(file).name], "nobody has removed it"
    theirs.tidy()
    assert list(directory.iterdir()) == []
    os.close(told)
    os.close(tell)


def test_an_allocator_that_starts_again_takes_up_what_its_ranks_hold(allocator: Make) -> None:
    ours, other = allocator("a"), allocator("b")
    ours.take("r", lease(0))
    again = allocator("a")
    again.take("r", lease(0))
    ours.close(released=False)
    assert again.held_by_others() == {}
    assert other.held_by_others().keys() == {0}
    other.tidy()
    assert other.held_by_others().keys() == {0}


async def test_one_at_a_time_takes_gpus(allocator: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_locks, "TURN_WAIT_S", 0.05)
    ours, theirs = allocator("a"), allocator("b")
    async with ours.turn():
        with pytest.raises(CapacityError, match=f"another process keeps {directory} locked"):
            async with theirs.turn():
                pass
    async with theirs.turn():
        pass


def test_files_that_no_allocator_made_harm_nobody(allocator: Make, directory: Path, tmp_path: Path) -> None:
    ours, theirs = allocator("a"), allocator("b")
    ours.take("r", lease(0))
    target = tmp_path / "target"
    target.write_text("mine")
    (directory / "GPU-1.0123456789abcdef").symlink_to(target)
    (directory / "GPU-1.x").mkdir()
    os.mkfifo(directory / "GPU-2.0123456789abcdef")
    (directory / "GPU-3.0123456789abcdef").write_text("{")
    (directory / "notes").write_text("GPU-3")
    with open(target, "rb") as file:
        file_locks.hold(file.fileno())
        assert theirs.held_by_others().keys() == {0}
    theirs.tidy()
    assert {path.name for path in directory.iterdir()} == {
        Path(ours.files("r")[0]).name,
        "GPU-1.0123456789abcdef",
        "GPU-1.x",
        "GPU-2.0123456789abcdef",
        "notes",
    }


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_link_in_the_way_is_not_followed(allocator: Make, directory: Path, tmp_path: Path, kind: str) -> None:
    """Somebody knows what a file will be called."""
    ours = allocator("a")
    ours.take("r", lease(0))
    [name] = ours.files("r")
    ours.release("r")
    if kind == "link":
        Path(name).symlink_to(tmp_path / "victim")
    else:
        os.mkfifo(name)
    with pytest.raises(PoolError, match="can not hold the locks of GPUs"):
        ours.take("r", lease(0))
    assert not (tmp_path / "victim").exists()
    assert ours.files("r") == []


@pytest.mark.parametrize(
    ("content", "owner", "name"),
    [
        (b"", ME, ""),
        (b"[" * 5000, ME, ""),
        (b'{"owner": 5}', ME, ""),
        (b'{"owner": "ann", "reservation": "\\u001b[31mx\\n", "until": 1e400}', f"ann, user {ME}", "x"),
        (b'{"owner": "%s", "reservation": "%s", "until": "x"}' % (b"a" * 900, b"b" * 900), ME, ""),
        (b'{"owner": "%s", "reservation": "dev", "until": -1}' % (b"a" * 900), f"{'a' * 64}, user {ME}", "dev"),
    ],
)
def test_what_others_write_is_taken_with_care(allocator: Make, content: bytes, owner: str, name: str) -> None:
    ours, theirs = allocator("a"), allocator("b")
    ours.take("r", lease(0))
    Path(ours.files("r")[0]).write_bytes(content)
    holder = theirs.held_by_others()[0]
    assert (holder.owner, holder.reservation, holder.until) == (owner, name, 0)


def test_a_directory_that_is_a_link_or_not_for_all_is_refused(allocator: Make, directory: Path, tmp_path: Path) -> None:
    directory.mkdir()
    for mode in (0o700, 0o777, 0o1755):
        directory.chmod(mode)
        with pytest.raises(PoolError, match=rf"{directory} is not open to all users \(chmod 1777\).*--gpus none"):
            allocator("a").held_by_others()
    directory.rmdir()
    tmp_path.chmod(0o1777)
    directory.symlink_to(tmp_path)
    with pytest.raises(PoolError, match=f"can not use {directory}"):
        allocator("a").held_by_others()


def test_the_directory_is_made_for_all_whatever_the_umask(allocator: Make, directory: Path) -> None:
    before = os.umask(0o077)
    try:
        ours = allocator("a")
        ours.take("r", lease(0))
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    assert stat.S_IMODE(Path(ours.files("r")[0]).stat().st_mode) == 0o644


@as_root
def test_another_user_sees_a_lock_and_can_do_nothing_to_it(allocator: Make, directory: Path) -> None:
    ours = allocator("a")
    ours.take("r", lease(0))
    [file] = ours.files("r")
    told, tell = os.pipe()
    other = os.fork()
    if not other:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        theirs = GpuLocks(Path("b"), GPUS)
        said = [theirs.held_by_others()[0].owner]
        theirs.tidy()
        for harm in (os.unlink, lambda path: os.open(path, os.O_WRONLY), lambda path: os.rename(path, f"{path}x")):
            try:
                harm(file)
                said.append("done")
            except PermissionError:
                said.append("refused")
        theirs.take("r", lease(1, owner="ann"))
        os.write(tell, " ".join(said).encode())
        signal.pause()
    try:
        assert os.read(told, 1000).decode() == f"{ME} refused refused refused"
        assert ours.held_by_others()[1].owner == f"ann, user {user_name(NOBODY)}"
        ours.tidy()
        assert ours.held_by_others().keys() == {1}
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        os.close(told)
        os.close(tell)
    assert ours.held_by_others() == {}


def test_whoever_looks_holds_nothing(allocator: Make) -> None:
    ours, theirs = allocator("a"), allocator("b")
    ours.take("r", lease(0))
    for _ in range(3):
        theirs.held_by_others()
    file = os.open(ours.files("r")[0], os.O_RDWR)
    ours.close(released=False)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(file)

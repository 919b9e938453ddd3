"""Two pools of one machine, whose allocators know nothing of each other, and programs that use GPUs without a lease."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpus import FakeGpus
from integration.live import eventually, kill
from leaks import wait_for_end
from monarch_nb.allocator.processes.processes import user_name
from monarch_nb.cli.main import main
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.lists import list_ended
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import CapacityError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

ME = user_name(os.getuid())


@pytest.fixture
def pools(pool_home: Path, fake_gpus: FakeGpus) -> Iterator[list[Node]]:
    """The nodes of two pools, "one" and "two": each thinks that it has all 8 GPUs."""
    yield [LocalProvisioner().up(procs=1, pool=name)[0] for name in ("one", "two")]
    for name in ("one", "two"):
        LocalProvisioner().down(force=True, pool=name)


def gpus_of(reservation: Reservation) -> list[int]:
    return [index for info in reservation.mesh.status() for index in info.gpu_indices]


def described(pool: str) -> pb.DescribeReply:
    [(_, reply)] = call(pool_named(pool).ask())
    return reply.node


def test_no_two_pools_of_a_machine_lease_the_same_gpu(pools: list[Node], capsys: pytest.CaptureFixture[str]) -> None:
    first = reserve("first", gpus=3, pool="one", time="1h")
    second = reserve("second", gpus=4, pool="two")
    assert (gpus_of(first), gpus_of(second)) == ([0, 1, 2], [3, 4, 5, 6])
    with pytest.raises(
        CapacityError, match=rf"1 of 8 gpus free; .*GPU 0 is held by {ME} \(first\) until (\S+ )?\d\d:\d\d; GPU 1"
    ):
        reserve("third", gpus=2, pool="two")
    assert main(["status", "--pool", "one"]) == 0
    assert f"1 of 8 GPUs free; GPU 3 is held by {ME} (second); GPU 4" in capsys.readouterr().out

    kill(pools[0].pid or 0)
    assert described("two").gpus_free == 1, "the ranks hold them, although their allocator is dead"
    LocalProvisioner().up(pool="one")
    assert described("one").gpus_free == 1
    first.release()
    assert described("two").gpus_free == 4
    second.release()
    assert described("one").gpus_free == 8


def test_gpus_of_a_pool_that_died_with_its_ranks_are_free(pools: list[Node]) -> None:
    first = reserve("first", gpus=8, pool="one")
    ranks = [info.pid for info in first.mesh.status()]
    kill(pools[0].pid or 0)
    for pid in ranks:
        os.kill(pid, 9)
        wait_for_end(pid, 60)
    second = reserve("second", gpus=1, pool="two")
    LocalProvisioner().up(pool="one")
    eventually(lambda: bool(list_ended("one")))
    [ended] = list_ended("one")
    assert ended.why == f"GPU 0 was leased to {ME} while this node's allocator was dead"
    eventually(lambda: described("one").gpus_free == 7)
    second.release()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that the pool knows nothing of."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_gpu_that_others_use_is_shown_and_avoided(
    spare_pool: list[Node],
    gpus: FakeGpus,
    stranger: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    gpus.set(processes={"0": [[stranger.pid, 11_200_000_000]], "2": [[1 << 22, None]]})
    name = Path(f"/proc/{stranger.pid}/comm").read_text().strip()
    busy = [f"GPU 0 is busy: pid {stranger.pid} ({name}, {ME}, 11 GB)", f"GPU 2 is busy: pid {1 << 22}"]
    eventually(lambda: call(pool_named(None).ask())[0][1].node.gpus_free == 6)
    assert main(["status"]) == 0
    assert f"node0: 6 of 8 GPUs free; {'; '.join(busy)}" in capsys.readouterr().out
    first = reserve("first", gpus=5)
    assert gpus_of(first) == [1, 3, 4, 5, 6]
    with pytest.raises(CapacityError) as raised:
        reserve("second", gpus=2)
    assert all(line in str(raised.value) for line in busy)
    assert str(raised.value).splitlines()[-1].startswith("--force-busy also takes GPUs that others use")
    second = reserve("second", gpus=2, force_busy=True)
    assert gpus_of(second) == [0, 7], "those that nobody uses come first"
    with pytest.raises(CapacityError, match="GPU 2 is busy"):
        reserve("third", gpus=2, force_busy=True)
    second.release()

    stranger.kill()
    stranger.wait()
    gpus.set(processes={"2": [[1 << 22, None]]})  # a driver names nobody who has ended for long
    eventually(lambda: call(pool_named(None).ask())[0][1].node.gpus_free == 2)
    gpus.set()
    eventually(lambda: call(pool_named(None).ask())[0][1].node.gpus_free == 3)


def test_ranks_on_their_own_gpus_are_no_strangers(spare_pool: list[Node], gpus: FakeGpus) -> None:
    dev = reserve("dev", gpus=2)
    pids = [info.pid for info in dev.mesh.status()]
    gpus.set(processes={"0": [[pids[0], 1]], "1": [[pids[1], 1]], "5": [[pids[1], 1]]})
    eventually(lambda: call(pool_named(None).ask())[0][1].node.gpus_free == 5)
    dev.release()
    assert call(pool_named(None).ask())[0][1].node.gpus_free == 8, "they have ended, whatever the driver says"

"""Collectives that do not match, each kind planted on live ranks: what the sentence of the hang says."""

from __future__ import annotations

import re

import pytest

from integration.live import said_of_waits, started
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.runs import waits
from monarch_nb.errors import RunFailed

pytestmark = pytest.mark.shape(nodes=1, procs=4)

INIT = """
import time, torch
import torch.distributed as dist
if dist.is_initialized():
    dist.destroy_process_group()
dist.init_process_group("gloo")
pairs = [dist.new_group([0, 1], group_desc="left"), dist.new_group([2, 3], group_desc="right")]
for _ in range(3):
    dist.all_reduce(torch.ones(4))
"""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and say at once what stands still."""
    monkeypatch.setattr(waits, "WAITS_INTERVAL_S", 0.3)
    monkeypatch.setattr(waits, "APART_AFTER_S", 0.5)


CASES = {
    "another collective": (
        """
if rank == 0:
    dist.all_reduce(torch.ones(1024))
else:
    dist.all_gather([torch.ones(8) for _ in range(4)], torch.ones(8))
""",
        "call 4 in the default group is all_reduce of float32[1024] on rank 0, all_gather of float32[8] on ranks 1-3",
    ),
    "asynchronous": (
        """
if rank:
    work = dist.all_reduce(torch.ones(16), async_op=True)
    work.wait()
else:
    dist.all_gather([torch.ones(2)] * 4, torch.ones(2))
""",
        "call 4 in the default group is all_gather of float32[2] on rank 0, all_reduce of float32[16] on ranks 1-3",
    ),
    "in a group": (
        """
if rank == 3:
    dist.broadcast(torch.ones(6), 2, group=pairs[1])
elif rank == 2:
    dist.all_reduce(torch.ones(6), group=pairs[1])
else:
    dist.all_reduce(torch.ones(1), group=pairs[0])
    time.sleep(1000)
""",
        "call 1 in group right (ranks 2-3) is all_reduce of float32[6] on rank 2, broadcast of float32[6] on rank 3",
    ),
    "one shape": (
        "dist.all_reduce(torch.ones(8 if rank == 1 else 4))",
        (
            "call 4 in the default group is all_reduce of float32[4] on ranks 0,2-3, all_reduce of float32[8] on rank "
            "1: shapes differ; it is over on ranks 0,2-3: do not trust its result there"
        ),
    ),
    "peers": (
        """
if rank > 1:
    dist.recv(torch.ones(6), group=pairs[1], group_src=3 - rank)
""",
        "ranks 2-3 wait for each other: rank 2 receives float32[6] from rank 3, rank 3 receives float32[6] from rank 2",
    ),
}
"""What ranks do, and what is said of it."""


@pytest.mark.parametrize("kind", CASES)
def test_what_does_not_match_is_named(mesh: Mesh, soon: None, kind: str) -> None:
    says_in_a_new_group(mesh, *CASES[kind])


def test_what_was_called_in_the_group_before_is_not_told_of_a_new_one(mesh: Mesh, soon: None) -> None:
    """Ranks that have ended their run have made as many calls in both. The numbers of bytes are the same, so that Gloo
    ends the same ranks' calls."""
    for dtype in ("float32", "int32"):
        code = f"dist.all_reduce(torch.ones(8 if rank == 1 else 4, dtype=torch.{dtype}))"
        told = f"all_reduce of {dtype}[4] on ranks 0,2-3, all_reduce of {dtype}[8] on rank 1: shapes differ; it is over"
        says_in_a_new_group(mesh, code, told)


def says_in_a_new_group(mesh: Mesh, code: str, expected: str) -> None:
    """Fail unless the sentence of the hang has these words, and keeps them when it is over."""
    mesh.run(INIT)
    run, recorder = started(mesh, code)

    try:
        recorder.wait_for(lambda recorder: expected in said_of_waits(recorder))
    except AssertionError:
        pytest.fail(f"it says: {said_of_waits(recorder)}")
    finally:
        run.interrupt()
    with pytest.raises(RunFailed):
        run.result(60)
    assert expected in said_of_waits(recorder), "a saved notebook still says why"
    assert re.search(r"waited in .*Run \d+:\d", said_of_waits(recorder))


def test_a_rank_that_gloo_ends_says_who_has_called_what(mesh: Mesh) -> None:
    """Gloo calls std::terminate in a rank that gets more than it expects: in the odd one, or in one of the others."""
    odd, numbers = 1, (8, 1024)
    mesh.run(INIT)
    with pytest.raises(RunFailed) as raised:
        mesh.run(f"pass\ndist.all_reduce(torch.ones({numbers[0]} if rank == {odd} else {numbers[1]}))")
    [died] = [failure for failure in raised.value.failures.values() if failure.kind == "died"]
    begin, _, told = died.message.partition(": collectives do not match: ")
    assert begin == "killed by signal 6 (SIGABRT)"
    assert told.startswith("call 4 in the default group is all_reduce of ")
    if died.rank == odd:
        assert told.endswith(f"[{numbers[1]}] on ranks 0,2-3, all_reduce on rank {odd}: shapes or dtypes differ")
    else:
        assert f"all_reduce of float32[{numbers[0]}] on rank {odd}" in told
        assert told.endswith(f", all_reduce on rank {died.rank}: shapes differ")
    stack = "\n".join(died.stderr_tail)
    assert re.search(r"in all_reduce\n(.*\n)?  Run \d+, line 2 in <module>$", stack), stack
    mesh.restart()


def test_the_traceback_of_a_call_that_torch_refuses_ends_at_the_line_of_the_cell(mesh: Mesh) -> None:
    mesh.run(INIT)
    with pytest.raises(RunFailed) as raised:
        mesh.run("pass\ndist.all_gather([torch.ones(2) for _ in range(4)], torch.ones(3))", cell_number=7)
    [(everyone, failure)] = raised.value.groups()
    assert everyone == [0, 1, 2, 3]
    assert "invalid tensor size" in failure.message
    assert "Cell In[7], line 2" in failure.traceback
    assert "distributed_c10d" not in failure.traceback, "its frames are torch's own"
    assert "c10d_logger" not in failure.traceback

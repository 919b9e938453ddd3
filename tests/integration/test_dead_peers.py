"""A rank dies in the middle of collectives: what becomes of its peers, whom Gloo tells nothing when they are no
neighbours of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.live import Gate, eventually, kill, pids_of, started
from monarch_nb.client.connections import events
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.runs.run import Run
from monarch_nb.errors import RunFailed

pytestmark = pytest.mark.shape(nodes=1, procs=4)

INIT = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
"""


def kill_rank_1(mesh: Mesh, run: Run) -> None:
    """Kill it once the others wait for it. None of them sends then: Gloo never wakes who sends to a peer that dies."""
    for _ in range(2):
        eventually(
            lambda: {at.collective for at in call(mesh.core.where([0, 2, 3], run.id)).values()} == {"all_reduce"}
        )
    kill(pids_of(mesh)[1])


@pytest.mark.slow
def test_all_ranks_end_when_one_dies_between_collectives(fresh_mesh: Mesh, gate: Gate) -> None:
    fresh_mesh.run(INIT)
    run, _ = started(fresh_mesh, f"if rank == 1:\n    {gate.wait}\ndist.all_reduce(torch.ones(4))")
    kill_rank_1(fresh_mesh, run)
    with pytest.raises(RunFailed) as raised:
        run.result(60)
    failures = raised.value.failures
    assert {rank: failure.kind for rank, failure in failures.items()} == {0: "error", 1: "died", 2: "error", 3: "error"}
    others = fresh_mesh.select([0, 2, 3])
    eventually(lambda: not any(others.run("dist.is_initialized()").values))
    fresh_mesh.restart([1])
    assert fresh_mesh.run(f"{INIT}\ndist.get_world_size()").values == [4] * 4


def test_a_group_in_a_cell_on_some_ranks_is_refused_at_once_and_says_how_it_is_made(fresh_mesh: Mesh) -> None:
    some = fresh_mesh.select([1, 3])
    total = "value = torch.ones(1)\ndist.all_reduce(value)\nvalue.item()"
    with pytest.raises(RunFailed) as raised:
        some.run(INIT, timeout_s=60)
    said = raised.value.failures[1].message
    assert "a group of all 4 ranks, but this cell runs only on ranks 1,3" in said
    remedy = said.partition("alone: ")[2]
    assert remedy == "dist.init_process_group(rank=[1, 3].index(rank), world_size=2)"
    imports = "import torch, torch.distributed as dist"
    assert some.run(f"{imports}\n{remedy}\n{total}").values == [2.0, 2.0]
    with pytest.raises(RunFailed, match=r"a process group of 2 ranks .* before you make one with 4 ranks"):
        fresh_mesh.run(INIT, on_error="abort", timeout_s=60)
    fresh_mesh.run("if dist.is_initialized(): dist.destroy_process_group()")
    assert fresh_mesh.run(f"{INIT}\n{total}").values == [4.0] * 4


@pytest.mark.slow
def test_ranks_that_handle_the_error_go_on_in_their_new_group(fresh_mesh: Mesh, gate: Gate, tmp_path: Path) -> None:
    fresh_mesh.run(INIT)
    run, recorder = started(
        fresh_mesh,
        f"""
try:
    if rank == 1:
        {gate.wait}
    dist.all_reduce(torch.ones(4))
except RuntimeError:
    if rank == 0:
        raise
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="file://{tmp_path}/peers", rank=rank - 2, world_size=2)
    print("goes on")
    {gate.wait}
    total = torch.ones(1)
    dist.all_reduce(total)
total.item()
""",
    )
    kill_rank_1(fresh_mesh, run)
    recorder.wait_for_text("goes on", 2)
    recorder.wait_for(lambda recorder: len(recorder.of(events.Result)) == 2)
    call(fresh_mesh.core.abort_groups("rank 1 died", [2, 3], last_run=run.number, if_torn=True))  # so does `Freeing`
    gate.open(2)
    with pytest.raises(RunFailed) as raised:
        run.result(60)
    assert sorted(raised.value.failures) == [0, 1]
    assert run.values[2:] == [2.0, 2.0]

"""What a live pool tells those who watch it: GPUs, processors and memory, where ranks wait, and what raised."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpus import FakeGpus
from integration.live import Gate, Recorder, eventually, kill, started
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.events import Notice
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.infos import RankInfo, rank_infos
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import RunFailed
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner


def asked() -> list[pb.StatusReply]:
    """What nodes say."""
    return [reply for _, reply in call(pool_named(None).ask(readings=True))]


def ranks(mesh: Mesh) -> list[RankInfo]:
    held = {one.reservation_id: one for one in call(pool_named(None).reservations(readings=True))}
    return rank_infos(held[mesh.reservation.id], mesh.id)


def until(mesh: Mesh, condition: Callable[[list[RankInfo]], bool]) -> list[RankInfo]:
    """Ask until it is so."""
    told: list[RankInfo] = []

    def holds() -> bool:
        told[:] = ranks(mesh)
        return condition(told)

    eventually(holds)
    return told


def test_gpus_of_a_node(gpus: FakeGpus, tmp_path: Path) -> None:
    dev = reserve("dev", nodes=1, gpus=8)
    eventually(lambda: [gpu.error for gpu in asked()[0].readings.gpus] == [""] * 8)  # the driver has been opened
    first, second = asked()
    assert all(0 <= gpu.utilisation <= 1 and gpu.power_limit_w == 700 for gpu in first.readings.gpus)
    assert not second.readings.gpus
    assert first.readings.memory_total_bytes > first.readings.memory_used_bytes > 0
    seen = dev.mesh.run("import os; os.environ['CUDA_VISIBLE_DEVICES'], str(device)").values
    assert seen == [("0,1,2,3,4,5,6,7", f"cuda:{rank}") for rank in range(8)], "as torchrun's processes see them"

    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    told = Recorder()
    dev.mesh.select([2, 5]).run_script(str(script), listener=told)
    assert told.text() == "2,5\n2,5\n"
    [notice] = [event.text for event in told.of(Notice) if "live ranks hold" in event.text]
    assert re.fullmatch(r"rank 2: live ranks hold [\d.]+ GB of GPU 2, [\d.]+ GB of GPU 5: %mesh restart .*", notice)
    dev.release()


def test_where_ranks_wait_and_that_they_do_no_longer(fresh_mesh: Mesh, gate: Gate) -> None:
    code = f"""import torch.distributed as dist
dist.init_process_group('gloo')
if rank == 5:
    {gate.wait}
dist.barrier()"""
    run = fresh_mesh.submit(code, cell_number=7)
    told = until(fresh_mesh, lambda all_: sum(rank.waits_in.startswith("barrier") for rank in all_) == 7)
    assert {rank.waits_in for rank in told} == {"barrier (Cell In[7]:5)", ""}
    assert told[5].waits_in == ""
    assert {rank.state for rank in told} == {"running"}
    gate.open()
    run.result()
    assert not any(rank.waits_in for rank in ranks(fresh_mesh))


def test_a_rank_whose_code_holds_the_interpreter_keeps_nobody_waiting(mesh: Mesh) -> None:
    code = "import re, time\nif rank == 0: re.match('(a+)+$', 'a' * 40 + 'b')\ntime.sleep(60)"
    run, _ = started(mesh, code)
    told = until(mesh, lambda all_: all_[1].running_s > 2)  # its run must be one that lasts
    assert [rank.state for rank in told] == ["running"] * 8
    mesh.select([0]).restart()
    run.interrupt()
    run.join()


def test_what_was_raised_is_known_across_a_restart_of_the_allocator(spare_pool: list[Node]) -> None:
    node = spare_pool[0]
    dev = reserve("dev", nodes=1, procs=2)
    with pytest.raises(RunFailed):
        dev.mesh.run("if rank == 1: raise ValueError('bad')")
    assert node.pid is not None
    kill(node.pid)
    LocalProvisioner().up()
    assert [bool(re.match("ValueError: bad", rank.failure)) for rank in ranks(dev.mesh)] == [False, True]
    dev.release()

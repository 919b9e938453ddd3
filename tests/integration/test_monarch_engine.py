"""Monarch's own engine on the nodes of a reservation; more of it in the night."""

from __future__ import annotations

from pathlib import Path

from integration.live import eventually, lives
from integration.night.torchmonarch import Program
from monarch_nb.provision import Node

PROGRAM = """
import json, os
import monarch_nb
from monarch.actor import Actor, current_rank, endpoint

class Trainer(Actor):
    @endpoint
    def here(self): return current_rank().rank, os.getpid(), os.getppid(), os.environ["ADDED"]

dev = monarch_nb.reserve("dev", nodes=2, procs=1, env={"ADDED": "yes"}, preload=[])
trainers = dev.monarch().spawn_procs(per_host={"gpus": 1}).spawn("trainers", Trainer)
here = list(trainers.here.call().get().values())
workers = [info.pid for info in dev.meshes["monarch"].status()]
print(json.dumps({"here": here, "workers": workers}), flush=True)
dev.release()
"""


def test_actors_of_monarch_run_on_every_node_that_is_held(shared_pool: list[Node], tmp_path: Path) -> None:
    program = Program(PROGRAM, tmp_path)
    try:
        told = program.told()
        program.end()
    finally:
        program.kill()
    assert [(rank, parent, added) for rank, _, parent, added in told["here"]] == [
        (rank, worker, "yes") for rank, worker in enumerate(told["workers"])
    ]
    eventually(lambda: not any(lives(pid) for pid in [*told["workers"], *(each[1] for each in told["here"])]))

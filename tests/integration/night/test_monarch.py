"""Monarch's own engine on the nodes of a reservation: `dev.monarch()`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import eventually, lives
from integration.night.torchmonarch import Program, monarch_python

pytestmark = pytest.mark.slow

ACTORS = """
import json, os, time
import monarch_nb
from monarch.actor import Actor, HostMesh, current_rank, endpoint

class Trainer(Actor):
    def __init__(self, lr=0): self.lr = lr
    @endpoint
    def step(self, n):
        print("step", n)
        return os.getpid()
    @endpoint
    def here(self): return os.getcwd(), os.environ.get("RANK"), os.environ.get("ADDED"), current_rank().rank
    @endpoint
    def hang(self):
        print("hangs")
        time.sleep(1000)
    @endpoint
    def buffer(self):
        from monarch_nb.rdma import RDMABuffer
        RDMABuffer(memoryview(bytearray(4)))
    @endpoint
    def fail(self): raise ValueError("no data")
"""
RESERVE = f'{ACTORS}\ndev = monarch_nb.reserve("dev", nodes=2, procs=2, env={{"ADDED": "yes"}}, preload=[])\n'
USE = f'{ACTORS}\ndev = monarch_nb.attach("dev")\n'
SPAWN = """
hosts = dev.monarch(linger=LINGER)
assert isinstance(hosts, HostMesh) and dev.monarch(linger=LINGER) is hosts
trainers = hosts.spawn_procs(per_host={"gpus": 2}).spawn("trainers", Trainer, lr=1)
pids = list(trainers.step.call(1).get().values())
workers = [info.pid for info in dev.meshes["monarch"].status()]
print(json.dumps({"pids": pids, "workers": workers}), flush=True)
"""


@pytest.fixture
def start(pool_home: Path, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start programs, which are clients of one pool."""
    programs: list[Program] = []

    def start_one(code: str, **options: str) -> Program:
        programs.append(Program(code, tmp_path, **options))
        return programs[-1]

    yield start_one
    for program in programs:
        program.kill()


@contextmanager
def ending(pids: list[int]) -> Iterator[None]:
    """What happens in the block ends these processes."""
    yield
    eventually(lambda: not any(map(lives, pids)))


def test_programs_come_and_go_and_the_workers_stay(start: Callable[..., Program], tmp_path: Path) -> None:
    first = start(
        RESERVE + SPAWN + "print(json.dumps({'here': list(trainers.here.call().get().values())}), flush=True)\ninput()"
    )
    told = first.told()
    assert first.told()["here"] == [[str(tmp_path), None, "yes", rank] for rank in range(4)]
    with ending(told["pids"]):
        first.kill()
    second = start(USE + SPAWN + "input()").told()
    assert second["workers"] == told["workers"]
    assert not set(second["pids"]) & set(told["pids"])
    with ending([*second["pids"], *told["workers"]]):
        start(USE + "dev.release()")


SERVE = """
import json, os, sys
from monarch_nb.worker import run_secret
from monarch_nb.worker.monarch import loop
from monarch_nb.worker.shell.streams import RunOutput
output = RunOutput(os.getcwd(), 1, 0)
os.mkdir("1")
output.redirect_descriptors()
loop._prepare_environment = lambda rank: None  # nobody spawns actors here
run_secret.begin_run(json.dumps({0: {"directory": os.getcwd()}}))
served = loop.serve(0, loop.importlib.metadata.version("torchmonarch"))
said = open("/proc/self/fd/2").read()
os.write(TOLD, json.dumps({"address": served["address"], "said": said}).encode() + b"\\n")
"""


def test_a_worker_is_given_to_clients_once_it_hears_them(start: Callable[..., Program]) -> None:
    """Before, with its socket open, it loses the first message, and the client waits for ever."""
    told = start("import os\nTOLD = os.dup(1)\n" + SERVE).told()
    assert told["address"].startswith("ipc://")
    assert "Monarch internal logs" in told["said"]


def test_workers_that_nobody_uses_end(start: Callable[..., Program]) -> None:
    first = start(RESERVE + SPAWN + "input()", linger="0.5")
    told = first.told()
    with ending(told["workers"]):
        first.kill()
    again = start(USE + SPAWN, linger="0.5").told()
    assert not set(again["workers"]) & set(told["workers"])


def test_cells_show_what_actors_print(open_kernel: Callable[..., Kernel]) -> None:
    kernel = open_kernel(python=monarch_python())
    kernel.run("%load_ext monarch_nb")
    kernel.run(RESERVE)
    kernel.run("%mesh attach dev")
    assert "[0-3] step 1" in kernel.run(SPAWN.replace("LINGER", "60"))
    assert "[0-3] step 2" in kernel.run("trainers.step.call(2).get()")
    assert "[0] [trainers 0/4] step 2" in kernel.run("%mesh logs --mesh monarch")
    assert "monarch: 2 ranks more" in kernel.run("%mesh status")
    has = "node1: Monarch has 2 processes with trainers 2-3 (Trainer)"
    eventually(lambda: has in kernel.run("%mesh status --mesh monarch"))  # who does not answer soon is left out
    assert "ValueError: no data" in kernel.run("trainers.fail.call().get()")
    assert "from monarch.rdma import RDMABuffer" in kernel.run("trainers.buffer.call().get()")
    hanging = kernel.start("trainers.hang.call().get()")
    kernel.wait(hanging, "[0-3] hangs")
    kernel.wait(hanging, "trainers.hang: ranks 0-3 run it at <dynamic-code>:")
    kernel.interrupt()
    shown = kernel.wait(hanging)
    assert "KeyboardInterrupt" in shown
    assert re.search(r"trainers\.hang goes on at <dynamic-code>:\d+ \(node[01]: pids? \d+", shown)
    row = r"trainers +Trainer +monarch +0-3 +hang .* <dynamic-code>:\d+"
    eventually(lambda: re.search(row, kernel.run("%mesh actors")))
    for _ in range(2):  # neither kills a worker
        assert "trainers.hang at <dynamic-code>:" in kernel.run("%mesh interrupt")
    kernel.run('others = hosts.spawn_procs(per_host={"gpus": 1}).spawn("others", Trainer)')
    awaiting = kernel.start("await others.hang.call()")
    kernel.wait(awaiting, "[0-1] hangs")
    kernel.interrupt()
    assert "others.hang goes on at <dynamic-code>:" in kernel.wait(awaiting)
    died = kernel.start("os.kill(workers[1], 9)\nwhile not dev.meshes['monarch'].core.dead: time.sleep(0.01)")
    assert "node1: the Monarch worker (rank 1 of mesh monarch) died: killed by signal 9" in kernel.wait(died, "died: ")
    assert "[0-3] step 1" in kernel.run(SPAWN.replace("LINGER", "60"))
    assert "dev.monarch() starts the workers again" in kernel.run("%mesh restart --mesh monarch -t 1")
    kernel.run("%mesh release")
    kernel.run("%mesh reserve dev --nodes 2 --procs 2")
    kernel.run("dev = monarch_nb.attach('dev')")
    assert "released" not in kernel.run(SPAWN.replace("LINGER", "60"))  # nothing more is called on what has ended


JOB = (
    ACTORS
    + """
from monarch.job import SlurmJob
from monarch_nb.errors import MonarchNbError
from monarch_nb.integrations.monarch import ReservedJob

dev = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[])
job = ReservedJob("dev", {"trainers": 1, "judges": 1})
state = job.state()
trainers = state.trainers.spawn_procs(per_host={"gpus": 1}).spawn("trainers", Trainer)
judges = state.judges.spawn_procs(per_host={"gpus": 1}).spawn("judges", Trainer)
pids = [actors.step.call_one(1).get() for actors in (trainers, judges)]
again = ReservedJob("dev", {"trainers": 1, "judges": 1}).state()    # from the file that Monarch has kept
refused = ""
try:
    ReservedJob("dev", {"trainers": 3}).state(cached_path=None)
except MonarchNbError as error:
    refused = str(error)
workers = [info.pid for info in dev.meshes["monarch"].status()]
print(json.dumps({"pids": pids, "workers": workers, "refused": refused, "sizes": again.trainers.sizes}), flush=True)
input()
job.kill()
job.kill()  # nothing is left to end
print(json.dumps({"held": dev.status().nodes, "meshes": list(dev.meshes)}), flush=True)
"""
)


def test_a_program_takes_the_reservation_as_its_job(start: Callable[..., Program]) -> None:
    program = start(JOB)
    told = program.told()
    assert len(set(told["pids"])) == 2
    assert told["sizes"] == {"hosts": 1}
    needs = "ReservedJob('dev', {'trainers': 3}) needs 3 nodes, and dev has 2: %mesh grow --nodes 3 holds more"
    assert told["refused"] == needs
    with ending(told["workers"]):
        program.go_on()
        assert program.told() == {"held": 2, "meshes": ["main"]}


CLIENT = (
    USE
    + """
dev.meshes  # connected, and what it needs imported
import monarch.actor
print(json.dumps({}), flush=True)
sys.stdin.readline()
trainers = dev.monarch().spawn_procs(per_host={"gpus": 1}).spawn("trainers", Trainer)
print(json.dumps({"workers": [info.pid for info in dev.meshes["monarch"].status()]}), flush=True)
for line in sys.stdin:
    trainers.step.call(line.strip()).get()
    print(json.dumps({"called": line}), flush=True)
"""
).replace("import json", "import sys, json")


def test_two_clients_at_once_share_workers_and_see_what_their_own_actors_print(start: Callable[..., Program]) -> None:
    start(RESERVE + "print(json.dumps({}), flush=True)").told()
    clients = [start(CLIENT), start(CLIENT)]
    for each in clients:
        each.told()
    for each in clients:  # both find no workers, and the first node lets one of them start some
        each.go_on()
    first, second = (each.told() for each in clients)
    assert first["workers"] == second["workers"]
    for word in ("one", "two", "three"):
        for number, each in enumerate(clients):
            each.tell(f"{word}-{number}")
            each.told()
    for number, each in enumerate(clients):
        printed = each.end()
        assert all(f"step {word}-{number}" in printed for word in ("one", "two", "three"))
        assert f"-{1 - number}" not in printed


SHUT_DOWN = (
    RESERVE
    + """
def use():
    procs = dev.monarch().spawn_procs(per_host={"gpus": 1})
    actors = procs.spawn("trainers", Trainer)
    return actors, list(actors.here.call().get(60).values())

dev.monarch().shutdown().get()
meshes = [list(dev.meshes)]
for hosts in [dev.monarch(nodes=[node]) for node in range(2)]:
    hosts.shutdown().get()
    meshes.append(list(dev.meshes))
trainers, told = use()
dev.stop_mesh("monarch")
said = ""
try:
    trainers.here.call().get(0.5)
except Exception as error:
    said = error.__notes__[0]
ranks = [each[3] for each in told]
print(json.dumps({"ranks": ranks, "said": said, "again": len(use()[1]), "meshes": meshes}), flush=True)
"""
)


def test_workers_that_were_shut_down_or_stopped_are_started_again(start: Callable[..., Program]) -> None:
    told = start(SHUT_DOWN).told()
    assert told["meshes"] == [["main"], ["main", "monarch"], ["main"]]  # it ends with its last loop
    assert told["ranks"] == [0, 1]
    assert told["said"] == "the Monarch workers of dev were stopped: their actors are gone"
    assert told["again"] == 2

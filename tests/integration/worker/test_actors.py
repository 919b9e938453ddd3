"""Actors in a rank, called by its own cells: what the engine executes is output, interrupted, found and freed."""

from __future__ import annotations

import pytest

from integration.live import eventually
from integration.worker.harness import RankProcess, TemplateProcess, values
from monarch_nb.proto.run_pb2 import ActorStatus, Where
from monarch_nb.proto.worker_pb2 import GetActors, GetWhere, InterruptRun

ACTORS = """
import asyncio, gc, threading, time
import torch
import torch.distributed as dist
from monarch_nb.actor import Actor, endpoint, this_proc
from monarch_nb.actor.engine.process import Address, Process, executing, install
from monarch_nb.worker.control.executions import Executions

class Tag:
    def __init__(self):
        execution = executing()
        self.runs = execution.runs if execution else {"mesh": (run_id, number, 0)}
    interrupt = left = was_interrupted = aftermath = lambda self: None

class Outside:
    questions, python = None, ""
    executions = next(each for each in gc.get_objects() if isinstance(each, Executions))
    executing = executions.executing
    def interrupt(self, execution):
        self.executions.interrupt(execution)
        next(each for each in threading.enumerate() if each.name == "monarch_nb-control").press()
    def home(self, node): return Address("node", f"mesh/{rank}")
    def tag(self, mesh_ids, title): return Tag()
    def tell(self, text, runs): print(text)

run_id, number = "calls", 1000
install(Process(Outside(), f"rank {rank}"))

class Trainer(Actor):
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
    @endpoint
    def say(self, text): print(text); return text
    @endpoint
    def sleep(self): time.sleep(1000)
    @endpoint
    def outer(self, other): return other.sleep.call_one().get()
    @endpoint
    def init(self): dist.init_process_group("gloo")
    @endpoint
    def reduce(self): total = torch.ones(1); dist.all_reduce(total); return total.item()
    @endpoint
    def train(self):
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(self.model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad(); model(torch.full((2, 4), rank + 1.0)).sum().backward(); optimizer.step()
        return next(model.parameters()).sum().item()
    @endpoint
    def destroy(self): dist.destroy_process_group()

class Loader(Actor):
    @endpoint
    async def sleep(self): await asyncio.sleep(1000)
    @endpoint
    async def block(self): time.sleep(1000)
    @endpoint
    async def outer(self, other): return await other.sleep.call_one()

trainers, others = this_proc().spawn("trainers", Trainer), this_proc().spawn("others", Trainer)
loaders = this_proc().spawn("loaders", Loader)
"""


@pytest.fixture
def actors(rank: RankProcess) -> RankProcess:
    """A rank with actors."""
    rank.ok(ACTORS, cell_number=1)
    return rank


def wait_where(rank: RankProcess, line: str) -> Where:
    """Wait until what is called stands at a line, or in a collective."""

    def is_there() -> Where | None:
        where = rank.ask(where=GetWhere(run_id="calls")).where
        return where if line in (where.collective, where.line) else None

    return eventually(is_there)


def statuses(rank: RankProcess) -> dict[str, ActorStatus]:
    return {status.name: status for status in rank.ask(actors=GetActors()).actors}


SLEEP, OUTER, ASYNC_SLEEP, BLOCK, ASYNC_OUTER = (f"Cell In[1]:{line}" for line in (35, 37, 56, 58, 60))
CALLS = {
    "trainers.sleep.call_one()": SLEEP,
    "loaders.sleep.call_one()": ASYNC_SLEEP,
    "loaders.block.call_one()": BLOCK,
    "trainers.outer.call_one(others)": OUTER,
    "loaders.outer.call_one(trainers)": ASYNC_OUTER,
}


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_reaches_what_is_called_and_the_actors_go_on(actors: RankProcess, call: str) -> None:
    actors.ok(f"future = {call}")
    wait_where(actors, CALLS[call])
    assert actors.ask(interrupt=InterruptRun(run_id="calls")).ok
    failure = actors.run("future.get()").failure
    assert failure.name == "ActorError"
    assert "was interrupted" in failure.message
    assert "Cell In[1], line" in failure.message
    assert "/worker/" not in failure.message
    again = "run_id = 'next'; [each.say.call_one('on').get() for each in (trainers, others)]"
    assert actors.ok(again) == ["on", "on"]


def test_an_interrupt_reaches_what_waits_for_an_actor_that_has_not_begun(actors: RankProcess) -> None:
    """The message is answered at once, and who waits for it may have ended before anybody looks what is executed."""
    actors.ok("run_id = 'others'; busy = others.sleep.call_one()")
    eventually(lambda: statuses(actors)["others"].running)
    actors.ok("run_id = 'calls'; future = trainers.outer.call_one(others)")
    eventually(lambda: statuses(actors)["others"].waiting)
    assert actors.ask(interrupt=InterruptRun(run_id="calls")).ok
    assert "trainers.outer was interrupted" in actors.run("future.get()").failure.message
    assert actors.ask(interrupt=InterruptRun(run_id="others")).ok, "what another run called was not touched"


def test_what_is_interrupted_before_it_begins_shows_nothing_of_ours(actors: RankProcess) -> None:
    actors.ok("first, queued = trainers.sleep.call_one(), trainers.say.call_one('late')")
    wait_where(actors, SLEEP)
    assert actors.ask(interrupt=InterruptRun(run_id="calls")).ok
    message = actors.run("queued.get()").failure.message
    assert "Actor call trainers.say was interrupted" in message
    assert "Traceback" not in message
    assert ".py" not in message


def test_a_cell_that_waits_for_an_endpoint_is_interrupted_alone(actors: RankProcess) -> None:
    spec = actors.start("future = trainers.sleep.call_one(); future.get()")
    wait_where(actors, SLEEP)
    assert actors.interrupt(spec.run_id)
    assert statuses(actors)["trainers"].running == "sleep"
    assert actors.ask(interrupt=InterruptRun(run_id="calls")).ok
    assert actors.result().failure.name in ("KeyboardInterrupt", "ActorError")


@pytest.mark.parametrize("call", ["trainers.sleep.call_one()", "loaders.sleep.call_one()", "loaders.block.call_one()"])
def test_who_is_replaced_or_stopped_is_interrupted(actors: RankProcess, call: str) -> None:
    name, kind = call.partition(".")[0], "Trainer" if "trainers" in call else "Loader"
    actors.ok(f"future = {call}")
    wait_where(actors, CALLS[call])
    actors.ok(f"old, new = {name}, this_proc().spawn('{name}', {kind}); new.initialized.get(60)")
    assert "spawned new actors under its name" in actors.ok("str(future.exception())")
    assert len(actors.ask(actors=GetActors()).actors) == 3, "the old one has ended"
    actors.ok(f"future = new.{call.partition('.')[2]}")
    wait_where(actors, CALLS[call])
    actors.ok("new.stop('enough').get(60)")
    assert "was stopped: enough" in actors.ok("str(future.exception())")
    assert len(actors.ask(actors=GetActors()).actors) == 2


def test_what_actors_do(actors: RankProcess) -> None:
    actors.ok("trainers.say.call_one('x').get(); calls = [trainers.sleep.call_one(), trainers.say.call_one('late')]")
    wait_where(actors, SLEEP)
    status = statuses(actors)["trainers"]
    assert (status.class_name, status.running, status.waiting) == ("__main__.Trainer", "sleep", 1)
    assert (status.where.line, status.where.state) == (SLEEP, Where.STATE_RUNNING)
    assert actors.ask(where=GetWhere(run_id="another")).where.state == Where.STATE_IDLE
    assert status.caller == "rank 0"
    assert statuses(actors)["others"].running == ""
    stack = actors.stack()
    assert stack.startswith("actor trainers (Trainer.sleep):\n")
    assert 'File "Cell In[1]", line 35, in sleep' in stack
    assert "executions.py" not in stack
    assert actors.complete("actors['") == ["loaders", "others", "trainers"]
    assert actors.complete("actors['trainers'].mod") == ["model"]
    assert actors.ok("actors['trainers'].model.weight.shape == (1, 4)")


def test_a_group_of_endpoints_is_that_of_the_cells(template: TemplateProcess) -> None:
    ranks = template.fork_mesh(2)
    reduce = "total = torch.ones(1); dist.all_reduce(total); total.item()"

    values(ranks, ACTORS)
    first, second = values(ranks, "trainers.train.call_one().get()")
    assert first == second
    assert values(ranks, reduce) == [2.0, 2.0]
    values(ranks, "dist.destroy_process_group(); trainers.init.call_one().get()")
    assert values(ranks, reduce) == values(ranks, "others.reduce.call_one().get()") == [2.0, 2.0]
    values(ranks, "trainers.destroy.call_one().get(); dist.init_process_group('gloo')")
    assert values(ranks, "trainers.reduce.call_one().get()") == [2.0, 2.0]
    ranks[0].ok("future = trainers.reduce.call_one()")
    thread = ranks[0].ok("[each.native_id for each in threading.enumerate() if each.name.endswith(' trainers')][0]")
    assert ranks[0].wait_hung("calls", thread).collective == "all_reduce"
    assert ranks[0].ask(interrupt=InterruptRun(run_id="calls")).ok
    failure = ranks[0].run("future.get()").failure
    assert "interrupted in all_reduce" in failure.message
    values(ranks, "run_id = 'next'; trainers.init.call_one().get()")
    assert values(ranks, "trainers.reduce.call_one().get()") == [2.0, 2.0]


def test_threads_of_an_actor_compute_with_as_many_threads_as_the_cells(template: TemplateProcess) -> None:
    rank = template.fork(1, {"OMP_NUM_THREADS": "3"})[0]
    rank.ok(ACTORS)
    code = """
import threadpoolctl
class Counter(Actor):
    @endpoint
    def count(self):
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "openmp"}
counted = this_proc().spawn("counters", Counter).count.call_one().get(60)
counted"""
    assert rank.ok(code) == {3}

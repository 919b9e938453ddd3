"""What actors execute, driven as the engine drives it, on threads of a rank: output, interrupts, places, groups."""

from __future__ import annotations

import pytest

from integration.live import eventually
from integration.worker.harness import RankProcess, TemplateProcess, values
from monarch_nb.proto.run_pb2 import Where
from monarch_nb.proto.worker_pb2 import GetWhere, InterruptRun

DRIVER = """
import gc, os, queue, subprocess, sys, threading, time
import torch
import torch.distributed as dist
from monarch_nb.actor.engine.outside import Execution
from monarch_nb.worker.control.executions import Executions

executions = next(each for each in gc.get_objects() if isinstance(each, Executions))
outcomes = {}

def start(name, body, number=1000, run_id="calls"):
    runs = {"mesh": (run_id, number, 0)} if number else {}
    def execute():
        execution = Execution("trainers", "Trainer", name, name, rank, "the notebook", runs)
        try:
            with executions.executing(execution):
                outcomes[name] = body()
        except BaseException as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
        execution.is_over = True
    thread = threading.Thread(target=execute, name=name)
    thread.start()
    return thread
"""


@pytest.fixture
def driver(rank: RankProcess) -> RankProcess:
    """A rank whose cells can execute endpoints."""
    rank.ok(DRIVER)
    return rank


def where(rank: RankProcess, run_id: str = "calls") -> Where:
    return rank.ask(where=GetWhere(run_id=run_id)).where


def interrupt(rank: RankProcess, run_id: str = "calls") -> bool:
    return rank.ask(interrupt=InterruptRun(run_id=run_id)).ok


def test_a_thread_that_an_endpoint_left_behind_prints_to_what_executes_now(driver: RankProcess) -> None:
    driver.ok(
        "asked, done = queue.Queue(), queue.Queue()\n"
        "def talk():\n"
        "    for text in iter(asked.get, None): print(text); done.put(None)\n"
        "def beat(text): asked.put(text); done.get()\n"
        "def begin(): threading.Thread(target=talk, daemon=True).start(); beat('one')\n"
        "start('step', begin, 1000).join()\n"
        "beat('two')\n"
        "start('step', lambda: beat('three'), 1001).join()"
    )
    driver.ok("beat('four')")
    assert driver.text("out", 1000) == "one\ntwo\n"
    assert driver.text("out", 1001) == "three\n"
    assert driver.text("out", 3) == "four\n"


def test_what_an_endpoint_prints_goes_to_the_run_that_called_it(driver: RankProcess) -> None:
    driver.ok(
        "def body():\n"
        "    print('said', end='')\n"
        "    print('warned', file=sys.stderr)\n"
        "    inner = threading.Thread(target=lambda: print(' in a thread', end='')); inner.start(); inner.join()\n"
        "    subprocess.run(['echo', ' by a child'])\n"
        "    display('shown')\n"
        "start('step', body).join()"
    )
    assert driver.text("out", 1000) == "said in a thread by a child\n"
    assert driver.text("err", 1000) == "warned\n"
    assert sum(mark.HasField("display") for mark in driver.marks(1000)) == 1
    driver.ok("start('other', lambda: print('again'), 1000).join(); subprocess.run(['echo', 'of the cell'])")
    assert driver.text("out", 1000).endswith("again\n")
    assert driver.text("out", 3) == "of the cell\n"


def test_silent_endpoints_make_no_files(driver: RankProcess) -> None:
    driver.ok("start('step', lambda: 1, 1000).join()")
    driver.ok("start('step', lambda: print('x'), 1001).join()")
    assert driver.ok(f"os.listdir('{driver.spec.log_directory}')").count("1000") == 0


def test_what_is_called_in_no_run_prints_into_the_newest(driver: RankProcess) -> None:
    spec = driver.submit("start('late', lambda: print('late'), 0).join()")
    assert not driver.result().untouched
    assert driver.text("out", spec.number) == "late\n"


def test_two_endpoints_and_a_cell_print_at_once(driver: RankProcess) -> None:
    driver.ok(
        "def talk(): [print('line', i) for i in range(2000)]\n"
        "threads = [start(f'a{n}', talk, 1000 + n) for n in range(2)]\n"
        "talk()\n"
        "for each in threads: each.join()"
    )
    expected = "".join(f"line {number}\n" for number in range(2000))
    assert driver.text("out", 1000) == driver.text("out", 1001) == driver.text("out", 2) == expected


ENDLESS = {
    "sleep": "time.sleep(1000)",
    "loop": "\n    while True: pass",
    "timed event": "threading.Event().wait(1000)",
    "queue": "queue.Queue().get()",
    "future": "__import__('concurrent.futures').futures.Future().result()",
    "join": "other = threading.Thread(target=threading.Event().wait, daemon=True); other.start(); other.join()",
    "child": "subprocess.run(['sleep', '1000'])",
    "printing": "\n    while True: print('x')",
}


def test_an_interrupt_reaches_sync_endpoints_and_no_other_run_and_no_cell(driver: RankProcess) -> None:
    driver.ok("endless = []")
    for number, (name, code) in enumerate(ENDLESS.items()):
        driver.ok(f"def body():\n    print('began')\n    {code}")
        driver.ok(f"endless.append(start({name!r}, body, {1000 + number}))")
    driver.ok("gate = threading.Event(); spared = start('spared', lambda: gate.wait() and 'done', 2000, 'others')")
    for number in range(len(ENDLESS)):
        eventually(lambda number=number: driver.text("out", 1000 + number).startswith("began"))  # type: ignore[misc]
    spec = driver.start("for each in endless: each.join()\n'went on'")
    assert interrupt(driver)
    result = driver.result()
    assert (result.run_id, driver.value(result)) == (spec.run_id, "went on"), result.failure
    outcomes = driver.ok("gate.set(); spared.join(); outcomes")
    assert outcomes == dict.fromkeys(ENDLESS, "KeyboardInterrupt: interrupted") | {"spared": "done"}
    assert not driver.interrupt("calls")


def test_cleanup_after_an_interrupt_is_not_hit_and_a_second_one_reaches_it(driver: RankProcess) -> None:
    driver.ok(
        "def body():\n"
        "    try:\n        print('began'); time.sleep(1000)\n"
        "    except KeyboardInterrupt:\n"
        "        for _ in range(5): time.sleep(0.1)\n"
        "        print('cleaned'); time.sleep(1000)\n"
        "thread = start('step', body)"
    )
    eventually(lambda: "began" in driver.text("out", 1000))
    interrupt(driver)
    eventually(lambda: "cleaned" in driver.text("out", 1000))
    interrupt(driver)
    assert driver.ok("thread.join(); outcomes") == {"step": "KeyboardInterrupt: interrupted"}


def test_what_begins_in_the_name_of_an_interrupted_run_does_not_begin(driver: RankProcess) -> None:
    assert not interrupt(driver)
    assert driver.ok("start('step', lambda: 1).join(); outcomes") == {"step": "KeyboardInterrupt: interrupted"}


def test_short_endpoints_are_interrupted_whole_or_not_at_all(driver: RankProcess) -> None:
    """An interrupt that comes when the endpoint has just ended must not hit what calls it."""
    driver.ok(
        "stray = []\n"
        "def serve():\n"
        "    for number in range(20_000):\n"
        "        if stopping.is_set(): break\n"
        "        execution = Execution('a', 'A', 'u', 'e', 0, 'n', {'mesh': (f'run{number // 100}', 1000, 0)})\n"
        "        try:\n"
        "            try:\n"
        "                with executions.executing(execution): sum(range(20))\n"
        "            except KeyboardInterrupt: pass\n"
        "            execution.is_over = True\n"
        "            sum(range(20))\n"
        "        except BaseException as error: stray.append(repr(error))\n"
        "stopping = threading.Event(); thread = threading.Thread(target=serve); thread.start()"
    )
    for number in range(200):
        interrupt(driver, f"run{number}")
    assert driver.ok("thread.join(); stray, len(list(executions))") == ([], 0)


INIT = "dist.init_process_group('gloo')"


def mesh_of_drivers(template: TemplateProcess, count: int = 2) -> list[RankProcess]:
    ranks = template.fork_mesh(count)
    for rank in ranks:
        rank.ok(DRIVER)
    return ranks


def test_a_cell_and_an_endpoint_that_make_the_group_at_once(template: TemplateProcess) -> None:
    ranks = mesh_of_drivers(template)
    code = f"thread = start('init', lambda: {INIT}); {INIT}; thread.join(); outcomes['init'], dist.get_world_size()"
    for _ in range(3):
        assert values(ranks, code) == [(None, 2)] * 2
        values(ranks, "dist.destroy_process_group()")


def test_a_cell_that_hangs_with_an_interrupted_endpoint_is_told(template: TemplateProcess) -> None:
    ranks = mesh_of_drivers(template)
    values(ranks, f"{INIT}; groups = [dist.new_group([0, 1]) for _ in range(2)]")
    ranks[0].submit(
        "thread = start('hang', lambda: dist.all_reduce(torch.ones(1), group=groups[0]))\ndist.barrier(group=groups[1])"
    )
    eventually(lambda: where(ranks[0]).collective == "all_reduce")
    ranks[0].wait_hung()
    assert interrupt(ranks[0])
    result = ranks[0].result()
    assert result.failure.name == "ProcessGroupAborted", result.failure.traceback
    assert result.group_aborted
    assert ranks[0].ok("thread.join(); outcomes['hang']").startswith("KeyboardInterrupt: interrupted in all_reduce")
    assert values(ranks, f"{INIT}; dist.get_world_size()") == [2, 2]


def test_an_endpoint_that_hangs_is_freed_when_a_peer_breaks_the_group(template: TemplateProcess) -> None:
    ranks = mesh_of_drivers(template)
    values(ranks, INIT)
    ranks[0].ok("thread = start('hang', lambda: dist.all_reduce(torch.ones(1)))")
    ranks[0].wait_hung("calls", ranks[0].ok("thread.native_id"))
    ranks[0].abort_groups("rank 1 was restarted")
    outcome = ranks[0].ok("thread.join(); outcomes['hang']")
    assert outcome.startswith("ProcessGroupAborted: interrupted in all_reduce (rank 1 was restarted)")
    ranks[1].abort_groups("rank 1 was restarted")
    assert values(ranks, f"{INIT}; dist.get_world_size()") == [2, 2]


def test_training_apart_is_noticed_of_endpoints_and_not_taken_for_the_cells(template: TemplateProcess) -> None:
    rank = mesh_of_drivers(template)[0]
    rank.ok(
        "model = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "def step(): model(torch.ones(2)).sum().backward(); optimizer.step()\n"
        "for _ in range(3): start('step', step).join()"
    )
    assert len(rank.marks(1000)) == 1
    assert not rank.marks(2)

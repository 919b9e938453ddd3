"""`breakpoint()` in a rank: where it stops, what pdb answers, and how it goes on or ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, eventually
from integration.worker.harness import RankProcess
from integration.worker.test_actors import ACTORS
from monarch_nb.proto.run_pb2 import (
    OUTCOME_INTERRUPTED,
    OUTCOME_OK,
    DebugAnswer,
    DebugCommand,
    Display,
    Stop,
)
from monarch_nb.proto.worker_pb2 import GetStops, InterruptRun


def stops(rank: RankProcess, count: int = 1) -> list[Stop]:
    """Wait until so many threads have stopped."""
    found: list[Stop] = []

    def are_there() -> bool:
        found[:] = rank.ask(stops=GetStops()).stops
        return len(found) == count

    eventually(are_there)
    return found


def stopped(rank: RankProcess) -> Stop:
    """Wait until a thread has stopped, and take what pdb says first."""
    [stop] = stops(rank)
    send(rank, stop, DebugCommand.ACTION_LINE)
    return stop


def send(rank: RankProcess, stop: Stop, action: int, line: str = "", wait_s: float = TIMEOUT_S) -> DebugAnswer:
    command = DebugCommand(stop=stop.stop, action=action, line=line, wait_s=wait_s)  # type: ignore[arg-type]
    return rank.ask(debug=command).debug


def say(rank: RankProcess, stop: Stop, line: str, wait_s: float = TIMEOUT_S) -> str:
    """Send a line to pdb; return what it prints until it asks again."""
    answer = send(rank, stop, DebugCommand.ACTION_LINE, line, wait_s)
    assert answer.state == DebugAnswer.STATE_PROMPT, answer
    return answer.text


def go_on(rank: RankProcess, stop: Stop) -> None:
    assert send(rank, stop, DebugCommand.ACTION_CONTINUE).state == DebugAnswer.STATE_GONE


@pytest.fixture
def module(rank: RankProcess) -> Iterator[Path]:
    """A module that can be imported."""
    path = Path(rank.spec.directory) / "stopping.py"
    path.write_text("def step(batch):\n    double = 2 * batch\n    breakpoint()\n    return double + 1\n")
    yield path
    path.unlink()


def test_a_cell_stops_at_its_breakpoint(rank: RankProcess) -> None:
    rank.submit("x = 20\nbreakpoint()\ny = x + 1\ny", cell_number=7)
    [stop] = stops(rank)
    for _ in range(2):  # whoever comes later is told the same
        answer = send(rank, stop, DebugCommand.ACTION_LINE)
        assert (answer.text, answer.prompt) == ("> Cell In[7](2)<module>()\n-> breakpoint()\n", "(Pdb) ")
    assert (stop.actor, stop.function, stop.file, stop.line_number) == ("cell", "Cell In[7]", "Cell In[7]", 2)
    assert stop.line == "breakpoint()"
    assert say(rank, stop, "x") == "20\n"
    assert say(rank, stop, "n") == "> Cell In[7](3)<module>()\n-> y = x + 1\n"
    assert say(rank, stop, "x = 40") == ""
    assert say(rank, stop, "n") == "> Cell In[7](4)<module>()\n-> y\n"
    assert say(rank, stop, "l") == "  1  \tx = 20\n  2  \tbreakpoint()\n  3  \ty = x + 1\n  4  ->\ty\n[EOF]\n"
    assert send(rank, stop, DebugCommand.ACTION_LINE, "n").state == DebugAnswer.STATE_GONE
    assert rank.value(rank.result()) == 41
    assert stops(rank, 0) == []
    assert rank.ok("6 * 7") == 42


def test_an_imported_module_and_its_callers(rank: RankProcess, module: Path) -> None:
    rank.submit("import stopping\nresult = stopping.step(5)\nresult", cell_number=2)
    stop = stopped(rank)
    assert (stop.function, stop.file, stop.line_number) == ("stopping.step", "stopping.py", 3)
    frames = say(rank, stop, "w")
    assert frames.splitlines()[0] == "  Cell In[2](2)<module>()"
    assert "monarch_nb" not in frames
    assert "IPython" not in frames
    assert say(rank, stop, "u").startswith("> Cell In[2](2)<module>()")
    assert "Oldest frame" in say(rank, stop, "u")
    assert say(rank, stop, "d").startswith("> stopping.py(3)step()")
    assert say(rank, stop, "r").splitlines()[0] == "--Return--"
    assert say(rank, stop, "n").startswith("> Cell In[2](3)<module>()")
    go_on(rank, stop)
    assert rank.value(rank.result()) == 11


def test_stepping_into_a_function_of_the_cell(rank: RankProcess) -> None:
    rank.submit("def f(a):\n    return a + 1\nbreakpoint()\nz = f(1)\nz", cell_number=1)
    stop = stopped(rank)
    say(rank, stop, "n")
    assert say(rank, stop, "s").startswith("--Call--\n> Cell In[1](1)f()")
    assert say(rank, stop, "a") == "a = 1\n"
    assert say(rank, stop, "tbreak 5").startswith("Breakpoint ")
    text = say(rank, stop, "c")
    assert text.splitlines()[-2:] == ["> Cell In[1](5)<module>()", "-> z"]
    go_on(rank, stop)
    assert rank.value(rank.result()) == 2


def test_a_breakpoint_that_is_reached_again(rank: RankProcess) -> None:
    rank.submit("total = 0\nfor step in range(3):\n    breakpoint()\n    total += step\ntotal")
    stop = stopped(rank)
    for step in range(3):
        assert say(rank, stop, "p step") == f"{step}\n"
        answer = send(rank, stop, DebugCommand.ACTION_LINE, "c")
        if step < 2:
            stop = stopped(rank)
        else:
            assert answer.state == DebugAnswer.STATE_GONE
    assert rank.value(rank.result()) == 3


def test_statements_over_several_lines_and_what_they_print(rank: RankProcess) -> None:
    rank.submit("import os\nx = 3\nbreakpoint()\nprint('mine', total)")
    stop = stopped(rank)
    more = send(rank, stop, DebugCommand.ACTION_LINE, "for i in range(x):")
    assert more.prompt == "...   "
    assert send(rank, stop, DebugCommand.ACTION_LINE, "    print('at', i)").prompt == "...   "
    assert say(rank, stop, "\n") == "at 0\nat 1\nat 2\n"
    say(rank, stop, "!total = sum(range(x))")
    assert say(rank, stop, "undefined") == "*** NameError: name 'undefined' is not defined\n"
    answer = send(rank, stop, DebugCommand.ACTION_LINE, "interact")
    assert answer.prompt == ">>> "
    assert say(rank, stop, "x + 1") == "4\n"
    assert "ZeroDivisionError" in say(rank, stop, "1 / 0")
    assert send(rank, stop, DebugCommand.ACTION_LINE, "exit()").prompt == "(Pdb) "
    go_on(rank, stop)
    assert rank.result().outcome == OUTCOME_OK
    assert rank.text("out") == "mine 3\n"


def test_quitting_fails_the_run(rank: RankProcess) -> None:
    rank.submit("def f():\n    breakpoint()\nf()", cell_number=4)
    stop = stopped(rank)
    assert send(rank, stop, DebugCommand.ACTION_LINE, "q").state == DebugAnswer.STATE_GONE
    failure = rank.result().failure
    assert (failure.name, failure.message, failure.where) == ("BdbQuit", "quit in the debugger", "Cell In[4]:2")
    assert "bdb.py" not in failure.traceback
    rank.submit("breakpoint()\nx = 1\ny = 2")
    stop = stopped(rank)
    say(rank, stop, "n")
    assert send(rank, stop, DebugCommand.ACTION_QUIT).state == DebugAnswer.STATE_GONE
    assert rank.result().failure.message == "quit in the debugger"
    assert rank.ok("1") == 1


@pytest.mark.parametrize(
    "code",
    [
        "breakpoint()",
        "breakpoint()\nwhile True: pass",
        "import asyncio\nawait asyncio.sleep(0)\nbreakpoint()",
        "def f():\n    breakpoint()\nf()",
    ],
)
def test_an_interrupt_frees_a_stopped_rank(rank: RankProcess, code: str) -> None:
    spec = rank.submit(code)
    stop = stopped(rank)
    if "while" in code:
        say(rank, stop, "n")
        assert send(rank, stop, DebugCommand.ACTION_LINE, "unt 99", 0.2).state == DebugAnswer.STATE_RUNNING
    assert rank.ask(interrupt=InterruptRun(run_id=spec.run_id)).ok
    assert rank.result().outcome == OUTCOME_INTERRUPTED
    assert stops(rank, 0) == []
    assert send(rank, stop, DebugCommand.ACTION_LINE, "1").state == DebugAnswer.STATE_GONE
    assert rank.ok("40 + 2") == 42


@pytest.mark.parametrize("line", ["import time; time.sleep(3600)", "interact"])
def test_an_interrupt_of_what_the_debugger_executes(rank: RankProcess, line: str) -> None:
    spec = rank.submit("breakpoint()")
    stop = stopped(rank)
    send(rank, stop, DebugCommand.ACTION_LINE, line, 0.2)
    assert rank.ask(interrupt=InterruptRun(run_id=spec.run_id)).ok
    assert rank.result().outcome == OUTCOME_INTERRUPTED
    assert rank.ok("40 + 2") == 42


def test_what_takes_long_is_asked_for_again(rank: RankProcess, tmp_path: Path) -> None:
    path = tmp_path / "go"
    rank.submit(
        f"import os, time\ndef wait():\n    while not os.path.exists({str(path)!r}): time.sleep(0.01)\nbreakpoint()"
    )
    stop = stopped(rank)
    assert send(rank, stop, DebugCommand.ACTION_LINE, "wait()", 0.1).state == DebugAnswer.STATE_RUNNING
    assert send(rank, stop, DebugCommand.ACTION_LINE, "", 0.1).state == DebugAnswer.STATE_RUNNING
    assert [stop.executes for stop in stops(rank)] == [True]
    refused = send(rank, stop, DebugCommand.ACTION_LINE, "p 1")
    assert (refused.state, refused.text) == (
        DebugAnswer.STATE_RUNNING,
        "not executed: the line before is not done yet\n",
    )
    path.touch()
    assert send(rank, stop, DebugCommand.ACTION_LINE).state == DebugAnswer.STATE_PROMPT
    go_on(rank, stop)
    assert rank.result().outcome == OUTCOME_OK


def test_two_threads_stop_at_once(rank: RankProcess) -> None:
    code = """
import threading
def work(name):
    breakpoint()
    done.append(name)
done = []
threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
for each in threads: each.start()
for each in threads: each.join()
sorted(done)
"""
    rank.submit(code)
    first, second = stops(rank, 2)
    for stop in (first, second):
        send(rank, stop, DebugCommand.ACTION_LINE)
    names = {say(rank, first, "p name"), say(rank, second, "p name")}
    assert names == {"'a'\n", "'b'\n"}
    go_on(rank, second)
    assert [stop.stop for stop in stops(rank)] == [first.stop]
    go_on(rank, first)
    assert rank.value(rank.result()) == ["a", "b"]


def test_set_trace_stops_too_and_async_cells(rank: RankProcess) -> None:
    rank.submit("import asyncio, pdb\nawait asyncio.sleep(0)\npdb.set_trace()\nx = 1\nx", cell_number=5)
    stop = stopped(rank)
    assert stop.line_number == 3
    assert say(rank, stop, "n").startswith("> Cell In[5](4)<module>()")
    go_on(rank, stop)
    assert rank.value(rank.result()) == 1


def test_a_stop_is_marked_in_the_output(rank: RankProcess) -> None:
    spec = rank.submit("print('before')\nbreakpoint()\nprint('after')")
    stop = stopped(rank)
    assert stop.run_id == spec.run_id
    go_on(rank, stop)
    assert rank.result().outcome == OUTCOME_OK
    marks = [mark.display for mark in rank.marks(spec.number) if mark.display.kind == Display.KIND_STOPPED]
    assert [mark.content_json for mark in marks] == [
        f'{{"stop": {stop.stop}, "on": true}}',
        f'{{"stop": {stop.stop}, "on": false}}',
    ]


def test_a_forked_process_passes(rank: RankProcess) -> None:
    code = "import os\npid = os.fork()\nif pid == 0:\n    breakpoint()\n    os._exit(0)\nos.waitpid(pid, 0)[1]"
    assert rank.ok(code, cell_number=1) == 0
    expected = "breakpoint() at Cell In[1]:4 was passed: a process that a rank forked has no debugger\n"
    assert rank.text("err") == expected


def test_after_an_error(rank: RankProcess) -> None:
    assert send(rank, Stop(), DebugCommand.ACTION_POST_MORTEM).state == DebugAnswer.STATE_GONE
    rank.run("def divide(a, b):\n    return a / b\ndivide(1, 0)", cell_number=6)
    answer = send(rank, Stop(), DebugCommand.ACTION_POST_MORTEM)
    assert answer.text == "> Cell In[6](2)divide()\n-> return a / b\n"
    assert (answer.at.post_mortem, answer.at.line_number) == (True, 2)
    assert rank.ok("6 * 7") == 42  # cells run meanwhile, and the error stays
    assert say(rank, answer.at, "b") == "0\n" or say(rank, answer.at, "p b") == "0\n"
    assert say(rank, answer.at, "u").startswith("> Cell In[6](3)<module>()")
    assert send(rank, answer.at, DebugCommand.ACTION_LINE, "q").state == DebugAnswer.STATE_GONE
    assert stops(rank, 0) == []
    assert send(rank, Stop(), DebugCommand.ACTION_POST_MORTEM).state == DebugAnswer.STATE_GONE, "the last run was well"


def test_pm_in_a_cell(rank: RankProcess) -> None:
    rank.run("batch = 3\n1 / (batch - 3)", cell_number=1)
    rank.submit("import pdb; pdb.pm()")
    stop = stopped(rank)
    assert stop.post_mortem
    assert say(rank, stop, "p batch") == "3\n"
    assert send(rank, stop, DebugCommand.ACTION_LINE, "q").state == DebugAnswer.STATE_GONE
    assert rank.result().outcome == OUTCOME_OK


STOPPING = """
class Stopping(Actor):
    @endpoint
    def step(self, x):
        breakpoint()
        y = x + 1
        return y
    @endpoint
    def plain(self): return "plain"

class Waiting(Actor):
    @endpoint
    async def step(self, x):
        await asyncio.sleep(0)
        breakpoint()
        await asyncio.sleep(0)
        return x + 1
    @endpoint
    async def plain(self): return "plain"

stopping = this_proc().spawn("stopping", Stopping)
waiting = this_proc().spawn("waiting", Waiting)
"""


@pytest.fixture
def stopping(rank: RankProcess) -> RankProcess:
    """A rank with an actor whose endpoints stop."""
    rank.ok(ACTORS, cell_number=1)
    rank.ok(STOPPING, cell_number=2)
    return rank


@pytest.mark.parametrize(("name", "line"), [("stopping", 5), ("waiting", 15)])
def test_an_endpoint_stops_and_cells_go_on(stopping: RankProcess, name: str, line: int) -> None:
    stopping.ok(f"future = {name}.step.call_one(40)")
    [stop] = stops(stopping)
    assert (stop.actor, stop.function, stop.line_number) == (name, "Cell In[2].step", line)
    assert stop.run_id == "calls"
    frames = send(stopping, stop, DebugCommand.ACTION_LINE, "w").text
    assert "monarch_nb" not in frames
    assert stopping.ok("6 * 7") == 42
    say(stopping, stop, "x = 50")
    assert say(stopping, stop, "n").startswith("> Cell In[2]")
    for _ in range(4):  # to the end of the endpoint, and not beyond
        answer = send(stopping, stop, DebugCommand.ACTION_LINE, "n")
        if answer.state == DebugAnswer.STATE_GONE:
            break
    assert answer.state == DebugAnswer.STATE_GONE
    assert stopping.ok("future.get()") == 51
    assert stops(stopping, 0) == []
    assert stopping.ok(f"{name}.plain.call_one().get()") == "plain"


@pytest.mark.parametrize("name", ["stopping", "waiting"])
def test_an_interrupt_and_a_quit_end_what_an_endpoint_waits_for(stopping: RankProcess, name: str) -> None:
    stopping.ok(f"future = {name}.step.call_one(1)")
    stopped(stopping)
    assert stopping.ask(interrupt=InterruptRun(run_id="calls")).ok
    assert stopping.run("future.get()").failure.name == "ActorError"
    stopping.ok(f"run_id = 'next'; future = {name}.step.call_one(1)")
    stop = stopped(stopping)
    assert send(stopping, stop, DebugCommand.ACTION_QUIT).state == DebugAnswer.STATE_GONE
    assert "quit in the debugger" in stopping.run("future.get()").failure.message
    assert stopping.ok(f"{name}.plain.call_one().get()") == "plain"

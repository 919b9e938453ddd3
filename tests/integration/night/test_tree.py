"""A mesh on more nodes than a client talks to: runs go through a tree of allocators, and what comes back is whole."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from integration.live import Gate, Recorder, client, eventually, kill, started
from leaks import leaks_of
from monarch_nb.client.connections import events, tree
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.errors import NodeUnreachable, RunFailed
from monarch_nb.proto.run_pb2 import Where
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.slow
NODES = 7
"""The first is above the second and fifth, the second above the next two, the fifth above the last two."""
INNER, BELOW_INNER = 1, (2, 3)
SMALL = "from monarch_nb.client.connections import tree; tree.DIRECT_NODES = tree.FAN_OUT = 2"
LINES = 400

local = LocalProvisioner()


@pytest.fixture(scope="module")
def dev() -> Iterator[Reservation]:
    """A reservation on many nodes of a pool of its own, in a small tree."""
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        patch.setattr(tree, "DIRECT_NODES", 2)
        patch.setattr(tree, "FAN_OUT", 2)
        patch.setattr("monarch_nb.provision.local.DEFAULT_PRELOAD", ("",))  # nothing: no rank here needs torch
        local.up(NODES, 1, gpus="none")
        yield reserve("dev", nodes=NODES, procs=1, preload=())
        local.down(force=True)
    leaks = leaks_of(home)
    shutil.rmtree(home)
    assert not leaks, "left behind:\n" + "\n".join(leaks)


@pytest.fixture
def mesh(dev: Reservation) -> Iterator[Mesh]:
    """Afterwards every allocator serves, and nothing runs."""
    yield dev.mesh
    local.up(NODES, 1)
    going_on = [info.title for info in dev.mesh.runs() if not info.done]
    if going_on or any(info.state == "dead" for info in dev.mesh.status()):
        dev.mesh.restart()
    assert not going_on


def allocator_of(node: int) -> int:
    pid = local.nodes()[node].pid
    assert pid is not None
    return pid


def told_away(recorder: Recorder) -> list[str]:
    return [notice.text for notice in recorder.of(events.Notice) if "does not answer" in notice.text]


def test_what_ranks_return_print_and_raise(mesh: Mesh) -> None:
    recorder = Recorder()
    run = mesh.run("print('all alike'); print('rank', rank); rank * 2", listener=recorder)
    assert run.values == [rank * 2 for rank in range(NODES)]
    assert [recorder.text(rank) for rank in range(NODES)] == [f"all alike\nrank {rank}\n" for rank in range(NODES)]
    with pytest.raises(RunFailed) as raised:
        mesh.run("1 / (rank % 2)")
    assert [(failure.rank, failure.host, failure.name) for failure in raised.value.failures.values()] == [
        (rank, f"node{rank}", "ZeroDivisionError") for rank in range(0, NODES, 2)
    ]
    assert mesh.core.tree is not None
    assert set(mesh.core.tree.cursors(run.id)) == set(range(NODES))
    assert not any(connection.cursors(run.id) for connection in mesh.core.connections.values())


def test_on_some_ranks_only(mesh: Mesh) -> None:
    recorder = Recorder()
    assert mesh.select([2, 3, 5]).run("print(rank)\nrank", listener=recorder).values == [2, 3, 5]
    assert {event.rank for event in recorder.of(events.Result)} == {2, 3, 5}


def test_runs_wait_for_each_other_on_every_node(mesh: Mesh, gate: Gate) -> None:
    first, _ = started(mesh, gate.wait)
    recorder = Recorder()
    second = mesh.submit("rank", listener=recorder)
    recorder.wait_for(lambda recorder: any("waits for" in notice.text for notice in recorder.of(events.Notice)))
    gate.open(NODES)
    assert first.result() == [None] * NODES
    assert second.result() == list(range(NODES))
    assert [notice.text for notice in recorder.of(events.Notice) if notice.key == events.QUEUE_NOTICE][-1] == ""


def test_an_interrupt_reaches_every_rank(mesh: Mesh) -> None:
    mesh.run("kept = rank")
    run, _ = started(mesh, "import time\nwhile True: time.sleep(0.01)")
    report = run.interrupt()
    assert sorted(report.stopped) == list(range(NODES))
    assert not report.stuck
    assert mesh.run("kept").values == list(range(NODES))


def test_where_ranks_are_is_asked_through_the_tree(mesh: Mesh, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def control(ranks: Iterable[int], **_: object) -> dict[int, object]:
        asked.extend(ranks)
        return {}

    run, _ = started(mesh, f"{gate.wait}\nrank")
    where: dict[int, Where] = {}

    def all_answer() -> bool:
        """On a busy machine not always in the time that they get."""
        asked.clear()
        where.update(call(mesh.core.where(range(NODES), run.id)))
        return sorted(where) == list(range(NODES)) and not asked

    with monkeypatch.context() as patch:
        patch.setattr(mesh.core, "control", control)  # what a node is asked directly
        eventually(all_answer)
    assert {(at.run_id, at.line) for at in where.values()} == {(run.id, where[0].line)}
    gate.open(NODES)
    assert run.result() == list(range(NODES))


@pytest.mark.usefixtures("impatient")
def test_ranks_below_a_silent_allocator_are_asked_directly(mesh: Mesh, gate: Gate) -> None:
    """It neither passes the question on nor answers it; it is not found to be away yet."""
    run, _ = started(mesh, f"{gate.wait}\nrank")
    os.kill(allocator_of(INNER), signal.SIGSTOP)
    others = [rank for rank in range(NODES) if rank != INNER]
    try:
        eventually(lambda: sorted(call(mesh.core.where(range(NODES), run.id))) == others)
    finally:
        os.kill(allocator_of(INNER), signal.SIGCONT)
    gate.open(NODES)
    assert run.result() == list(range(NODES))


def test_large_values_and_what_is_listened_to_late(mesh: Mesh) -> None:
    run = mesh.run("print('text of', rank)\nbytes(2_000_000 + rank)")
    assert [len(value) for value in run.values] == [2_000_000 + rank for rank in range(NODES)]
    recorder = Recorder()
    run.add_listener(recorder)
    recorder.wait_for(lambda recorder: recorder.of(events.Finished))
    assert [recorder.text(rank) for rank in range(NODES)] == [f"text of {rank}\n" for rank in range(NODES)]


def printing(gate: Gate, second: Gate) -> str:
    """Code that prints half of its numbered lines, waits, prints the others, and waits before it ends."""
    half = LINES // 2
    return (
        f"for i in range({half}): print('line', i)\n{gate.wait}\n"
        f"for i in range({half}, {LINES}): print('line', i)\n{second.wait}\nrank"
    )


@pytest.fixture
def second_gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


def assert_whole(recorder: Recorder) -> None:
    lines = [f"line {i}" for i in range(LINES)]
    for rank in range(NODES):
        assert recorder.text(rank).removeprefix("\x02under way\n").splitlines() == lines, f"rank {rank}"
    assert sorted(result.rank for result in recorder.of(events.Result)) == list(range(NODES))


@pytest.mark.parametrize("dead", [INNER, 0, 3], ids=["inner", "first", "leaf"])
def test_an_allocator_is_killed_while_ranks_print(mesh: Mesh, gate: Gate, second_gate: Gate, dead: int) -> None:
    """Those below it are adopted: they print on while it is away. Nothing is lost or doubled, then and afterwards."""
    run, recorder = started(mesh, printing(gate, second_gate))
    kill(allocator_of(dead))
    recorder.wait_for(lambda recorder: told_away(recorder))
    gate.open(NODES)
    for rank in set(range(NODES)) - {dead}:
        recorder.wait_for(lambda recorder, rank=rank: f"line {LINES - 1}\n" in recorder.text(rank))  # type: ignore[misc]
    assert all(f"node{dead} " in text for text in told_away(recorder)), "only that one"
    local.up(NODES, 1)
    second_gate.open(NODES)
    assert run.result() == list(range(NODES))
    recorder.wait_for(lambda recorder: f"line {LINES - 1}\n" in recorder.text(dead))
    assert_whole(recorder)


def test_one_ends_while_an_allocator_above_it_is_away(mesh: Mesh, gate: Gate) -> None:
    run, recorder = started(mesh, f"{gate.wait}\nrank")
    kill(allocator_of(INNER))
    gate.open(NODES)
    recorder.wait_for(lambda recorder: len(recorder.of(events.Result)) == NODES - 1)
    assert INNER not in {result.rank for result in recorder.of(events.Result)}
    with pytest.raises(NodeUnreachable, match="node1 does not answer"):
        mesh.run("rank")
    assert mesh.select(BELOW_INNER).run("rank").values == list(BELOW_INNER), "adopted ones take new runs as well"
    local.up(NODES, 1)
    assert run.result() == list(range(NODES))


def test_the_one_that_gives_numbers_goes_away_between_the_look_at_it_and_the_run(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(allocator_of(0))
    assert mesh.select(range(1, NODES)).run("rank").values == list(range(1, NODES))
    kill(allocator_of(1))
    eventually(lambda: not mesh.core.is_node_up(1))
    monkeypatch.setattr(type(mesh.core), "is_up", lambda *_: True)  # what a look just before had said
    assert mesh.core.first_node == 1
    assert mesh.select(range(2, NODES)).run("rank", timeout_s=60).values == list(range(2, NODES))


def test_the_first_allocator_is_back_between_the_look_at_the_next_one_and_the_run(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(allocator_of(0))
    others = list(range(1, NODES))
    assert mesh.select(others).run("rank").values == others
    local.up(NODES, 1)
    eventually(lambda: mesh.core.is_node_up(0))
    monkeypatch.setattr(type(mesh.core), "is_up", lambda *_: True)  # what a look just before had said
    assert mesh.core.first_node == 1
    assert mesh.select(others).run("rank", timeout_s=60).values == others


def test_the_first_allocator_is_killed_before_it_has_given_a_number(mesh: Mesh) -> None:
    others = mesh.select(range(1, NODES))
    others.run("kept = rank")
    pid = allocator_of(0)
    os.kill(pid, signal.SIGSTOP)  # it takes nothing in any more
    recorder = Recorder()
    run = others.submit("print('once')\nkept", listener=recorder)
    kill(pid)
    assert run.result() == list(range(1, NODES))
    assert recorder.text().count("once\n") == NODES - 1


@pytest.mark.parametrize("chosen", [range(NODES), range(1, NODES)], ids=["all", "others"])
def test_the_first_allocator_is_killed_when_a_run_has_begun(
    mesh: Mesh, gate: Gate, tmp_path: Path, chosen: range
) -> None:
    """It may have passed the run on and not yet said its number: no rank executes it twice, and all are heard."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    code = f"open({str(begun)!r}, 'w').write('x')\nprint('once')\n{gate.wait}\nrank"
    recorder = Recorder()
    with begun.open("rb+", buffering=0) as reader:
        run = mesh.select(chosen).submit(code, listener=recorder)
        reader.read(1)
        kill(allocator_of(0))
        if 0 not in chosen:  # else it may be the only one that knows the run
            recorder.wait_for_text("once\n", len(chosen))
        gate.open(NODES)
        local.up(NODES, 1)
        assert run.result() == list(chosen)
    for rank in chosen:
        recorder.wait_for(lambda recorder, rank=rank: recorder.text(rank) == "once\n")  # type: ignore[misc]


def test_an_interrupt_while_an_allocator_above_is_away(mesh: Mesh) -> None:
    run, recorder = started(mesh, "import time\nwhile True: time.sleep(0.01)")
    kill(allocator_of(INNER))
    recorder.wait_for(lambda recorder: told_away(recorder))
    report = run.interrupt()
    assert sorted(report.stopped) == [rank for rank in range(NODES) if rank != INNER]
    assert report.unreachable == {INNER: "node1"}
    local.up(NODES, 1)
    run.cancel()
    recorder.wait_for(lambda recorder: recorder.of(events.Finished))


def test_a_silent_allocator_is_found_again(mesh: Mesh, gate: Gate, second_gate: Gate) -> None:
    """One that is stopped for a while breaks nothing: its part comes when it goes on."""
    run, recorder = started(mesh, printing(gate, second_gate))
    os.kill(allocator_of(INNER), signal.SIGSTOP)
    try:
        gate.open(NODES)
        recorder.wait_for(lambda recorder: f"line {LINES - 1}\n" in recorder.text(NODES - 1))  # not below it
    finally:
        os.kill(allocator_of(INNER), signal.SIGCONT)
    second_gate.open(NODES)
    assert run.result() == list(range(NODES))
    for rank in range(NODES):
        recorder.wait_for(lambda recorder, rank=rank: f"line {LINES - 1}\n" in recorder.text(rank))  # type: ignore[misc]
    assert_whole(recorder)


def test_a_second_client_attaches_late(mesh: Mesh, gate: Gate, second_gate: Gate) -> None:
    run, recorder = started(mesh, printing(gate, second_gate))
    program = f"""
{SMALL}
dev = monarch_nb.attach("dev")
(run,) = dev.mesh.running()
texts = dict.fromkeys(range({NODES}), "")
def hear(event):
    if hasattr(event, "text") and hasattr(event, "stream"):
        texts[event.rank] += event.text
followed = dev.mesh.attach_run(run.id, from_start=True, listener=hear)
print("attached")
print(followed.result())
print(all([line for line in text.splitlines() if "line" in line] == [f"line {{i}}" for i in range({LINES})]
          for text in texts.values()))
"""
    with client(program) as other:
        assert other.line() == "attached"
        gate.open(NODES)
        recorder.wait_for(lambda recorder: recorder.text().count(f"line {LINES - 1}\n") == NODES)
        second_gate.open(NODES)
        assert other.line() == str(list(range(NODES)))
        assert other.line() == "True"
    assert run.result() == list(range(NODES))
    assert_whole(recorder)

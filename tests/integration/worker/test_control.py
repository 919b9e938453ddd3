"""What the control thread answers, whatever the main thread does; and results that nobody may lose."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from integration.live import TIMEOUT_S, Gate
from integration.worker.harness import RankProcess, TemplateProcess, connect
from monarch_nb.proto.run_pb2 import Where

# ---- where and stacks ----


def test_where_an_idle_rank_is(rank: RankProcess) -> None:
    where = rank.where()
    assert (where.state, where.run_id, where.line) == (Where.STATE_IDLE, "", "")
    assert rank.stack() == "idle\n"


def test_where_a_running_rank_is(rank: RankProcess) -> None:
    (Path(rank.spec.directory) / "train.py").write_text("import time\n\ndef step():\n    time.sleep(100)\n")
    spec = rank.start("import train\nfor _ in range(2):\n    train.step()", cell_number=7)
    where = rank.wait_where(Where.STATE_RUNNING, "train.py:4")
    assert where.run_id == spec.run_id
    assert where.running_s > 0
    assert rank.stack() == (
        '  File "Cell In[7]", line 3, in <module>\n    train.step()\n'
        '  File "train.py", line 4, in step\n    time.sleep(100)\n'
    )


def test_where_a_cell_awaits(rank: RankProcess) -> None:
    code = (
        "import asyncio\n"
        "async def inner():\n"
        "    await asyncio.sleep(100)\n"
        "async def outer():\n"
        "    await inner()\n"
        "await outer()"
    )
    rank.submit(code, cell_number=2)
    rank.wait_where(Where.STATE_RUNNING, "Cell In[2]:3")
    stack = rank.stack()
    assert [line.split(", ")[1] for line in stack.splitlines() if "Cell In[2]" in line] == [
        "line 6",
        "line 5",
        "line 3",
    ]
    assert "monarch_nb" not in stack


def test_threads_of_the_users_are_shown(rank: RankProcess) -> None:
    rank.ok(
        "import threading\ngo = threading.Event()\ndef work():\n    go.wait()\n"
        "thread = threading.Thread(target=work, name='loader', daemon=True); thread.start()"
    )
    stack = rank.stack()
    assert stack.startswith("thread loader:\n")
    assert "in work" in stack
    assert "monarch_nb" not in stack


def test_the_file_of_a_cell_that_was_deleted_from_linecache_does_not_matter(rank: RankProcess) -> None:
    rank.submit("import linecache, time; linecache.clearcache(); time.sleep(100)", cell_number=1)
    rank.wait_where(Where.STATE_RUNNING, "Cell In[1]:1")
    assert "Cell In[1]" in rank.stack()


# ---- completion ----


def test_completion_while_a_cell_runs(rank: RankProcess) -> None:
    rank.start("abcdef = 1\nimport time; time.sleep(100)")
    rank.wait_where(Where.STATE_RUNNING, ":2")
    assert rank.complete("abcd") == ["abcdef"]


# ---- connections ----


def test_a_newer_control_connection_replaces_the_older(rank: RankProcess) -> None:
    older = rank.control
    rank.control = rank.connect_control()
    assert rank.where().state == Where.STATE_IDLE
    assert older.recv(1) == b""


def test_nonsense_on_a_connection_changes_nothing(rank: RankProcess) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x03abc", b"\xff\xff\xff\xff", b"\x00"):
        with connect(rank.spec.socket) as stranger:
            stranger.sendall(nonsense)
            if len(nonsense) > 1:
                assert stranger.recv(1) == b""
    with connect(rank.spec.socket) as silent:
        assert rank.ok("1 + 1") == 2
        assert rank.where().state == Where.STATE_IDLE
        silent.close()


def test_requests_without_a_body_are_answered(rank: RankProcess) -> None:
    assert rank.ask().ok is False


# ---- results ----


def test_a_run_is_done_once(rank: RankProcess) -> None:
    rank.ok("count = 0")
    spec = rank.submit("count += 1\ncount")
    first = rank.result()
    rank.send_run(spec)
    assert rank.result() == first
    rank.forget(spec.run_id)
    rank.send_run(spec)
    assert rank.ok("count") == 1


def test_a_running_run_is_not_begun_again(rank: RankProcess, tmp_path: Path) -> None:
    rank.ok("count = 0")
    with closing(Gate(tmp_path)) as gate:
        spec = rank.start(f"count += 1\n{gate.wait}\ncount")
        rank.send_run(spec)
        gate.open(2)
        assert rank.value(rank.result()) == 1
    assert rank.ok("count") == 1


def test_runs_queue_in_order(rank: RankProcess) -> None:
    rank.ok("seen = []")
    specs = [rank.submit(f"seen.append({i})") for i in range(20)]
    specs += [rank.submit(f"import asyncio; await asyncio.sleep(0.001); seen.append({i})") for i in range(20, 25)]
    assert [rank.result().run_id for _ in specs] == [spec.run_id for spec in specs]
    assert rank.ok("seen") == list(range(25))


def test_results_wait_for_an_allocator_that_was_away(rank: RankProcess, tmp_path: Path) -> None:
    with closing(Gate(tmp_path)) as gate:
        rank.submit("'first'")
        first = rank.result()
        spec = rank.start(f"{gate.wait}\n'second'")
        rank.disconnect()
        gate.open()
        while (hello := rank.reconnect()).running:
            pass
    assert [result.run_id for result in hello.results] == [first.run_id, spec.run_id]
    assert list(hello.done) == [first.run_id, spec.run_id]
    assert rank.value(hello.results[1]) == "second"
    rank.forget(first.run_id, spec.run_id)
    assert rank.ok("1 + 1") == 2
    assert len(rank.reconnect().results) == 1


def test_a_result_comes_over_the_newest_connection(rank: RankProcess, tmp_path: Path) -> None:
    with closing(Gate(tmp_path)) as gate:
        spec = rank.start(f"{gate.wait}\n'done'")
        older = rank.work
        rank.work, hello = rank.connect_work()
        assert hello.running == spec.run_id
        gate.open()
        assert rank.value(rank.result()) == "done"
    older.close()
    assert rank.ok("1 + 1") == 2


def test_only_the_last_200_runs_are_remembered(rank: RankProcess) -> None:
    for _ in range(210):
        rank.run("pass")
    assert len(rank.reconnect().done) == 200


# ---- end ----


def test_exit_ends_what_the_user_made_and_nothing_of_the_templates(rank: RankProcess) -> None:
    """torch's operators would be taken back one by one, and a preload's temporary directory be gone for all."""
    rank.ok("import weakref\nclass Kept: pass\nkept = Kept()\nweakref.finalize(kept, print, 'bye')")
    objects = rank.ok("[type(made.peek()[0]).__name__ for made in weakref.finalize._registry if made.atexit]")
    assert objects == ["Kept"]
    rank.ok("import atexit\natexit.register(print, 'at exit')\nprint('partial', end='')")
    rank.exit()
    assert rank.work.recv(1) == b""
    assert rank.text() == "partialat exit\nbye\n"


def test_exit_is_bounded(rank: RankProcess) -> None:
    rank.ok(f"import atexit, time\natexit.register(time.sleep, {10 * TIMEOUT_S})")
    rank.exit()
    assert rank.work.recv(1) == b"", "long before that"


def test_exit_of_a_busy_rank(template: TemplateProcess) -> None:
    [rank] = template.fork()
    rank.start("import time\ntime.sleep(100)")
    rank.exit()
    while (ended := template.receive_kind("exit")).pid != rank.pid:
        pass
    assert os.waitstatus_to_exitcode(ended.wait_status) == 0

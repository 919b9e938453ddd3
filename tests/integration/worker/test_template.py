"""The template process: what it forks, what it refuses, whom it outlives."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from framing import receive_frame
from integration.live import TIMEOUT_S, Gate, eventually, lives, open_files
from integration.worker.harness import RankProcess, TemplateProcess, connect
from monarch_nb.proto.worker_pb2 import ForkRanks, FromTemplate, ToTemplate
from monarch_nb.worker.groups import forming

MakeTemplate = Callable[..., TemplateProcess]


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def wait_exits(template: TemplateProcess, *pids: int) -> dict[int, int]:
    """Wait until these have ended; return their exit codes."""
    codes: dict[int, int] = {}
    while not codes.keys() >= set(pids):
        ended = template.receive_kind("exit")
        codes[ended.pid] = os.waitstatus_to_exitcode(ended.wait_status)
    return {pid: codes[pid] for pid in pids}


def wait_hung_up(connection: socket.socket) -> None:
    """Read what is left, to the end."""
    while connection.recv(1 << 16):
        pass


def test_it_has_one_thread_and_knows_neither_grpc_nor_cuda(template: TemplateProcess) -> None:
    [rank] = template.fork()
    pid = template.process.pid
    assert threads_of(pid) == 1
    assert not [target for target in open_files(pid) if target.startswith("/dev/nvidia")]
    loaded = rank.ok("import sys; sorted(sys.modules)")
    assert not [name for name in loaded if name.split(".")[0] in ("grpc", "jupyter_server", "ipykernel")]
    assert rank.ok("import torch; torch.cuda.is_initialized()") is False


def test_an_exit_is_told_and_kept_until_it_is_forgotten(template: TemplateProcess) -> None:
    """Also whom it has forked: the allocator before may have been killed before it noted that."""
    first, second = template.fork(2)
    assert set(template.reconnect().children) >= {first.pid, second.pid}
    os.kill(first.pid, signal.SIGKILL)
    second.submit("import os; os._exit(3)")
    assert wait_exits(template, first.pid, second.pid) == {first.pid: -signal.SIGKILL, second.pid: 3}
    ready = template.reconnect()
    assert {first.pid, second.pid}.isdisjoint(ready.children)
    kept = {ended.pid: ended.wait_status for ended in ready.exits}
    assert os.waitstatus_to_exitcode(kept[second.pid]) == 3
    template.forget_exits([first.pid])
    assert {ended.pid for ended in template.reconnect().exits} >= {second.pid}
    template.forget_exits(list(kept))
    assert not {ended.pid for ended in template.reconnect().exits} & set(kept)


def test_a_newer_connection_replaces_the_older_and_nonsense_costs_only_its_own(template: TemplateProcess) -> None:
    older = template.connection
    template.connection = connect(template.socket_path)
    template.wait_ready()
    wait_hung_up(older)
    older.close()
    template.connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    wait_hung_up(template.connection)
    template.reconnect()
    assert template.fork()[0].ok("1 + 1") == 2


def test_sigint_is_ignored_and_sigterm_ends_it_and_ranks_outlive_it(own_template: MakeTemplate) -> None:
    template = own_template()
    template.wait_ready()
    template.process.send_signal(signal.SIGINT)
    [rank] = template.fork()
    rank.ok("x = 41")
    template.process.send_signal(signal.SIGTERM)
    assert template.process.wait(TIMEOUT_S) == -signal.SIGTERM
    assert rank.ok("x + 1") == 42


def test_it_says_what_it_is_and_exits_when_told(own_template: MakeTemplate) -> None:
    template = own_template()
    ready = template.wait_ready()
    assert ready.pid == template.process.pid
    assert ready.python
    assert (ready.torch_version, list(ready.exits)) == ("", [])
    assert template.exit() == 0


def test_a_stale_socket_is_replaced(template: TemplateProcess) -> None:
    spec = template.rank_spec(0, 1)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(spec.socket)
    [pid] = template.fork_specs([spec])
    assert RankProcess(template, spec, pid).ok("1 + 1") == 2


def test_ranks_that_can_not_all_be_forked_leave_none_and_say_why(template: TemplateProcess) -> None:
    """As when the machine, or a container, has no room for more processes: nobody would know of the others."""
    whole, lacking = template.rank_spec(0, 2), template.rank_spec(1, 2)
    lacking.directory = "/no/such/directory"
    template.send(ToTemplate(fork_ranks=ForkRanks(request=5, ranks=[whole, lacking])))
    forked = template.receive_kind("forked")
    assert forked.request == 5
    assert "/no/such/directory" in forked.error
    assert list(forked.pids) == []
    with pytest.raises(ConnectionRefusedError):
        connect(whole.socket, timeout_s=0)


def test_ranks_and_a_store_without_torch_import_it_when_it_is_used(own_template: MakeTemplate) -> None:
    template = own_template()
    template.wait_ready()
    port = template.fork_store()
    [store] = template._children
    assert not _has_torch(store), "a mesh that makes no groups needs none"
    [rank, cold, own] = template.fork(3)
    assert rank.ok("import sys; 'torch' in sys.modules") is False
    before = "is_there = 'torch' in __import__('sys').modules\nimport torch\nis_there"
    assert cold.ok(before) is False, "a cell may set variables before it imports torch itself"
    assert cold.ok("torch.ones(2).sum().item()") == 2
    own.ok("device = dist = 'my own'")
    assert own.ok("device, dist, torch.__name__") == ("my own", "my own", "torch")
    assert rank.ok("device.type") == "cpu", "presets come when they are mentioned"
    assert rank.ok("dist.init_process_group.__globals__['__name__']") == forming.__name__
    code = f"import torch.distributed as d\nd.TCPStore('127.0.0.1', {port}, wait_for_workers=False).add('x', 2)"
    assert rank.ok(code) == 2
    assert _has_torch(store)


def _has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("raise ValueError('broken on purpose')", "broken on purpose"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "thread"),
    ],
)
def test_a_preload_that_does_not_fit_is_refused_by_name(
    own_template: MakeTemplate, tmp_path: Path, source: str, complaint: str
) -> None:
    (tmp_path / "unfit_module.py").write_text(source)
    template = own_template("json", "unfit_module", environment={"PYTHONPATH": str(tmp_path)})
    failed = template.receive_kind("preload_failed")
    assert failed.module == "unfit_module"
    assert complaint in failed.traceback
    assert "importlib" not in failed.traceback
    template.connection.close()
    assert template.process.wait(TIMEOUT_S) == 1


def test_whoever_connects_after_a_failed_preload_learns_of_it(own_template: MakeTemplate, tmp_path: Path) -> None:
    """The allocator that asked for it was gone before it failed."""
    with closing(Gate(tmp_path)) as gate:
        (tmp_path / "failing_late.py").write_text(f"{gate.wait}\n1 / 0")
        template = own_template("failing_late", environment={"PYTHONPATH": str(tmp_path)})
        template.connection.close()
        gate.open()
        with connect(template.socket_path) as later:
            frame = receive_frame(later)
    assert frame is not None
    assert FromTemplate.FromString(frame).preload_failed.module == "failing_late"


def test_a_thread_that_appears_later_is_refused_at_the_fork(own_template: MakeTemplate, tmp_path: Path) -> None:
    # A module whose thread starts after its import, when the first signal of a child comes.
    (tmp_path / "late_module.py").write_text(
        "import os, threading, time\n"
        "os.register_at_fork(after_in_parent=lambda: "
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start())\n"
    )
    template = own_template("late_module", environment={"PYTHONPATH": str(tmp_path)})
    template.wait_ready()
    template.fork()
    template.send(ToTemplate(fork_ranks=ForkRanks(request=6, ranks=[template.rank_spec(0, 1)])))
    assert "thread" in template.receive_kind("forked").error


def test_children_of_a_rank_do_not_hold_its_sockets(template: TemplateProcess) -> None:
    [rank] = template.fork()
    child = rank.ok(
        "import os, time\nread, write = os.pipe()\npid = os.fork()\n"
        "if pid == 0:\n    os.write(write, b'x')\n    time.sleep(60)\n    os._exit(0)\nos.read(read, 1)\npid",
    )
    # The event loop's pair, which nobody else holds the other end of, is all that is left.
    assert len([target for target in open_files(child) if target.startswith("socket:")]) <= 2
    os.kill(rank.pid, signal.SIGKILL)
    assert rank.work.recv(1) == b""
    os.kill(child, signal.SIGKILL)


def test_children_of_children_keep_their_own_files(template: TemplateProcess) -> None:
    [rank] = template.fork()
    code = """
import os
def forked(function):
    pid = os.fork()
    if pid == 0:
        os._exit(function())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def child():
    files = [open("/dev/null") for _ in range(30)]  # in the places of what was closed
    return forked(lambda: sum(1 for file in files if not file.read(1) == "") or 7)
forked(child)
"""
    assert rank.ok(code) == 7


def test_a_rank_holds_nothing_of_the_template(template: TemplateProcess) -> None:
    [rank] = template.fork()
    files = open_files(rank.pid)
    # Its listener, two connections, and its event loop's and control thread's own.
    assert len([target for target in files if target.startswith("socket:")]) <= 5
    assert str(template.log_path) not in "".join(target for target in files if "runs" not in target)


def test_a_child_that_runs_to_the_end_of_its_cell_does_not_become_a_second_rank(template: TemplateProcess) -> None:
    [rank] = template.fork()
    child = rank.ok("import os\npid = os.fork()\npid", want_value=True)
    eventually(lambda: not lives(child))
    assert rank.ok("1 + 1") == 2

"""The local pool for real: up, again, more, after deaths, and down without a trace."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import monarch_nb
from integration.live import TIMEOUT_S
from leaks import leaks_of, processes_of, wait_for_end
from monarch_nb.client.logs.records import past_log
from monarch_nb.config import HOME_VARIABLE, PATIENCE_VARIABLE, NodePaths, home_directory
from monarch_nb.errors import PoolError
from monarch_nb.notebook.output.logs import past_lines
from monarch_nb.provision import Node, daemons
from monarch_nb.provision.local import LocalProvisioner
from signals import PYTHON_IGNORES, ignored_and_blocked, inherited

pytestmark = pytest.mark.usefixtures("without_torch")

local = LocalProvisioner()


SAYS_WHEN_GRPC_COMES = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_VERBOSITY"), os.environ.get("GRPC_ENABLE_FORK_SUPPORT"), flush=True)

sys.meta_path.insert(0, Watch())
from monarch_nb.allocator.__main__ import main
main(sys.argv[1:])
"""


def pids(nodes: list[Node]) -> list[int | None]:
    return [node.pid for node in nodes]


def kill(node: Node, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill a node's allocator and wait until it is gone."""
    assert node.pid is not None
    os.kill(node.pid, number)
    wait_for_end(node.pid, TIMEOUT_S)
    assert not local.nodes()[int(node.node_id[4:])].alive


@pytest.mark.quick
def test_up_again_more_and_another_shape(pool_home: Path) -> None:
    said: list[str] = []
    first = local.up(1, 2, progress=said.append)
    assert said[0] == "starting 1 local node × 2 procs"
    assert said[1].startswith("node0 is ready (1 of 1")

    assert pids(local.up(1, 2, progress=said.append)) == pids(first)
    assert len(said) == 2, "nothing was done"

    more = local.up(2)
    assert pids(more)[:1] == pids(first)
    assert len(more) == 2
    held = monarch_nb.reserve("dev", nodes=2, procs=1)
    held.mesh.run("print('hello from', rank)")
    with pytest.raises(PoolError, match=r"is up with 2 nodes × 2 procs, and held by dev .*: release first"):
        local.up(2, 4)
    assert pids(local.nodes()) == pids(more)
    held.release()
    (anew,) = local.up(1, 4, progress=said.append)
    assert "the pool 'local' holds nothing: 2 nodes × 2 procs become 1 node × 4 procs" in said
    assert anew.pid not in pids(more)
    past = past_log("dev", None)
    assert past is not None
    assert sorted(past_lines(past, None, None))[:2] == ["[0] hello from 0", "[1] hello from 1"]

    assert local.down(progress=said.append) == 1
    assert leaks_of(pool_home) == []
    assert local.down() == 0


def test_daemons_are_detached(spare_pool: list[Node]) -> None:
    ours = {child.pid for child in psutil.Process().children(recursive=True)}
    for node in spare_pool:
        assert node.pid is not None
        assert node.pid not in ours
        assert os.getsid(node.pid) != os.getsid(0)
        assert os.getpgid(node.pid) != node.pid, "a session's leader could gain a terminal"


def test_nothing_listens_beyond_unix_sockets(spare_pool: list[Node]) -> None:
    for process in processes_of(home_directory()):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            connections = psutil.Process(process.pid).net_connections("inet")
            assert not [each for each in connections if each.status == psutil.CONN_LISTEN], process
    for node in spare_pool:
        assert node.address.startswith("unix:")
        assert NodePaths(node.directory).sockets.stat().st_mode & 0o777 == 0o700


def test_down_after_allocators_were_killed_ends_their_templates(pool_home: Path) -> None:
    for node in local.up(2, 1):
        kill(node)
    assert processes_of(pool_home), "templates survive their allocator"
    local.down(force=True)
    assert leaks_of(pool_home) == []


def test_an_allocator_that_hangs_is_killed(pool_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_nb.provision.local.END_TIMEOUT_S", 0.1)
    monkeypatch.setattr(daemons, "shut_down", functools.partial(daemons.shut_down, timeout_s=0.1))
    [node] = local.up(1, 1)
    assert node.pid is not None
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.1")
    os.kill(node.pid, signal.SIGSTOP)
    with pytest.raises(PoolError, match=r"killed node0, which did not end when asked; run monarch-nb down again"):
        local.down(force=True)
    assert local.down(force=True) == 1
    assert leaks_of(pool_home) == []


def test_sigterm_leaves_templates_to_the_next_allocator(pool_home: Path) -> None:
    [node] = local.up(1, 1)
    kill(node, signal.SIGTERM)
    [template] = processes_of(pool_home)
    local.up(1, 1)
    assert template in [process for process in processes_of(pool_home) if "template" in process.command]


def test_signals_of_ranks_are_the_defaults_whatever_started_the_pool(pool_home: Path) -> None:
    with inherited():
        local.up(1, 1)
    reservation = monarch_nb.reserve("dev", procs=1)
    [of_the_rank] = reservation.mesh.run("open('/proc/self/status').read()").values
    reservation.release()
    assert ignored_and_blocked(of_the_rank) == (PYTHON_IGNORES, set())


def test_a_home_too_long_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ("x" * 100)
    home.mkdir(mode=0o700, parents=True)
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    [node] = local.up(1, 1)
    sockets = NodePaths(node.directory).sockets
    try:
        assert node.alive
        assert not sockets.is_relative_to(home)
        assert len(os.fsencode(NodePaths(node.directory).allocator_socket)) < 108
    finally:
        local.down(force=True)
    assert leaks_of(home) == []
    assert not sockets.exists()


def test_a_node_that_can_not_start_shows_its_log(pool_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(pool_home / "broken"))
        (pool_home / "broken").mkdir()
        (pool_home / "broken" / "grpc.py").write_text("raise ImportError('no grpc today')")
        with pytest.raises(PoolError, match=r"node0 did not start(.|\n)*no grpc today"):
            local.up(1, 1)
    (pool_home / "broken" / "grpc.py").unlink()
    assert len(local.up(1, 1)) == 1
    local.down()
    (pool_home / "broken").rmdir()


def test_two_at_once_agree_on_one_pool(pool_home: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda _: local.up(1, 1), range(2))
    assert first == second


def test_grpc_is_told_how_to_behave_before_it_is_there(tmp_path: Path) -> None:
    """Else an allocator that a person starts writes lines of its own into the log for every client that goes away."""
    node = tmp_path / "node0"
    node.mkdir(mode=0o700)
    words = [sys.executable, "-c", SAYS_WHEN_GRPC_COMES, "--directory", str(node), "--preload", "", "--gpus", "none"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.kill()
    assert said == "NONE 0\n"

"""The local provisioner's decisions, without processes."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch_nb
from monarch_nb.config import HOME_VARIABLE, LOG_LIMIT_VARIABLE, RANK_TOKEN_VARIABLE, NodePaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.provision import Node, daemons, local, provisioner
from monarch_nb.provision.daemons import Starting, daemon_environment, wait_for_lines
from monarch_nb.provision.known import PoolShape, wanted_shape, write_shape
from monarch_nb.provision.local import LocalProvisioner


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(HOME_VARIABLE, str(directory))
    return directory


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[tuple[Starting, int]]:
    """An allocator that starts, and the end of its pipe."""
    read_end, write_end = os.pipe()
    one = Starting("node0", NodePaths(tmp_path), read_end)
    with open(write_end, "wb", buffering=0):
        yield one, write_end
    one.close()


def test_local_is_an_entry_point() -> None:
    assert isinstance(provisioner("local"), LocalProvisioner)
    with pytest.raises(UsageError, match=r"no provisioner 'slurmm'; installed: .*local"):
        provisioner("slurmm")


def test_what_makes_no_sense_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up = LocalProvisioner().up
    for nodes, procs in ((0, 4), (-1, 4), (2, 0)):
        with pytest.raises(UsageError, match="must be at least 1"):
            up(nodes, procs)
    for pool in ("", "..", "a/b", "x" * 40, ".hidden"):
        with pytest.raises(UsageError, match="no name for a pool"):
            LocalProvisioner().nodes(pool=pool)
    with pytest.raises(UsageError, match="all"):
        up(1, gpus="2")
    with pytest.raises(UsageError, match="the log limit is a size such as 500MB"):
        up(1, log_limit="20")
    monkeypatch.setenv(LOG_LIMIT_VARIABLE, "20 gigs")
    with pytest.raises(UsageError, match=r"\$MONARCH_NB_LOG_LIMIT is a size"):
        up(1)
    assert LocalProvisioner().down() == 0, "there is no pool"
    assert list(home.iterdir()) == []


def test_nodes_are_in_order_and_another_process_with_the_same_pid_is_not_the_allocator(home: Path) -> None:
    for number in (10, 2, 0):
        (home / "local" / f"node{number}").mkdir(parents=True)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    facts = {"node_id": "node0", "pid": os.getpid(), "start_ticks": 1, "boot_id": boot_id, "address": "unix:/x"}
    (home / "local" / "node0" / "node.json").write_text(json.dumps(facts))
    nodes = LocalProvisioner().nodes()
    assert [node.node_id for node in nodes] == ["node0", "node2", "node10"]
    assert not nodes[0].alive


class TestWaiting:
    def test_lines_may_come_in_pieces(self, starting: tuple[Starting, int]) -> None:
        one, write_end = starting
        came: list[str] = []
        os.write(write_end, b'{"serving": "unix:/x"}\n{"template')
        wait_for_lines([one], 1, time.monotonic() + 5)
        assert one.template_error == ""
        os.write(write_end, b'_error": "no torch"}\n')
        wait_for_lines([one], 2, time.monotonic() + 5, lambda each: came.append(each.node_id))
        assert (came, one.template_error) == (["node0"], "no torch")

    def test_a_dead_allocator_shows_its_last_words(self, tmp_path: Path) -> None:
        read_end, write_end = os.pipe()
        one = Starting("node0", NodePaths(tmp_path), read_end)
        (tmp_path / "allocator.log").write_bytes(b"of yesterday\n" + b"\xff\n" * 100 + b"ImportError: no grpc\n")
        one.log_start = len("of yesterday\n")
        os.close(write_end)
        with pytest.raises(PoolError, match=r"node0 did not start(.|\n)*ImportError") as raised:
            wait_for_lines([one], 1, time.monotonic() + 5)
        assert "of yesterday" not in str(raised.value), "an earlier allocator's words"
        assert len(one.log_tail().splitlines()) == 15
        one.close()

    def test_the_wait_is_bounded(self, starting: tuple[Starting, int]) -> None:
        with pytest.raises(PoolError, match="node0 not ready in time"):
            wait_for_lines([starting[0]], 1, time.monotonic() + 0.01)

    def test_it_can_be_interrupted_and_then_waits_on(self, starting: tuple[Starting, int]) -> None:
        interrupt, (one, write_end) = Interrupt(), starting
        interrupt.set()
        with interruptible(interrupt):
            with pytest.raises(KeyboardInterrupt):
                wait_for_lines([one], 1, time.monotonic() + 10)
            os.write(write_end, b"{}\n")
            wait_for_lines([one], 1, time.monotonic() + 10)
        threading.Timer(0.05, interrupt.set).start()
        with interruptible(interrupt), pytest.raises(KeyboardInterrupt):
            wait_for_lines([one], 2, time.monotonic() + 10)
        interrupt.close()


def test_daemons_do_not_inherit_a_notebook_a_rank_or_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    ties = {RANK_TOKEN_VARIABLE, "JPY_SESSION_NAME", "MPLBACKEND", "SLURM_PROCID", "SLURMD_NODENAME", "PMIX_RANK"}
    kept = {"WANDB_MODE", "SLURM_CONF"}
    for name in ties | kept:
        monkeypatch.setenv(name, "x")
    assert {*daemon_environment()} & (ties | kept) == kept


class TestAgain:
    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
        """What was started: its command without the number of the pipe, and its environment."""
        started: list[tuple[list[str], dict[str, str]]] = []
        monkeypatch.setattr(
            daemons, "detach", lambda command, _1, environment, *_2: started.append((command[:-1], environment))
        )
        return started

    def test_it_is_started_as_before_whoever_asks(
        self, tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = NodePaths(tmp_path)
        monkeypatch.setenv("HF_HOME", "/of\udcff/ann")
        daemons.start_allocator(paths, "node0", 3, "none", ["torch"], isolate=True).close()
        assert paths.start.stat().st_mode & 0o777 == 0o600, "it has secrets"
        monkeypatch.setenv("HF_HOME", "/elsewhere")
        monkeypatch.setattr("sys.executable", "/another/python")
        again = daemons.start_again(paths, "node0")
        assert again is not None
        again.close()
        assert started[0] == started[1]
        assert started[1][1]["HF_HOME"] == "/of\udcff/ann"

    @pytest.mark.parametrize("start", [None, '{"command": [', '{"command": ["/gone/python"], "environment": {}}'])
    def test_it_is_unknown_how(self, start: str | None, tmp_path: Path, started: list[Any]) -> None:
        if start is not None:
            NodePaths(tmp_path).start.write_text(start)
        assert daemons.start_again(NodePaths(tmp_path), "node0") is None
        assert not started


class TestHealing:
    @pytest.fixture(autouse=True)
    def lost(self, home: Path) -> Node:
        """A node whose allocator died."""
        node = home / "local" / "node0"
        (home / "local").mkdir(0o700)
        node.mkdir(0o700)
        NodePaths(node).facts.write_text('{"pid": 1, "start_ticks": 0, "boot_id": ""}')
        return LocalProvisioner().nodes()[0]

    def test_errors_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device", "/x/allocator.log")

        monkeypatch.setattr(daemons, "detach", full)
        told: list[str] = []
        LocalProvisioner().heal(progress=told.append)
        assert told[0] == "the allocator of node0 died; a new one adopts its ranks"
        assert "No space left on device: '/x/allocator.log'" in told[1]

    def test_it_does_not_wait_long_for_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "HEALING_WAIT_S", 0.0)
        told: list[str] = []
        with local._exclusive(print):
            LocalProvisioner().heal(progress=told.append)
        why = "another process is starting or ending the pool"
        assert told == [f"waiting: {why}", f"{why}, for more than 0 s"]

    @pytest.mark.parametrize("note", ["", "17.0 17", "9e9\n1.", "torn\n"])
    def test_a_torn_note_is_none(self, note: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        starts: list[object] = []
        monkeypatch.setattr(local, "_revive", lambda *_: starts.append(_))
        (home / "local" / "healings").write_text(note)
        told: list[str] = []
        for _ in range(6):
            LocalProvisioner().heal(progress=told.append)
        assert len(starts) == 3
        assert [line.split(" and ")[0] for line in told] == [
            "node0: allocators of this pool died more than 3 times in 10 min,"
        ]

    def test_what_was_asked_for_by_hand_counts_anew(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_shape(home / "local", PoolShape(1, "none"))
        starts: list[object] = []
        monkeypatch.setattr(local, "_revive", lambda *_: starts.append(_))
        monkeypatch.setattr(local, "_have", lambda *_: None)
        for _ in range(4):
            LocalProvisioner().heal()
        LocalProvisioner().up()
        LocalProvisioner().heal()
        assert len(starts) == 4

    def test_who_attaches_or_reserves_has_not_asked_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        starts: list[object] = []
        monkeypatch.setattr(local, "_revive", lambda *_: starts.append(_))
        for _ in range(3):
            with pytest.raises(PoolError, match="node0 died and is not started by itself now: monarch-nb up"):
                monarch_nb.attach("dev")
        for _ in range(3):
            with pytest.raises(PoolError, match="node0 died and is not started by itself now: monarch-nb up"):
                monarch_nb.reserve("dev", procs=1)
        assert len(starts) == 3


class TestRoom:
    def test_a_slip_of_the_finger_and_gpus_that_are_lacking_start_nothing(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("monarch_nb.allocator.readings.gpus.discover_gpus", list)
        many = "at most 64 nodes × 256 procs"
        for asked, said in (((65, 1, 0), many), ((1, 257, 0), many), ((1, 0, 1), "has no GPU")):
            with pytest.raises((UsageError, CapacityError), match=said), LocalProvisioner().room(*asked):
                pass
        assert list(home.iterdir()) == []


class TestOptions:
    def test_of_a_form_are_what_up_does_by_itself_and_what_a_pool_that_is_there_is(self, home: Path) -> None:
        options = {option.name: option for option in LocalProvisioner().options()}
        assert options.keys() <= LocalProvisioner.up.__annotations__.keys()
        assert all(option.label and option.help for option in options.values())
        shape = wanted_shape(None, None, None, isolate=False, log_limit=None)
        at_first = [options[name].default for name in ("procs", "gpus", "isolate")]
        assert at_first == [shape.procs, shape.gpus, shape.isolate]
        for node in range(3):
            (home / "local" / f"node{node}").mkdir(parents=True)
        write_shape(home / "local", PoolShape(5, "none", isolate=True))
        defaults = {option.name: option.default for option in LocalProvisioner().options()}
        assert defaults == {"nodes": 3, "procs": 5, "gpus": "none", "isolate": True}


def test_an_allocator_that_removes_files_has_the_time_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What answers works, however long; what does not answer hangs."""
    patience: dict[str, float] = {}

    class Process:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait(self, timeout_s: float) -> bool:
            return False

        def end(self, timeout_s: float) -> bool:
            patience[self.name] = timeout_s
            return self.name == "works"

        def close(self) -> None:
            pass

    names = {1: "works", 2: "hangs"}
    monkeypatch.setattr("monarch_nb.allocator.processes.processes.identify", lambda pid: names[pid])
    monkeypatch.setattr(daemons, "Watched", Process)
    monkeypatch.setattr(daemons, "shut_down", lambda address, keep_logs: address == "works")
    said: list[str] = []
    nodes = [Node(name, tmp_path, name, pid) for pid, name in names.items()]
    with pytest.raises(PoolError, match="killed hangs, which did not end"):
        local._end(nodes, said.append)
    assert said == ["removing the files of works"]
    assert patience == {"works": local.REMOVAL_TIMEOUT_S, "hangs": local.END_TIMEOUT_S}

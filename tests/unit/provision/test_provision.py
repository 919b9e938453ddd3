"""The local provisioner's decisions, without processes."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from monarch_nb.config import HOME_VARIABLE, LOG_LIMIT_VARIABLE, RANK_TOKEN_VARIABLE, NodePaths
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node, daemons, local, provisioner
from monarch_nb.provision.daemons import Starting, daemon_environment, wait_for_lines
from monarch_nb.provision.local import Change, LocalProvisioner, PoolShape, _agree_on_shape, _write_shape, change_for


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(HOME_VARIABLE, str(directory))
    return directory


def nodes_at(directory: Path, count: int) -> list[Node]:
    return [Node(f"node{i}", directory / f"node{i}", "unix:/nowhere", pid=1) for i in range(count)]


def starting(tmp_path: Path) -> tuple[Starting, int]:
    read_end, write_end = os.pipe()
    return Starting("node0", NodePaths(tmp_path), read_end), write_end


class TestFinding:
    def test_local_is_an_entry_point(self) -> None:
        assert isinstance(provisioner("local"), LocalProvisioner)

    def test_an_unknown_name_lists_what_there_is(self) -> None:
        with pytest.raises(UsageError, match=r"no provisioner 'slurmm'; installed: .*local"):
            provisioner("slurmm")


class TestRequest:
    @pytest.mark.parametrize(("nodes", "procs"), [(0, 4), (-1, 4), (2, 0)])
    def test_nonsense_numbers_change_nothing(self, home: Path, nodes: int, procs: int) -> None:
        with pytest.raises(UsageError, match="must be at least 1"):
            LocalProvisioner().up(nodes, procs)
        assert list(home.iterdir()) == []

    @pytest.mark.parametrize("pool", ["", "..", "a/b", "x" * 40, ".hidden"])
    def test_a_pool_name_can_not_leave_the_home(self, home: Path, pool: str) -> None:
        with pytest.raises(UsageError, match="no name for a pool"):
            LocalProvisioner().nodes(pool=pool)

    def test_gpus_are_all_or_none(self, home: Path) -> None:
        with pytest.raises(UsageError, match="all"):
            LocalProvisioner().up(1, gpus="2")

    def test_down_without_a_pool_does_nothing(self, home: Path) -> None:
        assert LocalProvisioner().down() == 0
        assert list(home.iterdir()) == []


class TestShape:
    def test_defaults_are_one_rank_per_core(self, tmp_path: Path) -> None:
        assert _agree_on_shape(tmp_path, [], None, None, None, isolate=False) == PoolShape(os.cpu_count() or 1, "all")

    def test_the_same_again_and_more_nodes(self, tmp_path: Path) -> None:
        _write_shape(tmp_path, PoolShape(4, "all"))
        for nodes, procs in ((None, None), (2, 4), (3, 4), (5, None)):
            agreed = _agree_on_shape(tmp_path, nodes_at(tmp_path, 2), nodes, procs, None, isolate=False)
            assert agreed == PoolShape(4, "all")

    @pytest.mark.parametrize(("nodes", "procs", "gpus"), [(2, 8, None), (1, 4, None), (2, 4, "none")])
    def test_another_shape_names_the_way_out(self, tmp_path: Path, nodes: int, procs: int, gpus: str | None) -> None:
        _write_shape(tmp_path, PoolShape(4, "all"))
        with pytest.raises(PoolError, match=r"is up with 2 nodes × 4 procs.*monarch-nb down"):
            _agree_on_shape(tmp_path, nodes_at(tmp_path, 2), nodes, procs, gpus, isolate=False)

    def test_a_pool_that_shares_files_does_not_become_isolated(self, tmp_path: Path) -> None:
        _write_shape(tmp_path, PoolShape(4, "all"))
        with pytest.raises(PoolError, match=r"to have 2 nodes × 4 procs, isolated, end it first"):
            _agree_on_shape(tmp_path, nodes_at(tmp_path, 2), None, None, None, isolate=True)

    def test_an_isolated_pool_stays_isolated_when_nothing_is_said(self, tmp_path: Path) -> None:
        _write_shape(tmp_path, PoolShape(4, "all", isolate=True))
        agreed = _agree_on_shape(tmp_path, nodes_at(tmp_path, 2), 3, None, None, isolate=False)
        assert agreed == PoolShape(4, "all", isolate=True)

    def test_the_limit_of_logs_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(LOG_LIMIT_VARIABLE, "3GB")
        assert _agree_on_shape(tmp_path, [], None, 4, None, isolate=False) == PoolShape(4, "all", log_limit="3GB")
        _write_shape(tmp_path, PoolShape(4, "all", log_limit="5GB"))
        agreed = _agree_on_shape(tmp_path, nodes_at(tmp_path, 2), None, None, None, isolate=False)
        assert agreed == PoolShape(4, "all", log_limit="5GB")
        with pytest.raises(
            PoolError, match=r"is up with 2 nodes × 4 procs, log limit 5GB; to have .*, log limit 1TB, end"
        ):
            _agree_on_shape(tmp_path, nodes_at(tmp_path, 2), None, None, None, isolate=False, log_limit="1TB")

    def test_a_limit_that_nobody_can_read_is_refused(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UsageError, match="the log limit is a size such as 500MB"):
            LocalProvisioner().up(1, log_limit="20")
        monkeypatch.setenv(LOG_LIMIT_VARIABLE, "20 gigs")
        with pytest.raises(UsageError, match=r"\$MONARCH_NB_LOG_LIMIT is a size"):
            LocalProvisioner().up(1)


def described(*free: int) -> list[pb.DescribeReply]:
    """Nodes of 4 slots, of which so many are free."""
    held = pb.Holder(reservation="dev")
    return [pb.DescribeReply(procs=4, procs_free=count, holders=[held] * (count < 4)) for count in free]


class TestRoom:
    def test_what_fits_changes_nothing(self) -> None:
        assert change_for(2, 4, described(4, 4), by_itself=True) is None
        assert change_for(1, 2, described(1, 3), by_itself=True) is None
        assert change_for(9, 0, described(4), by_itself=True) is None, "GPUs do not grow"

    @pytest.mark.parametrize("by_itself", [False, True])
    def test_one_that_holds_nothing_takes_the_shape_that_is_asked_for(self, by_itself: bool) -> None:
        assert change_for(1, 8, described(4, 4), by_itself=by_itself) == Change(1, 8, anew=True)
        assert change_for(3, 2, described(4, 4), by_itself=by_itself) == Change(3, 4, anew=False)

    def test_one_that_started_by_itself_grows_beside_what_is_held(self) -> None:
        assert change_for(2, 4, described(0, 4), by_itself=True) == Change(3, 4, anew=False)
        assert change_for(2, 3, described(0, 2), by_itself=True) == Change(4, 4, anew=False)
        assert change_for(2, 4, described(0, 4), by_itself=False) is None, "somebody wanted it so"

    def test_nothing_is_taken_from_anybody(self) -> None:
        assert change_for(1, 8, described(4, 3), by_itself=True) is None

    def test_a_slip_of_the_finger_is_no_reason(self, home: Path) -> None:
        for asked in ((65, 1, 0), (1, 257, 0)):
            with pytest.raises(UsageError, match="at most 64 nodes × 256 procs"), LocalProvisioner().room(*asked):
                pass
        assert list(home.iterdir()) == []

    def test_gpus_that_this_machine_lacks_start_nothing(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("monarch_nb.allocator.readings.gpus.discover_gpus", list)
        with pytest.raises(CapacityError, match="has no GPU"), LocalProvisioner().room(1, 0, 1):
            pass
        assert list(home.iterdir()) == []

    def test_who_made_it_so_is_remembered_and_no_other_shape(self, tmp_path: Path) -> None:
        _write_shape(tmp_path, PoolShape(4, "all", by_itself=True))
        agreed = _agree_on_shape(tmp_path, nodes_at(tmp_path, 2), 2, 4, None, isolate=False)
        assert agreed.by_itself
        assert agreed == PoolShape(4, "all")


class TestNodes:
    def test_order_is_by_number(self, home: Path) -> None:
        for number in (10, 2, 0):
            (home / "local" / f"node{number}").mkdir(parents=True)
        assert [node.node_id for node in LocalProvisioner().nodes()] == ["node0", "node2", "node10"]

    def test_another_process_with_the_same_pid_is_not_the_allocator(self, home: Path) -> None:
        directory = home / "local" / "node0"
        directory.mkdir(parents=True)
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        facts = {"node_id": "node0", "pid": os.getpid(), "start_ticks": 1, "boot_id": boot_id, "address": "unix:/x"}
        (directory / "node.json").write_text(json.dumps(facts))
        assert not LocalProvisioner().nodes()[0].alive


class TestWaiting:
    def test_lines_may_come_in_pieces(self, tmp_path: Path) -> None:
        one, write_end = starting(tmp_path)
        came: list[str] = []
        os.write(write_end, b'{"serving": "unix:/x"}\n{"template')
        wait_for_lines([one], 1, time.monotonic() + 5)
        assert one.template_error == ""
        os.write(write_end, b'_error": "no torch"}\n')
        os.close(write_end)
        wait_for_lines([one], 2, time.monotonic() + 5, lambda each: came.append(each.node_id))
        assert (came, one.template_error) == (["node0"], "no torch")
        one.close()

    def test_a_dead_allocator_shows_its_last_words(self, tmp_path: Path) -> None:
        one, write_end = starting(tmp_path)
        (tmp_path / "allocator.log").write_text("of yesterday\nImportError: no module named grpc\n")
        one.log_start = len("of yesterday\n")
        os.close(write_end)
        with pytest.raises(PoolError, match=r"node0 did not start(.|\n)*ImportError") as raised:
            wait_for_lines([one], 1, time.monotonic() + 5)
        assert "of yesterday" not in str(raised.value), "an earlier allocator's words"
        one.close()

    def test_the_wait_is_bounded(self, tmp_path: Path) -> None:
        one, write_end = starting(tmp_path)
        with pytest.raises(PoolError, match="node0 not ready in time"):
            wait_for_lines([one], 1, time.monotonic() + 0.01)
        os.close(write_end)
        one.close()

    def test_only_the_end_of_a_log_is_told(self, tmp_path: Path) -> None:
        one, write_end = starting(tmp_path)
        (tmp_path / "allocator.log").write_bytes(b"\xff\n" * 100 + b"last\n")
        assert len(one.log_tail().splitlines()) == 15
        assert one.log_tail().endswith("    last")
        os.close(write_end)
        one.close()


def test_daemons_do_not_inherit_a_notebook_or_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RANK_TOKEN_VARIABLE, "JPY_SESSION_NAME", "MPLBACKEND"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("WANDB_MODE", "offline")
    environment = daemon_environment()
    assert environment["WANDB_MODE"] == "offline"
    assert not {RANK_TOKEN_VARIABLE, "JPY_SESSION_NAME", "MPLBACKEND"} & environment.keys()


class TestOptions:
    def test_every_option_is_an_argument_of_up(self, home: Path) -> None:
        options = {option.name: option for option in LocalProvisioner().options()}
        assert options.keys() <= LocalProvisioner.up.__annotations__.keys()
        assert all(option.label and option.help for option in options.values())

    def test_what_the_form_has_at_first_is_what_up_does_by_itself(self, home: Path, tmp_path: Path) -> None:
        defaults = {option.name: option.default for option in LocalProvisioner().options()}
        shape = _agree_on_shape(tmp_path, [], None, None, None, isolate=False)
        assert (defaults["procs"], defaults["gpus"], defaults["isolate"]) == (shape.procs, shape.gpus, shape.isolate)

    def test_of_a_pool_that_is_there_they_are_what_it_is(self, home: Path) -> None:
        for node in range(3):
            (home / "local" / f"node{node}").mkdir(parents=True)
        _write_shape(home / "local", PoolShape(5, "none", isolate=True))
        defaults = {option.name: option.default for option in LocalProvisioner().options()}
        assert defaults == {"nodes": 3, "procs": 5, "gpus": "none", "isolate": True}


class TestInterruptedWaiting:
    def test_it_can_be_interrupted_and_then_waits_on(self, tmp_path: Path) -> None:
        interrupt, (one, write_end) = Interrupt(), starting(tmp_path)
        interrupt.set()
        with interruptible(interrupt):
            with pytest.raises(KeyboardInterrupt):
                wait_for_lines([one], 1, time.monotonic() + 10)
            os.write(write_end, b"{}\n")
            wait_for_lines([one], 1, time.monotonic() + 10)
        interrupt.close()
        os.close(write_end)
        one.close()

    def test_it_is_interrupted_while_it_waits(self, tmp_path: Path) -> None:
        interrupt, (one, write_end) = Interrupt(), starting(tmp_path)
        threading.Timer(0.05, interrupt.set).start()
        with interruptible(interrupt), pytest.raises(KeyboardInterrupt):
            wait_for_lines([one], 1, time.monotonic() + 10)
        interrupt.close()
        os.close(write_end)
        one.close()


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
    monkeypatch.setattr("monarch_nb.allocator.supervision.processes.identify", lambda pid: names[pid])
    monkeypatch.setattr(daemons, "Watched", Process)
    monkeypatch.setattr(daemons, "shut_down", lambda address: address == "works")
    said: list[str] = []
    nodes = [Node(name, tmp_path, name, pid) for pid, name in names.items()]
    with pytest.raises(PoolError, match="killed hangs, which did not end"):
        local._end(nodes, said.append)
    assert said == ["removing the files of works"]
    assert patience == {"works": local.REMOVAL_TIMEOUT_S, "hangs": local.END_TIMEOUT_S}

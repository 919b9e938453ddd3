"""What goes wrong, and who is told."""

import asyncio
import queue
import threading
from typing import Any

import pytest

import monarch_nb.actor
from monarch_nb.actor import Actor, MeshFailure, current_rank, endpoint
from monarch_nb.actor.engine import calls, mailbox, runner
from monarch_nb.errors import GROUP_ABORTED, ActorError, ProcessGroupAborted, SupervisionError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from unit.actor.network import TIMEOUT_S, FakeTag, Network

held = threading.Event()
cleaned: "queue.SimpleQueue[tuple[str, bool]]" = queue.SimpleQueue()


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Fragile(Actor):
    def __init__(self, fails_on: int = -1) -> None:
        if current_rank().rank == fails_on:
            raise OSError("no such device")

    @endpoint
    def fail_on(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise ValueError("bad")
        return current_rank().rank

    @endpoint
    def odd(self) -> None:
        raise TwoArguments("one", "two")

    @endpoint
    def unpicklable(self) -> Any:
        return threading.Lock()

    @endpoint
    def leave(self) -> None:
        raise SystemExit(3)

    @endpoint(explicit_response_port=True)
    def escape(self, port: Any) -> None:
        raise ValueError("escaped")

    @endpoint
    def hold(self) -> int:
        assert held.wait(TIMEOUT_S)
        return 1

    @endpoint
    def hold_groups(self) -> None:
        assert held.wait(TIMEOUT_S)
        raise ProcessGroupAborted(f"interrupted in all_reduce; {GROUP_ABORTED}")

    def __cleanup__(self, error: Exception | None) -> None:
        cleaned.put(("Fragile", error is None))


class Owner(Actor):
    def __init__(self, handles: bool) -> None:
        self.handles = handles
        self.failures: list[MeshFailure] = []
        self.told = threading.Event()
        self.child: Any = None

    @endpoint
    def adopt(self, procs: Any) -> Any:
        self.child = procs.spawn("child", Fragile)
        self.child.fail_on.broadcast(0)
        return self.child

    @endpoint
    def failures_so_far(self) -> list[str]:
        return [str(failure) for failure in self.failures]

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(failure)
        cleaned.put(("supervised", self.handles))
        return self.handles


class Kind(Actor):
    @endpoint
    def adopt(self, procs: Any) -> Any:
        child = procs.spawn("child", Fragile)
        child.initialized.get(TIMEOUT_S)
        return child


class Waits(Actor):
    @endpoint
    async def wait(self) -> None:
        await asyncio.sleep(TIMEOUT_S)

    @endpoint
    async def nothing(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    held.clear()
    while not cleaned.empty():
        cleaned.get()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment is short."""
    for module, name in ((mailbox, "EARLY_S"), (runner, "INTERRUPTED_S"), (calls, "AFTER_DEATH_S")):
        monkeypatch.setattr(module, name, 0.05)


@pytest.fixture
def fragile(network: Network) -> Any:
    """A mesh of one."""
    return network.mesh(gpus=1).spawn("fragile", Fragile)


def test_an_error_has_every_ranks_outcome(network: Network) -> None:
    fragile = network.mesh(hosts=2, gpus=2).spawn("fragile", Fragile)
    with pytest.raises(ActorError) as raised:
        fragile.fail_on.call(2).get(TIMEOUT_S)
    error = raised.value
    assert not isinstance(error, SupervisionError)
    assert error.values == {0: 0, 1: 1, 3: 3}
    [failure] = error.failures.values()
    assert (failure.rank, failure.coordinates, failure.kind) == (2, {"hosts": 1, "gpus": 0}, "error")
    assert isinstance(error.exception, ValueError)
    assert str(error).startswith("Actor call fragile.fail_on failed on rank 2 of 4.\n  rank 2 (")
    assert 'raise ValueError("bad")' in error.exception_formatted
    assert "runner.py" not in str(error), "our frames"
    assert fragile.fail_on.call(-1).get(TIMEOUT_S).values() == [0, 1, 2, 3]


def test_errors_that_can_not_travel_say_what_they_were(fragile: Any) -> None:
    assert "TwoArguments: one and two" in str(fragile.odd.call_one().exception(TIMEOUT_S))
    assert "cannot pickle '_thread.lock' object" in str(fragile.unpicklable.call_one().exception(TIMEOUT_S))
    assert fragile.fail_on.call_one(-1).get(TIMEOUT_S) == 0


def test_a_failed_init_is_told_by_calls_and_once_to_people(network: Network) -> None:
    fragile = network.mesh(gpus=2).spawn("fragile", Fragile, 1)
    with pytest.raises(SupervisionError, match="OSError: no such device") as raised:
        fragile.fail_on.call(-1).get(TIMEOUT_S)
    assert [failure.kind for failure in raised.value.failures.values()] == ["stopped"]
    assert isinstance(raised.value.exception, OSError)
    assert isinstance(fragile.initialized.exception(TIMEOUT_S), SupervisionError)
    assert "no such device" in network.told.get(timeout=TIMEOUT_S)
    assert fragile.slice(gpus=0).fail_on.call_one(-1).get(TIMEOUT_S) == 0


@pytest.mark.parametrize("how", ["broadcast", "exit", "port"])
def test_an_actor_fails_when_nobody_is_told_otherwise(network: Network, fragile: Any, how: str) -> None:
    if how == "broadcast":
        fragile.fail_on.broadcast(0)
    else:
        call = (fragile.leave if how == "exit" else fragile.escape).call_one()
        assert isinstance(call.exception(TIMEOUT_S), SupervisionError)
    with pytest.raises(SupervisionError):
        fragile.fail_on.call(-1).get(TIMEOUT_S)
    assert "fragile" in network.told.get(timeout=TIMEOUT_S)
    assert cleaned.get(timeout=TIMEOUT_S) == ("Fragile", False)


def test_a_broadcasts_failure_is_told_in_one_calm_text_where_it_was_made(network: Network) -> None:
    tag = network.wire(network.client).tag_given = FakeTag({"mesh0": ("run", 1, 0)})
    fragile = network.mesh(gpus=2).spawn("fragile", Fragile)
    fragile.fail_on.broadcast(0)
    text = network.told.get(timeout=TIMEOUT_S)
    first, *others = text.splitlines()
    assert first == (
        "fragile.fail_on (broadcast) failed on rank 0: ValueError: bad; the actor has ended: spawn it again"
    )
    assert others[0] == "  Traceback (most recent call last):"
    assert others[-1] == "  ValueError: bad"
    assert network.wire(network.client).told_runs == [tag.runs]
    later = str(fragile.fail_on.call(-1).exception(TIMEOUT_S))
    assert "the actor has ended: it had failed before, in fragile.fail_on (broadcast):" in later


def test_the_programs_own_hook_is_told(fragile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: queue.SimpleQueue[MeshFailure] = queue.SimpleQueue()
    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", failures.put)
    fragile.fail_on.broadcast(0)
    failure = failures.get(timeout=TIMEOUT_S)
    assert failure.mesh_name.startswith("fragile-")
    assert failure.crashed_ranks == [0]
    assert "ValueError: bad" in failure.report()


class TestSupervision:
    def test_an_owner_may_handle_it_and_what_it_spawned_ends_with_it(self, network: Network) -> None:
        owner, procs = network.mesh(gpus=1).spawn("owner", Owner, True), network.mesh(gpus=1)
        child = owner.adopt.call_one(procs).get(TIMEOUT_S)
        assert isinstance(child.fail_on.call_one(-1).exception(TIMEOUT_S), SupervisionError)
        while cleaned.get(timeout=TIMEOUT_S)[0] != "supervised":
            pass
        [failure] = owner.failures_so_far.call_one().get(TIMEOUT_S)
        assert failure.startswith("MeshFailure(mesh_name=child-")
        assert network.told.empty()
        owner.stop().get(TIMEOUT_S)
        assert network.ranks(procs)[0].instances() == {}

    def test_who_does_not_handle_it_fails_as_well(self, network: Network) -> None:
        owner = network.mesh(gpus=1).spawn("owner", Owner, False)
        owner.adopt.call_one(network.mesh(gpus=1)).get(TIMEOUT_S)
        assert "did not handle a supervision event from its child" in network.told.get(timeout=TIMEOUT_S)
        with pytest.raises(SupervisionError, match="did not handle"):
            owner.failures_so_far.call_one().get(TIMEOUT_S)

    def test_it_ends_also_when_the_process_of_its_owner_dies(self, network: Network) -> None:
        procs, owners = network.mesh(gpus=1), network.mesh(gpus=1)
        owner = owners.spawn("owner", Kind)
        child = owner.adopt.call_one(procs).get(TIMEOUT_S)
        network.kill(owners.places()[0])
        assert cleaned.get(timeout=TIMEOUT_S) == ("Fragile", True)
        assert "owner, which spawned it, has ended" in str(child.hold.call_one().exception(TIMEOUT_S))


class TestDeath:
    def test_a_call_that_waits_learns_of_it_and_later_ones_fail(self, network: Network) -> None:
        mesh = network.mesh(gpus=2)
        fragile = mesh.spawn("fragile", Fragile)
        fragile.initialized.get(TIMEOUT_S)
        call = fragile.slice(gpus=1).hold.call_one()
        network.kill(mesh.places()[1])
        with pytest.raises(SupervisionError, match=r"killed by signal 9 \(SIGKILL\)") as raised:
            call.get(TIMEOUT_S)
        assert raised.value.failures[0].kind == "died"
        assert "SIGKILL" in network.told.get(timeout=TIMEOUT_S), "its owner is told"
        held.set()
        assert isinstance(fragile.fail_on.call(-1).exception(TIMEOUT_S), SupervisionError)
        assert fragile.slice(gpus=0).fail_on.call_one(-1).get(TIMEOUT_S) == 0
        assert fragile.stop().get(TIMEOUT_S) is None, "the dead have ended"

    def test_the_release_of_a_mesh_ends_calls_and_is_nobodys_fault(self, network: Network) -> None:
        mesh = network.mesh(gpus=2)
        fragile = mesh.spawn("fragile", Fragile)
        fragile.initialized.get(TIMEOUT_S)
        call = fragile.hold.call()
        network.release(mesh)
        with pytest.raises(SupervisionError, match="its mesh was released") as raised:
            call.get(TIMEOUT_S)
        assert [failure.kind for failure in raised.value.failures.values()] == ["stopped", "stopped"]
        held.set()
        other = network.mesh(gpus=1)
        failing = other.spawn("failing", Fragile)
        failing.initialized.get(TIMEOUT_S)
        network.kill(other.places()[0])
        assert "failing" in network.told.get(timeout=TIMEOUT_S), "of the release nobody is told"

    def test_others_are_waited_for_a_moment_only(self, network: Network, at_once: None) -> None:
        mesh = network.mesh(gpus=2)
        fragile = mesh.spawn("fragile", Fragile)
        call = fragile.hold.call()
        network.kill(mesh.places()[1])
        with pytest.raises(SupervisionError, match=r"failed on rank 1 of 2\. rank 0 had not answered") as raised:
            call.get(TIMEOUT_S)
        assert list(raised.value.failures) == [1]
        held.set()

    def test_a_lost_node_answers_nothing_any_more(self, network: Network) -> None:
        fragile = network.mesh(hosts=2, gpus=1).spawn("fragile", Fragile)
        call = fragile.slice(hosts=1).hold.call()
        network.client.node_lost("node1", "node1 does not answer")
        with pytest.raises(SupervisionError, match="node1 does not answer"):
            call.get(TIMEOUT_S)
        held.set()


class TestStop:
    def test_what_waits_is_refused(self, network: Network, fragile: Any) -> None:
        fragile.initialized.get(TIMEOUT_S)
        running, waiting = fragile.hold.call_one(), fragile.fail_on.call_one(-1)
        stopped = fragile.stop("enough")
        for call in (running, waiting, fragile.fail_on.call_one(-1)):
            assert "was stopped: enough" in str(call.exception(TIMEOUT_S))
        held.set()
        assert stopped.get(TIMEOUT_S) is None
        assert cleaned.get(timeout=TIMEOUT_S) == ("Fragile", True)
        assert fragile.stop().get(TIMEOUT_S) is None
        assert network.told.empty()

    def test_the_same_name_replaces_also_one_that_failed(self, network: Network) -> None:
        mesh = network.mesh(gpus=1)
        failed = mesh.spawn("fragile", Fragile, 0)
        assert failed.initialized.exception(TIMEOUT_S) is not None
        old = mesh.spawn("fragile", Fragile)
        old.initialized.get(TIMEOUT_S)
        new = mesh.spawn("fragile", Fragile)
        assert new.fail_on.call(-1).get(TIMEOUT_S).values() == [0]
        assert cleaned.get(timeout=TIMEOUT_S) == ("Fragile", True)
        assert "was stopped" in str(old.fail_on.call(-1).exception(TIMEOUT_S))
        assert [state.name for state in network.ranks(mesh)[0].actors()] == ["fragile"]

    def test_one_that_is_stuck_holds_the_new_one_up_for_a_moment(self, network: Network, at_once: None) -> None:
        mesh = network.mesh(gpus=1)
        running = mesh.spawn("fragile", Fragile).hold.call_one()
        execution = network.started(mesh, "hold")
        new = mesh.spawn("fragile", Fragile)
        assert "spawned new actors under its name" in str(running.exception(TIMEOUT_S))
        assert new.fail_on.call_one(-1).get(TIMEOUT_S) == 0
        assert execution.interrupted
        told = [(bool(state.running), state.is_ending) for state in network.ranks(mesh)[0].actors()]
        assert told == [(True, True), (False, False)]
        held.set()
        assert cleaned.get(timeout=TIMEOUT_S) == ("Fragile", True)

    def test_processes_end_with_their_mesh(self, network: Network) -> None:
        mesh = monarch_nb.actor.this_host().spawn_procs({"gpus": 2}, name="evaluators")
        fragile = mesh.spawn("fragile", Fragile)
        fragile.initialized.get(TIMEOUT_S)
        assert mesh.stop().get(TIMEOUT_S) is None
        assert network.stopped == [mesh.places()[0].mesh_id]
        assert [cleaned.get(timeout=TIMEOUT_S) for _ in range(2)] == [("Fragile", True)] * 2
        with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
            mesh.spawn("fragile", Fragile)


class TestInterrupts:
    def test_an_async_execution_is_cancelled_and_the_actor_lives(self, network: Network) -> None:
        mesh = network.mesh(gpus=1)
        waits = mesh.spawn("waits", Waits)
        call = waits.wait.call_one()
        execution = network.started(mesh, "wait")
        for _ in range(2):
            execution.interrupt()
            with pytest.raises(ActorError, match=r"Actor call waits\.wait was interrupted") as raised:
                call.get(TIMEOUT_S)
            assert [failure.kind for failure in raised.value.failures.values()] == ["interrupted"]
            assert waits.nothing.call_one().get(TIMEOUT_S) == 1

    def test_a_call_whose_endpoint_handles_the_interrupt_has_its_result(self, network: Network, fragile: Any) -> None:
        tag = network.wire(network.client).tag_given = FakeTag({"mesh0": ("run", 1, 0)})
        call = fragile.hold.call_one()
        tag.interrupt = held.set  # type: ignore[method-assign]
        interrupt = Interrupt()
        interrupt.set()
        with interruptible(interrupt):
            assert call.get(TIMEOUT_S) == 1
        interrupt.close()

    @pytest.mark.parametrize(
        ("endpoint", "killed", "said"),
        [
            ("hold_groups", "", GROUP_ABORTED[:30]),
            ("hold", "killed and restarted rank 3", r"interrupted fragile\.hold; killed and restarted rank 3"),
        ],
    )
    def test_who_waits_interrupts_what_was_called(
        self, network: Network, fragile: Any, endpoint: str, killed: str, said: str
    ) -> None:
        tag = network.wire(network.client).tag_given = FakeTag({"mesh0": ("run", 1, 0)}, killed=killed)
        call = getattr(fragile, endpoint).call_one()
        tag.interrupt = held.set  # type: ignore[method-assign]
        interrupt = Interrupt()
        interrupt.set()
        with interruptible(interrupt), pytest.raises(KeyboardInterrupt, match=said):
            call.get(TIMEOUT_S)
        interrupt.close()
        if killed:
            assert call.get(0) == 1, "it waited for the answer"

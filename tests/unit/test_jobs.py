"""Jobs of engines: asked for, waited for, found again and cleaned up, with an engine that does as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from monarch_nb.config import CONFIG_VARIABLE, TrustPaths
from monarch_nb.errors import CapacityError, PoolError, ReservationConflict, UsageError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.provision import jobs, provisioner_of
from monarch_nb.provision.jobs import job_of, job_of_pool, obtain, pool_name
from monarch_nb.provision.launchers import Ask, Job, Look
from monarch_nb.trust.identity import load_identity
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import checked_pool_name, is_pool, pools_directory
from monarch_nb.trust.published import Published, publish, withdraw

WAITING = Look("waiting", "engine job 1 waits")
RUNNING = Look("running", "engine job 1 runs")


@dataclass
class Engine:
    """An engine that says what it is told to say: `looks` in turn, the last one again and again."""

    title: str = "engine job"
    looks: list[Look] = field(default_factory=lambda: [RUNNING])
    asked: list[Ask] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    comes_up: int = 2
    log: str = ""

    def ask(self, ask: Ask) -> str:
        self.asked.append(ask)
        if self.log:
            ask.paths.log.write_text(self.log)
        return str(len(self.asked))

    def look(self, job: Job) -> Look:
        if job.id in self.ended:
            return Look("ended", f"engine job {job.id} has ended")
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look.state == "running":
            for number in range(self.comes_up):
                node = Published(f"n{number}", f"127.0.0.1:{7000 + number}", "0", [], 1, heartbeat=0.0)
                publish(job.paths.published, node)
        return look

    def extend(self, job: Job, by_s: float) -> None:
        raise UsageError("never")

    def end(self, job: Job) -> None:
        self.ended.append(job.id)
        for number in range(self.comes_up):
            withdraw(job.paths.published, f"n{number}")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    made = Engine()
    monkeypatch.setattr(jobs, "launcher", lambda _: made)
    monkeypatch.setattr(jobs, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(jobs, "PUBLISHED_EVERY_S", 0.0)
    return made


def ask(nodes: int = 2) -> Callable[[str, TrustPaths], Ask]:
    return lambda pool, paths: Ask("dev", pool, nodes, 1, 0, 0.0, (), paths)


def have(nodes: int = 2, said: list[str] | None = None, longest_s: float | None = None) -> tuple[Job, bool]:
    return obtain("engine", ask(nodes), "engine-dev", longest_s, (said if said is not None else []).append)


def nothing_is_left() -> bool:
    return list(pools_directory().iterdir()) == []


class TestNames:
    @pytest.mark.parametrize("name", ["dev", "a", "my-run-2"])
    def test_simple_ones_are_kept(self, name: str) -> None:
        assert pool_name("slurm", name) == f"slurm-{name}"

    def test_others_are_told_apart(self) -> None:
        names = ["Dev", "dev_", "dév", "é", "dev dev", "x" * 64, "x" * 63]
        made = {pool_name("slurm", name) for name in names}
        assert len(made) == len(names)
        assert [checked_pool_name(name) for name in made] == list(made)


def test_a_job_has_a_pool_of_its_own(engine: Engine) -> None:
    engine.looks = [WAITING, WAITING, RUNNING]
    said: list[str] = []
    job, is_new = have(said=said)
    assert (job.id, job.served, is_new) == ("1", True, True)
    assert said == ["engine job 1 waits", "engine job 1 runs; 2 of 2 allocators starting"]
    nodes = provisioner_of(job.pool).nodes(pool=job.pool)
    assert [node.node_id for node in nodes] == ["n0", "n1"]
    assert nodes[0].identity == load_identity(job.paths.identity)
    assert job.paths.node.read_bytes() != job.paths.identity.read_bytes()
    assert oct(job.paths.directory.stat().st_mode & 0o777) == "0o700"


def test_a_later_process_finds_it(engine: Engine) -> None:
    first, _ = have()
    assert job_of("dev") == job_of_pool("engine-dev") == first
    assert have() == (first, False)
    assert len(engine.asked) == 1


def test_one_whose_client_died_in_the_queue_is_waited_for_by_the_next(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Interrupt()
    interrupt.set()
    with monkeypatch.context() as patch, interruptible(interrupt):
        patch.setattr(jobs, "end", lambda _: None)
        engine.looks = [WAITING]
        with pytest.raises(KeyboardInterrupt):
            have()
    engine.looks = [RUNNING]
    job, is_new = have()
    assert (job.id, is_new, len(engine.asked)) == ("1", True, 1)


def test_another_shape_is_a_conflict(engine: Engine) -> None:
    have()
    with pytest.raises(ReservationConflict, match="has engine job 1 already, with 2 nodes × 1 proc; --replace ends it"):
        have(nodes=3)
    assert engine.ended == []


def test_ctrl_c_ends_the_job(engine: Engine) -> None:
    engine.looks = [WAITING]
    interrupt = Interrupt()
    caught: list[type[BaseException]] = []

    def wait() -> None:
        with interruptible(interrupt):
            try:
                obtain("engine", ask(), "engine-dev", None, lambda _: interrupt.set())
            except KeyboardInterrupt:
                caught.append(KeyboardInterrupt)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert caught
    assert engine.ended == ["1"]
    assert nothing_is_left()


@pytest.mark.parametrize(
    ("look", "error", "said"),
    [
        (Look("waiting", "", "NoSuchMachine"), CapacityError, "engine job 1 would wait for ever: NoSuchMachine"),
        (Look("ended", "engine job 1 failed"), PoolError, "(?s)engine job 1 failed; its log ends with\n.*no torch"),
        (Look("running", "", "n1 has ended"), PoolError, "(?s)engine job 1: n1 has ended; its log.*no torch"),
    ],
)
def test_what_makes_waiting_futile_ends_it(engine: Engine, look: Look, error: type[Exception], said: str) -> None:
    engine.looks, engine.comes_up, engine.log = [WAITING, look], 0, "ImportError: no torch\n"
    with pytest.raises(error, match=said):
        have()
    assert engine.ended == ([] if look.state == "ended" else ["1"])
    assert nothing_is_left()


def test_allocators_that_do_not_come_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "START_S", 0.0)
    engine.comes_up = 1
    with pytest.raises(
        PoolError, match=r"1 of 2 allocators did not come up within .* it has left no log: do its nodes see"
    ):
        have()
    assert nothing_is_left()


def test_who_waits_long_enough_gives_up(engine: Engine) -> None:
    engine.looks = [WAITING]
    with pytest.raises(CapacityError, match="in vain: engine job 1 waits"):
        have(longest_s=1e-9)
    assert engine.ended == ["1"]


def test_an_engine_that_does_not_answer_for_a_while_is_waited_for(engine: Engine) -> None:
    look, silences = engine.look, [PoolError("busy")] * 3

    def silent_at_first(job: Job) -> Look:
        if silences:
            raise silences.pop()
        return look(job)

    engine.look = silent_at_first  # type: ignore[method-assign]
    said: list[str] = []
    have(said=said)
    assert said[0] == "engine job 1: busy"


def test_a_request_that_is_refused_leaves_nothing(engine: Engine) -> None:
    def refuse(_: Ask) -> str:
        raise UsageError("no such partition")

    engine.ask = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(UsageError, match="no such partition"):
        have()
    assert nothing_is_left()


def test_what_a_dead_process_left_half_made_is_removed(engine: Engine) -> None:
    job, _ = have()
    jobs._remember(replace(job, id=""))
    assert job_of("dev") is None
    again, _ = have()
    assert again.id == "2"


def test_the_pool_of_a_job_that_has_ended_is_removed(engine: Engine) -> None:
    job, _ = have()
    engine.ended.append(job.id)
    assert jobs.trouble(job.pool) == "engine job 1 has ended: %mesh reserve dev --on engine asks for another"
    assert job.paths.identity.exists(), "what has become of it can be asked"
    jobs.sweep()
    assert nothing_is_left()


def test_a_pool_that_somebody_made_is_never_taken(engine: Engine) -> None:
    make_pool("engine-dev", "alice")
    with pytest.raises(UsageError, match="there is a pool engine-dev already, which no job was made for"):
        have()
    jobs.sweep()
    assert is_pool("engine-dev")


def test_ending_is_done_once(engine: Engine) -> None:
    job, _ = have()
    jobs.end(job)
    jobs.end(job)
    assert engine.ended == ["1"]
    assert nothing_is_left()
    later, _ = have()
    jobs.end(job)
    assert later.paths.identity.exists(), "another job of the same name goes on"


def test_a_reservation_ends_before_its_job(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = have()
    monkeypatch.setattr(jobs.time, "time", lambda: 1000.0)
    assert jobs.time_left_s(job) == 0.0
    engine.looks = [replace(RUNNING, ends_at=1000.0 + 3600.0)]
    assert jobs.time_left_s(job) == 3600.0 - jobs.SOONER_S

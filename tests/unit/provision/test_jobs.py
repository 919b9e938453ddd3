"""Jobs of engines: asked for, waited for, found again and cleaned up, with an engine that does as it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

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

POOL = "engine-lab-dev"
WAITING = Look("waiting", "engine job 1 waits")
RUNNING = Look("running", "engine job 1 runs")


def node_of(number: int) -> Published:
    return Published(f"n{number}", f"127.0.0.1:{7000 + number}", "0", [], 1, heartbeat=0.0)


@dataclass
class Engine:
    """An engine that says what it is told to say: `looks` in turn, the last one again and again."""

    title: str = "engine job"
    looks: list[Look] = field(default_factory=lambda: [RUNNING])
    asked: list[Ask] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    nodes: dict[str, list[Published]] = field(default_factory=dict)
    comes_up: int = 2
    log: str = ""
    is_busy: bool = False

    def ask(self, ask: Ask) -> str:
        self.asked.append(ask)
        self.nodes[str(len(self.asked))] = [node_of(self.comes_up * len(self.nodes) + n) for n in range(self.comes_up)]
        if self.log:
            ask.paths.log.write_text(self.log)
        return str(len(self.asked))

    def look(self, job: Job) -> Look:
        if job.id in self.ended:
            return Look("ended", f"engine job {job.id} has ended")
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look.state == "running":
            for node in self.nodes[job.id]:
                publish(job.paths.published, node)
        return look

    def extend(self, job: Job, by_s: float) -> None:
        raise UsageError("never")

    def end(self, job: Job) -> None:
        if self.is_busy:
            raise PoolError("busy")
        self.ended.append(job.id)
        for node in self.nodes[job.id]:
            withdraw(job.paths.published, node)


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


def test_pools_of_jobs_have_names_of_their_own() -> None:
    for name in ("dev", "a", "my-run-2"):
        assert pool_name("slurm", name) == f"slurm-{name}"
    assert pool_name("ssh:lab", "dev") == "ssh-lab-dev"
    names = ["Dev", "dev_", "dév", "é", "dev dev", "x" * 64, "x" * 63]
    targets = ["ssh:Lab", "ssh:lab*", "ssh:lab-*", "ssh:" + "l" * 40, "ssh:" + "l" * 41]
    made = [*(pool_name("slurm", name) for name in names), *(pool_name(target, "dev") for target in targets)]
    assert len({*made, "ssh-lab-dev"}) == len(names) + len(targets) + 1
    assert [checked_pool_name(name) for name in made] == made


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


def test_what_was_asked_is_remembered_as_it_was_typed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = obtain("engine:lab", ask(), "engine-lab-dev", None, lambda _: None)
    assert (engine.asked[0].target, job.on) == ("lab", "engine:lab")
    assert job_of("dev") == job_of_pool("engine-lab-dev") == job
    assert obtain("engine:lab", ask(), "engine-lab-dev", None, print) == (job, False), "a later process finds it"
    assert len(engine.asked) == 1
    assert (jobs.title_of_pool(job.pool), jobs.title_of_pool("local")) == ("engine job 1", "")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "launcher", busy)
        assert jobs.title_of_pool(job.pool) == "engine:lab 1", "it is not installed any more"
    jobs.remember(replace(job, id=""))  # by a process that died before it had asked
    assert job_of("dev") is None
    assert obtain("engine:lab", ask(), "engine-lab-dev", None, print)[0].id == "2"


def test_one_whose_client_died_in_the_queue_is_for_the_next(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt = Interrupt()
    interrupt.set()
    with monkeypatch.context() as patch, interruptible(interrupt):
        patch.setattr(jobs, "end", lambda *_: None)
        engine.looks = [WAITING]
        with pytest.raises(KeyboardInterrupt):
            have()
    engine.looks = [RUNNING]
    job, is_new = have()
    assert (job.id, is_new, len(engine.asked)) == ("1", True, 1)


def test_another_shape_or_target_is_a_conflict(engine: Engine) -> None:
    have()
    with pytest.raises(
        ReservationConflict,
        match="has engine job 1 already, with 2 nodes × 1 proc: %mesh attach dev uses it as it is; --replace ends it",
    ):
        have(nodes=3)
    with pytest.raises(ReservationConflict, match="has engine job 1 already"):
        obtain("engine:lab", ask(), "engine-dev", None, lambda _: None)
    assert engine.ended == []


def interrupted_in_the_queue(engine: Engine) -> str:
    """Return what Ctrl-C says."""
    engine.looks = [WAITING]
    interrupt = Interrupt()
    interrupt.set()
    with interruptible(interrupt), pytest.raises(KeyboardInterrupt) as caught:
        have()
    return str(caught.value)


def busy(_: object) -> NoReturn:
    raise PoolError("busy")


def test_ctrl_c_ends_the_job_or_says_that_it_could_not_be_ended(engine: Engine) -> None:
    assert interrupted_in_the_queue(engine) == "engine job 1 was cancelled"
    assert engine.ended == ["1"]
    assert nothing_is_left()
    engine.is_busy = True
    said = interrupted_in_the_queue(engine)
    engine.is_busy = False
    assert said == "engine job 2 could not be ended (busy): %mesh release dev ends it"
    [line] = jobs.unheld({})
    assert line == f"dev: {WAITING.text}; the same %mesh reserve waits for it, %mesh release dev ends it"
    engine.looks = [RUNNING]
    again, _ = have()
    assert (again.id, again.unwanted) == ("2", False), "who asks again wants it after all"


@pytest.mark.parametrize(
    ("look", "error", "said"),
    [
        (Look("waiting", "", "NoSuchMachine"), CapacityError, "engine job 1 .* would wait for ever: NoSuchMachine"),
        (Look("ended", "engine job 1 failed"), PoolError, "(?s)engine job 1 failed; its log ends with\n.*no torch"),
        (Look("running", "", "n1 has ended"), PoolError, "(?s)engine job 1: n1 has ended; its log.*no torch"),
        (Look("ended", "engine job 1: quota", "quota", no_room=True), CapacityError, "engine job 1: quota"),
    ],
)
def test_what_makes_waiting_futile_ends_it(engine: Engine, look: Look, error: type[Exception], said: str) -> None:
    engine.looks, engine.comes_up, engine.log = [WAITING, look], 0, "ImportError: no torch\n"
    with pytest.raises(error, match=said):
        have()
    assert engine.ended == ([] if look.state == "ended" else ["1"])
    assert nothing_is_left()


def test_the_last_lines_of_a_log_are_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.looks, engine.comes_up, engine.log = [Look("running", "", "n1 has ended")], 0, "srun: error: exit 3\n"
    late = ["ImportError: ", "no torch\n"]

    def another_piece(_s: float) -> None:
        with engine.asked[0].paths.log.open("a") as log:
            log.write(late.pop(0) if late else "")

    monkeypatch.setattr(jobs, "pause", another_piece)
    with pytest.raises(PoolError, match=r"exit 3\n    ImportError: no torch$"):
        have()


def test_allocators_that_do_not_come_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "START_S", 0.0)
    engine.comes_up = 1
    with pytest.raises(PoolError, match=r"1 of 2 allocators did not come up within .* no log: do its nodes see"):
        have()
    assert nothing_is_left()


def test_who_waits_long_enough_gives_up(engine: Engine) -> None:
    engine.looks = [WAITING]
    with pytest.raises(CapacityError, match=r"without success: engine job 1 waits.*; engine job 1 was cancelled$"):
        have(longest_s=1e-9)
    assert engine.ended == ["1"]
    engine.is_busy = True
    with pytest.raises(CapacityError, match=r"without success: .*; engine job 2 could not be ended \(busy\): "):
        have(longest_s=1e-9)


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


@pytest.mark.parametrize("place", ["jobs", "jobs/1", "jobs/1/.job.json.0123"], ids=["no job", "no file", "half a file"])
def test_what_a_process_left_that_had_not_written_down_what_it_asks_for_is_removed(engine: Engine, place: str) -> None:
    make_pool("lab", "alice")
    other, _ = obtain("engine", ask(), "engine-other", None, print)
    (pools_directory() / "engine-dev" / place).mkdir(parents=True, mode=0o700)
    (other.paths.directory.parent / "2").mkdir()
    jobs.sweep()
    assert sorted(path.name for path in pools_directory().iterdir()) == ["engine-other", "lab"]
    assert [path.name for path in other.paths.directory.parent.iterdir()] == ["1"]


def test_what_became_of_a_job(engine: Engine) -> None:
    job, _ = have()
    engine.looks[:] = [Look("waiting", "engine job 1 waits again", begins_anew=True)]
    said = "engine job 1 waits again: %mesh reserve dev --on engine waits for it"
    assert jobs.what_became(job.pool) == (said, True), "its ranks are lost"
    engine.ended.append(job.id)
    said = "engine job 1 has ended: %mesh reserve dev --on engine asks for another"
    assert jobs.what_became(job.pool) == (said, True)
    assert job.paths.identity.exists(), "what has become of it can be asked"
    jobs.sweep()
    assert nothing_is_left()
    said, is_over = jobs.what_became(job.pool)  # as also when its last allocator has ended as it should
    assert said.startswith(f"all nodes of the pool {job.pool!r} have ended, and their job with them: ")
    assert is_over
    assert jobs.what_became("local") == ("", False)


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


def test_nodes_that_could_not_be_told_are_named_as_a_job_ends(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = have()
    monkeypatch.setattr(jobs, "END_S", 0.0)  # who was not told never says that it has ended
    monkeypatch.setattr(engine, "end", lambda job: engine.ended.append(job.id) or ("n2",))
    assert jobs.end_all(job.pool) == ["n2"]
    assert nothing_is_left()


class TestFurtherJobs:
    """More nodes for a pool that a job was made for."""

    @pytest.fixture
    def first(self, engine: Engine) -> Job:
        return obtain("engine:lab", lambda *where: replace(ask()(*where), arguments=("--a=1",)), POOL, None, print)[0]

    @staticmethod
    def more(first: Job, nodes: int = 2) -> Job:
        return jobs.add(first, nodes, 60.0, None, print)

    def test_the_same_is_asked_for_the_same_pool(self, engine: Engine, first: Job) -> None:
        second = self.more(first)
        asked = engine.asked[1]
        assert (asked.pool, asked.target, asked.arguments, asked.time_s) == (POOL, "lab", ("--a=1",), 60.0)
        assert asked.beside == ("n0", "n1"), "new nodes are other machines"
        assert second.paths.node.read_bytes() == first.paths.node.read_bytes(), "they are of the same pool"
        assert [node.node_id for node in provisioner_of(POOL).nodes(pool=POOL)] == ["n0", "n1", "n2", "n3"]
        assert jobs.jobs_of_pool(POOL) == [first, second]
        assert jobs.title_of_pool(POOL) == "engine job 1, engine job 2"

    def test_each_knows_its_nodes(self, engine: Engine, first: Job) -> None:
        second = self.more(first)
        named = {node_of(number).address: f"n{number}" for number in range(5)}
        assert (jobs.nodes_in(first, named), jobs.nodes_in(second, named)) == (["n0", "n1"], ["n2", "n3"])
        engine.end(second)
        assert jobs.nodes_in(second, named) == ["n2", "n3"], "also when they are gone"

    def test_one_that_comes_to_nothing_leaves_the_other_as_it_was(self, engine: Engine, first: Job) -> None:
        engine.looks = [Look("waiting", "", "NoSuchMachine")]
        with pytest.raises(CapacityError, match="engine job 2 for 2 nodes × 1 proc would wait for ever"):
            self.more(first)
        assert jobs.jobs() == [first]
        assert [path.name for path in first.paths.directory.parent.iterdir()] == ["1"]

    def test_one_that_never_is_there_is_said(self, engine: Engine, first: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: Ask) -> NoReturn:
            raise CapacityError("there are 3 nodes")

        monkeypatch.setattr(engine, "ask", refuse)
        with pytest.raises(CapacityError, match=r"^no 2 nodes × 1 proc beside n0, n1: there are 3 nodes$"):
            self.more(first)

    def test_one_whose_client_died_is_waited_for_when_it_is_as_large(
        self, engine: Engine, first: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: object) -> NoReturn:
            raise SystemExit

        engine.looks = [WAITING]
        monkeypatch.setattr(jobs, "_served", die)
        for nodes, asked in ((2, 2), (2, 2), (3, 3)):
            with pytest.raises(SystemExit):
                self.more(first, nodes)
            assert len(engine.asked) == asked
        assert engine.ended == ["2"]

    def test_each_ends_alone_and_the_last_one_takes_the_pool_along(self, engine: Engine, first: Job) -> None:
        second = self.more(first)
        jobs.end(first)
        assert jobs.jobs() == [second]
        assert is_pool(POOL)
        jobs.end(second)
        assert nothing_is_left()

    def test_all_end_also_when_one_can_not(self, engine: Engine, first: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        second, end = self.more(first), engine.end
        with monkeypatch.context() as patch:
            patch.setattr(engine, "end", lambda job: busy(job) if job == second else end(job))
            with pytest.raises(PoolError, match=r"^engine job 2 could not be ended \(busy\): %mesh release dev again"):
                jobs.end_all(POOL)
        assert jobs.jobs() == [replace(second, unwanted=True)]
        jobs.end_all(POOL)
        assert nothing_is_left()

    def test_one_that_has_ended_is_told_of_as_long_as_others_go_on(self, engine: Engine, first: Job) -> None:
        second = self.more(first)
        engine.ended.append(first.id)
        said = "engine job 1 has ended: %mesh replace dev asks for another"
        assert jobs.trouble(POOL) == said
        jobs.sweep()
        assert jobs.trouble(POOL) == said
        assert obtain("engine:lab", ask(4), POOL, None, print) == (second, False), "the reservation is in both"
        engine.ended.append(second.id)
        said = "engine job 1 has ended; engine job 2 has ended: %mesh reserve dev --on engine:lab asks for another"
        assert jobs.trouble(POOL) == said
        jobs.sweep()
        assert nothing_is_left()

    def test_what_they_cost_is_remembered_and_one_that_has_ended_costs_nothing(
        self, engine: Engine, first: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert jobs.price_per_hour(POOL, "dev") == jobs.price_per_hour("local", "dev") == 0.0
        engine.looks = [replace(RUNNING, price_per_hour=12.4)]
        second = self.more(first)
        jobs.time_left_s(POOL)  # by which the price of the first is learnt as well
        assert jobs.price_per_hour(POOL, "dev", jobs.ended_in(POOL)) == 24.8
        assert jobs.price_per_hour(POOL, "another in the same pool") == 0.0
        engine.ended.append(second.id)
        assert jobs.price_per_hour(POOL, "dev", jobs.ended_in(POOL)) == 12.4
        monkeypatch.setattr(engine, "look", busy)
        assert jobs.ended_in(POOL) == frozenset(), "the engine does not answer"

    def test_the_first_end_counts(self, engine: Engine, first: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        second, extended = self.more(first), []
        monkeypatch.setattr(jobs.time, "time", lambda: 1000.0)
        assert jobs.time_left_s(POOL) == 0.0, "no limit is known"
        ends_at = {first.id: 8200.0, second.id: 4600.0}
        monkeypatch.setattr(engine, "look", lambda job: replace(RUNNING, ends_at=ends_at[job.id]))
        monkeypatch.setattr(engine, "extend", lambda job, by_s: extended.append((job.id, by_s)))
        assert jobs.ends_first(jobs.jobs_of_pool(POOL)) == (second, 3600.0 - jobs.SOONER_S)
        jobs.extend(POOL, 600.0, 3570.0)
        assert extended == [(second.id, 600.0)], "the other ends late enough"

    def test_one_that_waits_or_could_not_be_ended_is_listed_while_others_are_held(
        self, engine: Engine, first: Job
    ) -> None:
        second = self.more(first)
        assert jobs.unheld({(POOL, "dev"): 2}) == []
        engine.is_busy = True
        said = jobs.why_not_ended(second)
        engine.is_busy = False
        assert said == "engine job 2 could not be ended (busy): %mesh list says what ends it"
        [line] = jobs.unheld({(POOL, "dev"): 2})
        assert line.endswith("has its nodes, which nobody holds, %mesh shrink dev --nodes 2 ends it")
        jobs.remember(replace(second, served=False))
        engine.looks = [WAITING]
        [line] = jobs.unheld({(POOL, "dev"): 4})
        assert line.endswith("the same %mesh grow or replace waits for it, %mesh release dev ends it")

    def test_what_the_last_one_leaves_is_removed_on_its_node(self, engine: Engine, first: Job) -> None:
        self.more(first)
        for asked in engine.asked:
            assert first.paths.directory.parents[1].exists()
            subprocess.run(["bash", "-c", asked.removal()], check=True)
        assert nothing_is_left()


def test_a_job_whose_nodes_nobody_holds_is_named(engine: Engine) -> None:
    job, _ = have()
    [line] = jobs.unheld({(job.pool, "another"): 1})
    assert line.startswith("dev: engine job 1 runs; the same %mesh reserve has its nodes, which nobody holds")
    assert jobs.unheld({(job.pool, "dev"): 1}) == []
    assert jobs.unheld({}, [job.pool]) == [], "its nodes do not say who holds them"
    look, engine.look = engine.look, busy  # type: ignore[method-assign]
    assert jobs.unheld({}) == ["dev: engine job 1: busy"], "the engine does not answer"
    engine.look = look  # type: ignore[method-assign]
    engine.ended.append(job.id)
    assert jobs.unheld({}) == []

"""Reservations whose nodes come as a job of an engine: what becomes of the job, with jobs that are there at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.reservations.jobs import JobRequest, nodes_of_job
from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, ReservationConflict, SpawnError
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import Job

REQUEST = JobRequest("engine", (), "dev", Shape(1, 0, 4), 0.0, None, False, ())


@dataclass
class Jobs:
    """What there is of jobs, in place of those on disk."""

    there: list[Job] = field(default_factory=list)

    def obtain(self, on: str, _ask: object, pool: str, _longest_s: object, _say: object) -> tuple[Job, bool]:
        if (job := self.of_pool(pool)) is None:
            self.there.append(job := Job(on, "7", "dev", pool, 1, 0, 4, TrustPaths(Path("/nowhere"))))
        return job, not job.served

    def of_pool(self, pool: str) -> Job | None:
        return next((job for job in self.there if job.pool == pool), None)

    def sweep(self) -> None:
        self.there = [job for job in self.there if job.id != "ended"]

    def end(self, job: Job, _say: object = None) -> None:
        self.there.remove(job)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    made = Jobs()
    monkeypatch.setattr(jobs, "obtain", made.obtain)
    monkeypatch.setattr(jobs, "end", made.end)
    monkeypatch.setattr(jobs, "jobs", lambda: made.there)
    monkeypatch.setattr(jobs, "sweep", made.sweep)
    monkeypatch.setattr(jobs, "time_left_s", lambda _: 0.0)
    monkeypatch.setattr(jobs, "title_of", lambda job: f"engine job {job.id}")
    return made


def lease(error: BaseException, **changes: Any) -> None:
    with nodes_of_job(replace(REQUEST, **changes), None, lambda _: None):
        raise error


class TestALeaseThatFails:
    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (CapacityError("no GPU"), r"^no GPU; engine job 7 was asked for this, and is ended$"),
            (KeyboardInterrupt(), r"^engine job 7 was cancelled$"),
        ],
    )
    def test_a_job_that_has_not_what_it_was_asked_for_is_ended(
        self, known: Jobs, error: BaseException, said: str
    ) -> None:
        with pytest.raises(type(error), match=said):
            lease(error)
        assert known.there == []

    @pytest.mark.parametrize("served", [True, False])
    def test_a_job_that_was_found_goes_on(self, known: Jobs, served: bool) -> None:
        job, _ = known.obtain("engine", None, "engine-dev", None, None)
        known.there = [replace(job, served=served)]
        with pytest.raises(CapacityError, match=r"^no node has a GPU$"):
            lease(CapacityError("no node has a GPU"))
        assert known.there

    def test_who_mends_his_request_has_its_nodes_at_once(self, known: Jobs) -> None:
        with pytest.raises(
            SpawnError, match=r"^no module nope\nengine job 7 is there for .*%mesh release dev ends it$"
        ):
            lease(SpawnError("no module nope"))
        assert known.there
        known.there = [replace(known.there[0], served=True)]
        with pytest.raises(SpawnError, match=r"^no module nope$"):
            lease(SpawnError("no module nope"))  # which others may have


class TestANameThatAnotherEngineHas:
    @pytest.fixture
    def elsewhere(self, known: Jobs) -> Job:
        job, _ = known.obtain("other:lab", None, "other-lab-dev", None, None)
        return job

    def test_is_refused(self, known: Jobs, elsewhere: Job) -> None:
        said = r"already \(engine job 7\): %mesh attach dev uses it.*--pool other-lab-dev releases it"
        with pytest.raises(ReservationConflict, match=said), nodes_of_job(REQUEST, None, print):
            raise AssertionError
        assert known.there == [elsewhere]

    def test_replacing_ends_it_first_and_one_that_has_ended_is_in_nobodys_way(
        self, known: Jobs, elsewhere: Job
    ) -> None:
        for there, is_replaced in ((elsewhere, True), (replace(elsewhere, id="ended"), False)):
            known.there = [there]
            with nodes_of_job(replace(REQUEST, replace=is_replaced), None, print) as (pool, _):
                assert pool == "engine-dev"
            assert [job.pool for job in known.there] == ["engine-dev"]

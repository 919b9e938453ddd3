"""Engines in the form: each with what it declares, what was entered last, and what it says before it is asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from monarch_nb.client.pools.held import current_owner
from monarch_nb.client.pools.leasing import Released, ReleasedLater
from monarch_nb.config import POOL_VARIABLE, TrustPaths, config_directory
from monarch_nb.errors import CapacityError, NodeUnreachable, PoolError
from monarch_nb.panel import actions, live, ways
from monarch_nb.panel.live import Fate, pools_to_show
from monarch_nb.panel.requests import Panel, Panels
from monarch_nb.panel.shown.view import Before, Json, NodeAnswer, build_view, no_view
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Option, jobs
from monarch_nb.provision.launchers import Ask, Job, Offer
from monarch_nb.trust.pools import change_hosts, pools_directory
from unit.panel.asking import ask, finished, refused
from unit.panel.fake_pool import FakePool
from unit.panel.replies import NOW, hold, node, view_of
from unit.panel.test_requests import Reserved

VALUES = {"where": "lab", "name": "dev", "nodes": 2, "kind": "gpus", "per_node": 8, "time": "8h"}


class Lab:
    """An engine with two partitions."""

    title = "lab job"
    targets = "ROOM"

    def __init__(self) -> None:
        self.asked: list[Ask] = []

    def options(self) -> Sequence[Option]:
        choices = (("", "the default"), ("a100", "a100"))
        return [
            Option("partition", "Partition", "choice", "", choices=choices, flag="--partition"),
            Option("shared", "Share", "boolean", False, flag="--oversubscribe"),
        ]

    def offer(self, ask: Ask) -> Offer:
        self.asked.append(ask)
        if ask.nodes > 4:
            raise CapacityError("there are 4 nodes")
        return Offer("starts at 14:02", 12.5)


class Plain(Lab):
    """An engine that declares nothing."""

    title, targets = "plain job", ""
    options = offer = None  # type: ignore[assignment]


class Absent(Lab):
    """An engine that is not there."""

    def options(self) -> Sequence[Option]:
        raise PoolError("it is not installed")


@pytest.fixture
def lab(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The engines `lab`, `away` (whose package is not there) and `absent`."""
    engines: dict[str, Lab] = {"absent": Absent(), "lab": Lab()}

    def launcher(on: str) -> Lab:
        name = on.partition(":")[0]
        if name == "away":
            raise ImportError("no module named away")
        return engines[name]

    monkeypatch.setattr(ways, "launcher_names", lambda: ["absent", "away", "lab"])
    monkeypatch.setattr(ways, "launcher", launcher)
    return engines["lab"]


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """What `reserve` was called with."""
    calls: list[Json] = []
    monkeypatch.setattr(actions, "reserve", lambda name, **options: calls.append(options) or Reserved())
    return calls


def fields(panel: Panel, where: str) -> dict[str, Json]:
    form = ask(panel, "forms")["reserve"]["fields"]
    return {field["name"]: field for field in form if field["where"] in ("", where)}


def check(panel: Panel, **changes: Any) -> Json:
    return dict(ask(panel, "check", action="reserve", values=VALUES | changes))


def remembered(reservation: str, on: str = "lab", **facts: Any) -> Job:
    """A job that was asked for."""
    pool = jobs.pool_name(on, reservation)
    of_pool = TrustPaths(pools_directory() / pool)
    job = Job(on, "12", reservation, pool, 2, 0, 8, TrustPaths(of_pool.jobs / "1"), **facts)
    job.paths.directory.mkdir(parents=True, mode=0o700)
    jobs.remember(job)
    change_hosts(of_pool, lambda hosts: hosts)
    return job


def test_each_engine_that_is_there_has_its_own_part_of_the_form(panel: Panel, lab: Lab) -> None:
    where = fields(panel, "lab")["where"]
    assert [choice["value"] for choice in where["choices"]] == ["here", "lab"]
    assert [choice["label"] for choice in where["choices"]] == ["this pool, local", "lab"]
    assert list(fields(panel, "lab")) == [
        *("where", "name", "lab.target", "lab.partition", "lab.shared"),
        *("nodes", "kind", "per_node", "time", "idle", "lab.flags"),
    ]
    assert {"wait"} == fields(panel, "here").keys() - fields(panel, "lab").keys()


def test_one_that_declares_nothing_or_takes_too_long_has_a_field_for_flags(
    panel: Panel, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "OPTIONS_S", 0.0)
    assert "lab.flags" in fields(panel, "lab")
    monkeypatch.setattr(ways, "launcher", lambda _: Plain())
    assert [name for name in fields(panel, "lab") if "." in name] == ["lab.flags"]
    assert check(panel)["message"] == "asks lab for 2 nodes × 8 gpus"


def test_what_was_chosen_becomes_flags(panel: Panel, lab: Lab, reserved: list[Json]) -> None:
    chosen = {"lab.target": "north", "lab.partition": "a100", "lab.shared": True, "lab.flags": "--comment='a b' -x"}
    assert check(panel, **chosen)["ok"]
    flags = ("--partition=a100", "--oversubscribe", "--comment=a b", "-x")
    assert (lab.asked[-1].arguments, lab.asked[-1].target, lab.asked[-1].time_s) == (flags, "north", 28800.0)
    job = finished(panel, "reserve", values=VALUES | chosen)
    assert job["state"] == "done", job
    (options,) = reserved
    assert (options["on"], options["on_arguments"], options["pool"]) == ("lab:north", flags, None)
    assert (options["nodes"], options["procs"], options["gpus"], options["time"]) == (2, None, 8, 28800.0)


def test_a_check_says_what_the_engine_says_and_asks_for_nothing(panel: Panel, lab: Lab) -> None:
    told = check(panel)
    assert told == {
        "ok": True,
        "message": "asks lab for 2 nodes × 8 gpus; starts at 14:02; ≈ $12.50 an hour",
    }
    assert check(panel, nodes=5) == {"ok": False, "message": "there are 4 nodes", "errors": {}}
    assert list(check(panel, **{"lab.flags": "--comment='a"})["errors"]) == ["lab.flags"]
    assert list(check(panel, name="a b")["errors"]) == ["name"]
    assert "where" in check(panel, where="nowhere")["errors"]


def test_a_job_of_that_name_is_said_and_one_that_has_ended_is_in_nobody_s_way(
    panel: Panel, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered("dev", served=True)
    remembered("main")
    assert check(panel)["message"] == "lab job 12 is there for it already"
    assert "dev has lab job 12 already, with 2 nodes × 8 gpus" in check(panel, nodes=1)["errors"]["name"]
    assert fields(panel, "lab")["name"]["default"] == "main-2"
    monkeypatch.setattr(jobs, "what_became", lambda _: ("lab job 12 was cancelled", True))
    assert check(panel)["message"].startswith("asks lab for 2 nodes × 8 gpus")


def test_the_form_opens_with_what_was_entered_last(panel: Panel, lab: Lab, reserved: list[Json]) -> None:
    assert fields(panel, "lab")["where"]["default"] == "here"
    finished(panel, "reserve", values=VALUES | {"lab.partition": "a100", "idle": "2h"})
    last = {name: field["default"] for name, field in fields(panel, "lab").items()}
    assert (last["where"], last["lab.partition"], last["nodes"]) == ("lab", "a100", 2)
    assert (last["per_node"], last["time"], last["idle"], last["name"]) == (8, "8h", "2h", "main")
    assert fields(panel, "here")["nodes"]["default"] == 1, "what is free here is another matter"
    finished(panel, "reserve", values={"where": "here", "name": "x", "nodes": 1, "kind": "procs", "per_node": 1})
    again = fields(panel, "lab")
    assert (again["where"]["default"], again["lab.partition"]["default"]) == ("here", "a100")


def test_a_choice_that_is_no_more_is_forgotten(
    panel: Panel, lab: Lab, reserved: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(panel, "reserve", values=VALUES | {"lab.partition": "a100"})
    partition, shared = lab.options()
    monkeypatch.setattr(lab, "options", lambda: [replace(partition, choices=(("", "the default"),)), shared])
    assert fields(panel, "lab")["lab.partition"]["default"] == ""
    monkeypatch.setattr(ways, "launcher_names", list)
    assert "where" not in fields(panel, "here")


def test_nonsense_on_disk_is_no_hindrance(panel: Panel, lab: Lab) -> None:
    config_directory().mkdir(parents=True)
    file = config_directory() / "panel.json"
    for text in ("", "[]", '{"where": 1}', '{"where": "lab", "values": [1]}', "null"):
        file.write_text(text)
        file.chmod(0o600)
        assert fields(panel, "lab")["nodes"]["default"] == 1


def test_a_form_that_was_opened_before_the_server_began_can_be_submitted(
    panel: Panel, lab: Lab, reserved: list[Json]
) -> None:
    assert finished(panel, "reserve", values=VALUES)["state"] == "done"
    assert refused(panel, "reserve", values=VALUES | {"lab.partition": "no"})["errors"].keys() == {"lab.partition"}


# ---- pools ----


def test_pools_of_jobs_are_shown_when_they_serve(lab: Lab) -> None:
    remembered("dev")
    remembered("eval", served=True)
    assert [pool["name"] for pool in pools_to_show("local")] == ["local", "lab-eval"]


def test_from_a_pool_of_a_job_there_is_a_way_back_also_when_nothing_is_up_there() -> None:
    job = remembered("dev", served=True)
    for home in ("local", "lab-eval"):
        panels = Panels(home)
        answers = {pool: panels.handle("view", {"pool": pool}).result(10.0) for pool in (home, job.pool)}
        shown = {pool: answer["result"]["pools"] for pool, answer in answers.items()}
        assert [each["name"] for each in shown[job.pool]] == [job.pool, home]
        assert [each["name"] for each in shown[home]] == [home, job.pool]


async def test_the_price_of_a_job_is_that_of_its_reservation() -> None:
    job = remembered("dev", served=True, price_per_hour=12.5)
    reply = node()
    hold([reply], "dev", procs=1)
    hold([reply], "other", procs=1)
    view = view_of(reply)
    view["pool"]["name"] = job.pool
    await Fate().note(view)
    prices = {held["name"]: held["price_per_hour"] for held in view["reservations"].values()}
    assert prices == {"dev": 12.5, "other": None}


async def test_a_pool_of_which_no_node_answers_says_what_became_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job, asked = remembered("dev", served=True), []
    said = "lab job 12 was cancelled: %mesh reserve dev --on lab asks for another"
    monkeypatch.setattr(jobs, "trouble", lambda pool: asked.append(pool) or said)
    monkeypatch.setattr(jobs, "has_ended", lambda _: True)
    fate = Fate()
    for _ in range(2):
        view = no_view(job.pool, "alice", 0.0, "no node is there")
        await fate.note(view)
        assert view["pool"]["message"] == "lab job 12 was cancelled: Reserve… asks for another"
    assert asked == [job.pool], "an engine is not asked at each look"
    view = view_of(node())
    view["pool"]["name"] = job.pool
    await fate.note(view)
    assert view["pool"]["message"] is None
    other = no_view("lab", "alice", 0.0, "no node is there")
    await fate.note(other)
    assert other["pool"]["message"] == "no node is there"


@pytest.fixture
def two_jobs() -> Job:
    """The first of two jobs that have brought the nodes of "dev"."""
    job = remembered("dev", served=True, price_per_hour=12.5)
    paths = TrustPaths(job.paths.directory.with_name("2"))
    paths.directory.mkdir(mode=0o700)
    jobs.remember(replace(job, id="13", paths=paths))
    return job


def view_of_two(job: Job, *, is_lost: bool) -> Json:
    """Return the view of a reservation of two nodes, the second one of which may be lost."""
    replies = [node("node0"), node("node1")]
    hold(replies, "dev", procs=1)
    answers = [NodeAnswer(reply.node.node_id, reply=reply) for reply in replies]
    answers[1].error = "no route" if is_lost else ""
    return build_view(job.pool, answers, current_owner(), NOW, Before())


async def test_a_job_whose_node_is_lost_is_told_of_and_costs_nothing_when_it_has_ended(
    two_jobs: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "trouble", lambda _: "lab job 13 was cancelled: %mesh replace dev asks for another")
    monkeypatch.setattr(jobs, "has_ended", lambda job: job.id == "13")
    fate = Fate()
    for is_lost, price, message in (
        (False, 25.0, None),
        (True, 12.5, "lab job 13 was cancelled: Replace nodes… (on the card) asks for another"),
        (False, 25.0, None),
    ):
        view = view_of_two(two_jobs, is_lost=is_lost)
        await fate.note(view)
        [held] = view["reservations"].values()
        assert (held["price_per_hour"], view["pool"]["message"]) == (price, message)


async def test_an_engine_that_takes_its_time_holds_no_view_of_nodes_up(
    two_jobs: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    says, asked = threading.Event(), []

    def has_ended(job: Job) -> bool:
        asked.append(job.id)
        return says.wait(60.0) and job.id == "13"

    monkeypatch.setattr(jobs, "trouble", lambda _: "")
    monkeypatch.setattr(jobs, "has_ended", has_ended)
    monkeypatch.setattr(live, "ENGINE_ANSWERS_S", 0.0)
    fate, view = Fate(), view_of_two(two_jobs, is_lost=True)
    for _ in range(2):
        await fate.note(view)
        assert view["reservations"]["id-dev"]["price_per_hour"] == 25.0, "it has not said otherwise"
    says.set()
    monkeypatch.setattr(live, "ENGINE_ANSWERS_S", 60.0)
    await fate.note(view)
    assert view["reservations"]["id-dev"]["price_per_hour"] == 12.5
    assert asked == ["12", "13"], "once"


def test_a_job_is_ended_also_when_none_of_its_nodes_answers(
    panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*_: object, by: str) -> Released:
        return Released(failed=[NodeUnreachable("n1 does not answer", "n1")])

    hold([pool.fakes[0].reply], "dev", procs=1)
    job = remembered("dev", served=True)
    monkeypatch.setattr(jobs, "job_of_pool", lambda _: job)
    monkeypatch.setattr(jobs, "end_all", lambda pool: ["n1"] if pool == job.pool else [])
    monkeypatch.setattr(actions, "release", unreachable)
    done = finished(panel, "release", reservation="id-dev")
    assert (done["state"], done["result"]) == ("done", {"text": str(ReleasedLater("n1"))})


def test_attaching_names_the_pool_where_that_is_not_clear_and_whose_it_is(
    panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold([pool.fakes[0].reply], "dev", procs=1)
    held = pool.fakes[0].reply.reservations
    lines = "%load_ext monarch_nb\n%mesh attach dev"
    assert ask(panel, "attach_lines", reservation="id-dev") == {"code": lines}
    monkeypatch.setenv(POOL_VARIABLE, "lab")
    panel.live.wake()
    assert ask(panel, "attach_lines", reservation="id-dev") == {"code": f"{lines} --pool local"}
    monkeypatch.delenv(POOL_VARIABLE)
    remembered("eval", served=True)
    panel.live.wake()
    assert ask(panel, "attach_lines", reservation="id-dev") == {"code": f"{lines} --pool local"}
    held[0].owner, held[0].right = "anna", pb.RIGHT_READ
    panel.live.wake()
    lines = "%load_ext monarch_nb\n%mesh attach anna/dev --pool local"
    assert ask(panel, "attach_lines", reservation="id-dev") == {"code": lines}

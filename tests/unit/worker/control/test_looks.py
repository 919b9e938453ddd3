"""What one look at a stack tells, and shares of many."""

from __future__ import annotations

import doctest
import sys
import threading
from typing import Any, cast

import pytest

from monarch_nb.worker.control import sampler
from monarch_nb.worker.control.sampler import Look, Looker, Seen, Share, Window, computes, kind_of, switching_within
from monarch_nb.worker.groups import calls
from monarch_nb.worker.user_code import PACKAGE

SITE = "/env/lib/python3.11/site-packages"
LINEAR, CELL = f"{SITE}/torch/nn/modules/linear.py", "/tmp/cell.py"
FETCH = f"{SITE}/torch/utils/data/_utils/fetch.py"
THREADING = threading.__file__


def test_docstring_examples() -> None:
    assert doctest.testmod(sampler).failed == 0


@pytest.mark.parametrize(
    ("files", "collective", "is_busy", "has_gpu", "kind"),
    [
        ([LINEAR, CELL], "", True, False, ("torch", "")),
        ([THREADING, LINEAR, CELL], "", True, False, ("torch", "")),
        ([CELL], "", True, False, ("python", "")),
        ([f"{SITE}/tokenizers/x.py", LINEAR, CELL], "", True, False, ("python", "")),
        ([LINEAR, CELL], "", False, False, ("waiting", "")),
        ([LINEAR, CELL], "", False, True, ("torch", "")),
        ([THREADING, FETCH, CELL], "", False, False, ("loader", "")),
        ([LINEAR, CELL], "all_reduce", True, True, ("collective", "all_reduce")),
        ([LINEAR, CELL], "backward", False, False, ("collective", "backward")),
        ([LINEAR, CELL], "backward", False, True, ("torch", "")),
        ([f"{PACKAGE}worker/debug/debugger.py", CELL], "all_reduce", False, False, ("breakpoint", "")),
    ],
)
def test_what_a_thread_does(
    files: list[str], collective: str, is_busy: bool, has_gpu: bool, kind: tuple[str, str]
) -> None:
    assert kind_of(files, collective, is_busy=is_busy, has_gpu=has_gpu) == kind


def test_a_thread_that_sleeps_computes_when_it_used_a_processor() -> None:
    seen: list[tuple[str, float | None]] = [("R", 0.0), ("S", None), ("S", 0.9), ("S", 0.1)]
    computing = [computes(processor, lambda state=state: state) for state, processor in seen]  # type: ignore[misc]
    assert computing == [True, True, True, False]


def test_shares_are_of_the_last_seconds_and_name_the_line_of_most_looks() -> None:
    window = Window(length_s=5)
    torch = [Look("torch", "", line) for line in ("a.py:1", "a.py:2", "a.py:2")]
    waits = [Look("collective", "all_reduce", "a.py:3"), Look("collective", "barrier", "a.py:4")]
    for second, look in enumerate([Look("idle"), *torch, *waits]):
        window.add(10 + second, look, 0)
    window.add(15.5, Look("torch", "", "a.py:2"), 0)
    assert window.shares() == [
        Share("torch", "", 4, "a.py:2"),
        Share("collective", "all_reduce", 1, "a.py:3"),
        Share("collective", "barrier", 1, "a.py:4"),
    ]
    later = [(share.kind, share.looks) for share in window.shares(since_s=14)]
    assert later == [("collective", 1)] * 2 + [("torch", 1)], "who looks for a moment hears of no time before"
    window.clear()
    assert window.shares() == []


def test_a_run_that_has_ended_is_forgotten_at_once_and_an_endpoint_is_not() -> None:
    def told_after(window: Window, *looks: Look) -> list[tuple[str, int]]:
        for tenth, look in enumerate([*looks, *[Look("idle")] * 6]):
            window.add(tenth / 10, look, 0)
        return [(share.kind, share.looks) for share in window.shares()]

    trains = Look("torch", in_run=True)
    assert told_after(Window(), trains, trains) == [("idle", 6)]
    assert told_after(Window(), trains, Look("idle"), trains) == [("idle", 6)]
    short = Window(ended_s=0.7)
    assert told_after(short, trains, trains) == [("idle", 6), ("torch", 2)], "the next run may follow"
    assert told_after(Window(), Look("torch"), Look("torch")) == [("idle", 6), ("torch", 2)], "it is called again"

    seen = Seen(threading.get_ident(), threading.get_native_id(), [], "train")
    assert Looker(lambda: seen, cast("Any", None), lambda: 0)._look().in_run
    assert not Looker(lambda: seen._replace(run_id=""), cast("Any", None), lambda: 0)._look().in_run


def test_steps_a_second_count_from_the_first_step_that_was_seen_to_end() -> None:
    window, rare = Window(), Window(length_s=5)
    assert window.steps_per_s(0) is None
    for tenth in range(20):  # steps of 0.4 s, the first of which had begun before
        window.add(tenth / 10, Look("torch"), 7 + (tenth + 2) // 4)
    assert window.steps_per_s(2.0) == pytest.approx(2.5)
    assert window.steps_per_s(5.3) == pytest.approx(3 / 4.7), "it steps no more"
    for second in range(40):  # a step of 10 s
        rare.add(second, Look("torch"), second // 10)
    assert rare.steps_per_s(40) == pytest.approx(0.1), "they are kept longer than looks"


def test_steps_of_another_run_do_not_count() -> None:
    running = ["train"]

    def seen() -> Seen:
        return Seen(threading.get_ident(), threading.get_native_id(), [], running[0])

    looker = Looker(seen, cast("Any", None), lambda: 0)

    def rate_after(run: str, seconds: range) -> float | None:
        running[0] = run
        for second in seconds:
            looker._look()
            looker._window.add(second, Look("python"), min(second, 4))
        return looker._window.steps_per_s(seconds[-1])

    assert rate_after("train", range(5)) == pytest.approx(1)
    assert rate_after("busy", range(5, 8)) is None


def test_a_wait_for_work_is_a_collective_only_where_the_line_waits() -> None:
    class Work:
        def wait(self) -> str:
            return calls.glimpse(sys._getframe(1), lambda code, number: "work.wait()")

        poll = wait

    work = Work()
    assert (work.wait(), work.poll()) == ("wait", "")


def test_threads_switch_soon_while_somebody_looks_and_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    with switching_within(0.001):
        with switching_within(0.0002):
            assert sys.getswitchinterval() == pytest.approx(0.0002)
        assert sys.getswitchinterval() == pytest.approx(0.001)
    assert sys.getswitchinterval() == before
    try:
        with switching_within(0.001):
            sys.setswitchinterval(0.003)
        assert sys.getswitchinterval() == pytest.approx(0.003), "the user's own"
    finally:
        sys.setswitchinterval(before)

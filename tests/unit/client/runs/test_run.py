"""A run as its client sees it: what is sent to which node, and what listeners are told."""

from __future__ import annotations

import asyncio
import enum
import json
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from monarch_nb.client.connections import events
from monarch_nb.client.runs import interrupting, waits
from monarch_nb.client.runs import run as run_module
from monarch_nb.client.runs.interrupting import InterruptReport
from monarch_nb.client.runs.run import OnError
from monarch_nb.deaths import signal_name
from monarch_nb.errors import PickleError, ProcessGroupAborted, RunFailed, RunNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.client.runs.run_harness import Harness, out, packed, several_turns


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for some seconds elsewhere."""
    monkeypatch.setattr(interrupting, "GAP_S", 0.0)
    for name in ("ABORT_AFTER_S", "LINE_AFTER_S"):
        monkeypatch.setattr(run_module, name, 0.0)


IN_ALL_REDUCE = run_pb2.Where(state=run_pb2.Where.STATE_COLLECTIVE, collective="all_reduce")


def handling(since_s: int, but: Sequence[int] = ()) -> Callable[..., Any]:
    """Return a `where` of ranks that handle an interrupt, but for some that it has not reached."""

    async def where(ranks: Iterable[int], run_id: str) -> dict[int, run_pb2.Where]:
        told = {rank: run_pb2.Where(line="a.py:7") for rank in ranks}
        for rank in told.keys() - {*but}:
            told[rank].handles_s = since_s
        return told

    return where


async def hang(harness: Harness) -> None:
    """Let rank 7 fail while the others wait for it in a collective; wait until that is said."""
    harness.core.places = dict.fromkeys(range(7), IN_ALL_REDUCE)
    harness.finished(7, outcome=run_pb2.OUTCOME_ERROR, failure=run_pb2.Failure(name="KeyError"))
    while not harness.of(events.Notice):
        await asyncio.sleep(0)


def raise_interrupt(_: float | None) -> None:
    raise KeyboardInterrupt


class TestListeners:
    async def test_after_the_end_output_comes_before_the_end(self) -> None:
        harness = Harness(listen=False)
        harness.start()
        harness.queued()
        harness.finished(*range(8))
        assert harness.run.done
        harness.run._add_listener(harness.told.append)
        assert [kind for kind, _ in harness.session.sent][-1] == "replay"
        assert harness.of(events.Finished) == []
        harness.output(0, out(b"text\n"))
        harness.finished(*range(7))
        harness.output(7, out(b"text\n"))
        harness.finished(7)
        assert [type(event) for event in harness.told[-3:]] == [events.Text, events.Text, events.Finished]
        assert len(harness.of(events.Result)) == 8

    async def test_after_the_end_of_a_run_that_a_node_has_forgotten(self) -> None:
        harness = Harness([0], listen=False)
        harness.start()
        harness.queued()
        harness.finished(0)
        harness.run._add_listener(harness.told.append)
        harness.run.on_refused(RunNotFound("forgotten"))
        assert isinstance(harness.told[-1], events.Finished)
        assert harness.run.result(0) == [None]

    async def test_a_second_gets_results_and_what_comes(self, harness: Harness) -> None:
        harness.start()
        harness.queued()
        harness.output(0, out(b"before\n"))
        harness.finished(3)
        second: list[events.Event] = []
        harness.run._add_listener(second.append)
        harness.output(0, out(b"after\n"))
        assert [event for event in second if isinstance(event, events.Text)] == [events.Text(0, "stdout", "after\n")]
        assert [event.rank for event in second if isinstance(event, events.Result)] == [3]
        assert "replay" not in [kind for kind, _ in harness.session.sent]

    async def test_one_that_fails_costs_nothing(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        def broken(_: events.Event) -> None:
            raise ZeroDivisionError

        harness.run._add_listener(broken)
        harness.start()
        harness.queued()
        harness.output(0, out(b"x\n"))
        harness.finished(*range(8), value_inline=packed(7))
        assert harness.run.result(0) == [7] * 8
        assert "a listener failed" in caplog.text
        assert isinstance(harness.told[-1], events.Finished)


class TestLine:
    """Somebody waits in line for the run's nodes."""

    def said(self, harness: Harness) -> list[str]:
        return [notice.text for notice in harness.of(events.Notice) if notice.key == events.LINE_NOTICE]

    async def test_also_when_they_waited_before_it_began(self) -> None:
        harness = Harness()
        harness.core.line_text = "bob waits"
        harness.start()
        await several_turns()
        assert self.said(harness) == ["bob waits"]
        harness.finished(*range(8))

    async def test_a_short_one_says_nothing(self, harness: Harness) -> None:
        harness.core.line_text = "bob waits"
        harness.run.tell_line()
        harness.finished(*range(8))
        await several_turns()
        assert self.said(harness) == []


class TestOutput:
    def text(self, harness: Harness, rank: int = 0) -> str:
        return "".join(event.text for event in harness.of(events.Text) if event.rank == rank)

    async def test_characters_cut_between_messages(self, harness: Harness) -> None:
        for byte in "×é😀\n".encode():
            harness.output(0, out(bytes([byte])))
            harness.output(1, out(b"x"))
        assert self.text(harness) == "×é😀\n"

    async def test_what_several_ranks_wrote_alike_is_one_event_for_who_takes_it(self, harness: Harness) -> None:
        together: list[events.Event] = []
        harness.run._add_listener(events.takes_many(lambda event: together.append(event)))
        first, second = (bytes([byte]) for byte in "é".encode())
        harness.output(1, out(first))
        for data in (second, b"\n"):
            alike = pb.RankOutput(rank=0, also=[1, 2, 3], items=[out(data)])
            harness.run.on_output(pb.Output(run_id="run-id", ranks=[alike]))
        assert [event for event in together if isinstance(event, events.Text | events.TextOfMany) and event.text] == [
            events.TextOfMany((0, 2, 3), "stdout", "\\xa9"),
            events.Text(1, "stdout", "é"),
            events.TextOfMany((0, 1, 2, 3), "stdout", "\n"),
        ]
        assert [self.text(harness, rank) for rank in range(4)] == ["\\xa9\n", "é\n", "\\xa9\n", "\\xa9\n"]

    async def test_streams_do_not_mix_and_bytes_may_be_no_text(self, harness: Harness) -> None:
        whole = "é".encode()
        harness.output(0, out(whole[:1]), pb.OutputItem(stderr=b"err\n"), out(whole[1:]))
        found = [(event.stream, event.text) for event in harness.of(events.Text) if event.text]
        assert found == [("stderr", "err\n"), ("stdout", "é")]
        harness.output(1, out(b"caf\xe9 \xff\nx\xe2\x82"))
        harness.finished(*range(8))
        assert self.text(harness, 1) == "caf\\xe9 \\xff\nx\\xe2\\x82", "half a character at the end, too"

    async def test_a_flood_is_cut_out_between_characters(self, harness: Harness) -> None:
        elided = pb.Elided(lines=7, size_bytes=1000)
        harness.output(0, out(b"x\xe2\x82"), pb.OutputItem(elided=elided), out("€\n".encode()))
        assert [event for event in harness.told if not isinstance(event, events.Notice)] == [
            events.Text(0, "stdout", "x"),
            events.Text(0, "stdout", "\\xe2\\x82"),
            events.Elided(0, "stdout", 7, 1000),
            events.Text(0, "stdout", "€\n"),
        ]

    async def test_a_flood_on_many_ranks_is_one_event_a_stream(self, harness: Harness) -> None:
        harness.output(2, out(b"x\xe2\x82"))
        counted = pb.Counted(
            ranks=[1, 2, 3],
            cursors=[run_pb2.Cursor()] * 3,
            stdout_lines=[5, 0, 7],
            stdout_bytes=[50, 9, 70],
            stderr_lines=[0, 0, 1],
            stderr_bytes=[0, 0, 10],
        )
        after = pb.RankOutput(rank=1, items=[out(b"the end\n")])
        harness.run.on_output(pb.Output(run_id="run-id", ranks=[after], counted=counted))
        assert [event for event in harness.told if not isinstance(event, events.Notice)] == [
            events.Text(2, "stdout", "x"),
            events.Text(2, "stdout", "\\xe2\\x82"),
            events.ElidedOfMany((1, 2, 3), "stdout", (5, 0, 7), (50, 9, 70)),
            events.ElidedOfMany((3,), "stderr", (1,), (10,)),
            events.Text(1, "stdout", "the end\n"),
        ]

    async def test_displays(self, harness: Harness) -> None:
        content = {"data": {"text/plain": "x"}, "metadata": {"m": 1}, "transient": {"display_id": "d"}}
        for kind, named in ((run_pb2.Display.KIND_SHOW, "show"), (run_pb2.Display.KIND_UPDATE, "update")):
            harness.output(2, pb.OutputItem(display={"kind": kind, "content_json": json.dumps(content)}))
            assert harness.told[-1] == events.Display(2, named, {"text/plain": "x"}, {"m": 1}, "d")  # type: ignore[arg-type]
        clear = run_pb2.Display(kind=run_pb2.Display.KIND_CLEAR, content_json='{"wait": true}')
        harness.output(2, pb.OutputItem(display=clear))
        assert harness.told[-1] == events.Display(2, "clear", {"wait": True})
        harness.output(2, pb.OutputItem(display=run_pb2.Display()))
        assert harness.told[-1] == events.Display(2, "show")

    async def test_notices(self, harness: Harness) -> None:
        harness.output(3, pb.OutputItem(notice="the log can not be read"))
        assert harness.told[-1] == events.Notice("rank 3: the log can not be read", key="rank3")

    async def test_a_node_that_does_not_answer_is_named_and_the_notice_goes(self, harness: Harness) -> None:
        harness.run.on_link(harness.nodes[1], up=False)
        harness.run.on_link(harness.nodes[1], up=True)
        down, up = harness.of(events.Notice)
        assert down.text == (
            "node1 does not answer; its ranks are as they were: monarch-nb up starts its allocator again"
        )
        assert (up.key, up.text) == (down.key, "")


class TestResults:
    async def test_it_is_done_when_every_rank_is(self, harness: Harness) -> None:
        harness.finished(*range(7))
        assert not harness.run.done
        with pytest.raises(TimeoutError, match=r"goes on after 0 s on rank 7"):
            harness.run.result(0.0)
        harness.finished(7)
        harness.finished(7)
        assert harness.run.done
        assert len(harness.of(events.Finished)) == 1
        assert len(harness.of(events.Result)) == 8

    async def test_a_timeout_says_how_long_and_what_to_do(self, harness: Harness) -> None:
        harness.run.number, harness.run.cell_number = 12, 4
        assert str(harness.run.timed_out(1.5)) == (
            "run 12, cell [4] goes on after 1.5 s on ranks 0-7: run.result() waits for it (mesh.running() yields the "
            "Run), mesh.interrupt() stops it; variables stay"
        )

    async def test_failures_are_grouped_and_good_values_kept(self, harness: Harness) -> None:
        harness.finished(0, 1, 2, value_inline=packed("good"))
        failure = run_pb2.Failure(name="KeyError", message="'x'", traceback="trace", where="train.py:41")
        harness.finished(3, 4, 5, outcome=run_pb2.OUTCOME_ERROR, failure=failure)
        harness.finished(6, outcome=run_pb2.OUTCOME_CANCELLED)
        harness.finished(7, outcome=run_pb2.OUTCOME_INTERRUPTED, failure=run_pb2.Failure(name="KeyboardInterrupt"))
        with pytest.raises(RunFailed) as raised:
            harness.run.result(0)
        assert [(ranks, f.kind, f.name) for ranks, f in raised.value.groups()] == [
            ([3, 4, 5], "error", "KeyError"),
            ([6], "cancelled", "Cancelled"),
            ([7], "interrupted", "KeyboardInterrupt"),
        ]
        assert raised.value.failures[4].host == "node1"
        assert raised.value.run is harness.run
        assert harness.run.values == ["good"] * 3 + [None] * 5

    @pytest.mark.parametrize(
        ("death", "says"),
        [
            ({"signal": 9, "likely_cause": "someone"}, "killed by signal 9 (SIGKILL): someone"),
            ({"exit_code": 3, "likely_cause": "itself"}, "exited with code 3: itself"),
            ({"likely_cause": "exit status unknown"}, "exit status unknown"),
            ({}, "ended"),
        ],
    )
    async def test_deaths(self, harness: Harness, death: dict[str, Any], says: str) -> None:
        harness.finished(3, outcome=run_pb2.OUTCOME_DIED, death={**death, "stderr_tail": ["last", "words"]})
        [failure] = harness.run.failures
        assert (failure.kind, failure.rank, failure.host) == ("died", 3, "node0")
        assert failure.message.startswith(says)
        assert failure.stderr_tail == ("last", "words")
        assert (failure.signal, failure.exit_code) == (death.get("signal"), death.get("exit_code"))

    def test_signals_are_named(self) -> None:
        assert {signal_name(each) for each in range(1, 32)} == {each.name for each in signal.Signals if each < 32}
        assert signal_name(11) == "SIGSEGV"
        assert signal_name(signal.SIGRTMIN + 5) == "SIGRTMIN+5"

    def test_signals_are_those_of_the_ranks_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a Mac 7 is SIGEMT, and 10 is SIGBUS."""
        monkeypatch.setattr(signal, "Signals", enum.IntEnum("Signals", {"SIGEMT": 7, "SIGBUS": 10}))
        monkeypatch.delattr(signal, "SIGRTMIN")
        assert (signal_name(7), signal_name(36)) == ("SIGBUS", "SIGRTMIN+2")

    async def test_values_that_could_not_be_pickled_are_named(self, harness: Harness) -> None:
        harness.finished(*range(6), value_error="can not pickle the result['gen'], a generator")
        harness.finished(6, 7, value_inline=packed(1))
        with pytest.raises(
            PickleError, match=r"^ranks 0-5: can not pickle the result\['gen'\], a generator$"
        ) as raised:
            harness.run.result(0)
        assert raised.value.ranks == list(range(6))
        assert raised.value.run is harness.run
        *lost, good, same = harness.run.kept_values
        assert (good, same) == (1, 1)
        assert [(type(each), each.ranks) for each in lost] == [(PickleError, [rank]) for rank in range(6)]

    async def test_bundles(self) -> None:
        harness = Harness([0])
        bundle = {"data": {"text/plain": "7"}, "metadata": {"a": 1}}
        harness.finished(0, bundle_json=json.dumps(bundle), duration_s=1.5)
        [result] = harness.of(events.Result)
        assert (result.bundle, result.metadata) == ({"text/plain": "7"}, {"a": 1})
        assert (result.outcome, result.duration_s, result.failure) == ("ok", 1.5, None)

    async def test_large_values_are_fetched_before_it_is_done(self) -> None:
        harness = Harness([0, 1])
        harness.finished(0, value_blob="big")
        harness.finished(1, value_blob="gone")
        assert not harness.run.done
        assert await asyncio.to_thread(harness.run.wait, 10)
        with pytest.raises(PickleError, match="rank 1: the value could not be fetched: not kept any more"):
            _ = harness.run.values
        assert harness.run._values.of(0) == "from big"

    async def test_who_loses_its_peers_before_its_interrupt_comes_was_interrupted(self, harness: Harness) -> None:
        torn = run_pb2.Failure(name=ProcessGroupAborted.__name__, message="interrupted in barrier")
        harness.finished(0, outcome=run_pb2.OUTCOME_ERROR, failure=torn)
        harness.run.send_interrupt()
        harness.finished(1, outcome=run_pb2.OUTCOME_ERROR, failure=torn)
        harness.finished(2, outcome=run_pb2.OUTCOME_ERROR, failure=run_pb2.Failure(name="KeyError"))
        assert [failure.kind for failure in harness.run.failures] == ["error", "interrupted", "error"]
        assert [result.outcome for result in harness.of(events.Result)] == ["error", "interrupted", "error"]

    @pytest.mark.parametrize("goes", ["before", "meanwhile"])
    async def test_an_interrupt_does_not_wait_for_a_node_that_does_not_answer(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, goes: str
    ) -> None:
        monkeypatch.setattr(interrupting, "STOP_WAIT_S", 60.0)
        harness.finished(0)
        if goes == "before":
            harness.run.on_link(harness.nodes[1], up=False)
        interrupt = asyncio.ensure_future(harness.run.stop_ranks(kill_stuck=False))
        await asyncio.sleep(0)
        harness.finished(1, 2, 3, outcome=run_pb2.OUTCOME_INTERRUPTED)
        if goes == "meanwhile":
            harness.run.on_link(harness.nodes[1], up=False)
        report = await asyncio.wait_for(interrupt, 10.0)
        assert (report.stopped, report.free, report.stuck) == ((1, 2, 3), (0,), {})
        assert report.unreachable == dict.fromkeys(range(4, 8), "node1")
        assert harness.core.asked_where == []

    async def test_a_node_that_is_soon_back_is_waited_for(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupting, "GAP_S", 60.0)
        harness.run.on_link(harness.nodes[1], up=False)
        harness.finished(*range(4))
        interrupt = asyncio.ensure_future(harness.run.stop_ranks(kill_stuck=False))
        await several_turns()
        harness.run.on_link(harness.nodes[1], up=True)
        harness.finished(*range(4, 8), outcome=run_pb2.OUTCOME_INTERRUPTED)
        assert str(await asyncio.wait_for(interrupt, 10.0)) == "interrupted ranks 4-7"

    async def test_after_it_what_can_be_reached_is_waited_for(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupting, "STOP_WAIT_S", 0.05)
        harness.start()
        harness.queued()
        harness.run.on_link(harness.nodes[1], up=False)
        harness.finished(0, 1, outcome=run_pb2.OUTCOME_INTERRUPTED)
        report = await harness.run.stop_ranks(kill_stuck=False)
        assert (list(report.stuck), list(report.unreachable)) == ([2, 3], [4, 5, 6, 7])
        assert not harness.run.wait_freed(0), "ranks 2 and 3 may still stop by themselves"
        harness.finished(2, 3, outcome=run_pb2.OUTCOME_INTERRUPTED, group_aborted=True)
        assert await asyncio.to_thread(harness.run.wait_freed, 10.0)
        assert not harness.run.done
        assert harness.session.sent[-1] == ("withdraw", [0, 1]), "the others go on when their node is there again"
        assert harness.core.aborted == [("a run was interrupted in a collective", 5)], "not what a newer run has made"
        harness.finished(*range(4, 8))
        assert harness.run.done
        assert len(harness.core.aborted) == 1, "there may be a new group since"

    async def test_what_finished_while_it_was_asked_where_it_hangs_did_stop(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupting, "STOP_WAIT_S", 0.0)

        async def where(_: list[int], run_id: str) -> dict[int, run_pb2.Where]:
            harness.finished(*range(7), outcome=run_pb2.OUTCOME_INTERRUPTED)
            harness.run.on_link(harness.nodes[1], up=False)
            return {}

        monkeypatch.setattr(harness.core, "where", where)
        report = await harness.run.stop_ranks(kill_stuck=False)
        assert (report.stopped, report.stuck, report.unreachable) == (tuple(range(7)), {}, {7: "node1"})

    async def test_who_handles_an_interrupt_is_left_alone_and_who_can_not_hear_it_is_killed_by_the_next(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupting, "STOP_WAIT_S", 0.0)
        harness.core.where = handling(12, but=[3])  # type: ignore[method-assign]
        report = await harness.run.stop_ranks(kill_stuck=False)
        assert (list(report.stuck), list(report.handling), report.kills) == ([3], [0, 1, 2, 4, 5, 6, 7], {3})
        [said] = [notice.text for notice in harness.of(events.Notice) if notice.key == "stuck"]
        assert said == (
            "rank 3 does not stop (at a.py:7): interrupt again within 10 s to kill and restart it; "
            "ranks 0-2,4-7 handle the interrupt (since 12 s, at a.py:7)"
        )
        assert harness.run.may_kill
        assert (await harness.run.stop_ranks(kill_stuck=True)).restarted == (3,)
        monkeypatch.setattr(interrupting, "KILLS_WITHIN_S", 0.0)
        await harness.run.stop_ranks(kill_stuck=False)
        assert not harness.run.may_kill, "a later one is about something else"

    async def test_who_goes_on_after_a_second_one_is_killed_by_a_third(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupting, "STOP_WAIT_S", 0.0)
        harness.core.where = handling(1)  # type: ignore[method-assign]
        doomed = [sorted((await harness.run.stop_ranks(kill_stuck=False)).kills) for _ in range(2)]
        assert doomed == [[], list(range(8))]

    async def test_only_ranks_that_can_be_reached_are_killed(self, harness: Harness) -> None:
        harness.finished(0)
        harness.run.on_link(harness.nodes[1], up=False)
        interrupt = asyncio.ensure_future(harness.run.stop_ranks(kill_stuck=True))
        await asyncio.sleep(0)
        harness.finished(1, 2, 3, outcome=run_pb2.OUTCOME_DIED)
        assert (await asyncio.wait_for(interrupt, 10.0)).restarted == (1, 2, 3)
        assert harness.core.restarted == [(1, 2, 3)]

    @pytest.mark.parametrize(
        ("outcome", "stays"), [("INTERRUPTED", "ranks 0-6 waited in all_reduce for rank 7"), ("OK", "")]
    )
    async def test_who_waited_for_whom_stays_when_they_had_to_be_freed(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, outcome: str, stays: str
    ) -> None:
        monkeypatch.setattr(waits, "WAITS_INTERVAL_S", 0.0)
        await hang(harness)
        harness.finished(*range(7), outcome=run_pb2.Outcome.Value(f"OUTCOME_{outcome}"))
        [*_, last] = [notice.text for notice in harness.of(events.Notice) if notice.key == "waits"]
        assert last.partition(",")[0] == stays

    async def test_nothing_stays_of_a_script_that_hangs(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(waits, "WAITS_INTERVAL_S", 0.0)
        harness.run.is_script = True
        await hang(harness)
        [said] = [notice.text for notice in harness.of(events.Notice) if notice.key == "waits"]
        assert said.endswith("which raised KeyError. Press ■ (or %mesh interrupt) to end the script.")

    @pytest.mark.parametrize(("outcome", "interrupted"), [("OK", False), ("ERROR", True), ("DIED", True)])
    async def test_on_error_abort_interrupts_the_others_when_a_rank_failed(
        self, outcome: str, interrupted: bool
    ) -> None:
        harness = Harness(on_error="abort")
        taken_along = run_pb2.Failure(name=ProcessGroupAborted.__name__)
        if interrupted:
            harness.finished(0, 1, outcome=run_pb2.OUTCOME_ERROR, failure=taken_along)
        harness.finished(7, outcome=run_pb2.Outcome.Value(f"OUTCOME_{outcome}"))
        await several_turns()
        assert (("cancel", "run-id") in harness.session.sent) == interrupted
        told = [notice.text for notice in harness.of(events.Notice) if notice.key == "abort"]
        assert told == (["ranks 2-6 interrupted: rank 7 failed"] if interrupted else [])

    @pytest.mark.parametrize(("on_error", "freed"), [("free", True), ("wait", False)])
    @pytest.mark.parametrize("listen", [True, False])
    async def test_ranks_that_wait_in_vain_for_one_that_failed_are_freed(
        self, monkeypatch: pytest.MonkeyPatch, on_error: OnError, freed: bool, listen: bool
    ) -> None:
        for name in ("WAITS_INTERVAL_S", "APART_AFTER_S"):
            monkeypatch.setattr(waits, name, 0.0)
        harness = Harness(on_error=on_error, listen=listen)
        call = run_pb2.Call(collective="all_reduce", group="the default group")
        for rank in range(8):
            harness.core.places[rank] = run_pb2.Where(
                state=run_pb2.Where.STATE_IDLE if rank == 7 else run_pb2.Where.STATE_COLLECTIVE,
                collective="" if rank == 7 else "all_reduce",
                call=None if rank == 7 else call,
                calls={"the default group": 3 if rank == 7 else 4},
                world_size=8,
                world_rank=rank,
            )
        harness.finished(7, outcome=run_pb2.OUTCOME_ERROR, failure=run_pb2.Failure(name="KeyError"))
        while not harness.run._waits_watch.told and listen:
            await asyncio.sleep(0)
        await several_turns()
        assert (("cancel", "run-id") in harness.session.sent) == freed
        told = [notice.text for notice in harness.of(events.Notice) if notice.key == "abort"]
        [said, *_] = [notice.text for notice in harness.of(events.Notice) if notice.key == "waits"] or [""]
        assert ("This ends by itself in some seconds" in said) == (freed and listen), said
        assert ("Press ■" in said) == (not freed and listen), "nobody is told to press what is not needed"
        said = "ranks 0-6 freed: rank 7 failed and can never join them; all variables stay"
        assert [text.partition(" (")[0] for text in told] == ([said] if freed and listen else [])

    async def test_who_waits_for_a_hang_is_told_of_it(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits, "WAITS_INTERVAL_S", 0.0)
        waiting = asyncio.ensure_future(asyncio.to_thread(harness.run.wait_hang, 10.0))
        while len(harness.run._listeners) < 2:
            await asyncio.sleep(0)
        await hang(harness)
        sentence = await waiting
        assert sentence.startswith("Stuck: ranks 0-6 wait in all_reduce for rank 7, which raised KeyError")
        assert await asyncio.to_thread(harness.run.wait_hang, 0.0) == sentence, "it was said before"
        ended = Harness()
        ended.finished(*range(8))
        assert await asyncio.to_thread(ended.run.wait_hang, 10.0) == "", "it does not hang"

    async def test_ctrl_c_tells_which_rank_has_failed(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        failure = run_pb2.Failure(name="NotFinite", message="the loss of step 3 is nan")
        harness.finished(1, outcome=run_pb2.OUTCOME_ERROR, failure=failure)
        report = InterruptReport(stopped=(0, 2))
        monkeypatch.setattr(harness.run, "_free", lambda: report)
        monkeypatch.setattr(harness.run, "wait", raise_interrupt)
        with pytest.raises(KeyboardInterrupt) as raised:
            harness.run.join()
        told = "interrupted ranks 0,2; rank 1 failed: NotFinite: the loss of step 3 is nan"
        assert str(raised.value) == told

"""The runs of a mesh of one node against a scripted allocator: every break is survived, every run arrives once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.connections import session as module
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.session import MeshSession
from monarch_nb.client.pools import pool as pools
from monarch_nb.errors import CertificateRefused, VersionMismatch
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.rpc.status import error_to_json
from unit.client.connections.scripted import Listener, Scripted, serving


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    made = Connection("node0", f"unix:{tmp_path}/s")
    yield made
    await made.close()


@pytest.fixture
async def session(connection: Connection) -> AsyncIterator[MeshSession]:
    made = MeshSession("m", {0: connection}, 2)
    yield made
    made.close()


def submit(run_id: str = "a", *, quiet: bool = False) -> pb.Submit:
    return pb.Submit(mesh_id="m", run=run_pb2.RunSpec(run_id=run_id), give_number=True, quiet=quiet)


def queued(number: int = 3) -> pb.Queued:
    return pb.Queued(run_id="a", number=number, output=number, nodes=pb.NumberRanges(bounds=(0, 1)))


def output(text: bytes, end: int) -> pb.Output:
    cursor = run_pb2.Cursor(stdout_bytes=end)
    return pb.Output(run_id="a", ranks=[pb.RankOutput(rank=0, items=[pb.OutputItem(stdout=text)], cursor=cursor)])


async def submitted(node: Scripted, session: MeshSession) -> Listener:
    """Submit a run, which comes to the node."""
    await node.next("branches")
    listener = Listener()
    session.submit(listener, submit(), 0)
    await node.next("submit")
    return listener


async def accepted(node: Scripted, session: MeshSession) -> Listener:
    """Submit a run that the node takes in."""
    listener = await submitted(node, session)
    node.say(queued=queued())
    assert await listener.until("queued") == 3
    return listener


async def again(node: Scripted, kind: str) -> Any:
    """Break the session; return the first message of the next one, after who is below."""
    node.hang_up()
    await node.next("branches")
    return await node.next(kind)


class TestTheEndOfTheProcess:
    async def test_waits_for_runs_that_the_node_has_not_taken_in(self, node: Scripted, session: MeshSession) -> None:
        await submitted(node, session)
        flush = asyncio.create_task(session.flush())
        assert session.submitting_to() == ["node0"]
        await asyncio.sleep(0)
        assert not flush.done()
        node.say(queued=queued())
        await asyncio.wait_for(flush, 20)
        session.submit(Listener("b", done=True), submit("b"), 0)
        await asyncio.wait_for(session.flush(), 20)

    async def test_does_not_wait_for_what_a_session_that_has_ended_did_not_send(
        self, node: Scripted, session: MeshSession
    ) -> None:
        await accepted(node, session)
        session.collect("a")
        session.close()  # the mesh was released in the meantime
        await asyncio.wait_for(session.flush(), 5)

    @pytest.mark.parametrize("given_up", [TimeoutError, KeyboardInterrupt])
    def test_says_what_may_be_lost(
        self, given_up: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def call(work: Coroutine[Any, Any, None], timeout_s: float) -> None:
            work.close()
            raise given_up

        late = SimpleNamespace(submitting_to=lambda: ["node0", "node2"])
        monkeypatch.setattr(MeshSession, "alive", [late])
        monkeypatch.setattr(pools, "call", call)
        pools._flush_at_exit()
        said = "monarch_nb: the last runs may be lost on node0, node2: no answer before the end\n"
        assert capsys.readouterr().err == said


class TestBreaks:
    async def test_a_run_comes_again_as_it_was_and_output_that_was_here_does_not(
        self, node: Scripted, session: MeshSession
    ) -> None:
        """Its allocator may have been killed before it wrote the run down."""
        listener = await accepted(node, session)
        node.say(output=output(b"text", 4))
        await listener.until("output")
        resubmitted = await again(node, "submit")
        assert (resubmitted.run.number, resubmitted.outputs[0]) == (3, 3)
        assert resubmitted.cursors[0].stdout_bytes == 4

    async def test_an_interrupt_that_a_break_may_have_overtaken_is_sent_again(
        self, node: Scripted, session: MeshSession
    ) -> None:
        """Nobody knows whether it arrived. One that was withdrawn is not sent."""
        await accepted(node, session)
        session.cancel("a")
        await node.next("cancel")
        await again(node, "submit")
        assert (await node.next("cancel")).run_id == "a"
        session.cancel("a")
        await node.next("cancel")
        session.withdraw_cancel("a", [0])
        await again(node, "submit")
        session.end_calls("a")
        await node.next("end_calls")

    async def test_an_interrupt_while_the_node_is_away_is_sent_later(
        self, tmp_path: Path, session: MeshSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "LINK_PATIENCE_S", 0.0)
        session.follow(first := Listener("a"), "m", from_shown=True)
        session.follow(second := Listener("b"), "m", from_shown=True)
        await first.until("down")
        await second.until("down")
        session.cancel("a")
        session.cancel("b")
        session.withdraw_cancel("b", [0])
        async with serving(tmp_path) as node:
            await node.next("branches")
            assert [(await node.next("follow")).run_id for _ in "ab"] == ["a", "b"]
            assert (await node.next("cancel")).run_id == "a"
            await second.until("up")
            session.end_calls("a")
            await node.next("end_calls")

    async def test_calls_that_are_over_are_not_opened_again(self, node: Scripted, session: MeshSession) -> None:
        """The node, which has missed their end, ends them by itself."""
        await accepted(node, session)
        session.end_calls("a")
        await node.next("end_calls")
        await again(node, "follow")

    async def test_who_is_let_in_no_more_is_told_why(self, node: Scripted, session: MeshSession) -> None:
        listener = await accepted(node, session)
        node.refusal = CertificateRefused("was revoked")
        node.hang_up()
        assert await listener.until("refused") is CertificateRefused


class TestWhatComes:
    async def test_a_listener_that_fails_costs_no_other_its_events(
        self, node: Scripted, session: MeshSession, caplog: pytest.LogCaptureFixture
    ) -> None:
        session._on_death = lambda _: 1 // 0  # type: ignore[assignment, return-value]
        listener = await submitted(node, session)
        node.say(rank_died=pb.RankDied(mesh_id="m"))
        node.say(queued=queued())
        assert await listener.until("queued") == 3
        assert "said what can not be taken in" in caplog.text

    async def test_a_version_mismatch_refuses_every_run(self, node: Scripted, session: MeshSession) -> None:
        listener = await submitted(node, session)
        node.say(refused=pb.Refused(error_json=error_to_json(VersionMismatch("protocol 2 here"))))
        assert await listener.until("refused") is VersionMismatch

    async def test_replay_before_the_session_is_open(self, node: Scripted, session: MeshSession) -> None:
        listener = Listener()
        session.submit(listener, submit(quiet=True), 0)
        session.replay(listener, "m")
        await node.next("branches")
        assert not (await node.next("submit")).quiet

    async def test_what_was_shown_is_told_soon_unless_nobody_sees_it(
        self, node: Scripted, session: MeshSession
    ) -> None:
        listener = await submitted(node, session)
        listener.shows = False
        node.say(output=output(b"text", 4))
        await listener.until("output")
        assert not session._shown
        listener.shows = True
        for end in (6, 8):
            node.say(output=output(b"more", end))
            shown = await node.next("shown")
            assert shown.cursors[0].stdout_bytes == end, "the next client begins there"

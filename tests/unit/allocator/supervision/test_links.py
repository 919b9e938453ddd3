"""The connection to a rank: made again while the rank lives, given up when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from monarch_nb.allocator.supervision import links
from monarch_nb.allocator.supervision.links import RankLink
from monarch_nb.errors import SpawnError
from monarch_nb.ground.frames import encode_frame, read_frame
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire


class FakeRank:
    """Says hello on every work connection, except on the first `silent` ones, which it hangs up on."""

    def __init__(self, path: Path, silent: int = 0) -> None:
        self.path, self.silent = path, silent
        self.writers: list[asyncio.StreamWriter] = []
        self.runs: asyncio.Queue[str] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while frame := await read_frame(reader):
            message = wire.ToRank.FromString(frame)
            if message.HasField("run"):
                self.runs.put_nowait(message.run.run_id)
            elif message.hello.channel == wire.Hello.CHANNEL_WORK:
                if self.silent:
                    self.silent -= 1
                    writer.close()
                    return
                hello = wire.RankHello(results=[run_pb2.RankResult(run_id="kept")])
                writer.write(encode_frame(wire.FromRank(hello=hello).SerializeToString()))

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
        self.writers.clear()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self.serve, self.path)
        try:
            yield
        finally:
            server.close()
            self.hang_up()
            self.path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RECONNECT_DELAY_S", 0.0)


def link_to(rank: FakeRank) -> tuple[RankLink, asyncio.Queue[wire.RankHello]]:
    hellos: asyncio.Queue[wire.RankHello] = asyncio.Queue()
    return RankLink(rank.path, lambda _: None, hellos.put_nowait, lambda _: None, lambda _: None), hellos


async def test_a_rank_that_hung_up_is_connected_to_again(tmp_path: Path) -> None:
    """As one does that can not get rid of its result: it has it still, and says so."""
    rank = FakeRank(tmp_path / "rank")
    async with rank.listening():
        link, hellos = link_to(rank)
        await link.connect()
        await asyncio.wait_for(hellos.get(), 10)
        for _ in range(2):
            rank.hang_up()
            hello = await asyncio.wait_for(hellos.get(), 10)
            assert [result.run_id for result in hello.results] == ["kept"]
        link.start(wire.ToRank(run=run_pb2.RunSpec(run_id="next")).SerializeToString())
        assert await asyncio.wait_for(rank.runs.get(), 10) == "next"
        link.close()


async def test_a_rank_that_hangs_up_before_its_hello_is_not_dead(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path / "rank", silent=2)
    async with rank.listening():
        link, hellos = link_to(rank)
        await asyncio.wait_for(link.connect(), 10)
        assert hellos.qsize() == 1
        link.close()


async def test_a_rank_that_ended_before_its_hello_is(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path / "rank", silent=1000)
    link, _ = link_to(rank)
    async with rank.listening():
        connecting = asyncio.create_task(link.connect())
        while rank.silent == 1000:
            await asyncio.sleep(0)
    with pytest.raises(SpawnError):
        await asyncio.wait_for(connecting, 10)


async def test_a_link_that_was_closed_waits_for_nothing(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path / "rank")
    async with rank.listening():
        link, hellos = link_to(rank)
        await link.connect()
        hellos.get_nowait()
        rank.hang_up()
        link.close()
        for _ in range(100):
            await asyncio.sleep(0)
        assert hellos.empty()
        assert not rank.writers

"""The connection to a rank: made again while the rank lives, given up when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.processes import links
from monarch_nb.allocator.processes.links import MailLink, RankLink
from monarch_nb.errors import SpawnError
from monarch_nb.ground.frames import FrameSplitter, encode_frame
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.frame_connection import FrameConnection, connect


class FakeRank:
    """Says hello on every work connection, except on the first `silent` ones, which it hangs up on."""

    def __init__(self, path: Path, silent: int = 0) -> None:
        self.path, self.silent = path, silent
        self.writers: list[asyncio.StreamWriter] = []
        self.runs: asyncio.Queue[str] = asyncio.Queue()
        self.mail: asyncio.Queue[None] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        frames = FrameSplitter()
        while data := await reader.read(1 << 16):
            for message in map(wire.ToRank.FromString, frames.feed(data)):
                if message.HasField("run"):
                    self.runs.put_nowait(message.run.run_id)
                elif message.hello.channel == wire.Hello.CHANNEL_MAIL:
                    self.mail.put_nowait(None)
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
    monkeypatch.setattr(links, "RECONNECT_DELAY_S", 0.0)


def link_to(rank: FakeRank) -> tuple[RankLink, asyncio.Queue[wire.RankHello]]:
    hellos: asyncio.Queue[wire.RankHello] = asyncio.Queue()
    return RankLink(rank.path, lambda message: hellos.put_nowait(message.hello), lambda _: None), hellos


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


@pytest.mark.parametrize("ended", [False, True])
async def test_a_rank_that_hangs_up_before_its_hello_is_not_dead_unless_it_ended(tmp_path: Path, ended: bool) -> None:
    rank = FakeRank(tmp_path / "rank", silent=1000 if ended else 2)
    link, hellos = link_to(rank)
    async with rank.listening():
        connecting = asyncio.create_task(link.connect())
        while rank.silent == 1000:
            await asyncio.sleep(0)
        if not ended:
            await asyncio.wait_for(connecting, 10)
            assert hellos.qsize() == 1
            link.close()
    if ended:
        with pytest.raises(SpawnError):
            await asyncio.wait_for(connecting, 10)


class WithoutDescriptors:
    """Connects, but for some of the calls: then the allocator can open nothing."""

    def __init__(self, *failing: int) -> None:
        self.failing, self.calls = failing, 0

    async def __call__(self, *arguments: Any) -> FrameConnection:
        self.calls += 1
        if self.calls in self.failing:
            raise OSError(errno.EMFILE, "Too many open files")
        return await connect(*arguments)


@pytest.mark.parametrize("failing", [(1, 2, 3), (2, 4, 6)], ids=["none", "only one of two"])
async def test_it_is_tried_again_while_there_are_no_descriptors(
    failing: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = FakeRank(tmp_path / "rank")
    async with rank.listening():
        link, _ = link_to(rank)
        await link.connect()
        monkeypatch.setattr(links, "connect", connecting := WithoutDescriptors(*failing))
        rank.hang_up()
        async with asyncio.timeout(10):
            while connecting.calls <= failing[-1] or not link.is_open:
                await asyncio.sleep(0)
        link.start(wire.ToRank(run=run_pb2.RunSpec(run_id="next")).SerializeToString())
        assert await asyncio.wait_for(rank.runs.get(), 10) == "next"
        link.close()


async def test_so_is_the_connection_for_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = FakeRank(tmp_path / "rank")
    async with rank.listening():
        link = MailLink(rank.path, lambda _: None)
        await link.open()
        await asyncio.wait_for(rank.mail.get(), 10)
        monkeypatch.setattr(links, "connect", WithoutDescriptors(1, 2, 3))
        rank.hang_up()
        await asyncio.wait_for(rank.mail.get(), 10)
        link.close()

"""What a client's session is sent: output as it is written, in batches, bounded for a client that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.logs.output import PART_BYTES, DirectoryWatch
from monarch_nb.allocator.runs import sessions
from monarch_nb.allocator.runs.sessions import MAX_FOLLOWED, Follower, Session
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


@pytest.fixture
async def watch() -> AsyncIterator[DirectoryWatch]:
    made = DirectoryWatch(asyncio.get_running_loop())
    yield made
    made.close()


async def text_of(session: Session, size_bytes: int) -> dict[str, str]:
    """Return what every run's output says until there is so much, with what was elided."""
    texts: dict[str, str] = {}
    received_bytes = 0
    async with asyncio.timeout(20):
        while received_bytes < size_bytes:
            for event in (await session.batches() or pb.SessionEvents()).events:
                for item in (item for rank in event.output.ranks for item in rank.items):
                    received_bytes += len(item.stdout) + item.elided.size_bytes
                    texts[event.output.run_id] = texts.get(event.output.run_id, "") + item.stdout.decode()
    return texts


def write(runs: Path, text: str, output: int = 1, rank: int = 0) -> None:
    (runs / str(output)).mkdir(exist_ok=True)
    with (runs / str(output) / f"{rank}.out").open("a") as file:
        file.write(text)


def follow(
    session: Session, watch: DirectoryWatch, runs: Path, run_id: str = "a", output: int = 1, *, whole: bool = False
) -> Follower:
    run: Any = SimpleNamespace(run_id=run_id, output=output, finished=False)
    follower = Follower(session, watch, run, runs, {0: run_pb2.Cursor()}, whole=whole)
    session.follow(follower)
    return follower


async def test_the_kernels_watch_is_given_back(watch: DirectoryWatch, tmp_path: Path) -> None:
    """A user has a limited number of them."""

    def kernel_watches() -> int:
        return Path(f"/proc/self/fdinfo/{watch._fd}").read_text().count("inotify wd:")

    event = asyncio.Event()
    watch.arm(tmp_path, event.set)
    assert kernel_watches() == 1
    watch.disarm(event.set)
    assert kernel_watches() == 0


class TestFollower:
    async def test_what_is_there_and_what_comes_for_two_sessions(self, watch: DirectoryWatch, tmp_path: Path) -> None:
        write(tmp_path, "one\n")
        both = [Session(), Session()]
        for session in both:
            follow(session, watch, tmp_path)
            assert await text_of(session, 4) == {"a": "one\n"}
        write(tmp_path, "two\n")
        for session in both:
            assert await text_of(session, 4) == {"a": "two\n"}

    @pytest.mark.parametrize("how", ["left", "closed"])
    async def test_only_the_run_with_the_output_is_told(self, watch: DirectoryWatch, tmp_path: Path, how: str) -> None:
        write(tmp_path, "")
        session = Session()
        old = follow(session, watch, tmp_path, "old")
        if how == "left":
            old.leave([0])
        else:
            session.unfollow("old")
        follow(session, watch, tmp_path, "new")
        write(tmp_path, "text of the new run\n")
        assert await text_of(session, 20) == {"new": "text of the new run\n"}

    async def test_the_rest_is_sent_when_a_rank_finishes(self, watch: DirectoryWatch, tmp_path: Path) -> None:
        write(tmp_path, "")
        session = Session()
        follower = follow(session, watch, tmp_path)
        follower._interval_s = 1000.0  # the next look would be late
        write(tmp_path, "the end\n")
        follower.finish([run_pb2.RankResult(rank=0, end=run_pb2.Cursor(stdout_bytes=8))])
        assert await text_of(session, 8) == {"a": "the end\n"}

    async def test_who_wants_it_whole_gets_all_before_the_result_in_bounded_memory(
        self, watch: DirectoryWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "FLOOD_INTERVAL_S", 0.001)
        monkeypatch.setattr(sessions, "MAX_UNSENT_BYTES", PART_BYTES)
        session = Session()
        follower = follow(session, watch, tmp_path, whole=True)
        write(tmp_path, "x" * 20 * PART_BYTES)
        result = run_pb2.RankResult(rank=0, end=run_pb2.Cursor(stdout_bytes=20 * PART_BYTES))
        follower.finish([result])
        text, is_over = 0, False
        async with asyncio.timeout(20):
            while not is_over:
                assert session._unsent_bytes < 4 * PART_BYTES
                for event in (await session.batches() or pb.SessionEvents()).events:
                    text += sum(len(item.stdout) for rank in event.output.ranks for item in rank.items)
                    is_over = event.HasField("finished")
        assert text == 20 * PART_BYTES

    async def test_who_interrupts_does_not_wait_for_all_of_it(
        self, watch: DirectoryWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "MAX_UNSENT_BYTES", 1)
        session = Session()
        follower = follow(session, watch, tmp_path, whole=True)
        write(tmp_path, "x\n" * 20 * PART_BYTES)
        follower.finish([run_pb2.RankResult(rank=0, end=run_pb2.Cursor(stdout_bytes=40 * PART_BYTES))])
        follower.hurry()
        batch = await session.batches()
        assert batch is not None
        told = [rank for event in batch.events for rank in event.output.ranks]
        kinds = [item.WhichOneof("item") for rank in told for item in rank.items]
        assert "elided" in kinds
        assert batch.events[-1].HasField("finished")

    async def test_without_a_directory_it_looks_again(
        self, watch: DirectoryWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "UNWATCHED_INTERVAL_S", 0.001)
        session = Session()
        follow(session, watch, tmp_path, output=5)
        write(tmp_path, "late\n", output=5)
        assert await text_of(session, 5) == {"a": "late\n"}

    async def test_a_client_that_does_not_read_costs_bounded_memory(
        self, watch: DirectoryWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "MAX_UNSENT_BYTES", 50_000)
        monkeypatch.setattr(sessions, "FLOOD_INTERVAL_S", 0.001)
        session = Session()
        follower = follow(session, watch, tmp_path)
        for _ in range(20):
            write(tmp_path, "x" * 9_999 + "\n")
            follower.pump()
        assert session._unsent_bytes < 70_000
        assert session.is_behind
        write(tmp_path, "the end\n")
        assert (await text_of(session, 200_008))["a"].endswith("x\nthe end\n"), (
            "nothing is lost: the rest was in the file"
        )

    async def test_many_finished_runs_are_not_all_followed(self, watch: DirectoryWatch, tmp_path: Path) -> None:
        session = Session()
        for number in range(MAX_FOLLOWED + 10):
            write(tmp_path, "", output=number)
            follow(session, watch, tmp_path, f"run{number}", number).finished = number != 3
        assert len(session.followers) == MAX_FOLLOWED
        assert "run3" in session.followers
        assert f"run{MAX_FOLLOWED + 9}" in session.followers
        session.close()
        assert not watch._callbacks


async def test_what_is_not_urgent_waits_for_others_but_not_for_ever() -> None:
    session = Session()
    session.send(urgent=False, queued=pb.Queued(run_id="a"))
    session.send(finished=pb.Finished(run_id="a"))
    assert len((await session.batches() or pb.SessionEvents()).events) == 2
    session.send(urgent=False, queued=pb.Queued(run_id="a"))
    assert len((await asyncio.wait_for(session.batches(), 10) or pb.SessionEvents()).events) == 1

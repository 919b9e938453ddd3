"""A client is killed at every moment of what it does on several nodes: nothing of it stays half made, and where the
nodes see the client's process they do not wait for it either."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, client, eventually
from integration.patched import patch_allocators
from leaks import processes_of
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import NodePaths
from monarch_nb.provision.local import LocalProvisioner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_torch")]

local = LocalProvisioner()


KILLS_ITSELF = """
import asyncio, itertools, signal
from monarch_nb.client.connections.connection import Connection

ASKS = {{"Status", "Describe", "Workspace", "Revoke", "SeeToken"}}
one_at_a_time, calls = asyncio.Lock(), itertools.count(1)

def killing(whole):
    async def call(self, method, *arguments, **options):
        if method in ASKS:
            return await whole(self, method, *arguments, **options)
        async with one_at_a_time:
            answer = await whole(self, method, *arguments, **options)
            if next(calls) == {moment}:
                if self._session is not None:
                    await self._opened.wait()  # before it the node sees no process
                os.kill(os.getpid(), signal.SIGKILL)
            return answer
    return call

Connection.unary, Connection.send_stream = killing(Connection.unary), killing(Connection.send_stream)
"""
"""One call to a node after the other, until one was answered: no later one ever reaches a node."""


def moments(program: str) -> Iterator[int]:
    """Have clients killed at one moment after the other, until one does all that it wants; yield after each."""
    for moment in range(1, 100):
        with client(f"{KILLS_ITSELF.format(moment=moment)}\n{program}\nprint('whole')") as doomed:
            doomed.process.wait(TIMEOUT_S)
            assert doomed.process.returncode in (0, -signal.SIGKILL), doomed.errors()
        yield moment
        if doomed.process.returncode == 0:
            return
    raise AssertionError("it does not come to its end")


@pytest.fixture(autouse=True)
def home(pool_home: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a pool of 2 nodes × 4 procs that see no files of the tests, and wait for ever for a client that
    may be there still."""
    patch_allocators(
        monkeypatch, tmp_path / "patched", "from monarch_nb import config\nconfig.PROVISIONAL_LEASE_S = 3600.0"
    )
    local.up(nodes=2, procs=4, isolate=True)
    return pool_home


def held() -> list[HeldReservation]:
    return call(pool_named(None).reservations())


def half_made() -> list[str]:
    """What nodes are about to end because a dead client had begun it, a whole reservation, too, until it is called so;
    and the nodes of one that is not whole."""
    found: list[str] = []
    for node in local.nodes():
        database = f"file:{NodePaths(node.directory).database}?mode=ro"
        with contextlib.closing(sqlite3.connect(database, uri=True)) as records:
            rows = records.execute("SELECT kind, key FROM record WHERE kind IN ('undertaking', 'notice')").fetchall()
        found += [f"{node.node_id}: {kind} {key}" for kind, key in rows]
    statuses = [status for one in held() for _, status in one.nodes.values()]
    is_whole = len(statuses) in (0, 2) and all(status.confirmed for status in statuses)
    return found if is_whole else [*found, *map(str, statuses)]


def wait_until_nothing_is_half_made() -> None:
    try:
        eventually(lambda: not half_made())
    except AssertionError as error:
        raise AssertionError(half_made()) from error


def test_reserve(home: Path) -> None:
    def pids() -> set[int]:
        return {process.pid for process in processes_of(home)}

    reserve("warm", nodes=2, procs=2).release()
    before = pids()
    for _ in moments("monarch_nb.reserve('half', nodes=2, procs=2, preload=[])"):
        wait_until_nothing_is_half_made()
        if held():
            whole = attach("half")
            assert whole.mesh.run("rank").values == [0, 1, 2, 3]
            whole.release()
        eventually(lambda: pids() <= before)


def files_in(directory: Path) -> set[str]:
    """Return the files below a directory."""
    return {os.path.relpath(path, directory) for path in directory.rglob("*") if path.is_file()}


def test_sync(project: Path) -> None:
    dev = reserve("dev", nodes=2, procs=2)
    files = {"a.txt": "a", "folder/b.txt": "b", "large.bin": "x" * 3_000_000}
    expected: dict[str, set[str]] = {}

    def write(text: str) -> None:
        for name, start in files.items():
            path = project / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(start + text)
            expected.setdefault(name, set()).add(start + text)
        (project / f"new-{text}.txt").write_text(text)
        expected[f"new-{text}.txt"] = {text}

    write("first")
    dev.sync()
    [one] = held()
    copies = [NodePaths(node.directory).workspaces / one.reservation_id for node in local.nodes()]
    for moment in moments("monarch_nb.attach('dev').sync()"):
        for tree in [copy / "tree" for copy in copies]:
            for path in files_in(tree):
                assert (tree / path).read_text() in expected[path], "as it was, or as it is, and nothing else"
        found = dev.mesh.run("import pathlib\n{str(p): p.read_text() for p in pathlib.Path().rglob('*.*')}").values
        now = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*.*")}
        assert found == [now] * 4
        eventually(lambda: not any(files_in(copy / "incoming") for copy in copies))  # what had come goes with the next
        write(f"at {moment}")
    dev.release()

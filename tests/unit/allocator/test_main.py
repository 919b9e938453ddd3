"""What an allocator does beside serving: keeping its files fresh."""

import asyncio
import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from monarch_nb import config
from monarch_nb.allocator import __main__ as main
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes import processes
from monarch_nb.errors import PoolError


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.NodePaths:
    monkeypatch.setattr(main, "FRESHEN_S", 0)
    paths = config.NodePaths(tmp_path)
    paths.sockets.mkdir(parents=True)
    for path in (paths.allocator_socket, paths.facts):
        path.touch()
        os.utime(path, (0, 0))
    return paths


def test_files_are_fresh_until_the_socket_is_gone(paths: config.NodePaths) -> None:
    async def remove_once_fresh() -> None:
        freshener = asyncio.create_task(main.keep_fresh(paths, lambda: None))
        for _ in range(10):
            await asyncio.sleep(0)
        assert paths.facts.stat().st_mtime > 0
        assert paths.allocator_socket.stat().st_mtime > 0
        assert not freshener.done()
        paths.allocator_socket.unlink()
        await asyncio.wait_for(freshener, 10)

    asyncio.run(remove_once_fresh())


@pytest.mark.parametrize(
    ("held", "never_held_s", "looks"),
    [
        (range(3, 5), [], 7),  # two looks, two at which something was held, three more
        (range(6, 7), [8.0], 9),  # one that has never held anything may wait longer
    ],
)
def test_a_temporary_node_ends_when_it_has_held_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch, held: range, never_held_s: list[float], looks: int
) -> None:
    slept: list[float] = []
    node = SimpleNamespace(state=SimpleNamespace(leases={}))

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        node.state.leases = {"dev": object()} if len(slept) in held else {}

    monkeypatch.setattr(main.asyncio, "sleep", sleep)
    asyncio.run(main._unheld(cast(Node, node), 3.0, *never_held_s))
    assert len(slept) == looks


@pytest.mark.parametrize("call", ["utime", "stat", "listdir"])
def test_a_storage_that_fails_is_not_one_that_was_removed(
    paths: config.NodePaths, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """When keeping fresh ends, so do all ranks."""
    failures = 0

    def fail(*_: object, **__: object) -> NoReturn:
        nonlocal failures
        failures += 1
        raise OSError(errno.EROFS, "Read-only file system")

    async def fails_for_a_while() -> None:
        freshener = asyncio.create_task(main.keep_fresh(paths, lambda: None))
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            for _ in range(10):
                await asyncio.sleep(0)
        assert not freshener.done()
        freshener.cancel()

    asyncio.run(fails_for_a_while())


@pytest.mark.parametrize(("boot", "where"), [("", "on this host"), ("another", "on another host, which has the same")])
def test_a_second_allocator_of_a_directory_is_told_where_the_first_is(
    paths: config.NodePaths, boot: str, where: str
) -> None:
    paths.facts.write_text(json.dumps({"boot_id": boot or processes.boot_id()}))
    with main.lock(paths), pytest.raises(PoolError, match=f"already, {where}.*--node-id {paths.directory.name}-b"):
        main.lock(paths)

"""Groups of real ranks (torch, Gloo): hung, broken, forgotten, made again; and ranks that die on the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist

from e2e.ports import held_port
from integration.live import TIMEOUT_S, eventually, open_files
from integration.worker.forked_ranks import ForkedRanks
from integration.worker.groups import (
    ALL_BUT_0,
    HANGS,
    WORLD,
    Space,
    assert_works,
    free,
    init,
    total,
    train,
    wait_for_keys,
    wrap,
)
from monarch_nb.errors import GROUP_ABORTED
from monarch_nb.worker.groups import breaking

PEER_WAS_FIRST = " (a peer was interrupted or died)"
"""What a rank adds that has lost a peer before its own interrupt came."""

# ---- hangs


def test_hung_operations_are_freed_and_the_next_group_works(grouped: ForkedRanks) -> None:
    grouped.run(lambda space: space.update(kept=torch.full((3,), 7.0)))
    for name, operation in HANGS.items():
        grouped.submit(operation, ALL_BUT_0)
        grouped.wait_until_in(name, ALL_BUT_0)
        for failure in free(grouped, ALL_BUT_0):  # a starved rank may hear of a lost peer before its own interrupt
            assert failure.name == "ProcessGroupAborted"
            assert failure.text in (f"interrupted in {name}{lost}; {GROUP_ABORTED}" for lost in ("", PEER_WAS_FIRST))
        assert_works(grouped)
    assert grouped.run(lambda space: space["kept"].tolist()) == [[7.0] * 3] * WORLD


def test_an_init_that_waits_for_a_rank_is_freed(ranks: ForkedRanks) -> None:
    for missing in range(WORLD):
        present = [rank for rank in range(WORLD) if rank != missing]
        ranks.submit(init, present)
        ranks.wait_until_in("init_process_group", present)
        for failure in free(ranks, present):
            assert failure.text == f"interrupted in init_process_group; {GROUP_ABORTED}"
        assert_works(ranks)
        ranks.run(lambda _: dist.destroy_process_group())


def test_a_backward_that_waits_for_gradients_is_freed(grouped: ForkedRanks) -> None:
    grouped.run(wrap)
    grouped.run(train)
    grouped.run(lambda space: space.update(loss=space["wrapped"](torch.ones(2, 4)).sum()))
    grouped.submit(lambda space: space["loss"].backward(), ALL_BUT_0)
    grouped.wait_until_in("backward", ALL_BUT_0)
    for failure in free(grouped, ALL_BUT_0):
        assert failure.text.startswith(tuple(f"interrupted in backward{lost}; " for lost in ("", PEER_WAS_FIRST)))
    assert_works(grouped)
    grouped.submit(train)
    for failure in grouped.collect():
        assert failure.text == (
            "this model's process group was aborted: wrap the model in DistributedDataParallel again"
        )
    grouped.run(wrap)
    grouped.run(train)


def test_a_group_with_a_store_of_the_users_is_freed_and_made_whichever_rank_comes_first() -> None:
    def with_store(_: Space) -> None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        dist.init_process_group("gloo", store=store, rank=0, world_size=2)

    def by_url(port: int) -> Callable[[Space], None]:
        def make(space: Space) -> None:
            dist.init_process_group("gloo", f"tcp://localhost:{port}", rank=space["rank"], world_size=2)

        return make

    with ForkedRanks(2) as ranks, held_port() as hung, held_port() as one, held_port() as other:
        for make in (with_store, by_url(hung)):
            ranks.submit(make, [0])
            ranks.wait_until_in("init_process_group", [0])
            free(ranks, [0])
        for first, second, port in ((0, 1, one), (1, 0, other)):
            ranks.submit(by_url(port), [first])
            ranks.wait_until_in("init_process_group", [first])
            ranks.submit(by_url(port), [second])
            assert ranks.collect() == [None, None]
            assert ranks.run(total) == [2.0, 2.0]
            ranks.run(lambda _: dist.destroy_process_group())


@pytest.mark.parametrize("attempt", range(2))
def test_an_init_that_waits_for_a_peer_to_connect_is_freed(attempt: int) -> None:
    """Rank 1 says where it listens, and then never connects; who connects to whom depends on their ports."""

    def init_at(prefix: str) -> Callable[[Space], None]:
        def make(space: Space) -> None:
            port = int(os.environ["MASTER_PORT"])
            store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
            store = dist.PrefixStore(prefix, store)
            dist.init_process_group("gloo", store=store, rank=space["rank"], world_size=2)

        return make

    with ForkedRanks(2) as ranks:
        store = dist.TCPStore("127.0.0.1", ranks.port, is_master=False, wait_for_workers=False)
        ranks.submit(init_at("seen"), [0])
        ranks.submit(init_at("hidden"), [1])
        ranks.wait_until_in("init_process_group")
        (address,) = wait_for_keys(store, "hidden/")
        store.set(address.replace("hidden", "seen", 1), store.get(address))
        time.sleep(0.1)
        ranks.break_groups()
        ranks.collect()
        assert_works(ranks)


def test_connections_that_gloo_makes_when_they_are_needed_are_freed() -> None:
    with ForkedRanks(WORLD, TORCH_GLOO_LAZY_INIT="1") as ranks:
        ranks.run(init)
        for _ in range(3):
            ranks.submit(total, ALL_BUT_0)
            ranks.wait_until_in("all_reduce", ALL_BUT_0)
            free(ranks, ALL_BUT_0)
            assert_works(ranks)


def test_a_long_transfer_is_freed(grouped: ForkedRanks) -> None:
    """Gloo never wakes a thread whose connection ends while it sends, so that moment must not be hit."""

    def transfer(_: Space) -> None:
        while True:
            dist.all_reduce(torch.ones(8_000_000))

    for delay_s in (0.2, 0.3, 0.45):
        grouped.submit(transfer)
        time.sleep(delay_s)
        grouped.interrupt()
        grouped.break_groups()
        grouped.collect()
        assert_works(grouped)


def test_breaking_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """The C++ code of torch's store would print pages of its stack into the user's cell."""
    with ForkedRanks(2) as ranks:  # forked here: a fixture's would not write into capfd's files
        ranks.submit(init, [1])
        ranks.wait_until_in("init_process_group", [1])
        free(ranks, [1])
        assert_works(ranks)
        assert capfd.readouterr().err == ""


def test_nothing_to_break(ranks: ForkedRanks) -> None:
    assert ranks.break_groups() == [False] * WORLD


def test_who_has_destroyed_a_group_tells_the_others(grouped: ForkedRanks) -> None:
    """Rank 1 was interrupted between the two calls, and nobody sees its connections end: its group is not freed yet."""

    def destroy(space: Space) -> None:
        space["group"] = dist.group.WORLD
        dist.destroy_process_group()

    grouped.run(destroy, [1])
    grouped.run(init)
    assert_works(grouped)


def test_a_timeout_stays_what_it_is(grouped: ForkedRanks) -> None:
    grouped.run(lambda _: dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5)), [1])
    grouped.submit(total, [1])
    (failure,) = grouped.collect([1])
    assert failure.name == "RuntimeError"
    assert "Timed out" in failure.text


def test_an_error_caught_by_the_user_leaves_a_cell_that_can_go_on(grouped: ForkedRanks) -> None:
    """`finally: destroy_process_group()` and a new init, all in the cell that was interrupted."""

    def recover(space: Space) -> float:
        try:
            dist.barrier()
        except RuntimeError:
            while breaking.state.broken is None:  # it may have lost a peer before it was told itself
                time.sleep(0.01)
            dist.destroy_process_group()
        dist.init_process_group("gloo")
        return total(space)

    grouped.submit(recover, ALL_BUT_0)
    grouped.wait_until_in("barrier", ALL_BUT_0)
    grouped.break_groups(ALL_BUT_0)
    grouped.submit(lambda space: (dist.destroy_process_group(), dist.init_process_group("gloo"), total(space))[2], [0])
    assert grouped.collect() == [float(WORLD)] * WORLD
    assert grouped.run(total) == [float(WORLD)] * WORLD


# ---- what is the user's


def test_the_users_own_connections_survive(ranks: ForkedRanks) -> None:
    """As a client, and as a server with an event loop of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def connect(space: Space) -> None:
            async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while data := await reader.read(100):
                    writer.write(data)

            async def start() -> None:
                space["server"] = await asyncio.start_server(echo, "127.0.0.1", 0)
                ready.set()

            loop, ready = asyncio.new_event_loop(), threading.Event()
            loop.create_task(start())
            threading.Thread(target=loop.run_forever, daemon=True).start()
            assert ready.wait(TIMEOUT_S)
            addresses = ("127.0.0.1", port), space["server"].sockets[0].getsockname()
            space["connections"] = [socket.create_connection(address) for address in addresses]

        def are_alive(space: Space) -> bool:
            for connection in space["connections"]:
                connection.sendall(b"ping")
            return all(connection.recv(4) == b"ping" for connection in space["connections"])

        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        ranks.run(connect)
        for name, hang in (("init_process_group", init), ("all_reduce", total)):
            ranks.submit(hang, ALL_BUT_0)
            ranks.wait_until_in(name, ALL_BUT_0)
            free(ranks, ALL_BUT_0)
            assert ranks.run(are_alive) == [True] * WORLD
            assert_works(ranks)


def _echo(server: socket.socket) -> None:
    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(100):
                connection.sendall(data)

    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


# ---- ranks that die


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_dies_in_a_group_and_is_forked_again(grouped: ForkedRanks, dead: int) -> None:
    others = [rank for rank in range(WORLD) if rank != dead]
    grouped.submit(lambda _: dist.recv(torch.ones(1), dead), others)
    grouped.wait_until_in("recv", others)
    grouped.kill(dead)
    for failure in grouped.collect(others):  # their connections to it are gone
        assert failure.text == f"interrupted in recv{PEER_WAS_FIRST}; {GROUP_ABORTED}"
    grouped.fork(dead)
    assert_works(grouped)


def test_survivors_that_wait_for_each_other_are_freed(grouped: ForkedRanks) -> None:
    """In an all_reduce most ranks have no business with the one that died."""
    grouped.submit(total, ALL_BUT_0)
    grouped.wait_until_in("all_reduce", ALL_BUT_0)
    grouped.kill(0)
    grouped.break_groups(ALL_BUT_0, reason="rank 0 died")
    assert all(failure.text.startswith("interrupted in all_reduce (") for failure in grouped.collect(ALL_BUT_0))
    grouped.fork(0)
    assert_works(grouped)


# ---- the store process


def test_the_store_listens_on_one_address_and_ends_when_told(ranks: ForkedRanks) -> None:
    listening = [c for c in psutil.Process(ranks.store.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [connection.laddr for connection in listening] == [("127.0.0.1", ranks.port)]
    os.kill(ranks.store.pid, signal.SIGTERM)
    ranks.store.join(TIMEOUT_S)
    assert ranks.store.exitcode == -signal.SIGTERM


def test_the_store_keeps_no_descriptor_of_its_parent() -> None:
    with open("/dev/zero", "rb") as inherited, ForkedRanks(1) as ranks:
        assert_works(ranks)

        def are_closed() -> bool:  # it serves a moment before that
            targets = open_files(ranks.store.pid)
            pipes = sum(target.startswith("pipe:") for target in targets)
            return inherited.name not in targets and pipes <= 2 + 2  # stdout, stderr and the loop's own

        eventually(are_closed)

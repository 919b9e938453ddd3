"""Messages between this process and ranks, and between ranks, through the allocators of two nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from integration.live import eventually, kill
from integration.mail.echoes import IN_RANKS, TIMEOUT_S, Caller, Lost, Refused
from monarch_nb import config
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

LARGE = 64 << 20
HEARD = f"heard.get(timeout={TIMEOUT_S})"
"""In a rank that is deaf: wait until it has a message."""


@pytest.fixture(scope="module")
def reservation(module_pool: list[Node]) -> Iterator[Reservation]:
    reservation = reserve("mail", nodes=2, procs=4, preload=[])
    yield reservation
    reservation.release()


@pytest.fixture(scope="module")
def caller(reservation: Reservation) -> Caller:
    """This process, which takes mail once and for all."""
    return Caller(reservation.mesh)


@pytest.fixture
def mesh(reservation: Reservation, caller: Caller) -> Mesh:
    """Fresh ranks that answer."""
    reservation.mesh.restart()
    reservation.mesh.run(IN_RANKS).result()
    assert caller.came.empty()
    return reservation.mesh


def kill_allocator(number: int) -> None:
    pid = LocalProvisioner().nodes()[number].pid
    assert pid is not None
    kill(pid)


def files_of_mail() -> list[str]:
    """Return the names of all blobs, of all nodes of the pool."""
    return [
        path.name
        for directory in config.pool_directory().rglob("mail")
        for path in directory.iterdir()
        if not path.name.startswith(".")
    ]


@pytest.mark.quick
def test_every_rank_answers_a_message_to_all(caller: Caller, mesh: Mesh) -> None:
    for first in (0, 4):
        ranks = range(first, first + 4)
        number = caller.call(ranks, b"hello")
        answers = [caller.answer() for _ in ranks]
        assert {answer.sender for answer in answers} == {caller.address(rank) for rank in ranks}
        assert {(answer.body, answer.answers) for answer in answers} == {(b"hello", number)}


def test_a_flood_of_messages_arrives(caller: Caller, mesh: Mesh) -> None:
    for _ in range(20_000):
        caller.cast([2], b"flood")
    caller.call([2], b"end")
    caller.answer()
    mesh.select(2).run("assert echo.seen == 20_001, echo.seen").result()


def test_a_large_message_leaves_no_file_behind(caller: Caller, mesh: Mesh) -> None:
    body = os.urandom(1 << 20) * (LARGE >> 20)
    caller.call(range(4), body)
    for _ in range(4):
        assert caller.answer().body[:] == body
    eventually(lambda: files_of_mail() == [])


def test_who_waits_for_a_rank_that_is_restarted_is_told_and_later_messages_reach_the_new_one(
    caller: Caller, mesh: Mesh
) -> None:
    mesh.select(3).run("echo.deaf = True").result()
    caller.call([3], b"wait")
    mesh.select(3).run(HEARD).result()
    mesh.restart([3])
    refused = caller.next()
    assert isinstance(refused, Refused)
    assert "it was restarted" in refused.reason
    mesh.select(3).run(IN_RANKS).result()
    caller.call([3], b"again")
    assert caller.answer().body == b"again"


def test_after_its_allocator_was_killed_a_rank_is_reached_again(
    caller: Caller, mesh: Mesh, module_pool: list[Node]
) -> None:
    mesh.run("echo.deaf = True").result()
    caller.call([0], b"wait")
    there = caller.address(4)
    mesh.select(0).run(f"post.send({there.node!r}, [{there.process!r}], [b'wait'], call=9)").result()
    mesh.select([0, 4]).run(HEARD).result()
    kill_allocator(0)
    lost = caller.next()
    assert isinstance(lost, Lost)
    assert lost.node == module_pool[0].address
    assert lost.reason.startswith("node0: the connection to it broke while the call waited")
    LocalProvisioner().up()
    mesh.run("echo.deaf = False").result()
    here = caller.address(0)
    mesh.select(4).run(f"post.send({here.node!r}, [{here.process!r}], [b'late'], answers=9)").result()
    code = f"""
node, reason = came.get(timeout={TIMEOUT_S})
assert came.get(timeout={TIMEOUT_S})[1:] == (b"late", 9)
assert (node, reason) == ({there.node!r}, "the allocator of its own node ended while the call waited")
"""
    mesh.select(0).run(code).result()
    caller.call(range(4), b"again")
    answers = [caller.answer() for _ in range(4)]
    assert {answer.body for answer in answers} == {b"again"}

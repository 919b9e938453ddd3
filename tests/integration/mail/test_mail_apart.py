"""Mail of a client that sees nothing of a node's files, as one on another machine does."""

from __future__ import annotations

import pytest

from integration.mail.echoes import IN_RANKS, Caller
from monarch_nb import config
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision import Node

pytestmark = pytest.mark.usefixtures("without_torch")

LARGE = b"large" * config.INLINE_VALUE_BYTES


@pytest.mark.quick
def test_mail_of_all_sizes_arrives_in_order_on_the_session(isolated_pool: list[Node]) -> None:
    reservation = reserve("apart", procs=2)
    try:
        reservation.mesh.run(IN_RANKS).result()
        caller = Caller(reservation.mesh)
        bodies = [b"1", LARGE, b"3", b"4"]
        numbers = [caller.call([1], body) for body in bodies]
        answers = [caller.answer() for _ in bodies]
        assert [(answer.answers, bytes(answer.body)) for answer in answers] == list(zip(numbers, bodies, strict=True))
    finally:
        reservation.release()

"""Clients in processes of their own wait in line; tests/unit/cluster/test_waiting.py has what becomes of a line."""

from __future__ import annotations

import os
import signal

import pytest

from integration.live import Client, client, kill
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.provision import Node

WAIT = "monarch_nb.reserve({name!r}, nodes=2, procs=4, preload=[], wait=True, progress=print)\nprint('has it')\ninput()"


def read_until(waiter: Client, start: str) -> None:
    while not waiter.line().startswith(start):
        pass


@pytest.mark.usefixtures("without_torch")
def test_a_first_one_that_is_stopped_and_then_killed_lets_the_next_one_have_its_turn(spare_pool: list[Node]) -> None:
    dev = reserve("dev", nodes=2, procs=4)
    with client(WAIT.format(name="first")) as first:
        read_until(first, "1st in line: dev (")
        with client(WAIT.format(name="second")) as second:
            read_until(second, "2nd in line: dev (")
            os.kill(first.process.pid, signal.SIGSTOP)
            dev.release()
            assert list_reservations() == []
            kill(first.process.pid)
            read_until(second, "has it")
            attach("second").release()

"""Ranks that save and load are threads here, which talk over a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from monarch_nb.worker.saving.exchange import Exchange

T = TypeVar("T")


def on_ranks(number: int, act: Callable[[int, Exchange], T], timeout_s: float = 30.0) -> list[T | BaseException]:
    """Have each of so many ranks act; return what each returned or raised."""
    store: Any = dist.HashStore()
    outcomes: list[Any] = [None] * number

    def one(rank: int) -> None:
        exchange = Exchange(range(number), rank, "secret", lambda _: store, timeout_s)
        try:
            outcomes[rank] = act(rank, exchange)
        except BaseException as error:  # noqa: BLE001 -- the test looks at it
            outcomes[rank] = error

    store.set_timeout(timedelta(seconds=30))
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes

"""Ranks that save and load are threads here, which talk over a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from monarch_nb.worker.saving.asked import LoadRequest, SaveReport, SaveRequest
from monarch_nb.worker.saving.collecting import collect
from monarch_nb.worker.saving.exchange import Exchange
from monarch_nb.worker.saving.reading import load
from monarch_nb.worker.saving.writing import save

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


def try_to_save(directory: Path, namespaces: list[dict[str, Any]], *names: str, strict: bool = False) -> list[Any]:
    request = SaveRequest(str(directory), names, strict=strict)
    return on_ranks(
        len(namespaces), lambda rank, exchange: save(request, collect(namespaces[rank], names), exchange, "mesh")
    )


def saved(directory: Path, namespaces: list[dict[str, Any]], *names: str) -> SaveReport:
    reports = try_to_save(directory, namespaces, *names)
    assert all(isinstance(each, SaveReport) for each in reports), reports
    assert reports[0] == reports[-1]
    return reports[0]  # type: ignore[return-value]


def loaded(directory: Path, namespaces: list[dict[str, Any]], *names: str, strict: bool = False) -> list[Any]:
    request = LoadRequest(str(directory), names, strict)
    return on_ranks(len(namespaces), lambda rank, exchange: load(request, namespaces[rank], (), exchange))

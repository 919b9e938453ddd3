"""What ranks of a save tell each other, and how each wait ends."""

from __future__ import annotations

import pytest

from monarch_nb.errors import SaveError
from monarch_nb.worker.saving import exchange as module
from monarch_nb.worker.saving.exchange import Exchange
from unit.worker.saving.threads import on_ranks


def test_values_go_to_the_first_and_come_from_it() -> None:
    def talk(rank: int, exchange: Exchange) -> object:
        gathered = exchange.gather("size", b"%d" % rank)
        shared = exchange.share("all", b"one" if exchange.is_first else None)
        own = exchange.scatter("each", [b"a", b"b", b"c"] if exchange.is_first else None)
        return gathered, shared, own

    values = on_ranks(3, talk)
    assert values == [([b"0", b"1", b"2"], b"one", b"a"), (None, b"one", b"b"), (None, b"one", b"c")]
    alone = Exchange([5], 5, "secret", None)
    assert (alone.gather("x", b"1"), alone.share("y", b"2"), alone.scatter("z", [b"3"])) == ([b"1"], b"2", b"3")


def test_a_rank_that_fails_ends_the_waits_of_all() -> None:
    def talk(rank: int, exchange: Exchange) -> object:
        with exchange.taking_part():
            if rank == 2:
                raise OSError(28, "No space left on device")
            exchange.gather("size", b"")
            return exchange.share("all", b"" if exchange.is_first else None)

    first, second, third = on_ranks(3, talk)
    for each in (first, second):
        assert isinstance(each, SaveError)
        assert str(each) == "rank 2: OSError: [Errno 28] No space left on device"
        assert each.of_others
    assert isinstance(third, OSError)


def test_ranks_that_are_silent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.5)

    def talk(rank: int, exchange: Exchange) -> object:
        if rank in (1, 3):
            return None  # it died
        with exchange.taking_part():
            exchange.gather("size", b"")
            return exchange.share("all", b"" if exchange.is_first else None)

    first, _, third, _ = on_ranks(4, talk, timeout_s=0.5)
    assert str(first) == "ranks 1,3 did not answer for 0.5 s"
    assert isinstance(third, SaveError)


def test_what_others_put_into_the_store_is_not_taken() -> None:
    def talk(rank: int, exchange: Exchange) -> object:
        if rank == 0:
            return exchange.gather("size", b"")
        return exchange._do(lambda store: store.set(exchange._key("size/1"), b"\0" * 32 + b"a pickle"))

    first, _ = on_ranks(2, talk)
    assert isinstance(first, SaveError)
    assert "is not of a rank of this save" in str(first)

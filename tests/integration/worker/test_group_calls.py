"""What users call to make and end groups of real ranks, and what they are told."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from integration.live import eventually
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
    wait_for_keys,
)
from monarch_nb.errors import GROUP_ABORTED


def test_a_group_is_there_when_all_ranks_have_made_it(ranks: ForkedRanks, tmp_path: Path) -> None:
    """A rank that ended before closed connections that others were still making: they failed, "closed by peer"."""
    connected, gate = tmp_path / "connected", tmp_path / "gate"

    def slowly(space: Space) -> None:
        wait = dist.distributed_c10d._store_based_barrier

        def last(*args: Any) -> None:
            connected.touch()
            while not gate.exists():
                time.sleep(0.01)
            wait(*args)

        dist.distributed_c10d._store_based_barrier = last
        init(space)

    ranks.submit(init, [0, 2, 3])
    ranks.submit(slowly, [1])
    eventually(connected.exists)
    ranks.wait_until_in("init_process_group", [0, 2, 3])
    gate.touch()
    assert ranks.collect() == [None] * WORLD
    assert ranks.run(total) == [WORLD] * WORLD


def test_init_with_explicit_ranks(ranks: ForkedRanks) -> None:
    ranks.run(lambda space: dist.init_process_group("gloo", rank=WORLD - 1 - space["rank"], world_size=WORLD))
    assert ranks.run(lambda _: dist.get_rank()) == [3, 2, 1, 0]
    ranks.run(lambda _: dist.destroy_process_group())
    ranks.run(lambda space: dist.init_process_group("gloo", rank=space["rank"], world_size=2), [0, 1])
    assert ranks.run(total, [0, 1]) == [2.0, 2.0]


def test_a_rank_out_of_range(ranks: ForkedRanks) -> None:
    ranks.submit(lambda _: dist.init_process_group("gloo", rank=7, world_size=4), [0])
    (failure,) = ranks.collect([0])
    assert (failure.name, failure.text) == ("ValueError", "no rank 7 in a world of 4: ranks are 0 to 3")


def test_init_that_times_out_names_who_did_not_come(ranks: ForkedRanks) -> None:
    ranks.submit(init, [2])
    wait_for_keys(dist.TCPStore("127.0.0.1", ranks.port, is_master=False, wait_for_workers=False), "/here/2")
    ranks.submit(lambda _: dist.init_process_group("gloo", timeout=timedelta(seconds=0.5)), [0])
    (failure,) = ranks.collect([0])
    assert failure.name == "DistStoreError"
    assert failure.text == "waited 0.5 s for all 4 ranks to call init_process_group(); these did not: 1, 3"
    free(ranks, [2])
    assert_works(ranks)


def test_a_script_that_sets_the_master_address(ranks: ForkedRanks) -> None:
    """The tutorial's lines; nothing listens there, and nothing shall."""

    def tutorial(_: Space) -> None:
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = "12355"
        dist.init_process_group("gloo")

    ranks.run(tutorial)
    assert ranks.run(total) == [float(WORLD)] * WORLD


def test_a_cell_that_is_run_again_keeps_its_group(capfd: pytest.CaptureFixture[str]) -> None:
    with ForkedRanks(2) as ranks:
        ranks.run(init)
        ranks.run(lambda space: space.update(group=dist.group.WORLD))
        ranks.run(init)
        assert ranks.run(lambda space: space["group"] is dist.group.WORLD) == [True, True]
        line = "keeping the process group of 2 ranks (for a new one, call dist.destroy_process_group() first)"
        assert capfd.readouterr().err.splitlines() == [line, line]


def test_a_group_that_has_the_backend_that_is_asked_for_is_kept() -> None:
    """As after `init_device_mesh("cpu", (2,))`, which has torch choose it."""
    with ForkedRanks(2) as ranks:
        for first, then in ((None, "gloo"), ("gloo", "cpu:gloo"), ("gloo", "GLOO"), ("cpu:gloo", None)):
            ranks.run(lambda space, first=first: space.update(_=dist.init_process_group(first), group=dist.group.WORLD))
            ranks.run(lambda _, then=then: dist.init_process_group(then))
            assert ranks.run(lambda space: space["group"] is dist.group.WORLD) == [True, True]
            ranks.run(lambda _: dist.destroy_process_group())


def test_another_backend_is_refused_with_what_helps(grouped: ForkedRanks) -> None:
    for asked in ("mpi", "cpu:mpi"):
        grouped.submit(lambda _, asked=asked: dist.init_process_group(asked))
        [text] = {failure.text for failure in grouped.collect()}
        assert text.startswith(f"a process group of {WORLD} ranks with cpu:gloo")
        assert text.endswith(f"call dist.destroy_process_group() before you make one with {asked}")
    assert grouped.run(total) == [float(WORLD)] * WORLD


def test_an_aborted_subgroup_says_so_and_destroying_what_was_aborted_is_no_error(grouped: ForkedRanks) -> None:
    def use(space: Space) -> None:
        dist.all_reduce(torch.ones(1), group=space["group"])

    grouped.run(lambda space: space.update(group=dist.new_group()))
    grouped.submit(total, ALL_BUT_0)
    grouped.wait_until_in("all_reduce", ALL_BUT_0)
    free(grouped, ALL_BUT_0)
    grouped.run(lambda _: dist.destroy_process_group())
    grouped.run(lambda _: dist.destroy_process_group(), ALL_BUT_0)
    assert_works(grouped)
    grouped.submit(use, ALL_BUT_0)
    said = "this process group was aborted: make it again with `dist.new_group()`"
    assert {failure.text for failure in grouped.collect(ALL_BUT_0)} == {said}
    grouped.run(lambda space: dist.destroy_process_group(space["group"]), ALL_BUT_0)
    grouped.run(lambda _: dist.destroy_process_group())
    grouped.submit(lambda _: dist.destroy_process_group())
    assert {failure.name for failure in grouped.collect()} == {"AssertionError"}  # torch's own


def test_all_ranks_give_one_reason(grouped: ForkedRanks) -> None:
    """Those that have lost the store, and so all connections, too."""
    grouped.submit(HANGS["store wait"], ALL_BUT_0)
    grouped.wait_until_in("store wait", ALL_BUT_0)
    free(grouped, ALL_BUT_0)
    grouped.break_groups(reason="a run was interrupted")
    grouped.submit(total)
    assert {failure.text for failure in grouped.collect()} == {f"a run was interrupted; {GROUP_ABORTED}"}


def test_the_store_keeps_no_keys_of_older_groups(ranks: ForkedRanks) -> None:
    store = dist.TCPStore("127.0.0.1", ranks.port, is_master=False, wait_for_workers=False)
    sizes = []
    for _ in range(4):
        assert_works(ranks)
        ranks.run(lambda _: dist.destroy_process_group())
        sizes.append(store.num_keys())
    assert sizes[1] == sizes[3]

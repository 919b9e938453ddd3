"""Limits of fairness: what counts, for whom, and what is said; and the file in which they are written."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.allocator.state.quotas import Holdings, Quotas, check, read_quotas
from monarch_nb.errors import LimitReached
from monarch_nb.proto import allocator_pb2 as pb

FILE = """
contact = "carol"

[people."*"]
gpus = 8
nodes = 2

[people.alice]
gpus = 16

[people."student-*"]
nodes = 1

[groups.vision]
members = ["alice", "bob"]
gpus = 20
"""


def quotas_of(text: str) -> Quotas:
    quotas, problems = read_quotas(text)
    assert problems == []
    return quotas


def part(reservation_id: str, owner: str, **facts: Any) -> pb.Held:
    told = {"nodes": 1, "confirmed": True, "gpus": 4, "name": reservation_id} | facts
    return pb.Held(reservation_id=reservation_id, owner=owner, **told)


def refusal(text: str, held: list[pb.Held], asked: pb.Held, *more: pb.Held) -> LimitReached | None:
    """Return why something can not be held besides, as all nodes together see it."""
    quotas = quotas_of(text)
    holdings = Holdings.told([pb.UsageReply(held=[*held, asked, *more])])
    try:
        check(quotas, holdings, asked.reservation_id, quotas.listed_groups, "limits.toml", "host1")
    except LimitReached as error:
        return error
    return None


def test_a_person_holds_no_more_than_they_may() -> None:
    held = [part("dev", "bob", gpus=4)]
    assert refusal(FILE, held, part("b", "bob", gpus=4)) is None
    error = refusal(FILE, held, part("b", "bob", gpus=5))
    assert error is not None
    assert (error.who, error.limit, error.most, error.held) == ("bob", "gpus", 8, 4)
    assert str(error) == (
        'bob may have 8 GPUs at most, as the limit of "*" says, holds 4 GPUs (dev 4 GPUs), and b takes 5 GPUs: '
        "release what is not needed, or ask for less; carol can raise the limit, in limits.toml on host1"
    )


def test_the_closest_entry_that_says_something_counts() -> None:
    assert refusal(FILE, [], part("a", "alice", gpus=8, nodes=2)) is None
    assert "alice may have 2 nodes" in str(refusal(FILE, [], part("a", "alice", gpus=1, nodes=3)))
    assert "student-7 may have 1 node " in str(refusal(FILE, [], part("a", "student-7", nodes=2)))
    lifted = FILE + '\n[people.bob]\ngpus = "none"\nnodes = "none"\n'
    assert refusal(lifted, [], part("a", "bob", gpus=2, nodes=9)) is None


def test_a_group_holds_no_more_together() -> None:
    error = refusal(FILE, [part("dev", "alice", gpus=16)], part("b", "bob", gpus=5))
    assert error is not None
    assert (error.who, error.held) == ("vision", 16)
    assert "the group vision may have 20 GPUs at most, holds 16 GPUs (dev (alice) 16 GPUs)" in str(error)
    assert refusal(FILE, [part("dev", "dave", gpus=16)], part("b", "bob", gpus=5)) is None, "dave is in no group"


def test_a_reservation_counts_with_all_nodes_that_it_is_about_to_have() -> None:
    assert "b takes 3 nodes" in str(refusal(FILE, [], part("b", "bob", nodes=3, gpus=1)))
    lies = [part("b", "bob", nodes=1, gpus=1, node_rank=number) for number in (1, 2)]
    assert "b takes 3 nodes" in str(refusal(FILE, [], part("b", "bob", nodes=1, gpus=1), *lies))


def test_a_node_that_takes_the_place_of_another_counts_once() -> None:
    both = [part("b", "bob", nodes=2, gpus=4, node_rank=number) for number in (0, 1)]
    coming = part("b", "bob", nodes=2, gpus=4, node_rank=1, confirmed=False)
    assert refusal(FILE, [], both[0], both[1], coming) is None
    assert refusal(FILE, [], both[0], both[1], coming, coming) is not None, "not twice"


def test_a_limit_that_was_lowered_is_in_nobodys_way_who_adds_nothing() -> None:
    held = [part("dev", "bob", gpus=16)]
    assert refusal(FILE, held, part("b", "bob", gpus=0)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('gpus = 4\n', "line 1: there is no 'gpus': a file has contact, nodes, people, groups"),
        ('\n[people.alice]\ngpu = 4\n', "line 3: there is no 'gpu': limits are nodes, gpus"),
        ('[people.alice]\ngpus = -1\n', "line 2: gpus is a number of at least 0, or \"none\", not -1"),
        ('[people.alice]\nnodes = 1\n[people.bob]\nnodes = true\n', "line 4: nodes is a number"),
        ('[people."a b"]\nnodes = 1\n', "line 1: 'a b' is no name"),
        ('[groups.vision]\nmembers = "bob"\n', "line 2: members is a list of texts, not 'bob'"),
        ('window = "7d"\n', "line 1: there is no 'window': a file has contact, nodes"),
        ('[people.alice]\ngpus = = 4\n', "line 2: Invalid value"),
        ('[people.alice]\ngpus = nan\n', "line 2: gpus is a number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_with_its_line(text: str, problem: str) -> None:
    _, problems = read_quotas(text)
    assert [told[: len(problem)] for told in problems] == [problem]


@given(st.text())
def test_whatever_is_in_a_file_is_read_or_told(text: str) -> None:
    _, problems = read_quotas(text)
    assert all(re.match(r"line \d+: ", problem) for problem in problems)

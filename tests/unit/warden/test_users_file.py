"""users.toml: who is who, who may, and who may have how much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.warden.requests import ACCOUNT
from monarch_nb.warden.users_file import Limit, Users, memory_of, memory_text, read_users

FILE = """
allow = ["alice", "@lab"]
rooms = 20

[accounts]
"student-*" = "class"
"student-of-*" = "guests"
"ann@lab" = "asmith"
"*" = "same"

[limits."*"]
memory = "64G"
cpus = 8

[limits."@students"]
memory = "16G"

[limits."@staff"]
memory = "128G"

[limits.alice]
cpus = 64
"""


def test_a_file_without_a_word_lets_everybody_be_themselves() -> None:
    users, problems = read_users("")
    assert (users, problems) == (Users(), [])
    assert users.account_of("alice") == "alice"
    assert users.may("alice", [])
    assert users.limit_of("alice", ["lab"]) == Limit()


def test_the_closest_entry_says_whose_account_a_name_means() -> None:
    users, problems = read_users(FILE)
    assert problems == []
    meant = {"alice": "alice", "ann@lab": "asmith", "student-7": "class", "student-of-x": "guests", "bob@lab": None}
    assert {name: users.account_of(name) for name in meant} == meant
    assert read_users('[accounts]\nalice = "asmith"')[0].account_of("bob") is None


def test_accounts_and_groups_may() -> None:
    users, _ = read_users(FILE)
    assert users.may("alice", [])
    assert users.may("bob", ["users", "lab"])
    assert not users.may("bob", ["users", "alice"])
    assert not read_users("allow = []")[0].may("alice", ["lab"])


def test_the_own_limit_counts_then_the_most_of_groups() -> None:
    users, _ = read_users(FILE)
    giga = 1 << 30
    assert users.limit_of("alice", []) == Limit(64 * giga, 64)
    assert users.limit_of("bob", ["students"]) == Limit(16 * giga, 8)
    assert users.limit_of("bob", ["students", "staff"]) == Limit(128 * giga, 8)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("allow = [", "line 1: "),
        ("\nrooms = -1", "line 2: rooms is a number from 0 to 10000, not -1"),
        ("\nallows = []", "line 2: there is no 'allows': a file has allow, rooms, accounts, limits"),
        ('allow = ["@"]', "line 1: allow is a list of accounts and groups"),
        ('[accounts]\n"a b" = "same"', "line 2: 'a b' is no name"),
        ('[accounts]\nbob = "../root"', "line 2: bob is the name of an account"),
        ("limits = 1", "line 1: limits is a table"),
        ('[limits."a*"]\ncpus = 1', "line 1: 'a*' is no account, no group"),
        ("[limits.bob]\ngpus = 1", "line 1: bob is a table with memory, cpus or both"),
        ('[limits.bob]\nmemory = "64"', "line 2: memory is such as \"64G\", not '64'"),
        ("[limits.bob]\ncpus = 0", "line 2: cpus is such as 8, not 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, problem: str) -> None:
    assert [told for told in read_users(text)[1] if told.startswith(problem)]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64G", 64 << 30), ("1.5T", 3 << 39), ("512M", 512 << 20), ("64", None), ("64GB", None), ("0G", None), (64, None)],
)
def test_memory_is_counted_as_by_slurm(text: object, size_bytes: int | None) -> None:
    assert memory_of(text) == size_bytes
    assert size_bytes is None or memory_text(size_bytes) == text


@given(st.text(max_size=40), st.dictionaries(st.text("ab*", max_size=4), st.text("ab/.", max_size=4), max_size=4))
def test_no_name_means_what_is_no_account(person: str, accounts: dict[str, str]) -> None:
    account = Users(accounts=accounts).account_of(person)
    assert account is None or ACCOUNT.fullmatch(account)

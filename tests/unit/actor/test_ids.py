"""Identifiers: written and read as Monarch does (compared with torchmonarch 0.7)."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.actor.ids import ProcId, Uid


@pytest.mark.parametrize(
    ("text", "label", "value", "written"),
    [
        ("x<abc>", "x", 30867, "x<abc>"),
        ("<11abc>", None, 30867, "<abc>"),
        ("<jpXCZedGfVQ>", None, 7932437010717426570, "<jpXCZedGfVQ>"),
        ("a" * 63, "a" * 63, None, "a" * 63),
    ],
)
def test_texts(text: str, label: str | None, value: int | None, written: str) -> None:
    uid = Uid.from_string(text)
    assert (uid.label, uid.instance_value, uid.is_instance, str(uid)) == (label, value, value is not None, written)
    assert uid.is_singleton != uid.is_instance


@pytest.mark.parametrize("text", ["", "<>", "x<abc>y", "x<IO>", "<zzzzzzzzzzzz>", "9a", "a1_-", "_<abc>", "a" * 64])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="invalid uid"):
        ProcId.from_string(text)


@given(st.integers(0, 2**64 - 1))
def test_numbers_come_back(value: int) -> None:
    uid = Uid.instance_from_value(value, "x")
    assert Uid.from_string(str(uid)).instance_value == value


def test_instances_and_processes_are_equal_by_number() -> None:
    assert Uid.from_string("x<abc>") == Uid.from_string("y<abc>")
    assert len({Uid.from_string("x<abc>"), Uid.from_string("<abc>"), Uid.from_string("x")}) == 2
    assert Uid.instance("x") != Uid.instance("x")
    assert Uid.anonymous().label is None
    process = ProcId.from_string("worker<abc>")
    assert (process.label, process.uid, str(process)) == ("worker", Uid.from_string("<abc>"), "worker<abc>")
    assert pickle.loads(pickle.dumps(process)) == process

"""What the gateway may ask is read strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.warden.requests import KEYS, LARGEST_BYTES, Refused, read

ID = "0123456789abcdef" * 2
GOOD: list[dict[str, Any]] = [
    {"do": "accounts", "names": ["alice", "a.b@lab"]},
    {"do": "open_room", "account": "alice"},
    {"do": "room", "account": "_a-1"},
    {"do": "way_out", "account": "_a-1"},
    {"do": "reserve_group", "account": "alice", "reservation": ID},
    {"do": "reserve_group", "account": "alice", "reservation": ID, "memory_bytes": 64 << 30, "cpus": 0.5},
    {"do": "reserve_group", "account": "alice", "reservation": ID, "gpu_minors": [7, 0, 247]},
    {"do": "end_group", "account": "alice", "reservation": ID},
    {"do": "close_room", "account": "alice"},
    {"do": "rooms"},
]
NAMES = ["", "..", "a/b", "-a", "a\n", "a\0", "ä", "Alice", "1a", "a" * 33, "a.b", 1, None, True, []]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["alice", ID]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def sent(request: object) -> bytes:
    return json.dumps(request).encode()


@pytest.mark.parametrize("request_", GOOD, ids=lambda request: request["do"])
def test_a_request_is_read(request_: dict[str, Any]) -> None:
    found = read(sent({"number": 7, **request_}))
    assert (found.number, found.do) == (7, request_["do"])
    assert found.arguments == {key: value for key, value in request_.items() if key != "do"}


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize("request_", GOOD[1:], ids=lambda request: request["do"])
def test_no_other_name_is_an_account(request_: dict[str, Any], name: object) -> None:
    with pytest.raises(Refused):
        read(sent({"number": 7, **request_, "account": name}))


@pytest.mark.parametrize("name", ["", "..", ".a", "a/b", "a\n", "a\0", "ä", "-a", "a" * 65, "a b", 1, None], ids=repr)
def test_no_other_name_is_a_person(name: object) -> None:
    with pytest.raises(Refused):
        read(sent({"number": 7, "do": "accounts", "names": ["alice", name]}))


@pytest.mark.parametrize("key", ["path", "uid", "signal", "environment", "command", "limits", "Account", ""])
@pytest.mark.parametrize("request_", GOOD, ids=lambda request: request["do"])
def test_no_request_has_another_key(request_: dict[str, Any], key: str) -> None:
    with pytest.raises(Refused, match="has other keys"):
        read(sent({"number": 7, **request_, key: 1}))


@pytest.mark.parametrize("request_", GOOD, ids=lambda request: request["do"])
def test_every_key_is_required(request_: dict[str, Any]) -> None:
    for key in request_.keys() - {"memory_bytes", "cpus", "gpu_minors"}:
        with pytest.raises(Refused):
            read(sent({"number": 7, **{one: value for one, value in request_.items() if one != key}}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("memory_bytes", value) for value in (0, -1, 1.5, True, "64G", None, 1 << 60, [1])),
        *(("cpus", value) for value in (0, -1, True, "8", None, 1e9, float("inf"), float("nan"), {})),
        *(("gpu_minors", value) for value in (0, None, "0", {}, [-1], [248], [255], [True], [0.0], ["0"], [[0]])),
        *(("reservation", value) for value in (ID[:-1], ID + "0", ID.upper(), ID[:-1] + "\n", "../" + ID[3:], 0)),
        *(("number", value) for value in (-1, True, 1.0, "1", None, 1 << 53)),
        *(("do", value) for value in ("", "Open_room", "shutdown", "__class__", None, [], 1)),
    ],
)
def test_no_other_value_is_taken(key: str, value: object) -> None:
    with pytest.raises(Refused):
        read(sent({"number": 7, **GOOD[4], key: value}))


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"[" * LARGEST_BYTES,
        b'{"number":1,"do":"room","account":"alice","account":"alice"}',
        b'{"number":1,"do":"room","account":"alice"}' + b" " * LARGEST_BYTES,
        b'{"number":1,"do":"room","account":"alice"}{}',
        '{"number":1,"do":"room","account":"alicé"}'.encode(),
        '{"number":1,"do":"room","account":"alice"}'.encode("utf-16"),
        b'{"number":' + b"9" * 4000 + b"}",
        b"[]",
    ],
    ids=lambda datagram: repr(datagram[:30]),
)
def test_what_is_no_request_is_refused(datagram: bytes) -> None:
    with pytest.raises(Refused, match="this is no request"):
        read(datagram)


@given(
    st.binary(max_size=64)
    | st.dictionaries(st.sampled_from(["number", "do", "account", "names", "x"]), VALUES).map(sent)
)
def test_whatever_is_sent_is_a_request_or_refused(datagram: bytes) -> None:
    try:
        found = read(datagram)
    except Refused:
        return
    assert found.arguments.keys() <= KEYS[found.do].keys()

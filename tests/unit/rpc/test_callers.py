"""Who calls a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.errors import AccessDenied, TrustError
from monarch_nb.rpc.callers import acting_for, caller_of
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.pools import make_paths


class Context:
    """A call over TLS, as gRPC describes it."""

    def __init__(self, certificate: bytes | None, metadata: tuple[tuple[str, bytes], ...] = ()) -> None:
        self._certificates = {"x509_pem_cert": [certificate]} if certificate else {}
        self._metadata = metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.2:40000"

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._certificates

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._metadata


class LocalContext(Context):
    def peer(self) -> str:
        return "unix:"


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("MONARCH_NB_CONFIG", str(tmp_path))
    return Authority.create("lab", make_paths("lab"))


def test_a_certificate_says_who_calls(authority: Authority) -> None:
    identity = authority.issue("alice", "user")
    caller = caller_of(Context(identity.certificate))
    assert (caller.name, caller.role, caller.certificate) == ("alice", "user", identity.facts)
    assert not caller.local


def test_on_the_unix_socket_the_allocators_own_user_calls() -> None:
    caller = caller_of(LocalContext(None))
    assert caller.local
    assert caller.role == "admin"


def test_without_a_certificate_of_a_pool_nobody_calls() -> None:
    with pytest.raises(AccessDenied):
        caller_of(Context(None))
    with pytest.raises(TrustError):
        caller_of(Context(b"garbage"))


def test_a_node_calls_for_a_person_and_has_no_more_rights(authority: Authority) -> None:
    node = authority.issue("host2", "node")
    caller = caller_of(Context(node.certificate, acting_for("alice")))
    assert (caller.name, caller.role, caller.node) == ("alice", "user", "host2")


def test_only_nodes_call_for_others(authority: Authority) -> None:
    for role in ("user", "admin"):
        caller = caller_of(Context(authority.issue("bob", role).certificate, acting_for("alice")))
        assert (caller.name, caller.node) == ("bob", "")

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


def test_a_certificate_says_who_calls_and_on_the_unix_socket_it_is_our_own_user(authority: Authority) -> None:
    identity = authority.issue("alice", "user")
    caller = caller_of(Context(identity.certificate))
    assert (caller.name, caller.role, caller.certificate) == ("alice", "user", identity.facts)
    local = caller_of(LocalContext(None))
    assert (caller.local, local.local, local.role) == (False, True, "admin")
    for certificate, error in ((None, AccessDenied), (b"garbage", TrustError)):
        with pytest.raises(error):
            caller_of(Context(certificate))


def test_only_nodes_call_for_others_and_have_no_more_rights_then(authority: Authority) -> None:
    node = authority.issue("host2", "node")
    caller = caller_of(Context(node.certificate, acting_for("alice")))
    assert (caller.name, caller.role, caller.node) == ("alice", "user", "host2")
    for role in ("user", "admin"):
        caller = caller_of(Context(authority.issue("bob", role).certificate, acting_for("alice")))
        assert (caller.name, caller.node) == ("bob", "")

"""Who calls a node: its socket or its certificate says so, never its request."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from monarch_nb.errors import AccessDenied
from monarch_nb.ground.account import own_name
from monarch_nb.trust.identity import ADMIN, NODE, USER, CertificateFacts, facts_of

_CERTIFICATE = "x509_pem_cert"
_FOR = "monarch-nb-for-bin"
"""In the metadata of a node's call: the name of whom it calls for."""


@dataclass(frozen=True)
class Caller:
    """Who calls.

    Attributes:
        name: the certificate's; the allocator's own user on its Unix socket.
        role: "node", "admin" (who made the pool) or "user".
        certificate: what it says; None on the Unix socket.
        local: it calls on the Unix socket. Nobody but the allocator's own user can open that, who can do everything
            anyway, so what its requests say of owners is believed.
        node: the name of the node that calls for this person; empty when the person calls.
    """

    name: str
    role: str
    certificate: CertificateFacts | None = None
    local: bool = False
    node: str = ""


class Call(Protocol):
    """What gRPC tells of a call."""

    def peer(self) -> str: ...
    def auth_context(self) -> Mapping[str, Any]: ...
    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def caller_of(context: Call) -> Caller:
    """Return who calls. A node that calls for a person has that person's rights, and not more.

    Raises:
        AccessDenied: it shows no certificate. TrustError: it is not one of a pool.
    """
    if context.peer().startswith("unix:"):
        return _own_user()
    certificates = context.auth_context().get(_CERTIFICATE)
    if not certificates:
        raise AccessDenied("this node answers only who shows a certificate of its pool")
    facts = facts_of(bytes(certificates[0]))
    if facts.role == NODE and (name := named_in(context.invocation_metadata() or ())):
        return Caller(name, USER, facts, node=facts.name)
    return Caller(facts.name, facts.role, facts)


def acting_for(name: str) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata with which a node calls another for a person: else one node could be made to do on another
    what the person may not do there."""
    return ((_FOR, name.encode()),) if name else ()


def named_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return for whom a node calls, as `acting_for` says it; "" for nobody."""
    for key, value in metadata:
        if key == _FOR and isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


@functools.cache
def _own_user() -> Caller:
    return Caller(own_name(), ADMIN, local=True)

"""Certificates that count no longer: looked up with every call, because gRPC's Python knows no lists of them."""

from __future__ import annotations

import time
from pathlib import Path

from monarch_nb.errors import CertificateRefused
from monarch_nb.times import time_of_day
from monarch_nb.trust.identity import NODE, CertificateFacts, renewal
from monarch_nb.trust.identity_file import IdentityFile
from monarch_nb.trust.revocation import Revocations


class Revoked:
    """The newest list that this node has seen.

    Args:
        certificate: the node's own, which says whom it believes.
        path: where the list lies, so that the next allocator knows it.

    Raises:
        TrustError: the list there can not be used; to go on without it would let in who was revoked.
    """

    def __init__(self, certificate: IdentityFile, path: Path) -> None:
        self._certificate, self._path = certificate, path
        self._known = Revocations.load(path, certificate.newest().authority)

    @property
    def number(self) -> int:
        """Of the list: the greater, the newer; 0 when nothing was ever revoked."""
        return self._known.number

    def take(self, pem: bytes) -> bool:
        """Take a list in that somebody brought; return whether it is newer than the one before.

        Raises:
            TrustError: it is garbled, or the pool's authority has not signed it.
        """
        brought = Revocations.verify(pem, self._certificate.newest().authority)
        if brought.number <= self._known.number:
            return False
        brought.save(self._path)
        self._known = brought
        return True

    def check(self, facts: CertificateFacts) -> None:
        """Let a certificate pass that counts.

        Raises:
            CertificateRefused: it was revoked, or has expired while its connection was open; the message says what
                helps whose it is.
        """
        if self._known.is_revoked(facts):
            raise CertificateRefused(f"{_called(facts)} was revoked: {renewal(facts)}")
        if time.time() >= facts.not_after:
            raise CertificateRefused(f"{_called(facts)} has expired ({time_of_day(facts.not_after)}): {renewal(facts)}")


def _called(facts: CertificateFacts) -> str:
    whose = "the certificate of a node of" if facts.role == NODE else f"{facts.name}'s certificate for"
    return f"{whose} the pool {facts.pool} ({facts.fingerprint[:16]})"

"""The list of certificates that count no longer: signed by the pool's authority, so anyone may carry it to a node."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.errors import TrustError
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import CertificateFacts, parse_certificate, pem_blocks, unreadable
from monarch_nb.trust.private_files import read_private, write_private

if TYPE_CHECKING:
    from cryptography import x509

LARGEST_LIST_BYTES = 1 << 20
"""Some 20,000 certificates."""


@dataclass(frozen=True)
class Revocations:
    """What was revoked; a fresh one is the list of a pool in which nothing was.

    Attributes:
        number: the list with the greater one is newer, and has all that older ones have.
        serials: of the certificates.
        pem: the list as it was signed, for others; empty when there is none.
    """

    number: int = 0
    serials: frozenset[int] = frozenset()
    pem: bytes = field(default=b"", repr=False)

    @classmethod
    def verify(cls, pem: bytes, authority: bytes) -> Revocations:
        """Read a list that somebody brought.

        Args:
            authority: its certificate: `Identity.authority`.

        Raises:
            TrustError: it is garbled, or the pool's authority has not signed it.
        """
        made, is_ours = cls._read(pem, authority)
        if not is_ours:
            raise TrustError("the list of revoked certificates is not signed by this pool's authority")
        return made

    @classmethod
    def load(cls, path: Path, authority: bytes) -> Revocations:
        """Return what `save` wrote; one that was never written revokes nothing.

        Nor does one of another authority: it is of the pool that was made anew since.

        Raises:
            TrustError: the file can not be used; to go on without it would let in who was revoked.
        """
        try:
            made, _ = cls._read(read_private(path), authority)
        except FileNotFoundError:
            return cls()
        except TrustError as error:
            raise TrustError(f"{path} can not be used: {error}") from None
        return made

    @classmethod
    def _read(cls, pem: bytes, authority: bytes) -> tuple[Revocations, bool]:
        """Return a list, and whether the authority has signed it; of one that it has not, nothing is believed."""
        from cryptography import x509

        lists = pem_blocks(pem, "X509 CRL") if len(pem) <= LARGEST_LIST_BYTES else []
        if len(lists) != 1:
            raise TrustError("the list of revoked certificates is garbled")
        try:
            read = x509.load_pem_x509_crl(lists[0])
        except unreadable():
            raise TrustError("the list of revoked certificates is garbled") from None
        if not _has_signed(authority, read):
            return cls(), False
        number = read.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        serials = frozenset(entry.serial_number for entry in read)
        return cls(number, serials, lists[0]), True

    def save(self, path: Path) -> None:
        """Write the file.

        Raises:
            TrustError: it can not be written.
        """
        write_private(path, self.pem)

    def is_revoked(self, facts: CertificateFacts) -> bool:
        """Whether a certificate counts no longer."""
        return facts.serial in self.serials

    def newer(self, other: Revocations) -> Revocations:
        """Return the newer one of the two; this one when they are of the same age."""
        return other if other.number > self.number else self


def revoke(
    known: Revocations, authority: Authority, certificates: Iterable[CertificateFacts], now: float | None = None
) -> Revocations:
    """Return the list with more certificates on it, signed.

    Args:
        known: the newest list that there is.
        now: seconds since the epoch; the number is that, or one more than the last. So who lost the list makes a newer
            one than any that nodes have.
    """
    from cryptography import x509

    at = time.time() if now is None else now
    number = max(known.number + 1, int(at))
    serials = known.serials | {facts.serial for facts in certificates}
    moment = datetime.fromtimestamp(at, UTC)
    builder = x509.CertificateRevocationListBuilder().last_update(moment)
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(moment).build()
        builder = builder.add_revoked_certificate(entry)
    return Revocations(number, serials, authority.sign_list(builder))


def _has_signed(signer: bytes, read: x509.CertificateRevocationList) -> bool:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = parse_certificate(signer).public_key()
    try:
        return isinstance(key, ec.EllipticCurvePublicKey) and read.is_signature_valid(key)
    except unreadable():
        return False

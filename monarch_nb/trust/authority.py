"""The private authority of a pool: it signs the certificates of nodes and people, and no others believe in it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from monarch_nb.config import TrustPaths
from monarch_nb.errors import TrustError
from monarch_nb.trust.identity import (
    NODE,
    CertificateFacts,
    Identity,
    facts_of,
    is_key_of,
    parse_certificate,
    pem_blocks,
    target_name,
)
from monarch_nb.trust.pools import checked_pool_name, checked_user_name
from monarch_nb.trust.private_files import create_private, locked, read_private, write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

DAY_S = 86400.0
LIFETIME_S = 366 * DAY_S
"""Of the certificates of nodes and of who made the pool."""
AUTHORITY_LIFETIME_S = 10 * 366 * DAY_S
BACK_DATED = timedelta(minutes=10)
"""A host whose clock is slow believes a new certificate at once."""


@dataclass(frozen=True)
class Authority:
    """Signs certificates of a pool. What it holds is PEM.

    Attributes:
        paths: of the pool: every certificate that is issued is noted there.
        certificate: its own; who has it believes what it signs.
        key: its own, never shown.
    """

    pool: str
    paths: TrustPaths = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @classmethod
    def create(cls, pool: str, paths: TrustPaths, now: float | None = None) -> Authority:
        """Make the authority of a new pool and write its files.

        Args:
            pool: its name. paths: in its directory, which is there.
            now: seconds since the epoch.

        Raises:
            UsageError: that is no name for a pool. TrustError: there is an authority already.
        """
        key, certificate = _new_authority(checked_pool_name(pool), now)
        made = cls(pool, paths, _pem(certificate), _private_pem(key))
        with locked(paths.directory):
            try:
                create_private(
                    paths.authority_key, made.key + made.certificate
                )  # no crash leaves one without the other
            except FileExistsError:
                raise TrustError(f"the pool {pool} has an authority already: {paths.authority_key}") from None
            write_private(paths.authority, made.certificate)
        return made

    @classmethod
    def load(cls, pool: str, paths: TrustPaths) -> Authority:
        """Return what `create` wrote.

        Raises:
            TrustError: the key is not here, or its file can not be used.
        """
        try:
            content = read_private(paths.authority_key)
        except FileNotFoundError as missing:
            raise TrustError(
                f"only the person who made the pool {pool} can do this, where they made it: there is no "
                f"{missing.filename}"
            ) from None
        certificates, keys = pem_blocks(content, "CERTIFICATE"), pem_blocks(content, "PRIVATE KEY")
        if len(keys) != 1 or len(certificates) != 1 or not is_key_of(keys[0], certificates[0]):
            raise TrustError(f"{paths.authority_key} is not what monarch-nb pool init wrote; is there a copy of it?")
        return cls(pool, paths, certificates[0], keys[0])

    def issue(self, name: str, role: str, lifetime_s: float = LIFETIME_S, now: float | None = None) -> Identity:
        """Return a new certificate with its key; that it was issued is noted first.

        Args:
            name: of its owner, or of the nodes. role: "node", "admin" or "user".
            lifetime_s: at most that of the authority.
            now: seconds since the epoch.

        Raises:
            UsageError: that is no name for a person.
            TrustError: the authority has expired, or a file can not be written.
        """
        from cryptography.hazmat.primitives.asymmetric import ec

        begin = _time(now)
        end = min(begin + timedelta(seconds=lifetime_s), self._read.not_valid_after_utc)
        if end <= begin:
            raise TrustError(f"the authority of {self.pool} has expired: make the pool anew")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(checked_user_name(name), role, self.pool)
        leaf = _leaf(_builder(subject, key, begin, end), role, self.pool)
        certificate = _pem(_sign(leaf, self._read.subject, self._private_key()))
        with locked(self.paths.directory):
            write_private(self.paths.issued, b"".join([*self._noted(), certificate]))
        return Identity(self.pool, name, role, certificate, _private_pem(key), self.certificate)

    def issued(self) -> list[CertificateFacts]:
        """Return every certificate that was issued, oldest first.

        Raises:
            TrustError: the file can not be read.
        """
        return [facts_of(pem) for pem in self._noted()]

    @property
    def expires_at(self) -> float:
        """Seconds since the epoch."""
        return self._read.not_valid_after_utc.timestamp()

    def sign_list(self, builder: x509.CertificateRevocationListBuilder) -> bytes:
        """Return a list of revoked certificates with this authority's name and signature."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        key = self._private_key()
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        builder = builder.issuer_name(self._read.subject).next_update(self._read.not_valid_after_utc)
        return builder.add_extension(signer, critical=False).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _noted(self) -> list[bytes]:
        try:
            return pem_blocks(read_private(self.paths.issued), "CERTIFICATE")
        except FileNotFoundError:
            return []

    @property
    def _read(self) -> x509.Certificate:
        return parse_certificate(self.certificate)

    def _private_key(self) -> ec.EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(self.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TrustError(f"{self.paths.authority_key} holds a key of another kind")
        return key


def _new_authority(pool: str, now: float | None) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    begin = _time(now)
    key = ec.generate_private_key(ec.SECP256R1())
    # A number of its own, so that the authority of a pool that was made anew is not taken for the one before it.
    number = x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{x509.random_serial_number():x}"[:16])
    subject = x509.Name([*_subject(f"authority of {pool}", "authority", pool), number])
    builder = _authority(_builder(subject, key, begin, begin + timedelta(seconds=AUTHORITY_LIFETIME_S)))
    return key, _sign(builder, subject, key)


def _subject(name: str, role: str, pool: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = (
        (NameOID.ORGANIZATION_NAME, pool),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, role),
        (NameOID.COMMON_NAME, name),
    )
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - BACK_DATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _authority(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    """Let a certificate sign others."""
    from cryptography import x509

    constraints = x509.BasicConstraints(ca=True, path_length=0)
    return builder.add_extension(constraints, critical=True).add_extension(
        _usage(key_cert_sign=True, crl_sign=True), critical=True
    )


def _leaf(builder: x509.CertificateBuilder, role: str, pool: str) -> x509.CertificateBuilder:
    """Let a certificate call nodes, and that of a node be called as well."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role == NODE:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName([x509.DNSName(target_name(pool))])
        builder = builder.add_extension(names, critical=False)
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: x509.CertificateBuilder, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.issuer_name(issuer).add_extension(signer, critical=False).sign(key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _time(now: float | None) -> datetime:
    return datetime.fromtimestamp(time.time() if now is None else now, UTC)

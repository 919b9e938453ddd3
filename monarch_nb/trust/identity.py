"""Who somebody is to a pool: a certificate, its key and the pool's authority, in one file. What a certificate says."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.errors import TrustError, UsageError
from monarch_nb.times import duration
from monarch_nb.trust.pools import checked_pool_name, checked_user_name, paths_of
from monarch_nb.trust.private_files import read_private, write_private

if TYPE_CHECKING:
    from cryptography import x509

NODE, ADMIN, USER = "node", "admin", "user"
"""Roles: of nodes, of who made the pool, of who was invited."""
WARNING_S = 14 * 86400.0
"""So long before a certificate expires it is said; of one that lives less than twice as long, in its second half."""
_BLOCK = re.compile(rb"-----BEGIN (?P<label>[A-Z0-9 ]+)-----\r?\n[^-]*-----END (?P=label)-----\r?\n?")


@dataclass(frozen=True)
class CertificateFacts:
    """What a certificate says.

    Attributes:
        name: of its owner; everything that this owner reserves is theirs. role: "node", "admin" or "user".
        pool: that it is for, as who made it named it.
        serial: by which it is revoked. fingerprint: SHA-256 in hexadecimal, by which people tell it from others.
        not_before, not_after: seconds since the epoch.
    """

    name: str
    role: str
    pool: str
    serial: int
    fingerprint: str
    not_before: float
    not_after: float


@dataclass(frozen=True)
class Identity:
    """Who we are to a pool, and whom we believe. What it holds is PEM.

    Attributes:
        certificate: ours.
        key: ours, never shown.
        authority: the certificate of the pool's authority.
        source: the file that has it; None when it is of none.
    """

    pool: str
    name: str
    role: str
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    authority: bytes = field(repr=False)
    source: Path | None = field(default=None, compare=False, repr=False)

    @property
    def target_name(self) -> str:
        """The name that every node's certificate has, whatever its host is called."""
        return target_name(self.pool)

    @property
    def facts(self) -> CertificateFacts:
        """What the certificate says."""
        return facts_of(self.certificate)

    @property
    def expires_at(self) -> float:
        """Seconds since the epoch."""
        return self.facts.not_after

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hexadecimal."""
        return self.facts.fingerprint

    @property
    def bundle(self) -> bytes:
        """The content of its file. It holds the key."""
        return self.certificate + self.key + self.authority

    def save(self, path: Path) -> None:
        """Write the file, for this user alone.

        Raises:
            TrustError: it can not be written.
        """
        write_private(path, self.bundle)


def target_name(pool: str) -> str:
    """Return the DNS name in the certificates of a pool's nodes."""
    return f"node.{pool}.monarch-nb"


def identity_of(pool: str) -> Identity:
    """Return who this user is to a pool.

    Raises:
        UsageError: that is no name for a pool. PoolError: there is none of that name.
        TrustError: its file can not be used; the message says why, and what to do.
    """
    return load_identity(paths_of(pool).identity)


def load_identity(path: Path, now: float | None = None) -> Identity:
    """Return what `Identity.save` wrote, when it counts now.

    Args:
        now: seconds since the epoch.

    Raises:
        TrustError: the file is missing, garbled or open to others, or the certificate has expired or is not of the
            authority beside it; the message says what to do.
    """
    try:
        bundle = read_private(path)
    except FileNotFoundError:
        raise TrustError(
            f"there is no {path}: monarch-nb pool init makes one, monarch-nb pool join takes an invitation in, and a "
            "host with another home directory needs a copy of the pool's node.pem"
        ) from None
    return replace(parse_identity(bundle, str(path), now), source=path)


def parse_identity(bundle: bytes, source: str, now: float | None = None) -> Identity:
    """Read the content of an identity's file; `source` names it in errors.

    Raises:
        TrustError: it is garbled, the certificate has expired or is not of the authority beside it.
    """
    certificates, keys = pem_blocks(bundle, "CERTIFICATE"), pem_blocks(bundle, "PRIVATE KEY")
    if len(certificates) != 2 or len(keys) != 1:
        raise TrustError(f"{source} is not a certificate with its key and authority as monarch-nb pool makes them")
    try:
        facts = facts_of(certificates[0])
        if not is_key_of(keys[0], certificates[0]):
            raise TrustError("the key is not the certificate's")
        if not is_signed_by(*certificates):
            raise TrustError("the certificate is not of the authority beside it")
    except TrustError as error:
        raise TrustError(f"{source} can not be used: {error}") from None
    check_time(facts, time.time() if now is None else now, source)
    return Identity(facts.pool, facts.name, facts.role, certificates[0], keys[0], certificates[1])


def check_time(facts: CertificateFacts, now: float, source: str) -> None:
    """Refuse a certificate that does not count any more, or yet.

    Raises:
        TrustError: it has expired, or begins later.
    """
    if now >= facts.not_after:
        raise TrustError(
            f"the certificate of {facts.name} in {source} has expired {duration(now - facts.not_after)} ago: "
            f"{renewal(facts)}"
        )
    if now < facts.not_before:
        raise TrustError(
            f"the certificate of {facts.name} in {source} begins only in {duration(facts.not_before - now)}: "
            "is this machine's clock right?"
        )


def expiry_warning(identity: Identity, now: float | None = None) -> str:
    """Return what to say of a certificate that expires within 14 days, or has; empty when it lasts longer. One that was
    made for a few days is warned about in the second half of them."""
    facts = identity.facts
    left_s = facts.not_after - (time.time() if now is None else now)
    if left_s > min(WARNING_S, (facts.not_after - facts.not_before) / 2):
        return ""
    whose = "the certificate of the nodes" if identity.role == NODE else f"{identity.name}'s certificate"
    when = f"expires in {duration(left_s)}" if left_s > 0 else "has expired"
    return f"{whose} for the pool {identity.pool} {when}: {renewal(facts)}"


def renewal(facts: CertificateFacts) -> str:
    """Return what those whose certificate expires, or counts no longer, can do about it."""
    renew = f"monarch-nb pool renew {facts.pool}"
    if facts.role == ADMIN:
        return f"run {renew}"
    if facts.role == NODE:
        return (
            f"the person who made the pool runs {renew}; a host with another home directory then needs a copy of its "
            "node.pem"
        )
    invites = f"monarch-nb pool invite {facts.pool} --user {facts.name}"
    return f"ask the person who made the pool for another invitation ({invites})"


@lru_cache(maxsize=4096)
def facts_of(certificate: bytes) -> CertificateFacts:
    """Return what a certificate (PEM; the first one, if others follow) says. Read once: servers ask with every call.

    Raises:
        TrustError: it can not be read, or is not one that monarch-nb made.
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    read = parse_certificate(certificate)
    texts = []
    for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME):
        values = [str(attribute.value) for attribute in read.subject.get_attributes_for_oid(oid)]
        texts.append(values[0] if len(values) == 1 else "")
    name, role, pool = texts
    try:
        checked_user_name(name)
        checked_pool_name(pool)
    except UsageError:
        role = ""
    if role not in (NODE, ADMIN, USER):
        raise TrustError("the certificate is not one that monarch-nb pool made")
    return CertificateFacts(
        name=name,
        role=role,
        pool=pool,
        serial=read.serial_number,
        fingerprint=read.fingerprint(hashes.SHA256()).hex(),
        not_before=read.not_valid_before_utc.timestamp(),
        not_after=read.not_valid_after_utc.timestamp(),
    )


def pem_blocks(text: bytes, label: str) -> list[bytes]:
    """Return the PEM blocks of one kind, in their order."""
    return [match[0] for match in _BLOCK.finditer(text) if match["label"] == label.encode()]


def parse_certificate(pem: bytes) -> x509.Certificate:
    """Read the first certificate of `pem`.

    Raises:
        TrustError: it can not be read.
    """
    from cryptography import x509

    try:
        read = x509.load_pem_x509_certificate(pem)
        # These are read when they are asked for: whatever is wrong with them shows here.
        _ = read.subject, read.issuer, read.not_valid_before_utc, read.not_valid_after_utc, read.public_key()
    except unreadable():
        raise TrustError("the certificate is garbled") from None
    return read


def unreadable() -> tuple[type[Exception], ...]:
    """Return what `cryptography` raises when it can not read something."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    return ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion, x509.ExtensionNotFound


def is_signed_by(pem: bytes, authority: bytes) -> bool:
    """Whether an authority has signed a certificate."""
    from cryptography import x509

    read, signer = parse_certificate(pem), parse_certificate(authority)
    try:
        read.verify_directly_issued_by(signer)
        return signer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except unreadable():
        return False


def is_key_of(key: bytes, certificate: bytes) -> bool:
    """Whether a certificate is of a private key.

    Raises:
        TrustError: one of them can not be read.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        public = load_pem_private_key(key, None).public_key()
    except unreadable():
        raise TrustError("the key is garbled") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return public.public_bytes(*form) == parse_certificate(certificate).public_key().public_bytes(*form)

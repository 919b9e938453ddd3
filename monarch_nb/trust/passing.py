"""Certificates that a few processes share for a while, and nobody else: an authority that signs one, and is forgotten.

Everybody in a pool has a certificate of its authority. Who is to run code as one of them needs more than that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

LIFETIME = timedelta(days=366)
BACK_DATED = timedelta(minutes=10)
"""A host whose clock is slow believes it at once."""


def passing_certificate(hosts: Iterable[str]) -> dict[str, str]:
    """Return the certificate of all who have its key, as PEM: `cert`, `key`, and `ca`, which alone believes in it.

    Args:
        hosts: names and addresses under which they are reached.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    begin = datetime.now(UTC) - BACK_DATED
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = name("monarch_nb workers")

    def certificate(subject: x509.Name, of: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        )

    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    names = x509.SubjectAlternativeName([_name_of(host) for host in sorted(set(hosts))])
    root = certificate(issuer, authority, ca=True).sign(authority, hashes.SHA256())
    leaf = certificate(name("monarch_nb worker"), key, ca=False)
    signed = leaf.add_extension(names, critical=False).add_extension(purposes, critical=False)
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "cert": signed.sign(authority, hashes.SHA256()).public_bytes(pem).decode(),
        "key": plain.decode(),
        "ca": root.public_bytes(pem).decode(),
    }


def _name_of(host: str):  # type: ignore[no-untyped-def]  # of cryptography, which is imported when it is used
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

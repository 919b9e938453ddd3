"""Whatever the bytes are, the answer is yes or a TrustError: never another exception, never more than was signed."""

import base64
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_nb.errors import TrustError
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import Identity, facts_of, parse_identity
from monarch_nb.trust.revocation import Revocations, revoke
from unit.trust.conftest import NOW

pytestmark = [
    pytest.mark.filterwarnings("ignore:Parsed a serial number"),
    pytest.mark.filterwarnings("ignore:Attribute's length"),
]
MANY = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)
"""Where, and what stands there."""


def changed(pem: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Return a PEM block whose content is changed, so that what reads PEM has no part in refusing it."""
    head, body, tail = re.fullmatch(rb"(-----BEGIN [^\n]+\n)(.*?)(-----END [^\n]+\n)", pem, re.DOTALL).groups()  # type: ignore[union-attr]
    content = bytearray(base64.b64decode(body))
    for at, byte in changes:
        content[at % len(content)] = byte
    return bytes(head + base64.encodebytes(bytes(content)) + tail)


def refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except TrustError:
        return True
    return False


@pytest.fixture
def ada(authority: Authority) -> Identity:
    return authority.issue("ada", "user", now=NOW)


@pytest.fixture
def made(authority: Authority, ada: Identity) -> Revocations:
    return revoke(Revocations(), authority, [ada.facts], NOW)


@MANY
@given(changes=CHANGES)
def test_a_changed_certificate_is_never_of_the_authority(ada: Identity, changes: list[tuple[int, int]]) -> None:
    certificate = changed(ada.certificate, changes)
    refused(lambda: facts_of(certificate))
    if certificate != changed(ada.certificate, []):
        assert refused(lambda: parse_identity(certificate + ada.key + ada.authority, "it", NOW))


@MANY
@given(changes=CHANGES)
def test_a_changed_list_revokes_nothing_more(
    authority: Authority, made: Revocations, changes: list[tuple[int, int]]
) -> None:
    pem = changed(made.pem, changes)
    if not refused(lambda: Revocations.verify(pem, authority.certificate)):
        assert Revocations.verify(pem, authority.certificate).serials == made.serials


@MANY
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused(authority: Authority, content: bytes) -> None:
    for label in (b"CERTIFICATE", b"X509 CRL", b"PRIVATE KEY"):
        block = b"-----BEGIN " + label + b"-----\n" + base64.encodebytes(content) + b"-----END " + label + b"-----\n"
        for text in (content, block, block * 3, authority.certificate + block):
            assert refused(lambda text=text: parse_identity(text, "it", NOW))  # type: ignore[misc]
            assert refused(lambda text=text: Revocations.verify(text, authority.certificate))  # type: ignore[misc]


@pytest.mark.parametrize("text", [b"-----BEGIN CERTIFICATE-----" * 50_000, b"-" * 1_000_000])
def test_what_looks_like_many_blocks_is_no_work(authority: Authority, text: bytes) -> None:
    assert refused(lambda: parse_identity(text, "it", NOW))

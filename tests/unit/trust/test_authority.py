"""What an authority signs is believed by its own, for what it is meant for; a renewed one by those who know the old."""

import os
import ssl
import time
from pathlib import Path

import pytest

from monarch_nb.config import TrustPaths
from monarch_nb.errors import TrustError
from monarch_nb.trust.authority import AUTHORITY_LIFETIME_S, Authority
from monarch_nb.trust.identity import parse_certificate, parse_identity
from monarch_nb.trust.pools import make_paths
from unit.trust.conftest import NOW
from unit.trust.handshakes import shake_hands

DAY_S = 86400.0


@pytest.fixture
def today(paths: TrustPaths) -> Authority:
    """One that begins today, for handshakes."""
    return Authority.create("lab", paths)


class TestFiles:
    def test_keys_are_for_this_user_alone_whatever_the_umask(self) -> None:
        before = os.umask(0)
        try:
            made = make_paths("lab")
            Authority.create("lab", made).issue("ada", "admin").save(made.identity)
        finally:
            os.umask(before)
        modes = {path.name: path.stat().st_mode & 0o777 for path in made.directory.iterdir()}
        assert modes == dict.fromkeys(("authority.key", "authority.pem", "identity.pem", "issued.pem"), 0o600)
        for directory in (made.directory, *list(made.directory.parents)[:2]):
            assert directory.stat().st_mode & 0o777 == 0o700

    def test_a_second_one_is_refused(self, authority: Authority, paths: TrustPaths) -> None:
        with pytest.raises(TrustError, match="has an authority already"):
            Authority.create("lab", paths)
        assert Authority.load("lab", paths) == authority, "what was created"
        assert b"PRIVATE" not in paths.authority.read_bytes()

    def test_without_the_key_one_is_told_who_can(self, paths: TrustPaths) -> None:
        with pytest.raises(TrustError, match="only the person who made the pool lab can do this"):
            Authority.load("lab", paths)

    def test_a_garbled_one_is_refused(self, authority: Authority, paths: TrustPaths, other: Authority) -> None:
        for garbled in (b"", authority.key, other.key + authority.certificates):
            paths.authority_key.write_bytes(garbled)
            with pytest.raises(TrustError, match="not what monarch-nb pool init wrote"):
                Authority.load("lab", paths)
        paths.authority_key.chmod(0o640)  # others can read it
        with pytest.raises(TrustError, match="chmod 600"):
            Authority.load("lab", paths)

    def test_what_is_issued_is_noted(self, authority: Authority) -> None:
        made = [authority.issue(name, "user", now=NOW) for name in ("ada", "bob", "ada")]
        assert authority.issued() == [identity.facts for identity in made]
        assert len({identity.facts.serial for identity in made}) == 3


class TestHandshakes:
    def test_users_and_nodes_of_a_pool_believe_each_other(self, tmp_path: Path, today: Authority) -> None:
        node = today.issue("node", "node")
        for caller in (today.issue("ada", "admin"), today.issue("bob", "user"), node):
            assert shake_hands(tmp_path, caller, node) == "TLSv1.3"

    def test_a_user_can_not_pass_for_a_node(self, tmp_path: Path, today: Authority) -> None:
        with pytest.raises(ssl.SSLError, match=r"(?i)purpose"):
            shake_hands(tmp_path, today.issue("ada", "user"), today.issue("bob", "user"))

    def test_a_node_of_another_pool_is_not_believed(self, tmp_path: Path, today: Authority) -> None:
        other = Authority.create("other", make_paths("other"))
        ada, node = today.issue("ada", "user"), other.issue("node", "node")
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            shake_hands(tmp_path, ada, node, node.target_name)

    def test_nodes_have_the_name_of_their_pool(self, tmp_path: Path, today: Authority) -> None:
        with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
            shake_hands(tmp_path, today.issue("ada", "user"), today.issue("node", "node"), "node.other.monarch-nb")

    def test_an_expired_one_is_not_believed(self, tmp_path: Path, today: Authority) -> None:
        old = today.issue("ada", "user", 60.0, time.time() - 120)
        with pytest.raises(ssl.SSLError, match="certificate has expired"):
            shake_hands(tmp_path, old, today.issue("node", "node"))


class TestRenewal:
    def test_old_and_new_believe_each_other(self, tmp_path: Path, today: Authority, paths: TrustPaths) -> None:
        before = {role: today.issue("someone", role) for role in ("user", "node")}
        renewed = today.renewed()
        assert Authority.load("lab", paths) == renewed
        after = {role: renewed.issue("someone", role) for role in ("user", "node")}
        for user in (before["user"], after["user"]):
            for node in (before["node"], after["node"]):
                assert shake_hands(tmp_path, user, node) == "TLSv1.3"

    def test_what_the_new_one_signs_can_be_loaded(self, authority: Authority) -> None:
        made = authority.renewed(NOW).issue("ada", "user", now=NOW)
        assert parse_identity(made.bundle, "it", NOW) == made
        assert made.certificate.count(b"BEGIN CERTIFICATE") == 2
        assert made.authority.count(b"BEGIN CERTIFICATE") == 2

    def test_the_old_one_can_be_forgotten(self, tmp_path: Path, today: Authority, paths: TrustPaths) -> None:
        stranger = today.issue("bob", "user")
        newest = today.renewed().without_old()
        assert Authority.load("lab", paths) == newest
        node = newest.issue("node", "node")
        assert shake_hands(tmp_path, newest.issue("ada", "user"), node) == "TLSv1.3"
        with pytest.raises(ssl.SSLError):
            shake_hands(tmp_path, stranger, node)

    def test_one_that_has_expired_is_dropped(self, authority: Authority) -> None:
        later = NOW + AUTHORITY_LIFETIME_S - DAY_S
        second = authority.renewed(later)
        assert second.certificates.count(b"BEGIN CERTIFICATE") == 2
        assert second.renewed(later + 2 * DAY_S).certificates.count(b"BEGIN CERTIFICATE") == 2
        assert second.expires_at == later + AUTHORITY_LIFETIME_S

    def test_the_proof_of_the_new_one_ends_with_the_old(self, authority: Authority) -> None:
        renewed = authority.renewed(NOW + DAY_S)
        assert parse_certificate(renewed.chain).not_valid_after_utc.timestamp() == authority.expires_at

    def test_an_expired_authority_can_not_vouch_for_another(self, authority: Authority) -> None:
        with pytest.raises(TrustError, match="make the pool anew"):
            authority.renewed(authority.expires_at)

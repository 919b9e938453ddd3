"""What an authority signs is believed by its own, for what it is meant for."""

import os
import ssl
import time
from pathlib import Path

import pytest

from monarch_nb.config import TrustPaths
from monarch_nb.errors import TrustError
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.pools import make_paths
from unit.trust.handshakes import shake_hands


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

    def test_a_garbled_one_is_refused(self, authority: Authority, paths: TrustPaths, other: Authority) -> None:
        for garbled in (b"", authority.key, other.key + authority.certificate):
            paths.authority_key.write_bytes(garbled)
            with pytest.raises(TrustError, match="not what monarch-nb pool init wrote"):
                Authority.load("lab", paths)
        paths.authority_key.chmod(0o640)  # others can read it
        with pytest.raises(TrustError, match="chmod 600"):
            Authority.load("lab", paths)


class TestHandshakes:
    def test_users_and_nodes_of_a_pool_believe_each_other(self, tmp_path: Path, today: Authority) -> None:
        node = today.issue("node", "node")
        for caller in (today.issue("ada", "admin"), today.issue("bob", "user"), node):
            assert shake_hands(tmp_path, caller, node) == "TLSv1.3"

    def test_a_person_a_node_of_another_pool_or_name_and_an_expired_one_are_not_believed(
        self, tmp_path: Path, today: Authority
    ) -> None:
        ada, node = today.issue("ada", "user"), today.issue("node", "node")
        foreign = Authority.create("other", make_paths("other")).issue("node", "node")
        expired = today.issue("ada", "user", 60.0, time.time() - 120)
        for caller, called, name, why in (
            (ada, today.issue("bob", "user"), "", "(?i)purpose"),
            (ada, foreign, foreign.target_name, "CERTIFICATE_VERIFY_FAILED"),
            (ada, node, "node.other.monarch-nb", "Hostname mismatch"),
            (expired, node, "", "certificate has expired"),
        ):
            with pytest.raises(ssl.SSLError, match=why):
                shake_hands(tmp_path, caller, called, name)

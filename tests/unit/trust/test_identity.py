"""Certificates with their keys: what they say, when they count, and that keys are never shown."""

import os
import re
import traceback
from pathlib import Path

import pytest

from monarch_nb.errors import TrustError, UsageError
from monarch_nb.trust.authority import LIFETIME_S, Authority
from monarch_nb.trust.identity import expiry_warning, facts_of, load_identity, parse_identity, pem_blocks
from unit.trust.conftest import NOW

DAY_S = 86400.0


@pytest.fixture
def file(tmp_path: Path, authority: Authority) -> Path:
    path = tmp_path / "ada.pem"
    authority.issue("ada", "user", 30 * DAY_S, NOW).save(path)
    return path


class TestFacts:
    def test_a_certificate_says_who_it_is_of(self, authority: Authority) -> None:
        facts = authority.issue("ada@host.example", "user", 30 * DAY_S, NOW).facts
        assert (facts.name, facts.role, facts.pool) == ("ada@host.example", "user", "lab")
        assert facts.not_after == NOW + 30 * DAY_S
        assert facts.not_before == NOW - 600, "a host whose clock is slow believes it at once"
        assert re.fullmatch(r"[0-9a-f]{64}", facts.fingerprint)

    def test_the_authority_itself_is_nobody(self, authority: Authority) -> None:
        with pytest.raises(TrustError, match="not one that monarch-nb pool made"):
            facts_of(authority.certificate)


class TestFile:
    def test_what_is_saved_is_loaded(self, file: Path) -> None:
        identity = load_identity(file, NOW)
        assert (identity.pool, identity.name, identity.role) == ("lab", "ada", "user")
        assert identity.target_name == "node.lab.monarch-nb"
        assert identity.expires_at == NOW + 30 * DAY_S
        assert identity.bundle == file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600

    def test_one_that_others_can_read_is_refused(self, file: Path) -> None:
        for mode in (0o640, 0o604, 0o620):
            file.chmod(mode)
            with pytest.raises(TrustError, match=f"chmod 600 {file}"):
                load_identity(file, NOW)

    @pytest.mark.parametrize(("group", "mode", "is_read"), [(7, 0o440, True), (8, 0o440, False), (7, 0o444, False)])
    def test_one_that_root_has_put_there_for_the_own_group_counts(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, group: int, mode: int, is_read: bool
    ) -> None:
        """So it is in a container of Kubernetes that does not run as root."""
        if os.geteuid() != 0:
            pytest.skip("only root can put it there")
        os.chown(file, 0, 7)
        file.chmod(mode)
        monkeypatch.setattr(os, "getuid", lambda: 1000)
        monkeypatch.setattr(os, "getegid", lambda: group)
        if is_read:
            assert load_identity(file, NOW).facts.name == "ada"
        else:
            with pytest.raises(TrustError, match="others can read"):
                load_identity(file, NOW)

    def test_what_is_no_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TrustError, match="pool join takes an invitation in"):
            load_identity(tmp_path / "none.pem", NOW)
        with pytest.raises(TrustError, match="can not read"):
            load_identity(tmp_path, NOW)

    def test_parts_that_do_not_belong_together_are_refused(
        self, file: Path, authority: Authority, other: Authority
    ) -> None:
        mine, bob = load_identity(file, NOW), authority.issue("bob", "user", now=NOW)
        for parts, why in (
            (mine.key, "not a certificate with its key and authority"),
            (mine.certificate + mine.authority, "not a certificate with its key and authority"),
            (mine.certificate + bob.key + mine.authority, "the key is not the certificate's"),
            (mine.certificate + mine.key + other.certificate, "not of the authority beside it"),
            (mine.certificate + mine.key + bob.certificate, "not of the authority beside it"),
        ):
            with pytest.raises(TrustError, match=why):
                parse_identity(parts, "it", NOW)

    def test_a_garbled_key_is_refused_and_not_shown(self, file: Path) -> None:
        text = file.read_bytes()
        (key,) = pem_blocks(text, "PRIVATE KEY")
        body = key.splitlines()[1]
        file.write_bytes(text.replace(body, body[:10] + b"!" + body[11:]))
        with pytest.raises(TrustError, match="the key is garbled") as raised:
            load_identity(file, NOW)
        told = "".join(traceback.format_exception(raised.value, chain=True))
        assert body[20:40].decode() not in told


class TestTime:
    def test_one_that_has_expired_or_is_to_begin_says_what_to_do(self, file: Path) -> None:
        for now_s, told in (
            (NOW + 30 * DAY_S + 7200, r"ada in .*ada.pem has expired 2 h ago: ask .* pool invite lab --user ada"),
            (NOW - 3600, "begins only in 50 min: is this machine's clock right"),
        ):
            with pytest.raises(TrustError, match=told):
                load_identity(file, now_s)

    def test_one_that_expires_soon_is_warned_about_by_whom_it_concerns(self, authority: Authority) -> None:
        admin = authority.issue("ada", "admin", 30 * DAY_S, NOW)
        assert expiry_warning(admin, NOW + 15 * DAY_S) == ""
        warning = expiry_warning(admin, NOW + 17 * DAY_S)
        assert warning == "ada's certificate for the pool lab expires in 13 d: run monarch-nb pool renew lab"
        assert "has expired" in expiry_warning(admin, NOW + 31 * DAY_S)
        node = authority.issue("node", "node", DAY_S, NOW)
        assert "needs a copy of its node.pem" in expiry_warning(node, NOW + DAY_S / 2)
        user = authority.issue("bob", "user", DAY_S, NOW)
        assert "ask the person who made the pool" in expiry_warning(user, NOW + DAY_S / 2)
        assert expiry_warning(user, NOW + DAY_S / 3) == "", "it was made for a day"


def test_nothing_that_people_read_has_the_key(authority: Authority) -> None:
    identity = authority.issue("ada", "user", now=NOW)
    assert "BEGIN" not in f"{identity!r} {identity} {authority!r}"


def test_what_is_no_name_is_never_issued_for(authority: Authority) -> None:
    for name in ("", "..", "../x", "a/b", "a b", "-ada", "ada-", "ada\n", "a" * 65, "é", "a\0b"):
        with pytest.raises(UsageError, match="no name for a person"):
            authority.issue(name, "user", now=NOW)
    assert authority.issued() == []


def test_the_lifetime_is_a_year_and_never_beyond_the_authority(authority: Authority) -> None:
    assert authority.issue("ada", "user", now=NOW).expires_at == NOW + LIFETIME_S
    late = authority.expires_at - DAY_S
    assert authority.issue("ada", "user", now=late).expires_at == authority.expires_at
    with pytest.raises(TrustError, match="expired: make the pool anew"):
        authority.issue("ada", "user", now=authority.expires_at)

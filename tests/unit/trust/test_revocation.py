"""What was revoked: signed, numbered, and never taken from somebody else."""

from dataclasses import replace
from pathlib import Path

import pytest

from monarch_nb.errors import TrustError
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import Identity
from monarch_nb.trust.revocation import LARGEST_LIST_BYTES, Revocations, revoke
from unit.trust.conftest import NOW


@pytest.fixture
def ada(authority: Authority) -> Identity:
    return authority.issue("ada", "user", now=NOW)


@pytest.fixture
def bob(authority: Authority) -> Identity:
    return authority.issue("bob", "user", now=NOW)


def test_it_names_the_revoked_and_nobody_else(
    tmp_path: Path, authority: Authority, ada: Identity, bob: Identity
) -> None:
    file = tmp_path / "revoked.pem"
    assert not Revocations.load(file, authority.certificate).is_revoked(ada.facts), "at first"
    made = revoke(Revocations(), authority, [ada.facts], NOW)
    made.save(file)
    assert Revocations.load(file, authority.certificate) == made
    assert file.stat().st_mode & 0o777 == 0o600
    carried = Revocations.verify(made.pem, ada.authority)
    assert carried.is_revoked(ada.facts)
    assert not carried.is_revoked(bob.facts)
    assert not carried.is_revoked(authority.issue("ada", "user", now=NOW).facts), "another certificate of hers"
    assert carried.number == NOW


def test_a_newer_list_has_all_that_the_older_has_and_wins(authority: Authority, ada: Identity, bob: Identity) -> None:
    older = revoke(Revocations(), authority, [ada.facts], NOW)
    newer = revoke(older, authority, [bob.facts], NOW)
    assert newer.number == older.number + 1
    assert newer.serials == {ada.facts.serial, bob.facts.serial}
    assert older.newer(newer) is newer
    assert newer.newer(older) is newer
    assert Revocations().newer(older) is older
    assert older.newer(replace(older)) is older


def test_who_lost_the_list_makes_a_newer_one(authority: Authority, ada: Identity, bob: Identity) -> None:
    lost = revoke(revoke(Revocations(), authority, [ada.facts], NOW), authority, [], NOW)
    assert revoke(Revocations(), authority, [bob.facts], NOW + 60).number > lost.number


def test_one_that_another_authority_or_a_user_signs_is_refused(
    authority: Authority, other: Authority, ada: Identity, bob: Identity
) -> None:
    """Bob's certificate is the authority's, but may not sign."""
    forged = revoke(Revocations(), other, [ada.facts], NOW).pem
    posing = replace(authority, certificate=bob.certificate, key=bob.key)
    bobs = revoke(Revocations(), posing, [ada.facts], NOW).pem
    for pem in (forged, forged + other.certificate, bobs + bob.certificate):
        with pytest.raises(TrustError, match="not signed by this pool's authority"):
            Revocations.verify(pem, authority.certificate)


def test_one_of_a_pool_that_was_made_anew_names_nobody(
    tmp_path: Path, authority: Authority, other: Authority, ada: Identity
) -> None:
    """A node with the list of the pool before must start."""
    revoke(Revocations(), authority, [ada.facts], NOW).save(tmp_path / "revoked.pem")
    assert Revocations.load(tmp_path / "revoked.pem", other.certificate) == Revocations()


def test_a_garbled_file_is_not_passed_over(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "revoked.pem").touch(mode=0o600)
    with pytest.raises(TrustError, match=r"revoked\.pem can not be used: .* garbled"):
        Revocations.load(tmp_path / "revoked.pem", authority.certificate)


def test_two_lists_and_endless_ones_are_refused(authority: Authority, ada: Identity) -> None:
    made = revoke(Revocations(), authority, [ada.facts], NOW)
    for pem in (made.pem * 2, made.pem + b" " * LARGEST_LIST_BYTES):
        with pytest.raises(TrustError, match="garbled"):
            Revocations.verify(pem, authority.certificate)

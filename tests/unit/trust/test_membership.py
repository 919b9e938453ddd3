"""Pools made, shared, left; certificates renewed and revoked: between two people with a config each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_nb.config import CONFIG_VARIABLE, TrustPaths
from monarch_nb.errors import TrustError, UsageError
from monarch_nb.trust import membership
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import Identity, identity_of, load_identity, pem_blocks
from monarch_nb.trust.pools import change_hosts, is_pool, make_paths, paths_of, pool_names, read_hosts
from monarch_nb.trust.revocation import Revocations
from unit.trust.handshakes import shake_hands

DAY_S = 86400.0


@pytest.fixture
def lab(config: Path) -> TrustPaths:
    """A pool that ada has made, with a node."""
    membership.make_pool("lab", "ada")
    paths = paths_of("lab")
    change_hosts(paths, lambda hosts: hosts.added("host1").added("dns:more"))
    return paths


@pytest.fixture
def as_bob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From then on the config is bob's."""
    return lambda: monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "bob"))


@pytest.fixture
def bob(invitation: Path, as_bob: Callable[[], None]) -> Identity:
    """Who has joined; the config is his."""
    as_bob()
    return membership.join(invitation)


@pytest.fixture
def invitation(tmp_path: Path, lab: TrustPaths) -> Path:
    membership.invite("lab", "bob", 30 * DAY_S, tmp_path / "bob.pem")
    return tmp_path / "bob.pem"


class TestDoubt:
    def test_who_made_the_pool_knows_who_is_called_so(self, invitation: Path) -> None:
        assert membership.doubt("lab", "bob") == membership.doubt("lab", "ada") == ""
        assert membership.doubt("lab", "bbo") == (
            "no valid certificate was issued to 'bbo' in the pool lab; did you mean bob?"
        )
        assert membership.doubt("lab", "zoe").endswith("; monarch-nb pool invite lab --user zoe does")

    def test_nodes_and_who_was_shut_out_are_nobody(self, invitation: Path) -> None:
        membership.revoke_certificates("lab", "bob")
        for name in ("bob", "node"):
            assert membership.doubt("lab", name).startswith(f"no valid certificate was issued to {name!r}")

    def test_others_are_told_that_it_is_not_checked(self, bob: Identity) -> None:
        assert membership.doubt("lab", "ada") == (
            "the name 'ada' is not checked: only the person who made the pool lab knows its names"
        )


class TestMaking:
    def test_again_is_as_once(self, lab: TrustPaths) -> None:
        before = {path.name: path.read_bytes() for path in lab.directory.iterdir()}
        assert not membership.make_pool("lab", "somebody")
        assert {path.name: path.read_bytes() for path in lab.directory.iterdir()} == before

    def test_one_that_was_interrupted_goes_on(self) -> None:
        begun = Authority.create("lab", make_paths("lab"))
        assert not is_pool("lab")
        assert membership.make_pool("lab", "ada")
        assert identity_of("lab").authority == begun.certificate

    def test_a_name_that_makes_no_sense_makes_nothing(self, tmp_path: Path, config: Path) -> None:
        for pool, user in (("../lab", "ada"), ("lab", "../ada"), ("local", "ada")):
            with pytest.raises(UsageError):
                membership.make_pool(pool, user)
        assert not config.exists()
        membership.make_pool("lab", "ada")
        with pytest.raises(UsageError):
            membership.invite("lab", "node", DAY_S, tmp_path / "it.pem")
        assert not (tmp_path / "it.pem").exists()


class TestInviting:
    def test_who_joins_knows_the_nodes_and_is_believed(
        self, tmp_path: Path, lab: TrustPaths, invitation: Path, as_bob: Callable[[], None]
    ) -> None:
        me, node = identity_of("lab"), load_identity(lab.node)
        assert (me.name, me.role, node.name, node.role) == ("ada", "admin", "node", "node")
        as_bob()
        joined = membership.join(invitation)
        assert (joined.name, joined.role, joined.pool) == ("bob", "user", "lab")
        assert identity_of("lab") == joined
        assert read_hosts(paths_of("lab")) == read_hosts(lab)
        for person in (me, joined):
            assert shake_hands(tmp_path, person, node) == "TLSv1.3"

    def test_the_file_is_for_this_user_alone_and_has_one_key(self, invitation: Path, lab: TrustPaths) -> None:
        assert invitation.stat().st_mode & 0o777 == 0o600
        keys = pem_blocks(invitation.read_bytes(), "PRIVATE KEY")
        assert len(keys) == 1
        for path in (lab.authority_key, lab.identity, lab.node):
            assert keys[0] not in path.read_bytes()

    def test_nothing_is_issued_when_the_file_can_not_be_written(self, tmp_path: Path, lab: TrustPaths) -> None:
        before = lab.issued.read_bytes()
        (tmp_path / "there.pem").write_text("mine")
        with pytest.raises(UsageError, match="is there already: name another file with -o"):
            membership.invite("lab", "bob", DAY_S, tmp_path / "there.pem")
        with pytest.raises(TrustError, match="No such file or directory"):
            membership.invite("lab", "bob", DAY_S, tmp_path / "nowhere" / "bob.pem")
        assert lab.issued.read_bytes() == before
        assert (tmp_path / "there.pem").read_text() == "mine"


class TestJoining:
    def test_another_invitation_replaces_the_first(
        self, tmp_path: Path, lab: TrustPaths, invitation: Path, as_bob: Callable[[], None]
    ) -> None:
        change_hosts(lab, lambda hosts: hosts.added("host2"))
        membership.invite("lab", "bob", 60 * DAY_S, tmp_path / "later.pem")
        as_bob()
        first = membership.join(invitation)
        later = membership.join(tmp_path / "later.pem")
        assert identity_of("lab") == later != first
        assert read_hosts(paths_of("lab")).nodes == ("host1:7878", "host2:7878")

    def test_a_pool_of_somebody_else_with_that_name_is_not_replaced(
        self, tmp_path: Path, bob: Identity, as_bob: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "eve"))
        membership.make_pool("lab", "eve")
        membership.invite("lab", "bob", DAY_S, tmp_path / "eves.pem")
        as_bob()
        with pytest.raises(TrustError, match="another pool lab, of somebody else"):
            membership.join(tmp_path / "eves.pem")
        assert identity_of("lab") == bob

    def test_who_made_the_pool_needs_no_invitation(self, invitation: Path, lab: TrustPaths) -> None:
        with pytest.raises(TrustError, match="made the pool lab yourself"):
            membership.join(invitation)

    def test_who_was_invited_makes_no_pool_of_that_name(self, bob: Identity) -> None:
        with pytest.raises(TrustError, match="you were invited to a pool lab"):
            membership.make_pool("lab", "bob")

    def test_what_is_no_invitation_makes_nothing(
        self, tmp_path: Path, lab: TrustPaths, invitation: Path, as_bob: Callable[[], None]
    ) -> None:
        text = invitation.read_bytes()
        cut = tmp_path / "cut.pem"
        as_bob()
        for content, message in (
            (b"", "not a certificate with its key"),
            (text[: len(text) // 2], "not a certificate with its key"),
            (text.replace(b"POOL-----\n", b"POOL-----\n!!", 1), "garbled"),
            (lab.node.read_bytes(), "is for nodes: monarch-nb allocator --pool lab --certificate"),
        ):
            cut.touch(mode=0o600)
            cut.write_bytes(content)
            with pytest.raises(TrustError, match=message):
                membership.join(cut)
        with pytest.raises(TrustError, match="there is no"):
            membership.join(tmp_path / "none.pem")
        invitation.chmod(0o644)
        with pytest.raises(TrustError, match="chmod 600"):
            membership.join(invitation)
        assert pool_names() == []
        assert not (tmp_path / "bob").exists()


class TestRevoking:
    def test_a_name_means_all_certificates_of_a_person(self, tmp_path: Path, lab: TrustPaths, invitation: Path) -> None:
        membership.invite("lab", "bob", DAY_S, tmp_path / "more.pem")
        membership.invite("lab", "carl", DAY_S, tmp_path / "carl.pem")
        chosen, revocations = membership.revoke_certificates("lab", "bob")
        assert [facts.name for facts in chosen] == ["bob", "bob"]
        assert revocations == Revocations.load(lab.revoked, identity_of("lab").authority)
        states = [(one.facts.name, one.state) for one in membership.standings("lab")]
        assert states == [("ada", ""), ("node", ""), ("bob", "revoked"), ("bob", "revoked"), ("carl", "")]

    def test_a_fingerprint_means_one(self, tmp_path: Path, lab: TrustPaths, invitation: Path) -> None:
        membership.invite("lab", "bob", DAY_S, tmp_path / "more.pem")
        *_, first, second = (one.facts for one in membership.standings("lab"))
        shown = ":".join(first.fingerprint[at : at + 2] for at in range(0, 16, 2)).upper()
        assert membership.revoke_certificates("lab", shown)[0] == [first]
        assert [one.state for one in membership.standings("lab")][2:] == ["revoked", ""]
        assert membership.revoke_certificates("lab", "bob")[0] == [second], "the first was revoked before"

    def test_who_is_invited_again_counts(self, tmp_path: Path, invitation: Path, as_bob: Callable[[], None]) -> None:
        _, revocations = membership.revoke_certificates("lab", "bob")
        membership.invite("lab", "bob", DAY_S, tmp_path / "again.pem")
        as_bob()
        assert not revocations.is_revoked(membership.join(tmp_path / "again.pem").facts)
        assert Revocations.load(paths_of("lab").revoked, identity_of("lab").authority) == revocations

    @pytest.mark.parametrize(
        ("who", "message"),
        [
            ("carl", r"nobody is called 'carl' in the pool lab \(bob\)"),
            ("0", "nobody is called '0'"),
            ("ada", "your own certificate: run monarch-nb pool renew lab"),
            ("node", "the nodes' certificate"),
        ],
    )
    def test_nobody_is_shut_out_by_mistake(self, lab: TrustPaths, invitation: Path, who: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            membership.revoke_certificates("lab", who)
        assert not lab.revoked.exists()

    def test_an_older_list_replaces_no_newer_one(self, tmp_path: Path, lab: TrustPaths, invitation: Path) -> None:
        membership.invite("lab", "carl", DAY_S, tmp_path / "carl.pem")
        older = membership.revoke_certificates("lab", "bob")[1]
        newer = membership.revoke_certificates("lab", "carl")[1]
        assert membership.keep_revocations(lab, identity_of("lab"), older) == newer
        assert Revocations.load(lab.revoked, identity_of("lab").authority) == newer


class TestRenewing:
    def test_an_expired_one_can_be_renewed(self, lab: TrustPaths) -> None:
        Authority.load("lab", lab).issue("ada", "admin", 1.0, 1_700_000_000.0).save(lab.identity)
        with pytest.raises(TrustError, match="run monarch-nb pool renew lab"):
            identity_of("lab")
        membership.renew_pool("lab")
        assert identity_of("lab").name == "ada"


def test_a_pool_that_one_joined_is_used_and_forgotten_and_not_ruled(
    tmp_path: Path, invitation: Path, bob: Identity
) -> None:
    for rule in (
        lambda: membership.invite("lab", "carl", DAY_S, tmp_path / "carl.pem"),
        lambda: membership.revoke_certificates("lab", "ada"),
    ):
        with pytest.raises(TrustError, match="only the person who made the pool lab can do this"):
            rule()
    assert not (tmp_path / "carl.pem").exists()
    membership.remove_pool("lab")
    assert pool_names() == []
    assert invitation.exists()

"""Making a pool of hosts, inviting people to it, taking an invitation in, and what ends: renewed, revoked, removed."""

from __future__ import annotations

import base64
import binascii
import difflib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monarch_nb.config import TrustPaths
from monarch_nb.errors import PoolError, TrustError, UsageError
from monarch_nb.times import time_of_day
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import (
    ADMIN,
    NODE,
    USER,
    CertificateFacts,
    Identity,
    facts_of,
    parse_identity,
    pem_blocks,
)
from monarch_nb.trust.pools import (
    Hosts,
    change_hosts,
    checked_user_name,
    for_others,
    format_hosts,
    is_pool,
    make_paths,
    parse_hosts,
    paths_of,
    pools_directory,
    read_all_hosts,
)
from monarch_nb.trust.private_files import create_private, locked, read_private, write_private
from monarch_nb.trust.revocation import Revocations, revoke

NODE_NAME = "node"
"""In the certificate that all nodes of a pool have."""
SHORTEST_FINGERPRINT = 8
"""So many digits tell certificates apart."""
_HOSTS = "MONARCH NB POOL"
"""The block of an invitation that says where the nodes are."""


@dataclass(frozen=True)
class Standing:
    """A certificate that was issued, and whether it counts.

    Attributes:
        state: "" when it does, else "revoked" or "expired".
    """

    facts: CertificateFacts
    state: str


def make_pool(name: str, user: str, interface: str = "") -> bool:
    """Make a pool of hosts, in which this user may invite others; return whether it was not there already.

    Args:
        name: of the pool. user: what this user is called in it. interface: see `Hosts.interface`.

    Raises:
        UsageError: a name is none. TrustError: this user has joined a pool of that name, or a file can not be written.
    """
    checked_user_name(user)
    if is_pool(name):
        if not paths_of(name).authority_key.exists():
            raise TrustError(f"you were invited to a pool {name}: take another name, or monarch-nb pool remove {name}")
        return False
    paths = make_paths(name)
    # One that was interrupted goes on; pool.json comes last.
    authority = Authority.load(name, paths) if paths.authority_key.exists() else Authority.create(name, paths)
    authority.issue(user, ADMIN).save(paths.identity)
    authority.issue(NODE_NAME, NODE).save(paths.node)
    change_hosts(paths, lambda _: Hosts(interface=interface))
    return True


def invite(pool: str, user: str, lifetime_s: float, path: Path) -> Identity:
    """Write a file, for this user alone, that makes whoever has it `user` of a pool; return who that is.

    Args:
        path: of a file that is not there yet.

    Raises:
        UsageError: that is no name for a person, or the file is there already.
        PoolError: there is no such pool.
        TrustError: this user can not invite, or a file can not be used.
    """
    paths = paths_of(pool)
    if checked_user_name(user) == NODE_NAME:
        raise UsageError(f"{user!r} is what the nodes are called: a person has another name")
    authority = Authority.load(pool, paths)
    try:
        create_private(path, b"")  # before anything is issued
    except FileExistsError:
        raise UsageError(f"{path} is there already: name another file with -o") from None
    except OSError as error:
        raise TrustError(f"can not write {path}: {error.strerror}") from error
    try:
        identity = authority.issue(user, USER, lifetime_s)
        hosts = for_others(read_all_hosts(paths))
        write_private(path, _invitation(identity, hosts, known_revocations(paths, identity)))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return identity


def join(path: Path) -> Identity:
    """Take an invitation in; one that follows another to the same pool replaces it.

    Raises:
        TrustError: it can not be read, has expired, is none, or there is another pool of that name.
    """
    content = _content(path)
    identity = parse_identity(content, str(path))
    if identity.role == NODE:
        raise TrustError(f"{path} is for nodes: monarch-nb allocator --pool {identity.pool} --certificate {path}")
    hosts = _hosts_of(content, path)
    brought = pem_blocks(content, "X509 CRL")
    revocations = Revocations.verify(content, identity.authority) if brought else Revocations()
    if is_pool(identity.pool):
        _check_same_pool(paths_of(identity.pool), identity)
    paths = make_paths(identity.pool)
    keep_revocations(paths, identity, revocations)
    identity.save(paths.identity)
    change_hosts(paths, lambda known: hosts if hosts.words else known)
    return identity


def renew_pool(pool: str) -> Identity:
    """Make new certificates for this user and the nodes; return this user's.

    Raises:
        PoolError: there is no such pool. TrustError: this user did not make it, or a file can not be used.
    """
    paths = paths_of(pool)
    signer = Authority.load(pool, paths)
    identity = signer.issue(own_facts(paths).name, ADMIN)
    signer.issue(NODE_NAME, NODE).save(paths.node)
    identity.save(paths.identity)
    return identity


def standings(pool: str) -> list[Standing]:
    """Return the certificates of a pool, oldest first: all of them to who made it, their own to others.

    Raises:
        PoolError: there is no such pool. TrustError: a file can not be used.
    """
    paths = paths_of(pool)
    mine = own_facts(paths)
    is_mine = paths.authority_key.exists()
    facts = Authority.load(pool, paths).issued() if is_mine else [mine]
    revocations = Revocations.load(paths.revoked, _authority_of(paths))
    now = time.time()

    def state(one: CertificateFacts) -> str:
        return "revoked" if revocations.is_revoked(one) else "expired" if one.not_after <= now else ""

    return [Standing(one, state(one)) for one in facts]


def doubt(pool: str, name: str) -> str:
    """Return why nobody of a pool may be called so, in a line; empty when somebody is. Only who made the pool knows."""
    try:
        if not paths_of(pool).authority_key.exists():
            return f"the name {name!r} is not checked: only the person who made the pool {pool} knows its names"
        people = {one.facts.name for one in standings(pool) if one.facts.role != NODE and not one.state}
    except (PoolError, TrustError) as error:
        return f"the name {name!r} can not be checked: {error}"
    if name in people:
        return ""
    close = difflib.get_close_matches(name, people, n=1)
    what = f"did you mean {close[0]}?" if close else f"monarch-nb pool invite {pool} --user {name} does"
    return f"no valid certificate was issued to {name!r} in the pool {pool}; {what}"


def own_facts(paths: TrustPaths) -> CertificateFacts:
    """Return what this user's certificate says, also when it has expired.

    Raises:
        TrustError: it is missing or garbled.
    """
    return facts_of(_content(paths.identity))


def in_use(paths: TrustPaths) -> dict[str, str]:
    """Return who uses which certificates that lie here, by fingerprint.

    Raises:
        TrustError: one is garbled.
    """
    used = {own_facts(paths).fingerprint: "in use, yours"}
    if paths.node.exists():
        used[facts_of(_content(paths.node)).fingerprint] = "in use, the nodes'"
    return used


def revoke_certificates(pool: str, who: str) -> tuple[list[CertificateFacts], Revocations]:
    """Revoke certificates; return those (again: the same), and the list that every node must learn of.

    Args:
        who: a person, for all that they have; or the beginning of a certificate's fingerprint.

    Raises:
        UsageError: nobody is meant, or several are, or this user or the nodes would be shut out.
        PoolError: there is no such pool. TrustError: this user did not make it, or a file can not be used.
    """
    paths = paths_of(pool)
    authority = Authority.load(pool, paths)
    used = in_use(paths)
    meant = _meant(authority.issued(), who, pool)
    chosen = [facts for facts in meant if facts.fingerprint not in used]
    if not chosen:
        whose = "the nodes'" if meant[0].role == NODE else "your own"
        raise UsageError(
            f"that is {whose} certificate: run monarch-nb pool renew {pool}, bring the new one to where it is used, "
            f"then monarch-nb pool revoke {pool} {meant[0].fingerprint[:16]}"
        )
    with locked(paths.directory):
        known = Revocations.load(paths.revoked, authority.certificate)
        counting = [facts for facts in chosen if not known.is_revoked(facts)]
        if not counting:
            return chosen, known
        newest = revoke(known, authority, counting)
        newest.save(paths.revoked)
    return counting, newest


def known_revocations(paths: TrustPaths, identity: Identity) -> Revocations:
    """Return the newest list that lies here.

    Raises:
        TrustError: it can not be used.
    """
    return Revocations.load(paths.revoked, identity.authority)


def flaw_of_node(paths: TrustPaths, identity: Identity, shown: CertificateFacts) -> str:
    """Return what is wrong with the certificate that a node shows, as far as that can be known here: "revoked", "old",
    or nothing.

    Raises:
        TrustError: a file can not be used.
    """
    if known_revocations(paths, identity).is_revoked(shown):
        return "revoked"
    is_newest = not paths.node.exists() or facts_of(_content(paths.node)).fingerprint == shown.fingerprint
    return "" if is_newest else "old"


def keep_revocations(paths: TrustPaths, identity: Identity, brought: Revocations) -> Revocations:
    """Keep a list that somebody brought, if it is newer; return the newest.

    Raises:
        TrustError: the one that lies here can not be used, or the new one not be written.
    """
    with locked(paths.directory):
        known = known_revocations(paths, identity)
        newest = known.newer(brought)
        if newest is not known:
            newest.save(paths.revoked)
    return newest


def remove_pool(pool: str, *, force: bool = False) -> None:
    """Forget a pool: its certificates here, and where its nodes are. Nodes that run go on.

    Args:
        force: also when this user made it: the key of its authority is gone with it.

    Raises:
        PoolError: there is no such pool, or it is this user's and `force` is false.
    """
    paths = paths_of(pool)
    if paths.authority_key.exists() and not force:
        raise PoolError(
            f"the pool {pool} was made here: without its authority's key nobody can be invited or shut out any more; "
            f"monarch-nb pool remove {pool} --force does it all the same"
        )
    paths.hosts.unlink(missing_ok=True)  # from here on it is no pool
    shutil.rmtree(pools_directory() / pool)


def _invitation(identity: Identity, hosts: Hosts, revocations: Revocations) -> bytes:
    head = (
        f"An invitation to the pool {identity.pool} of monarch-nb, until {time_of_day(identity.expires_at)}.\n"
        f"Whoever has this file is {identity.name} there and can run code on its hosts: nobody else should read it.\n"
        "It is taken in with: monarch-nb pool join FILE\n\n"
    )
    where = base64.encodebytes(format_hosts(hosts)).decode()
    block = f"-----BEGIN {_HOSTS}-----\n{where}-----END {_HOSTS}-----\n"
    return head.encode() + identity.bundle + revocations.pem + block.encode()


def _content(path: Path) -> bytes:
    try:
        return read_private(path)
    except FileNotFoundError:
        raise TrustError(f"there is no {path}") from None


def _hosts_of(content: bytes, path: Path) -> Hosts:
    """Return where an invitation says that the nodes are; a plain identity says nothing."""
    blocks = pem_blocks(content, _HOSTS)
    if not blocks:
        return Hosts()
    try:
        return parse_hosts(base64.b64decode(b"".join(blocks[0].split(b"-----")[2].split()), validate=True))
    except (ValueError, binascii.Error):
        raise TrustError(f"{path} is garbled: ask for another invitation") from None


def _check_same_pool(paths: TrustPaths, identity: Identity) -> None:
    if paths.authority_key.exists():
        raise TrustError(f"you made the pool {identity.pool} yourself: there is nothing to join")
    if _authority_of(paths) != identity.authority:
        raise TrustError(
            f"you have another pool {identity.pool}, of somebody else: to change to this one, first "
            f"monarch-nb pool remove {identity.pool}"
        )


def _authority_of(paths: TrustPaths) -> bytes:
    """Return the authority that this user believes, also when their own certificate has expired."""
    return pem_blocks(_content(paths.identity), "CERTIFICATE")[1]


def _meant(issued: Sequence[CertificateFacts], who: str, pool: str) -> list[CertificateFacts]:
    now = time.time()
    valid = [facts for facts in issued if facts.not_after > now]
    if named := [facts for facts in valid if facts.name == who]:
        return named
    digits = who.lower().replace(":", "")
    found = [facts for facts in valid if facts.fingerprint.startswith(digits)]
    if len(digits) >= SHORTEST_FINGERPRINT and len(found) == 1:
        return found
    if len(digits) >= SHORTEST_FINGERPRINT and found:
        raise UsageError(f"several certificates begin with {who}: give more of it")
    names = ", ".join(sorted({facts.name for facts in valid if facts.role == USER})) or "nobody was invited"
    raise UsageError(
        f"nobody is called {who!r} in the pool {pool} ({names}), and no fingerprint begins so "
        f"(at least {SHORTEST_FINGERPRINT} digits): see monarch-nb pool list {pool}"
    )

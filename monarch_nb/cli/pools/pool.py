"""`monarch-nb pool`: pools of hosts, made, joined and shared, from a terminal."""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.cli.pools import fairness
from monarch_nb.cli.saying import print_table
from monarch_nb.config import DEFAULT_PORT, default_pool, patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable, PoolError, TrustError
from monarch_nb.ground.account import own_name
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Node, provisioner
from monarch_nb.provision.jobs import title_of_pool
from monarch_nb.times import seconds_of, time_of_day
from monarch_nb.trust import membership
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import USER, CertificateFacts, expiry_warning, facts_of, load_identity
from monarch_nb.trust.pools import (
    DNS,
    Hosts,
    SshHost,
    change_hosts,
    checked_address,
    paths_of,
    pool_names,
    read_all_hosts,
    read_hosts,
)

if TYPE_CHECKING:
    from monarch_nb.config import TrustPaths
    from monarch_nb.proto import allocator_pb2 as pb

SUMMARY = "make, join and share pools of other machines"
DEFAULT_SSH_NAME = "lab"
ANSWER_S = patience(5.0)
"""A node that has not answered by then is not waited for."""
_ANSWERS, _SILENT = "answers", "no answer"
_TWICE = ": the same node as "
_FLAWED = {"revoked": "a revoked certificate", "old": "an old certificate"}
_SHOWN_DIGITS = 16
"""Of a fingerprint."""
_DESCRIPTION = """\
Pools of hosts. The user who made a pool issues its certificates here, and invites others.
Each command has its own --help."""
_EXAMPLES = """\
examples:
  monarch-nb pool init lab                      make a pool; says what to run on its hosts
  monarch-nb pool add lab host1 host2:7900      where its nodes listen
  monarch-nb pool list lab                      its nodes, whether they answer, its certificates
  monarch-nb pool invite lab --user alice       a file for alice, who runs: monarch-nb pool join FILE
  monarch-nb pool revoke lab alice              alice is out
  monarch-nb pool limits lab                    who may have how much of it, and has how much"""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Declare the commands below `monarch-nb pool`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=type(parser))

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *examples: str
    ) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog="\n".join(["examples:", *(f"  monarch-nb pool {example}" for example in examples)]),
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        added.set_defaults(handler=run, parser=added)
        if name not in ("list", "join", "init", "limits"):
            added.add_argument("name", metavar="NAME", help="the pool")
        return added

    where = f"host:port (default port: {DEFAULT_PORT}), dns:NAME:PORT, or a directory where nodes publish"

    init = command(
        "init",
        _init,
        "make a pool, whose hosts only you and those you invite can use",
        "init lab",
        "init lab --ssh host1 host2",
    )
    named = f"the pool (default: {DEFAULT_SSH_NAME}, with --ssh)"
    init.add_argument("name", nargs="?", metavar="NAME", help=named)
    _add_ssh_options(init)
    init.add_argument("--user", metavar="ME", help="your name in the pool (default: your name on this machine)")
    interface = "network interface of the hosts for stores, Gloo and NCCL (default: the one they listen to)"
    init.add_argument("--interface", metavar="NAME", default="", help=interface)

    add = command("add", _add, "say where nodes of a pool are", "add lab host1 host2:7900", "add lab /shared/lab-nodes")
    add.add_argument("where", nargs="+", metavar="WHERE", help=where)

    listed = command("list", _list, "show pools, or one with its nodes and certificates", "list", "list lab")
    listed.add_argument("name", nargs="?", metavar="NAME", help="the pool (default: all, one line each)")

    remove = command(
        "remove", _remove, "forget nodes of a pool, or the whole pool", "remove lab host1", "remove lab --force"
    )
    remove.add_argument("where", nargs="*", metavar="WHERE", help="as it was added (default: the whole pool)")
    remove.add_argument("--force", action="store_true", help="also if you hold reservations in it, or made the pool")

    invite = command(
        "invite", _invite, "make a file that lets somebody use a pool", "invite lab --user alice --expires 90d"
    )
    invite.add_argument("--user", metavar="ALICE", required=True, help="the name of the file's owner in the pool")
    invite.add_argument("--expires", metavar="TIME", default="30d", help="as in 12h, 90d (default: %(default)s)")
    invite.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write (default: NAME-ALICE.pem)")

    join = command("join", _join, "accept an invitation", "join lab-alice.pem")
    join.add_argument("file", metavar="FILE", type=Path, help="the file that monarch-nb pool invite wrote")

    revoke = command(
        "revoke", _revoke, "shut somebody out of a pool", "revoke lab alice", "revoke lab 3f9a0c11d2e4b5a6"
    )
    revoke.add_argument("who", metavar="WHO", help="a name, for all their certificates, or the start of a fingerprint")

    command("renew", _renew, "make your certificate and the nodes' anew, before they expire", "renew lab")

    which = f"the pool (default: {default_pool()})"
    limits = command(
        "limits",
        fairness.limits,
        "show and check the limits of fairness, and who is at which",
        "limits lab",
        "limits --file limits.toml",
    )
    limits.add_argument("name", nargs="?", metavar="POOL", help=which)
    limits.add_argument("--file", metavar="FILE", type=Path, help="only check this file, which nodes need not have yet")
    limits.add_argument("--json", action="store_true", help="for programs")


def _add_ssh_options(init: argparse.ArgumentParser) -> None:
    """Declare what `pool init` can be told of hosts that ssh reaches."""
    hosts = init.add_argument_group("hosts that ssh reaches", "Nothing is done there as root.")
    ssh = "start nodes on these hosts; without a host: again on those of the pool"
    hosts.add_argument("--ssh", nargs="*", metavar="HOST", help=ssh)
    port = f"where their allocators listen (default: {DEFAULT_PORT})"
    hosts.add_argument("--port", type=int, default=DEFAULT_PORT, help=port)
    directory = "monarch_nb's directory on the hosts (default: ~/.local/share/monarch-nb)"
    hosts.add_argument("--directory", metavar="DIR", default="", help=directory)
    tunnel = "reach allocators through ssh (default: those that are not reached otherwise)"
    hosts.add_argument("--tunnel", action=argparse.BooleanOptionalAction, default=None, help=tunnel)


def run(options: argparse.Namespace) -> int:
    raise AssertionError("a command below is required")


def _init(options: argparse.Namespace) -> int:
    if options.name is None and options.ssh is None:
        options.parser.error("the following arguments are required: NAME")
    options.name = options.name or DEFAULT_SSH_NAME
    is_new = membership.make_pool(options.name, options.user or own_name(), options.interface)
    paths = paths_of(options.name)
    me = membership.own_facts(paths)
    made = "made the pool" if is_new else "there is the pool"
    print(f"{made} {options.name}, in which you are {me.name}; its certificates lie in {paths.directory}")
    if options.ssh is not None:
        from monarch_nb.cli.pools import ssh_hosts

        return ssh_hosts.set_up(options.name, options)
    _print_what_to_run(options.name, paths, read_hosts(paths).interface)
    return 0


def _print_what_to_run(pool: str, paths: TrustPaths, interface: str) -> None:
    listen = f"--listen HOST:{DEFAULT_PORT}" + (f" --interface {interface}" if interface else "")
    print(
        f"\non each host that shares this home directory:\n"
        f"  monarch-nb allocator --pool {pool} {listen}\n"
        f"on a host with another home directory, after this copy from here:\n"
        f"  scp -p {paths.node} HOST:{pool}-node.pem\n"
        f"  monarch-nb allocator --pool {pool} --certificate ~/{pool}-node.pem {listen}\n"
        f"then, here:\n"
        f"  monarch-nb pool add {pool} HOST:{DEFAULT_PORT} ..."
    )


def _add(options: argparse.Namespace) -> int:
    paths = paths_of(options.name)

    def add(hosts: Hosts) -> Hosts:
        for word in options.where:
            hosts = hosts.added(word)
        return hosts

    _print_hosts(options.name, change_hosts(paths, add))
    for doubtful in filter(None, map(_doubt, options.where)):
        print(doubtful, file=sys.stderr)
    return 0


def _doubt(where: str) -> str:
    """Return why there may be no node where somebody says, in a line; empty when there is no reason to think so."""
    if "/" in where or where.startswith("~"):
        directory = Path(where).expanduser()
        if directory.is_dir():
            return ""
        return f"there is no directory {directory} yet: monarch-nb allocator --publish makes it"
    host = checked_address(where.removeprefix(DNS)).rpartition(":")[0].strip("[]")
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return f"{host} has no address here ({error.strerror}): is the name right?"
    return ""


def _remove(options: argparse.Namespace) -> int:
    paths = paths_of(options.name)
    if not options.force:
        _check_unheld(options)
    started = [host for host in read_hosts(paths).ssh if not options.where or host.destination in options.where]
    if started and (options.where or options.force):
        from monarch_nb.cli.pools import ssh_hosts

        ssh_hosts.take_down(options.name, started, force=options.force)
    if not options.where:
        membership.remove_pool(options.name, force=options.force)
        others = "" if started else "; allocators that run there go on"
        print(f"forgot the pool {options.name}{others}")
        return 0

    by_ssh = {host.destination for host in started}
    _print_hosts(options.name, change_hosts(paths, lambda hosts: _without(hosts, set(options.where) - by_ssh)))
    return 0


def _without(hosts: Hosts, words: Iterable[str]) -> Hosts:
    for word in words:
        hosts = hosts.removed(word)
    return hosts


def _check_unheld(options: argparse.Namespace) -> None:
    """Make sure that one holds nothing on nodes that are to be forgotten: what is only there would be found no more.

    Raises:
        PoolError: something is held; the message says what, and where.
    """
    paths = paths_of(options.name)
    before = read_hosts(paths)
    words = set(options.where) - {host.destination for host in before.ssh}
    after = _without(before, words) if options.where else Hosts()
    found_otherwise = (before.dns, before.directory) != (after.dns, after.directory)
    leaving = [
        node
        for node in provisioner("hosts").nodes(pool=options.name)
        if node.address not in after.nodes and (found_otherwise or node.address in before.nodes)
    ]
    me = membership.own_facts(paths).name
    with ThreadPoolExecutor(max_workers=16) as threads:
        replies = zip(leaving, threads.map(_described_by, leaving), strict=True)
    holders = {
        f"{holder.reservation} on {reply.node_id or node.address}": holder.reservation
        for node, reply in replies
        for holder in reply.holders
        if holder.owner == me
    }
    if holders:
        release = f"monarch-nb release {min(holders.values())} --pool {options.name}"
        raise PoolError(
            f"you hold {', '.join(sorted(holders))}: release that first ({release}), or replace the node (monarch-nb "
            "replace --node NAME); --force forgets it all the same, and its ranks go on"
        )


def _described_by(node: Node) -> pb.DescribeReply:
    """Return what a node says of itself; nothing when it does not answer."""
    from monarch_nb.proto import allocator_pb2 as pb
    from monarch_nb.provision.daemons import describe

    try:
        return describe(node.address, ANSWER_S, node.identity)
    except MonarchNbError:
        return pb.DescribeReply()


def _print_hosts(pool: str, hosts: Hosts) -> None:
    nodes = ", ".join(hosts.words) or title_of_pool(pool) or f"no nodes yet (monarch-nb pool add {pool} HOST)"
    print(f"the pool {pool}: {nodes}")


def _invite(options: argparse.Namespace) -> int:
    lifetime_s = seconds_of(options.expires, "--expires")
    path = options.output or Path(f"{options.name}-{options.user}.pem")
    earlier = [one for one in membership.standings(options.name) if one.facts.name == options.user and not one.state]
    until = time_of_day(membership.invite(options.name, options.user, lifetime_s, path).expires_at)
    print(
        f"whoever has {path} is {options.user} in the pool {options.name} until {until}: "
        f"pass it on where nobody else reads it.\n"
        f"{options.user} runs: monarch-nb pool join {path.name}"
    )
    if earlier:
        count = counted(len(earlier), "certificate")
        print(f"{options.user} has {count} besides: monarch-nb pool revoke {options.name} FINGERPRINT ends one")
    return 0


def _join(options: argparse.Namespace) -> int:
    identity = membership.join(options.file)
    until = time_of_day(identity.expires_at)
    print(f"you are {identity.name} in the pool {identity.pool} until {until}; {options.file} is no longer needed")
    _print_hosts(identity.pool, read_hosts(paths_of(identity.pool)))
    answers, trouble = _answers(identity.pool)
    if refused := [state for *_, state in answers if not state.startswith((_ANSWERS, _SILENT))]:
        print(f"but its nodes refuse you: {refused[0]}")
        return 1
    if any(state.startswith(_ANSWERS) for *_, state in answers):
        return 0
    silent = trouble or "; ".join(f"{address}: {state}" for _, address, state in answers) or "it has none yet"
    print(f"no node of it could be asked whether the invitation is still valid ({silent})")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from monarch_nb.provision.daemons import describe, tell_revoked

    chosen, newest = membership.revoke_certificates(options.name, options.who)
    for facts in chosen:
        print(f"revoked {_described(facts)}")
    nodes = provisioner("hosts").nodes(pool=options.name)

    people = {facts.name for facts in chosen}
    held: set[str] = set()

    def tell(node: Node) -> str:
        try:
            tell_revoked(node.address, newest.pem, node.identity)
            holders = describe(node.address, ANSWER_S, node.identity).holders
        except MonarchNbError as error:
            return f"{node.node_id} ({error})"
        held.update(f"{holder.owner}/{holder.reservation}" for holder in holders if holder.owner in people)
        return ""

    with ThreadPoolExecutor(max_workers=16) as threads:
        silent = list(filter(None, threads.map(tell, nodes)))
    if nodes:
        print(f"{len(nodes) - len(silent)} of {counted(len(nodes), 'node')} know it")
    for name in sorted(held):
        print(f"still held: {name}, whose ranks go on; monarch-nb release {name} --pool {options.name} ends them")
    for node in silent:
        print(f"not told: {node}; the next client of the pool tells it, or run this again")
    return 1 if silent else 0


def _renew(options: argparse.Namespace) -> int:
    identity = membership.renew_pool(options.name)
    paths = paths_of(options.name)
    print(f"your certificate and the nodes' are valid until {time_of_day(identity.expires_at)}")
    if identity.expires_at == Authority.load(options.name, paths).expires_at:
        print("the authority itself ends then: make another pool before that, and invite people to it")
    print(
        f"allocators that read this directory take the new one at once; for hosts with another home directory:\n"
        f"  scp -p {paths.node} HOST:{options.name}-node.pem"
    )
    if read_hosts(paths).ssh:
        print(f"monarch-nb pool init {options.name} --ssh brings it to hosts that were made with --ssh")
    return 0


def _list(options: argparse.Namespace) -> int:
    names = [options.name] if options.name else pool_names()
    if not names:
        print(
            "no pools of hosts (monarch-nb pool init NAME makes one, monarch-nb pool join FILE accepts an invitation)"
        )
    elif options.name:
        return _show(options.name)
    else:
        rows = [_row(name) for name in names]
        print_table(("pool", "you are", "nodes", "until", "trouble"), rows)
    return 0


def _row(pool: str) -> Sequence[str]:
    try:
        paths = paths_of(pool)
        hosts, me = read_all_hosts(paths), membership.own_facts(paths)
    except MonarchNbError as error:
        return pool, "", "", "", str(error)
    return (
        pool,
        f"{me.name} ({me.role})",
        ", ".join(hosts.words) or title_of_pool(pool) or "none yet",
        time_of_day(me.not_after),
        _warning(paths.identity),
    )


def _show(pool: str) -> int:
    """Print a pool; return 1 when a node does not answer, or a certificate in use does not count or soon will not."""
    from monarch_nb.client.pools.answering import warning as namesakes_warning

    paths = paths_of(pool)
    me = membership.own_facts(paths)
    print(f"you are {me.name} ({me.role}) in the pool {pool}; its certificates lie in {paths.directory}")
    _print_hosts(pool, read_all_hosts(paths))
    print()
    warnings = [_warning(path) for path in (paths.identity, paths.node) if path.exists()]
    answers, trouble = _answers(pool)
    if answers:
        print_table(("node", "address", "state"), answers)
        print()
    rows = []
    in_use = membership.in_use(paths)
    for one in membership.standings(pool):
        facts = one.facts
        until = time_of_day(facts.not_after)
        state = one.state or in_use.get(facts.fingerprint, "" if facts.role == USER else "replaced, counts until then")
        rows.append((facts.name, facts.role, facts.fingerprint[:_SHOWN_DIGITS], until, state))
    print_table(("certificate of", "role", "fingerprint", "until", "state"), rows)
    alike = namesakes_warning(
        (name, address) for name, address, state in answers if state.startswith(_ANSWERS) and _TWICE not in state
    )
    flawed = [name for name, _, state in answers if any(flaw in state for flaw in _FLAWED.values())]
    notes = list(dict.fromkeys(filter(None, [trouble, alike, _to_renew(flawed, paths), *warnings])))
    for note in notes:
        print(f"\n{note}")
    return 1 if notes or any(not state.startswith(_ANSWERS) for *_, state in answers) else 0


def _to_renew(nodes: Sequence[str], paths: TrustPaths) -> str:
    """Return what to do about nodes that show certificates which they should not show any more; empty without any."""
    if not nodes:
        return ""
    bring = (
        f"copy {paths.node} there"
        if paths.node.exists()
        else "ask the person who made the pool to copy its node.pem there"
    )
    return f"to {', '.join(nodes)}: {bring}, over the old one; the allocator takes it without a restart"


def _answers(pool: str) -> tuple[list[tuple[str, str, str]], str]:
    """Ask every node; return rows of its name, address and state, and why nodes can not be asked, if that is so."""
    from monarch_nb.client.pools.answering import same_node

    try:
        nodes = provisioner("hosts").nodes(pool=pool)
    except MonarchNbError as error:
        return [], str(error)
    by_ssh = {host.name: host for host in read_all_hosts(paths_of(pool)).ssh}
    with ThreadPoolExecutor(max_workers=16) as threads:
        answers = list(threads.map(lambda node: _answer(node, pool, by_ssh.get(node.node_id)), nodes))
    twice = same_node((address, token) for (_, address, _), token in answers if token)
    return [
        (name, address, f"{state}{_TWICE}{twice[address]}" if address in twice else state)
        for (name, address, state), _ in answers
    ], ""


def _answer(node: Node, pool: str, host: SshHost | None) -> tuple[tuple[str, str, str], str]:
    """Return the row of a node, and its token when it answers."""
    from monarch_nb.client.pools.answering import why_silent
    from monarch_nb.provision.daemons import describe

    address = f"{host.address}{' (through ssh)' if host.tunnel else ''}" if host else node.address
    try:
        reply = describe(node.address, ANSWER_S, node.identity)
    except NodeUnreachable as error:
        why = _why_ended(host, pool) if host else why_silent(node.address, ANSWER_S)
        return (node.node_id if host else "", address, f"{_SILENT} ({why or error})"), ""
    except MonarchNbError as error:
        return ("", address, str(error)), ""
    return (reply.node_id, address, _flaw(node, pool) or _ANSWERS), reply.token


def _flaw(node: Node, pool: str) -> str:
    """Return what to say of a node that answers with a certificate that it should not show any more."""
    if node.identity is None or node.address.startswith("unix"):
        return ""
    host, _, port = node.address.rpartition(":")
    try:
        shown = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=ANSWER_S)
        flaw = membership.flaw_of_node(paths_of(pool), node.identity, facts_of(shown.encode()))
    except (OSError, TrustError):  # it has just answered: it may be ending
        return ""
    return flaw and f"{_ANSWERS} with {_FLAWED[flaw]}"


def _why_ended(host: SshHost, pool: str) -> str:
    """Return what ssh or the host says of an allocator that does not answer; empty when it runs."""
    from monarch_nb.provision.remote.command import waited_for
    from monarch_nb.provision.remote.preparing import look

    try:
        said = waited_for(look(host, pool))
    except PoolError as error:
        return str(error)
    return said and f"its allocator has ended: monarch-nb pool init {pool} --ssh starts another"


def _warning(path: Path) -> str:
    """Return what is wrong with a certificate here, or soon will be; empty when it is in order."""
    try:
        return expiry_warning(load_identity(path))
    except TrustError as error:
        return str(error)


def _described(facts: CertificateFacts) -> str:
    until = time_of_day(facts.not_after)
    return f"{facts.name}'s certificate {facts.fingerprint[:_SHOWN_DIGITS]}, which would have been valid until {until}"

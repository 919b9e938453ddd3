"""Who may talk to a node of a network: only certificates of its pool that count, and over TLS only."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

import grpc
import pytest

from integration.hosts.elastic import free, kill
from integration.hosts.lab import Lab
from integration.hosts.people import Person
from integration.live import eventually
from monarch_nb import reserve
from monarch_nb.cli.main import main
from monarch_nb.config import TrustPaths
from monarch_nb.errors import AccessDenied, NodeUnreachable
from monarch_nb.provision.daemons import describe
from monarch_nb.rpc.channel import open_blocking_channel
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import ADMIN, USER, Identity, load_identity
from monarch_nb.trust.pools import make_paths

BOBS_CELLS = """
import sys, monarch_nb
dev = monarch_nb.reserve("dev", procs=1, preload=[])
for line in sys.stdin:
    try:
        print(dev.mesh.run(line).values)
    except monarch_nb.MonarchNbError as error:
        print(f"{type(error).__name__}: {error}")
"""
"""Runs what it reads as cells."""


@pytest.fixture
def node(lab: Lab) -> str:
    """The address of a node."""
    return lab.start().address


def issued(name: str, **when: float) -> Identity:
    return Authority.load("lab", make_paths("lab")).issue(name, USER, **when)


def strangers(tmp_path: Path) -> Identity:
    """Somebody of a pool that has the same name, and another authority."""
    return Authority.create("lab", TrustPaths(tmp_path)).issue("alice", ADMIN)


def test_nobody_else_does(node: str, tmp_path: Path) -> None:
    host, _, port = node.partition(":")
    others = strangers(tmp_path)
    expired = issued("bob", lifetime_s=60.0, now=time.time() - 3600.0)
    for identity in (others, expired):
        with pytest.raises(NodeUnreachable):
            describe(node, 2.0, identity)
    impostor = Identity("lab", "alice", ADMIN, others.certificate, others.key, issued("bob").authority)
    with pytest.raises(NodeUnreachable):
        describe(node, 2.0, impostor)
    with grpc.insecure_channel(node) as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(2.0)
    assert _answer_without_certificate(host, int(port)) == b""
    assert describe(node, identity=issued("bob")).node_id == "host1", "and the node lives"


def test_tls_1_3_and_1_2_are_spoken_and_nothing_older(node: str) -> None:
    host, _, port = node.partition(":")
    context = _context(issued("bob"))
    for version, name in ((ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, "TLSv1.2")):
        context.maximum_version = version
        with _connected(host, int(port), context) as connection:
            assert connection.version() == name
    asked = ["openssl", "s_client", "-connect", node, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]
    refused = subprocess.run(asked, input="", capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert "Cipher is (NONE)" in refused.stdout


def test_who_is_revoked_is_shut_out_at_once(lab: Lab, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    bob = issued("bob")
    with open_blocking_channel(node, bob) as channel:
        stream = channel.stream_stream("/monarch_nb.v1.Allocator/Session")(iter(_Never()))
        assert describe(node, identity=bob).revocations == 0
        assert main(["pool", "revoke", "lab", "bob"]) == 0
        assert "1 of 1 node know it" in capsys.readouterr().out
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert "revoked" in str(ended.value.details())
    with pytest.raises(AccessDenied, match=r"bob's certificate for the pool lab .* was revoked"):
        describe(node, identity=bob)
    assert describe(node, identity=issued("bob")).node_id == "host1", "another certificate counts"


def test_a_cell_of_who_is_revoked_ends_with_the_reason_and_another_certificate_is_taken_by_itself(
    lab: Lab, node: str, tmp_path: Path
) -> None:
    bob = Person(lab, "bob", tmp_path)
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"
    for pipe in (begun, go_on):
        os.mkfifo(pipe)
    with bob.begin(BOBS_CELLS) as process:
        try:
            say(process, f"open('{begun}', 'w').close(); open('{go_on}').read()")
            begun.read_text()
            assert main(["pool", "revoke", "lab", "bob"]) == 0
            said = line_of(process)
            say(process, "2")
            for each in (said, line_of(process)):
                assert each.startswith("CertificateRefused: bob's certificate for the pool lab"), each
                assert "was revoked: ask the person who made the pool for another invitation" in each
            go_on.write_text("")
            bob.take(issued("bob"))
            say(process, "3")
            assert line_of(process) == "[3]\n"
        finally:
            process.kill()


def test_a_node_that_was_away_learns_it_from_who_comes_next(lab: Lab) -> None:
    bob = issued("bob")
    allocator = lab.start()
    allocator.process.terminate()
    allocator.process.wait(60.0)
    assert main(["pool", "revoke", "lab", "bob"]) == 1
    back = lab.start(directory=allocator.paths.directory, number=1)
    assert describe(back.address, identity=bob).revocations == 0
    reserve("dev", procs=1, preload=[]).release()
    with pytest.raises(AccessDenied):
        describe(back.address, identity=bob)
    back.process.terminate()
    back.process.wait(60.0)
    again = lab.start(directory=allocator.paths.directory, number=1)
    with pytest.raises(AccessDenied):
        describe(again.address, identity=bob)


def test_a_node_with_a_revoked_certificate_tells_what_it_owes_when_it_has_the_new_one(lab: Lab, tmp_path: Path) -> None:
    """It called the other one already, and is not started again."""
    node_pem = make_paths("lab").node
    old = load_identity(node_pem)
    copies = [tmp_path / "host1.pem", tmp_path / "host2.pem"]
    for copy in copies:
        old.save(copy)
    first, second = (lab.start(procs=1, flags=["--certificate", str(copy)]) for copy in copies)
    dev = reserve("dev", nodes=2, procs=1, preload=[])
    kill(second)
    dev.release()
    assert main(["pool", "renew", "lab"]) == 0
    load_identity(node_pem).save(copies[1])
    assert main(["pool", "revoke", "lab", old.fingerprint]) == 1, "host2 is away"
    flags = ["--certificate", str(copies[1]), "--listen", second.address]
    lab.start(procs=1, number=2, directory=second.paths.directory, flags=flags)
    assert main(["pool", "revoke", "lab", old.fingerprint]) == 0
    eventually(lambda: "host2 has yet to be told: Release" in first.log.read_text())
    assert "host1 is refused by another node: the certificate of a node of the pool lab" in first.log.read_text()
    assert free() == [1, 0]
    load_identity(node_pem).save(copies[0])
    eventually(lambda: free() == [1, 1])


def _answer_without_certificate(host: str, port: int) -> bytes:
    """TLS 1.3 lets such a client finish; then the server says nothing but an alert."""
    try:
        with _connected(host, port, _context(None)) as bare:
            bare.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            return bare.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return b""


def say(process: subprocess.Popen[str], line: str) -> None:
    """Give a line to a process that reads them."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()


class _Never:
    """Requests of a client that has nothing to say yet."""

    def __iter__(self) -> _Never:
        return self

    def __next__(self) -> bytes:
        time.sleep(3600.0)  # in gRPC's own thread, until the call is over
        raise StopIteration


def _context(identity: Identity | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(identity.certificate + identity.key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _connected(host: str, port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(
        socket.create_connection((host, port), timeout=10.0), server_hostname="node.lab.monarch-nb"
    )

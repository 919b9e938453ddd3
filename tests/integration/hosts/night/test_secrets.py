"""What is secret stays so: modes of files, and what logs, process lists and texts say; and what knocks at the port."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.live import Gate, started
from leaks import processes_of
from monarch_nb import reserve
from monarch_nb.cli.main import main
from monarch_nb.errors import MonarchNbError
from monarch_nb.trust.identity import load_identity
from monarch_nb.trust.pools import make_paths

SECRET = "swordfish-4711"
REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x16\x03\x01\xff\xff" + b"\x01" * 400,  # a TLS record that promises more than comes
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"",
]


def test_nobody_else_can_read_what_a_pool_writes(lab: Lab, tmp_path: Path) -> None:
    """Whatever the umask is."""
    before = os.umask(0)
    try:
        assert main(["pool", "init", "other"]) == 0
        assert main(["pool", "invite", "other", "--user", "bob", "-o", str(tmp_path / "bob.pem")]) == 0
        node = lab.start()
        dev = reserve("dev", procs=1, preload=[])
        dev.mesh.run("print('hello')")
    finally:
        os.umask(before)
    pool = make_paths("other").directory
    directories = [pool, node.paths.directory, node.paths.sockets, node.paths.sockets.parent]
    assert [oct(stat.S_IMODE(one.stat().st_mode)) for one in directories] == ["0o700"] * 4
    keys = [tmp_path / "bob.pem", *(path for path in pool.iterdir() if b"PRIVATE KEY" in path.read_bytes())]
    assert {path.name for path in keys} >= {"bob.pem", "identity.pem", "node.pem", "authority.key"}
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in keys} == {"0o600"}
    dev.release()


def test_secrets_are_in_no_process_list_log_or_text(lab: Lab) -> None:
    node = lab.start()
    dev = reserve("dev", procs=1, preload=[], env={"TOKEN": SECRET})
    assert dev.mesh.run("import os; os.environ['TOKEN']").values == [SECRET]
    identity = load_identity(make_paths("lab").identity)
    key = identity.key.decode().splitlines()[1]
    with pytest.raises(MonarchNbError) as error:
        dev.mesh.run("1 / 0")
    said = [node.log.read_text(), repr(identity), repr(dev), repr(dev.mesh), repr(error.value), str(error.value)]
    said += [path.read_text() for path in node.paths.directory.glob("*.log")]
    commands = [process.command for process in processes_of(lab.home)]
    assert len(commands) > 2, "the node's processes are looked at"
    for text in [*said, *commands]:
        assert SECRET not in text
        assert key not in text
        assert "PRIVATE KEY" not in text
    dev.release()


def test_what_knocks_at_the_port_disturbs_no_cell(lab: Lab, gate: Gate) -> None:
    node = lab.start()
    host, _, port = node.address.partition(":")
    dev = reserve("dev", procs=1, preload=[])
    run, _ = started(dev.mesh, f"{gate.wait}\n42")
    for number in range(100):
        with socket.create_connection((host, int(port)), timeout=60.0) as stranger:
            stranger.sendall(REQUESTS[number % len(REQUESTS)] or os.urandom(8192))
    gate.open()
    assert run.result(60.0) == [42]
    assert node.process.poll() is None
    assert "Traceback" not in node.log.read_text()
    dev.release()

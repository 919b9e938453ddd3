"""Monarch's own engine on a pool of hosts: connections are encrypted, and nobody else's."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.night.torchmonarch import Program
from monarch_nb.trust.identity import identity_of

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys
import monarch_nb
from monarch.actor import Actor, current_rank, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, n): return current_rank().rank + n

dev = monarch_nb.reserve("dev", nodes=3, procs=1, preload=[], python=sys.executable)
trainers = dev.monarch().spawn_procs(per_host={"gpus": 1}).spawn("trainers", Trainer)
values = list(trainers.step.call(1).get().values())
code = "from monarch_nb.worker.monarch import loop; loop._loops[0].address, loop.certificates()['ca']"
told = dev.meshes["monarch"].run(code).values
addresses, authorities = zip(*told)
print(json.dumps({"values": values, "addresses": addresses, "ca": list(set(authorities))}), flush=True)
input()
"""


def may_talk(address: str, context: ssl.SSLContext) -> bool:
    """Return whether a worker takes a connection: it tells with the first byte, after the handshake of TLS 1.3."""
    host, _, port = address.removeprefix("tls://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as secured:
                secured.settimeout(2)
                return secured.recv(1) != b""
        except TimeoutError:  # it waits for more
            return True
        except OSError:
            return False


def test_workers_take_nobody_else(three: Lab, tmp_path: Path) -> None:
    program = Program(PROGRAM, tmp_path)
    try:
        told = program.told()
        assert told["values"] == [1, 2, 3]
        [authority] = told["ca"]
        assert len(set(told["addresses"])) == 3
        assert all(address.startswith("tls://127.0.0.1:") for address in told["addresses"])
        anybody = ssl.create_default_context(cadata=authority)
        assert not may_talk(told["addresses"][0], anybody)
        pool = identity_of("lab")
        (tmp_path / "pool.pem").write_bytes(pool.certificate + pool.key)
        member = ssl.create_default_context(cadata=authority)
        member.load_cert_chain(tmp_path / "pool.pem")
        assert not may_talk(told["addresses"][0], member)
    finally:
        program.kill()

"""The fence of docs/security.md, loaded on a host: nodes reach everything, others the allocators' port alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.hosts.network import Host, Network, why_no_hosts

PAGE = Path(__file__).resolve().parents[4] / "docs" / "security.md"
STORE_PORT, ALLOCATOR_PORT = 29500, 7878
LISTEN = """import socket, sys
listeners = [socket.create_server(("", int(port))) for port in sys.argv[1:]]
print("listening", flush=True)
while True: listeners[0].accept()
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3]))"
REFUSED_S, ANSWER_S = "1.0", "30.0"


def test_the_fence() -> None:
    if why := why_no_hosts() or ("" if shutil.which("nft") else "there is no nft (apt install nftables)"):
        pytest.skip(why)
    with Network(3) as network:
        fenced, node, stranger = network.hosts
        with fenced.start(
            [sys.executable, "-c", LISTEN, str(STORE_PORT), str(ALLOCATOR_PORT)], stdout=subprocess.PIPE
        ) as listening:
            assert listening.stdout is not None
            assert listening.stdout.readline() == b"listening\n"
            assert reaches(stranger, fenced, STORE_PORT, ANSWER_S), "without a fence"
            raise_fence(fenced, f"{fenced.address}, {node.address}")
            assert reaches(node, fenced, STORE_PORT, ANSWER_S)
            assert reaches(node, fenced, ALLOCATOR_PORT, ANSWER_S)
            assert reaches(stranger, fenced, ALLOCATOR_PORT, ANSWER_S)
            assert not reaches(stranger, fenced, STORE_PORT, REFUSED_S)
            listening.kill()


def raise_fence(host: Host, nodes: str) -> None:
    found = re.search(r"```nft\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    rules = found[1].replace("10.0.0.1, 10.0.0.2", nodes)
    assert rules != found[1]
    subprocess.run(["ip", "netns", "exec", host.name, "nft", "-f", "-"], input=rules, text=True, check=True)


def reaches(host: Host, other: Host, port: int, within_s: str) -> bool:
    words = [sys.executable, "-c", CONNECT, other.address, str(port), within_s]
    done = subprocess.run(host.command(words), capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "timed out" in done.stderr, done.stderr
    return done.returncode == 0

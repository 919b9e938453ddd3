"""Where an allocator of a network listens."""

from __future__ import annotations

import argparse
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from monarch_nb.allocator.__main__ import main
from monarch_nb.allocator.api import network
from monarch_nb.allocator.api.network import address_toward, check_free, network_of
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.errors import UsageError
from monarch_nb.rpc.channel import listen, make_server
from monarch_nb.trust.membership import invite, make_pool
from monarch_nb.trust.pools import paths_of


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        (["login"], "10.0.0.7"),
        (["nowhere", "login"], "10.0.0.7"),
        (["here", "login"], "10.0.0.7"),
        (["here", "nowhere"], "127.0.0.1"),
        (["six"], "[fd00::7]"),
    ],
)
def test_it_is_where_the_first_other_machine_is_reached_from(
    hosts: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"login": "10.0.0.7", "here": "127.0.0.1", "six": "fd00::7"}
    monkeypatch.setattr(network, "_own_address", lambda host: ways.get(host, ""))
    assert address_toward(hosts) == address


def test_the_way_to_this_machine_is_its_own_and_a_host_that_nobody_knows_is_named() -> None:
    assert address_toward(["127.0.0.1"]) == "127.0.0.1"
    with pytest.raises(UsageError, match=r"--toward no-such-host\.invalid: this machine has no route there"):
        address_toward(["no-such-host.invalid"])


@pytest.fixture(autouse=True)
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    make_pool("lab", "ada")


def said(listen: str, advertise: str | None = None, interface: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        listen=listen, advertise=advertise, interface=interface, pool="lab", certificate=None, publish=None
    )


@pytest.mark.parametrize(
    ("listen", "advertise", "address", "advertised"),
    [
        ("127.0.0.1:7900", None, "127.0.0.1:7900", "127.0.0.1:7900"),
        ("127.0.0.1", None, "127.0.0.1:7878", "127.0.0.1:7878"),
        (":7900", None, "0.0.0.0:7900", f"{socket.gethostname()}:7900"),
        ("0.0.0.0", None, "0.0.0.0:7878", f"{socket.gethostname()}:7878"),
        ("[::]:7900", "host1", "[::]:7900", "host1:7878"),
        (":::7900", None, ":::7900", f"{socket.gethostname()}:7900"),
    ],
)
def test_the_port_is_7878_where_none_is_said(listen: str, advertise: str | None, address: str, advertised: str) -> None:
    network = network_of(said(listen, advertise, "lo"))
    assert (network.listen, network.advertised) == (address, advertised)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::1]", "[::]"])
async def test_a_port_that_is_chosen_is_nobody_elses_until_the_allocator_listens(host: str) -> None:
    network = network_of(said(f"{host}:0", interface="lo"))
    port = int(network.listen.rpartition(":")[2])
    with (
        socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other,
        pytest.raises(OSError, match="use"),
    ):
        other.bind((host.strip("[]"), port))
    check_free(network.listen)
    server = make_server()
    assert listen(server, network.listen, lambda: network.identity) == port
    await server.stop(None)
    assert network.kept_port
    network.kept_port.close()


@pytest.mark.parametrize(
    ("listen", "said_of_it"),
    [
        *[(listen, "is every interface") for listen in ("0.0.0.0", ":7878", "[::]")],
        *[
            (listen, "is no address: HOST:PORT, as in host1:7878")
            for listen in ("host1:", "host1:port", "host1:70000", "2001:db8::1", "[::1")
        ],
    ],
)
def test_what_can_not_be_listened_on_is_explained(listen: str, said_of_it: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--listen {listen} {said_of_it}")):
        network_of(said(listen))


def test_only_the_certificate_of_the_pools_nodes_will_do(tmp_path: Path) -> None:
    invitation = tmp_path / "bob.pem"
    invite("lab", "bob", 60.0, invitation)
    make_pool("other", "alice")
    for certificate, pool, message in (
        (invitation, "lab", "is the certificate of bob, a person: an allocator needs the pool's node.pem"),
        (paths_of("other").node, "lab", "is for nodes of the pool other, not of lab"),
    ):
        asked = argparse.Namespace(**{**vars(said("127.0.0.1")), "certificate": str(certificate), "pool": pool})
        with pytest.raises(UsageError, match=message):
            network_of(asked)


@contextmanager
def taken(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Have a port on which something answers once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            with suppress(OSError), listener.accept()[0] as connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def refused(port: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["--pool", "lab", "--listen", f"127.0.0.1:{port}", "--temporary", "1s"]) == 1
    return capsys.readouterr().err


def test_a_port_that_something_has_is_named_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    with taken(lambda _: None) as port:
        said = refused(port, capsys)
    assert f"can not listen on 127.0.0.1:{port}: something else has this port already" in said
    assert f"--port {port + 1}" in said
    assert not (tmp_path / "home").exists()


def test_the_pool_that_has_a_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    make_pool("other", "alice")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths_of("other").node)

    def show(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as shown:
            shown.recv(1)

    with taken(show) as port:
        assert "the allocator of the pool other has this port already" in refused(port, capsys)

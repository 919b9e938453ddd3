"""What `--listen` and `--advertise` say."""

from __future__ import annotations

import argparse
import re
import socket
from pathlib import Path

import pytest

from monarch_nb.allocator.serving.network import network_of
from monarch_nb.config import CONFIG_VARIABLE
from monarch_nb.errors import UsageError
from monarch_nb.trust.membership import make_pool


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


@pytest.mark.parametrize("listen", ["0.0.0.0", ":7878", "[::]"])
def test_every_interface_needs_the_name_of_one(listen: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--listen {listen} is every interface") + ".*--interface eth0"):
        network_of(said(listen))


@pytest.mark.parametrize("listen", ["host1:", "host1:port", "host1:70000", "2001:db8::1", "[::1"])
def test_what_can_not_be_read_is_explained(listen: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--listen {listen} is no address: HOST:PORT, as in host1:7878")):
        network_of(said(listen))

"""Where an allocator of a network listens, and with which certificate."""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import ipaddress
import re
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_nb.config import DEFAULT_PORT, TrustPaths, patience
from monarch_nb.errors import PoolError, TrustError, UsageError
from monarch_nb.trust.identity import NODE, Identity, facts_of, load_identity
from monarch_nb.trust.identity_file import IdentityFile
from monarch_nb.trust.pools import is_pool, paths_of, read_hosts

_ADDRESS = re.compile(r"(?P<host>\[[^\]]+\]|::(?=:\d)|[^:\[\]]*)(?::(?P<port>\d{1,5}))?")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_INET6 = Path("/proc/net/if_inet6")
ANSWER_S = patience(2.0)
"""So long it may take to show a certificate."""


@dataclass(frozen=True)
class Network:
    """What a node of a network is told on its command line.

    Attributes:
        listen: `host:port` to listen on.
        advertised: `host:port` where others reach it.
        publish: the directory in which it tells of itself.
        address: of the interface on which stores and collectives listen. interface: its name.
        certificate: the node's, read again when it was renewed.
        limits: where limits of fairness are, if there are any: beside that.
        trust: the pool's own directory, where this host has it.
        kept_port: keeps from others the port that was chosen for it, until it listens there; None where one was said.
    """

    listen: str
    advertised: str
    address: str
    interface: str
    publish: Path | None
    certificate: IdentityFile
    limits: Path
    trust: TrustPaths | None
    kept_port: socket.socket | None

    @property
    def identity(self) -> Identity:
        """Who the node is to others."""
        return self.certificate.newest()


def network_of(options: argparse.Namespace) -> Network:
    """Return what `--listen`, `--advertise`, `--interface`, `--pool` and `--certificate` say.

    Raises:
        UsageError: an address that can not be, or no certificate.
    """
    host, port = _split(options.listen, "--listen")
    kept_port = _free_port(host) if port == "0" else None
    if kept_port:
        port = str(kept_port.getsockname()[1])
    is_any = host in ("", "0.0.0.0", "::", "[::]", "*")
    own = f"{socket.gethostname() if is_any else host}:{port}"
    advertised = ":".join(_split(options.advertise, "--advertise")) if options.advertise else own
    of_pool = read_hosts(paths_of(options.pool)).interface if options.pool and is_pool(options.pool) else ""
    interface = options.interface or of_pool or ("" if is_any else host)
    if not interface:
        raise UsageError(
            f"--listen {options.listen} is every interface, but stores and collectives, which ask nobody who he is, "
            "listen on one: name it, as in --interface eth0 or --interface 10.0.0.7"
        )
    address, name = interface_of(interface)
    if options.certificate:
        path = Path(options.certificate)
    elif is_pool(options.pool):
        path = paths_of(options.pool).node
    else:
        raise UsageError(
            f"no pool {options.pool!r} is known here: where you work, monarch-nb pool init {options.pool} "
            "makes a node.pem; copy it here and name it: --certificate node.pem"
        )
    _check_nodes(path, options.pool)
    return Network(
        listen=f"{'0.0.0.0' if host in ('', '*') else host}:{port}",
        advertised=advertised,
        address=address,
        interface=name,
        publish=options.publish,
        certificate=IdentityFile(path),
        limits=TrustPaths(path.absolute().parent).limits,
        trust=paths_of(options.pool) if options.pool and is_pool(options.pool) else None,
        kept_port=kept_port,
    )


def check_free(listen: str) -> None:
    """Make sure that nobody listens on `host:port` of this machine, before an allocator has made anything.

    Raises:
        PoolError: somebody does; the message says who, where that can be known.
    """
    host, _, port = listen.rpartition(":")
    host, number = host.strip("[]"), int(port)
    try:
        answers = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)
    except OSError:  # gRPC says what is wrong with the name
        return
    if any(_is_taken(family, address) for family, _, _, _, address in answers):
        raise PoolError(
            f"can not listen on {listen}: {_holder(host, number)} has this port already; choose another, as in "
            f"monarch-nb pool init --port {number + 1}, or --listen HOST:{number + 1} of monarch-nb allocator"
        )


def _is_taken(family: int, address: Any) -> bool:
    """Whether somebody listens there; what has ended is in nobody's way."""
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _holder(host: str, port: int) -> str:
    """Return who listens on a port of this machine, going by the certificate that is shown there."""
    try:
        facts = facts_of(ssl.get_server_certificate((host, port), timeout=ANSWER_S).encode())
    except (OSError, ValueError, TrustError):
        return "something else"
    return f"the allocator of the pool {facts.pool}"


def _check_nodes(path: Path, pool: str | None) -> None:
    """Make sure that a certificate is that of a pool's nodes: to others nobody would talk.

    Raises:
        TrustError: it can not be read. UsageError: it is a person's, or of another pool.
    """
    identity = load_identity(path)
    if identity.role != NODE:
        raise UsageError(
            f"{path} is the certificate of {identity.name}, a person: an allocator needs the pool's node.pem, which "
            f"lies where the pool {identity.pool} was made"
        )
    if pool and pool != identity.pool:
        raise UsageError(f"{path} is for nodes of the pool {identity.pool}, not of {pool}")


def address_toward(hosts: Sequence[str]) -> str:
    """Return the address of this machine from which it reaches the first of some hosts that is another machine, as
    far as that can be known here; that of loopback when all are this one.

    Raises:
        UsageError: none of them has an address to which there is a way.
    """
    own = [address for host in hosts if (address := _own_address(host))]
    if not own:
        raise UsageError(f"--toward {' '.join(hosts)}: this machine has no route there")
    elsewhere = (address for address in own if not ipaddress.ip_address(address.partition("%")[0]).is_loopback)
    address = next(elsewhere, own[0])
    return f"[{address}]" if ":" in address else address


def _own_address(host: str) -> str:
    """Return from where packets to a host would be sent; empty when there is no way. Nothing is sent."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, to in socket.getaddrinfo(host, DEFAULT_PORT, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as asking:
                asking.connect(to)
                return str(asking.getsockname()[0])
    return ""


def interface_of(name_or_address: str) -> tuple[str, str]:
    """Return (address, name) of a network interface of this machine, given either, or a host's name.

    Raises:
        UsageError: there is none.
    """
    addresses = _addresses()
    if name_or_address in addresses:
        return addresses[name_or_address][0], name_or_address
    try:
        found = [str(answer[4][0]) for answer in socket.getaddrinfo(name_or_address.strip("[]"), None)]
    except OSError:
        found = []
    for name, of_interface in addresses.items():
        for address in found:
            if address in of_interface:
                return address, name
    there = ", ".join(f"{name} ({', '.join(of_interface)})" for name, of_interface in addresses.items())
    raise UsageError(f"this machine has no interface with the name or address {name_or_address!r}; there are {there}")


def _addresses() -> dict[str, list[str]]:
    """Return the addresses of every interface, IPv4 first."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found[name] = [socket.inet_ntoa(fcntl.ioctl(asking, _GET_ADDRESS, request)[20:24])]
            except OSError:
                found[name] = []
    if _INET6.exists():
        for line in _INET6.read_text().splitlines():
            digits, *_, name = line.split()
            found.setdefault(name, []).append(str(ipaddress.IPv6Address(int(digits, 16))))
    return {name: addresses for name, addresses in found.items() if addresses}


def _free_port(host: str) -> socket.socket:
    """Return a socket that has a port and does not listen: nobody is given that port, and gRPC, which reuses addresses
    as this one does, can listen there."""
    keeper = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind((host.strip("[]"), 0))
    return keeper


def _split(address: str, flag: str) -> tuple[str, str]:
    """Return host and port of an address, 7878 where none is said; the host is empty for every interface."""
    match = _ADDRESS.fullmatch(address)
    if not match or int(match["port"] or DEFAULT_PORT) > 65535:
        raise UsageError(
            f"{flag} {address} is no address: HOST:PORT, as in host1:{DEFAULT_PORT}, or with IPv6 "
            f"[2001:db8::1]:{DEFAULT_PORT}; without a port it is {DEFAULT_PORT}"
        )
    return match["host"], match["port"] or str(DEFAULT_PORT)

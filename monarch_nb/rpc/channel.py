"""Channels to allocators and the servers they listen with: options in one place.

A node of this machine listens on a Unix socket (`unix:/path`), one of a network on `host:port`, always with mutual TLS,
which goes through a tunnel (`unix:///path`) as well.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb.config import GRPC_VARIABLES

os.environ.update({**GRPC_VARIABLES, **os.environ})

import grpc

from monarch_nb.config import TUNNEL_SCHEME, cadence, gap

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),  # errors travel there, some with long tracebacks
    ("grpc.absolute_max_metadata_size", 1 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # how long connecting may take: a machine may be busy
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    # A connection on which nothing is under way is closed, and made anew when needed.
    ("grpc.client_idle_timeout_ms", 30_000),
)
PING_INTERVAL_S, PING_TIMEOUT_S = cadence(2.0), gap(2.5)
"""A network that swallows everything tells nobody: so silence is asked about, and noticed within 5 s, where somebody
waits for something. On a connection where nobody does it costs both ends more than it tells: 1,024 of them two percent
of a core."""
_NETWORK_OPTIONS = (
    ("grpc.keepalive_time_ms", int(PING_INTERVAL_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(PING_TIMEOUT_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_NETWORK_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", int(PING_INTERVAL_S * 500)),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_connection_idle_ms", 120_000),  # of a client that went without a word: one that lives closes it
    ("grpc.so_reuseport", 0),  # a second allocator on the same port is an error
)


OpenChannel = Callable[[str], grpc.aio.Channel]
"""Opens a channel to a node by its address."""


def is_local(address: str) -> bool:
    """Return whether an address is that of a node of this machine; a tunnel's socket leads to another one."""
    return address.startswith("unix:") and not address.startswith(TUNNEL_SCHEME)


def is_deserted(address: str) -> bool:
    """Return whether nobody listens there: an allocator of this machine that is dead and was not started again."""
    if not is_local(address):
        return False
    path = address.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) in (errno.ECONNREFUSED, errno.ENOENT)


def has_place(address: str) -> bool:
    """Return whether the directory of a node of this machine is there, whoever listens: its allocator may start again.

    Example:
        >>> has_place("unix:/nowhere/node0/s/allocator")
        False
    """
    return os.path.isdir(os.path.dirname(address.removeprefix("unix:")))


def open_channel(address: str, identity: Identity | None = None) -> grpc.aio.Channel:
    """Return a channel to a node; it connects when first used and reconnects by itself.

    Args:
        address: `unix:/path`, or `host:port` or `unix:///path` of a node that shares an authority with `identity`.
        identity: who we are, for nodes of a network.
    """
    if is_local(address):
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, _credentials(address, identity), options=_options_for(identity))


def open_channel_to_node(address: str, identity: Identity | None) -> grpc.aio.Channel:
    """Return a channel from a node to another one, whose address somebody has named.

    A node of a network has no peers on Unix sockets: there it would call itself, or others of its machine, with all its
    rights. So it asks for TLS there, too, and gets no answer.
    """
    if identity is not None and is_local(address):
        address = f"{TUNNEL_SCHEME}{address.removeprefix('unix:')}"
    return open_channel(address, identity)


def open_blocking_channel(address: str, identity: Identity | None = None) -> grpc.Channel:
    """Return the same for calls without an event loop."""
    if is_local(address):
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, _credentials(address, identity), options=_options_for(identity))


def make_server() -> grpc.aio.Server:
    """Return a server without ports."""
    return grpc.aio.server(options=(*_OPTIONS, *_SERVER_OPTIONS))


def listen(server: grpc.aio.Server, address: str, newest_identity: Callable[[], Identity]) -> int:
    """Let a server listen on `host:port`: only for who has a certificate of the same authority.

    Args:
        newest_identity: asked at every handshake, so that a renewed certificate needs no restart.

    Returns:
        The port, chosen when it was 0.

    Raises:
        RuntimeError: nobody can listen there.
    """
    shown: list[Identity] = [newest_identity()]

    def renewed() -> Any:
        newest = newest_identity()
        if newest == shown[0]:
            return None
        shown[0] = newest
        return _certificates(newest)

    credentials = grpc.dynamic_ssl_server_credentials(
        _certificates(shown[0]), renewed, require_client_authentication=True
    )
    return server.add_secure_port(address, credentials)


def _certificates(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.key, identity.certificate)], root_certificates=identity.authority
    )


def _credentials(address: str, identity: Identity | None) -> grpc.ChannelCredentials:
    assert identity is not None, f"nobody talks to {address} without a certificate"
    return grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)


def _options_for(identity: Identity | None) -> tuple[tuple[str, Any], ...]:
    assert identity is not None
    # Certificates of nodes name the pool, not a host: they hold behind any name, address or tunnel.
    return (*_OPTIONS, *_NETWORK_OPTIONS, ("grpc.ssl_target_name_override", identity.target_name))

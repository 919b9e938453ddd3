"""Channels to allocators and the server they listen with: options in one place."""

import os

# gRPC's fork handlers print noise at every `!command` of a notebook; nothing here uses gRPC after a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),  # errors travel there, some with long tracebacks
    ("grpc.absolute_max_metadata_size", 1 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # how long connecting may take: a machine may be busy
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to `address` (`unix:/path`); it connects when first used and reconnects by itself."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def make_server() -> grpc.aio.Server:
    """Return a server without ports."""
    return grpc.aio.server(options=_OPTIONS)

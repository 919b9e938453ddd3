"""Channels between nodes."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from monarch_nb.rpc import channel


def test_a_node_of_a_network_calls_no_peer_on_a_unix_socket_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    secure = Mock()
    monkeypatch.setattr(channel.grpc.aio, "secure_channel", secure)
    monkeypatch.setattr(channel, "_credentials", Mock())
    channel.open_channel_to_node("unix:/run/monarch-nb/s/allocator", Mock(target_name="pool"))
    assert secure.call_args.args[0] == "unix:///run/monarch-nb/s/allocator"

"""Hosts that are called alike: a pool tells them apart by their addresses, people do not."""

from __future__ import annotations

from collections.abc import Iterable


def namesakes(nodes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the addresses of the nodes behind each name that several have.

    Args:
        nodes: name and address of each that answers; an address that stands there twice is one node.

    Example:
        >>> namesakes([("gpu1", "10.0.0.1:7878"), ("gpu1", "10.0.0.2:7878"), ("gpu2", "10.0.0.3:7878")])
        {'gpu1': ['10.0.0.1:7878', '10.0.0.2:7878']}
    """
    addresses: dict[str, dict[str, None]] = {}
    for name, address in nodes:
        addresses.setdefault(name, {})[address] = None
    return {name: list(found) for name, found in addresses.items() if len(found) > 1}


def warning(nodes: Iterable[tuple[str, str]]) -> str:
    """Return what there is to say of hosts that are called alike; empty when each has a name of its own."""
    return "\n".join(
        f"{len(addresses)} nodes are called {name} ({', '.join(addresses)}): start their allocators with "
        "--node-id, each with a name of its own"
        for name, addresses in namesakes(nodes).items()
    )


def same_node(nodes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the addresses that are one node's which has another address as well, each with the first one. Pure.

    Args:
        nodes: address and token of each that answers: one that no other allocator has.

    Example:
        >>> same_node([("host1:7878", "a"), ("10.0.0.1:7878", "a"), ("host2:7878", "b")])
        {'10.0.0.1:7878': 'host1:7878'}
    """
    first: dict[str, str] = {}
    return {address: there for address, token in nodes if (there := first.setdefault(token, address)) != address}


def told_apart(name: str, address: str) -> str:
    """Return what a node is called in messages when another one has its name."""
    return f"{name} at {address}"

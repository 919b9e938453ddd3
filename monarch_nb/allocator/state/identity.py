"""Who a node is, and what it offers: settled when its allocator starts."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_nb.proto import allocator_pb2 as pb


@dataclass(frozen=True)
class Identity:
    """One node, as clients are told of it.

    Attributes:
        node_id: "node0"; unique in the pool.
        gpus: those that it offers.
        python: the ranks', unless a mesh names another.
        store_host: the interface on which stores listen.
        isolated: it sees no files of clients, even when they are on this machine.
        token: another one after every start.
    """

    node_id: str
    gpus: list[pb.Gpu]
    python: str
    store_host: str
    isolated: bool
    token: str
